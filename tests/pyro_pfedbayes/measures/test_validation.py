"""Refusals name the row, whatever is wrong with it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.measures.scores import (
    accuracy,
    brier_score,
    expected_calibration_error,
    negative_log_likelihood,
)
from pyro_pfedbayes.measures.validation import labels, level_of, probabilities, same_length, vector
from tests.helpers import message as told

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("probs", "message"),
    [
        (torch.tensor([[0.5, 0.5], [NAN, 1.0]]), "probs are NaN at row 1"),
        (torch.tensor([[0.5, 0.5], [-0.1, 1.1]]), "row 1 lie outside"),
        (torch.tensor([[0.5, 0.5], [INF, 0.0]]), "row 1 lie outside"),
        (torch.tensor([[0.5, 0.4]]), "row 0 sum to 0.9;"),
        (torch.tensor([0.5, 0.5]), "not torch.float32 \\[2\\]"),
        (torch.zeros(2, 0), "C >= 1"),
        (torch.tensor([[1, 0]]), "floating-point"),
    ],
)
def test_what_are_no_probabilities(probs: Tensor, message: str) -> None:
    with pytest.raises(UserError, match=message):
        probabilities(probs)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_softmax_of_any_format_passes(dtype: torch.dtype) -> None:
    logits = 4 * torch.randn(500, 100, generator=torch.Generator().manual_seed(0))
    assert probabilities(logits.softmax(-1).to(dtype)).dtype == dtype
    assert probabilities(torch.zeros(0, 3)).shape == (0, 3)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (torch.tensor([0, 2]), "y is 2 at row 1; labels go from 0 to 1"),
        (torch.tensor([-1, 0]), "y is -1 at row 0 \\(unknown: leave it out\\)"),
        (torch.tensor([0]), "wanted one for 2 examples"),
        (torch.tensor([0.0, 1.0]), "integer labels"),
        (torch.tensor([True, False]), "integer labels"),
        (torch.tensor(0), "integer labels"),
    ],
)
def test_what_are_no_labels(y: Tensor, message: str) -> None:
    with pytest.raises(UserError, match=message):
        labels(y, torch.full((2, 2), 0.5))


def test_vectors() -> None:
    assert vector(torch.tensor([1, 2]), "x").dtype == torch.float64
    assert vector(torch.tensor([INF]), "x").item() == INF
    with pytest.raises(UserError, match="x is inf at row 1"):
        vector(torch.tensor([0.0, INF]), "x", finite=True)
    with pytest.raises(UserError, match=r"scores are NaN at row 0"):
        vector(torch.tensor([NAN]), "scores")
    with pytest.raises(UserError, match=r"\[n\], not torch.float32 \[1, 1\]"):
        vector(torch.ones(1, 1), "x")
    with pytest.raises(UserError, match="z has shape"):
        same_length(2, z=torch.tensor(1.0))


@pytest.mark.parametrize("level", [0.0, 1.0, 95, NAN, "0.9"])
def test_levels(level: float) -> None:
    with pytest.raises(UserError, match="between 0 and 1"):
        level_of(level)


@pytest.mark.parametrize(
    "measure",
    [accuracy, negative_log_likelihood, brier_score, expected_calibration_error],
)
def test_headline_measures_refuse_what_they_could_not_mean(measure: Callable[..., Tensor]) -> None:
    probs, y = torch.tensor([[0.9, 0.1], [0.2, 0.8]]), torch.tensor([0, 1])
    assert "sum to" in told(measure, 3 * probs / 3.3, y)
    assert "outside [0, 1]" in told(measure, 3 * probs, y)
    assert "labels go from 0 to 1" in told(measure, probs, torch.tensor([0, 2]))
    assert "wanted one for 2 examples" in told(measure, probs, y[:1])
    assert "NaN at row 1" in told(measure, probs.index_fill(0, torch.tensor([1]), torch.nan), y)
