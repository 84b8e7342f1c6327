"""Selective prediction against averages over every order that sorts the uncertainties."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.measures.selective import accuracy_at_coverage, aurc, excess_aurc, risk_coverage

PROPERTY = settings(max_examples=60, deadline=None, derandomize=True)
EXAMPLES = st.lists(
    st.tuples(st.sampled_from([0.0, 0.2, 0.7, math.inf]), st.sampled_from([0.0, 1.0, 0.25])),
    min_size=1,
    max_size=6,
)


def brute(examples: list[tuple[float, float]]) -> list[float]:
    """The mean risk at each coverage over all orders that are sorted by uncertainty."""
    n, curves = len(examples), []
    for order in itertools.permutations(range(n)):
        doubts = [examples[i][0] for i in order]
        if doubts == sorted(doubts):
            errors = [examples[i][1] for i in order]
            curves.append([sum(errors[: k + 1]) / (k + 1) for k in range(n)])
    return [sum(column) / len(curves) for column in zip(*curves, strict=True)]


@given(examples=EXAMPLES)
@PROPERTY
def test_the_curve_is_the_mean_over_all_orders_of_ties(examples: list[tuple[float, float]]) -> None:
    doubt, error = torch.tensor(examples).double().T
    curve, expected = risk_coverage(doubt, error), brute(examples)
    assert curve.risk.tolist() == pytest.approx(expected, abs=1e-12)
    assert curve.coverage.tolist() == pytest.approx(
        [(k + 1) / len(examples) for k in range(len(examples))]
    )
    assert aurc(doubt, error) == pytest.approx(sum(expected) / len(expected), abs=1e-12)


@given(examples=EXAMPLES, seed=st.integers(0, 1000))
@PROPERTY
def test_nothing_depends_on_the_order_of_the_data(
    examples: list[tuple[float, float]], seed: int
) -> None:
    table = torch.tensor(examples).double()
    other = table[torch.randperm(len(table), generator=torch.Generator().manual_seed(seed))]
    assert aurc(*table.T) == pytest.approx(aurc(*other.T), abs=1e-13)


@given(examples=EXAMPLES)
@PROPERTY
def test_no_order_beats_the_errors_own(examples: list[tuple[float, float]]) -> None:
    doubt, error = torch.tensor(examples).double().T
    areas = [
        sum(sum(order[: k + 1]) / (k + 1) for k in range(len(order))) / len(order)
        for order in itertools.permutations(error.tolist())
    ]
    assert aurc(error, error) == pytest.approx(min(areas), abs=1e-12)
    assert excess_aurc(doubt, error) == pytest.approx(aurc(doubt, error) - min(areas), abs=1e-12)


def test_uncertainty_that_says_nothing_leaves_the_error_rate_everywhere() -> None:
    error = torch.tensor([0.0, 0.0, 1.0, 0.0])
    assert risk_coverage(torch.ones(4), error).risk.tolist() == [0.25] * 4
    assert accuracy_at_coverage(torch.ones(4), 1 - error).tolist() == [0.75] * 3


def test_accuracy_at_coverage_takes_just_as_many_as_needed() -> None:
    doubt = torch.arange(10.0)
    right = torch.tensor([1, 1, 1, 1, 1, 1, 1, 0, 0, 0])
    shares = (0.05, 0.1, 0.7, 0.71, 0.8, 0.9, 1.0)
    expected = [1.0, 1.0, 1.0, 7 / 8, 7 / 8, 7 / 9, 0.7]
    assert accuracy_at_coverage(doubt, right, shares).tolist() == pytest.approx(expected)
    assert accuracy_at_coverage(doubt, right.bool(), (1.0,)).item() == pytest.approx(0.7)
    assert accuracy_at_coverage(doubt, right, ()).shape == (0,)


def test_a_share_of_n_is_not_rounded_up_by_rounding() -> None:
    """With k / n as the coverage, exactly k examples are taken."""
    for n in range(1, 200):
        right = torch.zeros(n)
        right[: n // 2] = 1  # accuracy at k examples is then known
        shares = [k / n for k in range(1, n + 1)]
        expected = [min(k, n // 2) / k for k in range(1, n + 1)]
        found = accuracy_at_coverage(torch.arange(float(n)), right, shares)
        assert found.tolist() == pytest.approx(expected), n


def test_none_one_all_right_all_wrong() -> None:
    none, one = torch.zeros(0), torch.ones(1)
    assert math.isnan(aurc(none, none))
    assert math.isnan(excess_aurc(none, none))
    assert bool(accuracy_at_coverage(none, none).isnan().all())
    assert risk_coverage(none, none).risk.shape == (0,)
    assert (aurc(one, one), excess_aurc(one, one)) == (1.0, 0.0)
    many = torch.arange(5.0)
    assert (aurc(many, torch.zeros(5)), excess_aurc(many, torch.zeros(5))) == (0.0, 0.0)
    assert (aurc(many, torch.ones(5)), excess_aurc(many, torch.ones(5))) == (1.0, 0.0)


def test_what_is_refused() -> None:
    two = torch.tensor([0.0, 1.0])
    with pytest.raises(UserError, match="uncertainty is NaN at row 1"):
        aurc(torch.tensor([0.0, float("nan")]), two)
    with pytest.raises(UserError, match="error is inf at row 1"):
        aurc(two, torch.tensor([0.0, math.inf]))
    with pytest.raises(UserError, match="error has shape"):
        risk_coverage(two, torch.zeros(3))
    with pytest.raises(UserError, match=r"right is 0\.5 at row 0"):
        accuracy_at_coverage(two, torch.tensor([0.5, 1.0]))
    for share in (0.0, 1.1, float("nan")):
        with pytest.raises(UserError, match="coverage"):
            accuracy_at_coverage(two, two, (share,))


@pytest.mark.cuda
def test_on_a_gpu() -> None:
    doubt, error = torch.tensor([0.1, 0.9, 0.5, 0.5]), torch.tensor([0.0, 1.0, 1.0, 0.0])
    assert aurc(doubt.cuda(), error.cuda()) == pytest.approx(aurc(doubt, error))
    assert accuracy_at_coverage(doubt.cuda(), error.cuda()).device.type == "cuda"
