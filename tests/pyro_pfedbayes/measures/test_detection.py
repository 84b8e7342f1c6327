"""Out-of-distribution measures against counting pairs and thresholds one by one, and against torchmetrics."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchmetrics.functional.classification import binary_auroc

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.measures.detection import auroc, fpr_at_tpr

PROPERTY = settings(max_examples=100, deadline=None, derandomize=True)
# Few different values, so that ties abound; and infinities.
SCORES = st.lists(
    st.sampled_from([-math.inf, -2.5, 0.0, 0.1, 3.0, math.inf]), min_size=1, max_size=12
)


def pairs(inside: list[float], outside: list[float]) -> float:
    won = [1.0 if o > i else 0.5 if o == i else 0.0 for i in inside for o in outside]
    return sum(won) / len(won)


def threshold(inside: list[float], outside: list[float], tpr: float, positive: str) -> float:
    """Try every threshold; among those that reach the TPR, the least FPR."""
    best = 1.0
    for t in {*inside, *outside}:
        if positive == "in":
            true, false = [s <= t for s in inside], [s <= t for s in outside]
        else:
            true, false = [s >= t for s in outside], [s >= t for s in inside]
        if sum(true) >= tpr * len(true) - 1e-9:
            best = min(best, sum(false) / len(false))
    return best


@given(inside=SCORES, outside=SCORES)
@PROPERTY
def test_auroc_counts_pairs(inside: list[float], outside: list[float]) -> None:
    found = auroc(torch.tensor(inside), torch.tensor(outside))
    assert found == pytest.approx(pairs(inside, outside), abs=1e-12)
    turned = auroc(torch.tensor(outside), torch.tensor(inside))
    assert found + turned == pytest.approx(1.0)


@given(
    inside=SCORES,
    outside=SCORES,
    tpr=st.sampled_from([0.25, 0.5, 0.9, 0.95, 1.0]),
    positive=st.sampled_from(["in", "out"]),
)
@PROPERTY
def test_fpr_tries_every_threshold(
    inside: list[float], outside: list[float], tpr: float, positive: str
) -> None:
    found = fpr_at_tpr(torch.tensor(inside), torch.tensor(outside), tpr, positive=positive)  # type: ignore[arg-type]
    assert found == pytest.approx(threshold(inside, outside, tpr, positive), abs=1e-12)


def scores() -> tuple[Tensor, Tensor]:
    stream = torch.Generator().manual_seed(0)
    return torch.randn(300, generator=stream), 1 + torch.randn(200, generator=stream)


def test_auroc_is_that_of_torchmetrics_on_scores_it_does_not_change() -> None:
    inside, outside = (s.sigmoid() for s in scores())
    truth = torch.cat([torch.zeros(300), torch.ones(200)]).long()
    theirs = binary_auroc(torch.cat([inside, outside]), truth)
    assert auroc(inside, outside) == pytest.approx(theirs.item(), abs=1e-6)


def test_only_the_order_counts() -> None:
    inside, outside = scores()
    assert auroc(inside, outside) == auroc(
        1e6 * inside.double().exp(), 1e6 * outside.double().exp()
    )
    assert fpr_at_tpr(inside, outside) == fpr_at_tpr(5 * inside + 1, 5 * outside + 1)


def test_two_shifted_normals_have_the_known_area() -> None:
    """Φ(1/√2) = 0.7602; the standard error at 20 000 each is 0.0024."""
    stream = torch.Generator().manual_seed(1)
    inside, outside = (
        torch.randn(20_000, generator=stream),
        1 + torch.randn(20_000, generator=stream),
    )
    assert auroc(inside, outside) == pytest.approx(0.5 * (1 + math.erf(0.5)), abs=0.01)


def test_both_conventions_and_a_tpr_that_rounding_misses() -> None:
    inside = torch.arange(20.0)
    assert fpr_at_tpr(inside, torch.tensor([18.0, 18.5]), 0.95) == 0.5  # 19 of 20: up to score 18
    assert fpr_at_tpr(inside, torch.tensor([18.0, 18.5]), 0.95, positive="out") == 0.1
    ten = torch.arange(10.0)
    assert fpr_at_tpr(ten, torch.tensor([8.5]), 0.9) == 0.0
    assert fpr_at_tpr(ten, ten, 0.7) == 0.7


def test_perfect_useless_and_empty() -> None:
    low, high, none = torch.zeros(3), torch.ones(4), torch.zeros(0)
    assert (auroc(low, high), fpr_at_tpr(low, high)) == (1.0, 0.0)
    assert (auroc(high, low), fpr_at_tpr(high, low)) == (0.0, 1.0)
    assert (auroc(low, low), fpr_at_tpr(low, low)) == (0.5, 1.0)
    for inside, outside in ((none, high), (low, none), (none, none)):
        assert math.isnan(auroc(inside, outside))
        assert math.isnan(fpr_at_tpr(inside, outside))


def test_what_is_refused() -> None:
    good = torch.ones(2)
    with pytest.raises(UserError, match="scores_out is NaN at row 1"):
        auroc(good, torch.tensor([0.0, float("nan")]))
    with pytest.raises(UserError, match="scores_in"):
        fpr_at_tpr(torch.ones(2, 2), good)
    for tpr in (0.0, 1.5, float("nan")):
        with pytest.raises(UserError, match="tpr"):
            fpr_at_tpr(good, good, tpr)
    with pytest.raises(UserError, match="'in' or 'out'"):
        fpr_at_tpr(good, good, positive="ood")  # type: ignore[arg-type]


@pytest.mark.cuda
def test_on_a_gpu() -> None:
    inside, outside = scores()
    assert auroc(inside.cuda(), outside.cuda()) == auroc(inside, outside)
