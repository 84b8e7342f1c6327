"""The registry: what each example adds to a measure has that measure as its mean."""

from __future__ import annotations

import pytest
import torch

from pyro_pfedbayes.measures.registry import MEASURES, SUMMARIZED, class_scores
from pyro_pfedbayes.measures.resampling import bootstrap
from pyro_pfedbayes.measures.scores import accuracy, brier_score, negative_log_likelihood


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_class_scores_are_the_parts_of_means(dtype: torch.dtype) -> None:
    stream = torch.Generator().manual_seed(0)
    wide = (2 * torch.randn(200, 3, generator=stream)).softmax(-1)
    y = torch.multinomial(wide, 1, generator=stream)[:, 0]
    client = torch.randint(5, (200,), generator=stream)
    probs = wide.to(dtype)
    probs[0] = torch.tensor([1.0, 0.0, 0.0])
    y[0] = 1  # certain and wrong
    scores = class_scores(probs, y)
    for name, measure in (
        ("accuracy", accuracy),
        ("nll", negative_log_likelihood),
        ("brier", brier_score),
    ):
        assert scores[name].mean().item() == pytest.approx(measure(probs, y).item(), abs=1e-6)
        estimate = bootstrap(scores[name], client, resamples=10).estimate
        assert estimate == pytest.approx(measure(probs, y).item(), abs=1e-6)


def test_what_summaries_hold_is_declared() -> None:
    for names in SUMMARIZED.values():
        assert set(names) <= set(MEASURES)
        assert MEASURES[names[0]].better is not None
