"""Scores of predicted numbers against pairs one by one, integrals, torchmetrics and exact probabilities."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats
from torch import Tensor
from torchmetrics.functional.regression import continuous_ranked_probability_score

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.measures import interval_scores as number_scores
from pyro_pfedbayes.measures.interval_scores import (
    central_interval,
    crps,
    inside_from_ranks,
    interval_report,
    pit_from_ranks,
    pit_values,
)
from tests.pyro_pfedbayes.measures.gaussian_crps import crps_gaussian_mixture

PROPERTY = settings(max_examples=60, deadline=None, derandomize=True)
NUMBERS = st.lists(st.sampled_from([-3.0, 0.0, 0.5, 1.0, 7.0]), min_size=1, max_size=7)


def sample(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# --- CRPS


@given(draws=NUMBERS, y=st.sampled_from([-5.0, 0.0, 0.75, 7.0]), fair=st.booleans())
@PROPERTY
def test_crps_by_pairs(draws: list[float], y: float, fair: bool) -> None:
    k = len(draws)
    pairs = sum(abs(a - b) for a in draws for b in draws)
    found = crps(torch.tensor(draws)[:, None], torch.tensor([y]), fair=fair).item()
    if fair and k == 1:
        assert math.isnan(found)
        return
    expected = sum(abs(d - y) for d in draws) / k - pairs / (2 * (k * (k - 1) if fair else k * k))
    assert found == pytest.approx(expected, abs=1e-12)


def test_the_plain_crps_is_the_integral_of_its_definition_and_torchmetrics_mean() -> None:
    draws, y = sample(6, 5), sample(5, seed=1)
    for i in range(5):
        ordered = np.sort(draws[:, i].numpy())
        truth = y[i].item()
        knots = np.sort(np.append(ordered, truth))
        heights = [
            (np.mean(ordered <= (a + b) / 2) - ((a + b) / 2 >= truth)) ** 2 * (b - a)
            for a, b in itertools.pairwise(knots)
        ]
        assert crps(draws, y, fair=False)[i].item() == pytest.approx(sum(heights))
    theirs = continuous_ranked_probability_score(draws.T, y)
    assert crps(draws, y, fair=False).mean().item() == pytest.approx(theirs.item())


def test_fair_is_unbiased_from_few_draws_and_plain_is_not() -> None:
    """Of N(0, 1) at y = 0.3, over 100 000 sets of 3 draws; standard error about 0.0013."""
    draws, truth = sample(3, 100_000), torch.full((100_000,), 0.3)
    one = torch.ones(1, 1)
    exact = crps_gaussian_mixture(0 * one, one, torch.tensor([0.3])).item()
    fair = crps(draws, truth)
    assert fair.mean().item() == pytest.approx(exact, abs=5 * fair.std().item() / math.sqrt(1e5))
    bias = 2 / math.sqrt(math.pi) / (2 * 3)  # E|x - x'| / (2 K)
    assert crps(draws, truth, fair=False).mean().item() == pytest.approx(exact + bias, abs=0.01)


def test_a_far_level_costs_no_digits() -> None:
    draws, y = sample(9, 4), sample(4, seed=1)
    shifted = crps(draws + 2.0**40, y + 2.0**40)
    exact = crps((draws + 2.0**40) - 2.0**40, (y + 2.0**40) - 2.0**40)
    torch.testing.assert_close(shifted, exact, atol=1e-12, rtol=0)


@pytest.mark.parametrize(
    ("loc", "scale"), [([0.0], [1.0]), ([0.0, 3.0, 3.5], [1.0, 0.2, 2.0]), ([1.0, 2.0], [0.5, 0.5])]
)
def test_the_mixtures_crps_is_its_integral(loc: list[float], scale: list[float]) -> None:
    for y in (-2.0, 0.4, 3.0):

        def cdf(x: float) -> float:
            return float(np.mean(stats.norm.cdf(x, loc, scale)))

        left = integrate.quad(lambda x: cdf(x) ** 2, -25, y, limit=200)[0]
        right = integrate.quad(lambda x: (1 - cdf(x)) ** 2, y, 30, limit=200)[0]
        found = crps_gaussian_mixture(
            torch.tensor(loc)[:, None].double(),
            torch.tensor(scale)[:, None].double(),
            torch.tensor([y]).double(),
        )
        assert found.item() == pytest.approx(left + right, abs=1e-7)


def test_points_without_width_are_draws() -> None:
    draws, y = sample(5, 8), sample(8, seed=1)
    torch.testing.assert_close(
        crps_gaussian_mixture(draws, torch.zeros_like(draws), y), crps(draws, y, fair=False)
    )
    one = draws[:1]
    torch.testing.assert_close(crps_gaussian_mixture(one, 0 * one, y), (one[0] - y).abs())


# --- Intervals


@pytest.mark.parametrize(("k", "level"), [(19, 0.9), (39, 0.95), (9, 0.6), (3, 0.5)])
def test_coverage_of_exchangeable_outcomes_is_exact(k: int, level: float) -> None:
    """By symmetry: of K + 1 exchangeable numbers each is equally likely to be the outcome, so try each."""
    numbers = sample(k + 1)
    draws = torch.stack([torch.cat([numbers[:i], numbers[i + 1 :]]) for i in range(k + 1)], 1)
    report = interval_report(draws, numbers, (level,))
    assert report.coverage.item() == pytest.approx(level)


def test_interval_ends_interpolate_between_draws() -> None:
    draws = torch.tensor([5.0, 1.0, 4.0, 2.0, 3.0])[:, None] / 2
    lower, upper = central_interval(draws, 0.5)  # places 1.5 and 4.5
    assert (lower.item(), upper.item()) == (0.75, 2.25)
    expected = np.quantile(draws[:, 0], [0.2, 0.8], method="weibull")
    lower, upper = central_interval(draws, 0.6)
    assert [lower.item(), upper.item()] == pytest.approx(expected.tolist())


def test_intervals_of_counts_end_at_counts_and_hold_their_level() -> None:
    """Places 1.5 and 4.5 of 0 0 1 3 7: between 0 and 3.5, where counts end at 0 and 7."""
    draws = torch.tensor([7, 0, 3, 1, 0])
    for counts in (draws[:, None], draws[:, None].float()):
        lower, upper = central_interval(counts, 0.5)
        assert (lower.item(), upper.item()) == (0.0, 7.0)
        shifted = [end.item() for end in central_interval(counts + 0.5, 0.5)]
        assert shifted == [0.5, 5.5]
    # At place 2 of 9 is a draw itself: nothing to round.
    nine = torch.tensor([4, 1, 9, 1, 5, 9, 2, 6, 5])[:, None]
    assert [end.item() for end in central_interval(nine, 0.6)] == [1.0, 9.0]
    # Of eight draws the places are 1.8 and 7.2, so the ends are the smallest and the largest draw. With each of the
    # nine as the outcome in turn only those that are the only smallest or largest could fall outside: none here.
    turns = torch.stack([torch.cat([nine[:i, 0], nine[i + 1 :, 0]]) for i in range(9)], 1)
    assert interval_report(turns, nine[:, 0], (0.6,)).coverage.item() == 1.0
    assert interval_report(turns + 0.5, nine[:, 0] + 0.5, (0.6,)).coverage.item() < 1.0


@given(k=st.integers(1, 60), level=st.floats(0.01, 0.99))
@PROPERTY
def test_interval_ends_are_numpys_weibull_quantiles_or_not_defined(k: int, level: float) -> None:
    draws = sample(k, 3)
    lower, upper = central_interval(draws, level)
    if (k + 1) * (1 - level) / 2 < 1 - 1e-9:
        assert bool(lower.isnan().all())
        assert bool(upper.isnan().all())
        return
    expected = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2], axis=0, method="weibull")
    assert lower.numpy() == pytest.approx(expected[0], abs=1e-8)
    assert upper.numpy() == pytest.approx(expected[1], abs=1e-8)


def test_report_over_levels() -> None:
    draws, y = sample(199, 5000), sample(5000, seed=1)
    report = interval_report(draws, y)
    assert report.level.tolist() == [0.5, 0.8, 0.9, 0.95]
    for level, coverage, width in zip(report.level, report.coverage, report.width, strict=True):
        q = level.item()
        assert coverage.item() == pytest.approx(
            q, abs=4 * math.sqrt(q * (1 - q) * (1 / 5000 + 1 / 5000))
        )
        assert width.item() == pytest.approx(2 * stats.norm.ppf((1 + q) / 2), rel=0.02)
    narrow = interval_report(0.5 * draws, y)
    assert bool((narrow.coverage < report.coverage - 0.1).all())
    torch.testing.assert_close(narrow.width, 0.5 * report.width)


def test_too_few_draws_for_a_level_are_no_coverage_of_zero() -> None:
    report = interval_report(sample(10, 20), sample(20, seed=1), (0.5, 0.95))
    assert report.coverage.isnan().tolist() == [False, True]
    assert report.width.isnan().tolist() == [False, True]


def test_ends_count_as_inside() -> None:
    draws = torch.tensor([0, 0, 1, 1, 2])[:, None].expand(5, 2)
    assert interval_report(draws, torch.tensor([0, 2]), (2 / 3,)).coverage.item() == 1.0


# --- PIT


def test_pit_is_uniform_for_counts_from_few_draws() -> None:
    stream = np.random.default_rng(0)
    counts = torch.as_tensor(stream.poisson(1.3, size=(5, 20_000)))
    pit = pit_values(counts[:4], counts[4], seed=0).numpy()
    assert stats.kstest(pit, "uniform").pvalue > 0.01
    wide = pit_values(counts[:4], torch.ones(20_000), seed=0).numpy()
    assert stats.kstest(wide, "uniform").pvalue < 1e-6


def test_pit_lies_within_the_step_of_the_rank() -> None:
    draws = torch.tensor([1.0, 2.0, 2.0, 4.0])[:, None].expand(4, 3000)
    for y, low, high in ((0.0, 0.0, 0.2), (2.0, 0.2, 0.8), (3.0, 0.6, 0.8), (9.0, 0.8, 1.0)):
        pit = pit_values(draws, torch.full((3000,), y), seed=3)
        assert low <= pit.min().item() < low + 0.01
        assert high - 0.01 < pit.max().item() <= high
    twos = torch.full((3000,), 2.0)
    first = pit_values(draws, twos, seed=3)
    assert torch.equal(first, pit_values(draws, twos, seed=3))
    assert not torch.equal(first, pit_values(draws, twos, seed=4))


@pytest.mark.parametrize("counts", [False, True])
def test_ranks_alone_give_pit_and_coverage(counts: bool) -> None:
    draws, y = 3 * sample(39, 200), 3 * sample(200, seed=1)
    if counts:
        draws, y = draws.round(), y.round()
    below, equal = (draws < y).sum(0), (draws == y).sum(0)
    assert torch.equal(pit_from_ranks(below, equal, 39, seed=5), pit_values(draws, y, seed=5))
    # Places 1 and 39, 4 and 36, 14 and 26; of counts also 13.33 and 26.67, rounded outward.
    for level in (0.95, 0.8, 0.3, *([1 / 3] if counts else [])):
        inside = inside_from_ranks(below, equal, 39, level)
        assert inside.mean().item() == interval_report(draws, y, (level,)).coverage.item()
    assert bool(inside_from_ranks(below, equal, 39, 0.99).isnan().all())
    lost = torch.full((200,), float("nan"))
    assert bool(pit_from_ranks(lost, equal, 39, seed=5).isnan().all())
    assert bool(inside_from_ranks(lost, equal, 39, 0.8).isnan().all())


# --- Edges and refusals


def test_blocks_do_not_change_a_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    draws, y = sample(21, 50), sample(50, seed=1)
    whole = [crps(draws, y), pit_values(draws, y, seed=0), interval_report(draws, y).coverage]
    monkeypatch.setattr(number_scores, "_BLOCK", 100)
    parts = [crps(draws, y), pit_values(draws, y, seed=0), interval_report(draws, y).coverage]
    for a, b in zip(whole, parts, strict=True):
        torch.testing.assert_close(a, b, atol=1e-15, rtol=1e-15, equal_nan=True)


def test_no_examples() -> None:
    draws, y = torch.zeros(30, 0), torch.zeros(0)
    assert crps(draws, y).shape == pit_values(draws, y, seed=0).shape == (0,)
    assert crps_gaussian_mixture(draws, draws, y).shape == (0,)
    report = interval_report(draws, y)
    assert bool(report.coverage.isnan().all())
    assert bool(report.width.isnan().all())
    assert interval_report(sample(5, 2), torch.zeros(2), ()).level.shape == (0,)


def test_what_is_refused() -> None:
    draws, y = sample(4, 3), sample(3)
    broken = draws.clone()
    broken[2, 1] = float("nan")
    for score in (crps, interval_report, lambda d, t: pit_values(d, t, seed=0)):
        with pytest.raises(UserError, match="draws are NaN or infinite at row 1"):
            score(broken, y)
        with pytest.raises(UserError, match="y has shape"):
            score(draws, y[:2])
        with pytest.raises(UserError, match="y is NaN at row 0"):
            score(draws, torch.full((3,), float("nan")))
        with pytest.raises(UserError, match="no draws"):
            score(draws[:0], y)
        with pytest.raises(UserError, match=r"\[K, n\]"):
            score(draws[0], y)
    for level in (0.0, 1.0, 90):
        with pytest.raises(UserError, match="level"):
            central_interval(draws, level)


@pytest.mark.cuda
def test_on_a_gpu() -> None:
    draws, y = sample(40, 30), sample(30, seed=1)
    torch.testing.assert_close(crps(draws.cuda(), y.cuda()).cpu(), crps(draws, y))
    found, here = interval_report(draws.cuda(), y.cuda()), interval_report(draws, y)
    torch.testing.assert_close(found.coverage.cpu(), here.coverage)
    assert pit_values(draws.cuda(), y.cuda(), seed=0).device.type == "cuda"
