"""Intervals from sums over cells: each resample is what the measure itself would say of the same examples."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_pfedbayes.experiments.reports.statistics.bootstrap_cells import (
    calibration_part,
    classwise_part,
    detection_part,
    means_part,
    selective_part,
)
from pyro_pfedbayes.experiments.reports.statistics.intervals import (
    Part,
    drawn_over,
    interval_ends,
    shifted,
)
from pyro_pfedbayes.experiments.reports.statistics.resampled_sums import (
    Column,
    ordered_cells,
    plain_sums,
    resampled_sums,
)
from pyro_pfedbayes.measures.calibration import (
    adaptive_calibration_error,
    classwise_calibration_error,
    reliability_curve,
)
from pyro_pfedbayes.measures.detection import auroc, fpr_at_tpr
from pyro_pfedbayes.measures.resampling import bootstrap
from pyro_pfedbayes.measures.scores import expected_calibration_error
from pyro_pfedbayes.measures.selective import accuracy_at_coverage, aurc, excess_aurc

Array = NDArray[np.float64]
SHARES = (0.8, 0.9, 0.95)
OVERS = ("examples", "clients", "both")


def predictions(n: int, seed: int = 0, digits: int = 2) -> tuple[Tensor, Tensor, Array]:
    """Probabilities with ties, labels and owners (clients of unequal size)."""
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(3, 0.5), n)
    p = np.round(p, digits)
    p[:, 2] = 1 - p[:, 0] - p[:, 1]
    y = np.where(rng.random(n) < 0.7, p.argmax(1), rng.integers(0, 3, n))
    owner = np.sort(rng.integers(0, 6, n)) * 3
    return torch.from_numpy(np.clip(p, 0, 1)).float(), torch.from_numpy(y), owner


def parts_of(p: Tensor, y: Tensor) -> list[Part]:
    doubt, wrong = 1 - p.double().amax(1), (p.argmax(1) != y).double()
    return [
        calibration_part(p, y, 5),
        classwise_part(p, y, 5),
        selective_part(doubt, wrong, SHARES),
        means_part([wrong, doubt]),
    ]


def by_the_measures_themselves(p: Tensor, y: Tensor) -> list[list[float]]:
    doubt, right = 1 - p.double().amax(1), (p.argmax(1) == y).double()
    error = 1 - right
    at = [1 - value for value in accuracy_at_coverage(doubt, right, SHARES).tolist()]
    return [
        [reliability_curve(p, y, 5).error, adaptive_calibration_error(p, y, 5)],
        [classwise_calibration_error(p, y, 5)],
        [aurc(doubt, error), excess_aurc(doubt, error), *at],
        [float(error.mean()), float(doubt.mean())],
    ]


@pytest.mark.parametrize("over", OVERS)
def test_a_resample_is_what_the_measures_say_of_its_examples(over: str) -> None:
    """The draws of each example are counted in a column of its own, and the measures called on the repeated rows."""
    p, y, owner = predictions(120)
    parts = parts_of(p, y)
    each = Column(np.arange(120), np.ones(120), 120)
    columns = [each, *(column for part in parts for column in part.columns)]
    times, *sums = resampled_sums(columns, owner, over, resamples=20, seed=3)  # type: ignore[arg-type]
    start, found = 0, []
    for part in parts:
        found.append(part.measured(sums[start : start + len(part.columns)]))
        start += len(part.columns)
    for number in range(20):
        rows = torch.arange(120).repeat_interleave(torch.from_numpy(times[number]).long())
        wanted = by_the_measures_themselves(p[rows], y[rows])
        for measured, values in zip(found, wanted, strict=True):
            assert measured[number] == pytest.approx(values, abs=1e-6)


def test_the_plain_sums_give_the_measures_of_the_examples_as_they_are() -> None:
    p, y, _ = predictions(200, seed=1)
    for part, values in zip(parts_of(p, y), by_the_measures_themselves(p, y), strict=True):
        assert part.measured(plain_sums(part.columns))[0] == pytest.approx(values, abs=1e-6)
    assert expected_calibration_error(p, y, 5) == pytest.approx(
        reliability_curve(p, y, 5).error, abs=1e-6
    )


@pytest.mark.parametrize("over", OVERS)
def test_detection_is_that_of_ood_on_the_same_examples(over: str) -> None:
    rng = np.random.default_rng(2)
    inside = torch.from_numpy(rng.normal(0, 1, 60).round(1))
    outside = torch.from_numpy(rng.normal(1, 1, 30).round(1))
    owner = np.concatenate([np.repeat([0, 1, 2], 20), np.repeat([2, 0, 1], 10)])
    side = np.repeat([0, 1], [60, 30])
    part = detection_part(inside, outside)
    each = Column(np.arange(90), np.ones(90), 90)
    times, *sums = resampled_sums(
        [each, *part.columns],
        owner,
        over,  # type: ignore[arg-type]
        side=side,
        resamples=20,
    )
    scores = torch.cat([inside, outside])
    for number, measured in enumerate(part.measured(sums)):
        rows = torch.arange(90).repeat_interleave(torch.from_numpy(times[number]).long())
        own, out = scores[rows[rows < 60]], scores[rows[rows >= 60]]
        assert measured.tolist() == pytest.approx([auroc(own, out), fpr_at_tpr(own, out)])
        # A client brings as many from inside and outside as it has, or twice, or thrice …
        for client in range(3):
            first, other = (times[number][(owner == client) & (side == s)].sum() for s in (0, 1))
            assert first / 20 == other / 10


def test_clients_come_whole_and_examples_do_not() -> None:
    owner = np.repeat([4, 7], [2, 3])
    each = [Column(np.arange(5), np.ones(5), 5)]
    (times,) = resampled_sums(each, owner, "clients", resamples=50)
    assert {tuple(row) for row in times} == {(2, 2, 0, 0, 0), (1, 1, 1, 1, 1), (0, 0, 2, 2, 2)}
    (times,) = resampled_sums(each, owner, "examples", resamples=50)
    assert (times[:, :2].sum(1) == 2).all()
    assert (times[:, 2:].sum(1) == 3).all()
    assert len({tuple(row) for row in times}) > 10


@pytest.mark.parametrize("clients", [1, 12])
def test_intervals_of_means_agree_with_the_bootstrap(clients: int) -> None:
    """The same interval from other random numbers: ends differ by less than a tenth of its width."""
    rng = np.random.default_rng(4)
    owner = np.repeat(np.arange(clients), 40)
    values = torch.from_numpy(rng.normal(owner / 6, 1.0))
    whose = torch.from_numpy(owner)
    ((ends,),) = interval_ends([means_part([values])], owner)
    found = shifted(float(values.mean()), ends)
    wanted = bootstrap(values, whose, over=drawn_over(whose))
    width = wanted.upper - wanted.lower
    assert found.lower == pytest.approx(wanted.lower, abs=0.1 * width)
    assert found.upper == pytest.approx(wanted.upper, abs=0.1 * width)


def test_intervals_of_calibration_errors_hold_the_value() -> None:
    """Of a perfectly calibrated model resamples have larger errors; the interval does not move away with them."""
    rng = np.random.default_rng(5)
    p = torch.from_numpy(rng.dirichlet(np.ones(3), 300)).float()
    y = torch.multinomial(p, 1, generator=torch.Generator().manual_seed(0))[:, 0]
    owner = np.repeat(np.arange(10), 30)
    part = calibration_part(p, y, 15)
    drawn = resampled_sums(part.columns, owner, "both", resamples=300)
    value = expected_calibration_error(p, y)
    assert np.median(part.measured(drawn)[:, 0]) > 1.1 * value
    ends, _ = interval_ends([part], owner)[0]
    # Told from the resamples' mean, not from the value: the 25th from either end of a thousand.
    errors = np.sort(
        part.measured(resampled_sums(part.columns, owner, "both", resamples=1_000))[:, 0]
    )
    assert ends == pytest.approx((errors[24] - errors.mean(), errors[975] - errors.mean()))
    found = shifted(float(value), ends, least=0.0)
    assert 0 <= found.lower < found.value < found.upper


def test_very_many_scores_share_cells_and_ties_stay_together() -> None:
    scores = np.concatenate([np.random.default_rng(6).random(50_000), np.full(20_000, 0.5)])
    cell, cells = ordered_cells(scores, most=100)
    assert cells <= 100
    assert len(np.unique(cell[50_000:])) == 1
    order = np.argsort(scores, kind="stable")
    assert (np.diff(cell[order]) >= 0).all()
    assert np.bincount(cell[:50_000]).max() < 1_500
    exact, many = ordered_cells(scores[:1_000])
    assert many == 1_000
    assert np.array_equal(exact.argsort(), scores[:1_000].argsort())


def test_coarse_cells_hardly_change_an_interval() -> None:
    rng = np.random.default_rng(7)
    doubt = torch.from_numpy(rng.random(6_000))
    wrong = torch.from_numpy((rng.random(6_000) < doubt.numpy() ** 2).astype(float))
    owner = np.repeat(np.arange(30), 200)
    fine = interval_ends([selective_part(doubt, wrong, SHARES)], owner)[0]
    coarse = torch.from_numpy(ordered_cells(doubt.numpy(), 500)[0].astype(float))
    rough = interval_ends([selective_part(coarse, wrong, SHARES)], owner)[0]
    for one, other in zip(fine, rough, strict=True):
        assert other == pytest.approx(one, abs=0.03 * (one[1] - one[0]))


def test_nothing_to_draw_has_no_interval() -> None:
    p, y, _ = predictions(1)
    for count in (0, 1):
        owner = np.zeros(count, np.int64)
        for ends in interval_ends(parts_of(p[:count], y[:count]), owner):
            assert all(math.isnan(end) for pair in ends for end in pair)
    ends = interval_ends(parts_of(p.repeat(4, 1), y.repeat(4)), np.zeros(4, np.int64))
    assert ends[0][0] == pytest.approx((0, 0), abs=1e-6)


def test_the_same_call_gives_the_same_interval() -> None:
    p, y, owner = predictions(90, seed=8)
    assert interval_ends(parts_of(p, y), owner) == interval_ends(parts_of(p, y), owner)
