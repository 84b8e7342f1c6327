"""Running posterior predictives: exact on small numbers, right on average where outcomes are drawn."""

from __future__ import annotations

import math

import pyro.distributions as dist
import pytest
import torch

from pyro_pfedbayes.inference.predictive.accumulators import (
    ClassAccumulator,
    NumberAccumulator,
    NumberSummary,
    draw_outcomes,
    number_draw,
    samples_for,
)
from pyro_pfedbayes.measures.interval_scores import crps
from tests.helpers import message


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def summed(
    draws: list[dist.TorchDistribution], y: torch.Tensor, samples: int = 1, seed: int = 0
) -> NumberSummary:
    running = NumberAccumulator(y, stream(seed), samples)
    for draw in draws:
        running.add(draw)
    return running.result()


def test_classes_are_averaged_and_the_first_draw_is_left_alone() -> None:
    draws = torch.rand(5, 7, 3, generator=stream()).softmax(-1)
    kept = draws.clone()
    running = ClassAccumulator()
    for probs in draws:
        running.add(probs)
    found = running.result()
    torch.testing.assert_close(found.probs, draws.mean(0))
    entropy = torch.distributions.Categorical(probs=draws).entropy().mean(0)
    torch.testing.assert_close(found.aleatoric, entropy)
    assert torch.equal(draws, kept)


def test_moments_and_density_are_those_of_the_mixture_of_draws() -> None:
    mean, scale = (
        torch.randn(6, 4, generator=stream(1)),
        0.5 + torch.rand(6, 4, generator=stream(2)),
    )
    y = torch.tensor([0.3, -2.0, 30.0, 0.0])
    found = summed([dist.Normal(m, s) for m, s in zip(mean, scale, strict=True)], y)
    torch.testing.assert_close(found.mean, mean.mean(0))
    torch.testing.assert_close(found.aleatoric, scale.square().mean(0))
    torch.testing.assert_close(found.epistemic, mean.var(0, correction=0))
    mixture = torch.distributions.MixtureSameFamily(
        torch.distributions.Categorical(logits=torch.zeros(4, 6)),
        torch.distributions.Normal(mean.T, scale.T),
    )
    # Also far out, where each density alone is 0 in float32.
    torch.testing.assert_close(found.log_density, mixture.log_prob(y))
    torch.testing.assert_close(found.aleatoric + found.epistemic, mixture.variance)


def test_a_small_spread_on_a_large_mean_is_not_lost() -> None:
    means = (1e6, 1e6 + 0.25, 1e6 + 0.5)
    found = summed([dist.Normal(torch.tensor([m]), 1.0) for m in means], torch.zeros(1))
    assert float(found.epistemic) == pytest.approx(0.25**2 * 2 / 3, rel=1e-6)


def test_counts_are_numbers_too() -> None:
    rates = torch.tensor([2.0, 5.0])
    found = summed([dist.Poisson(rates), dist.Poisson(rates + 2)], torch.tensor([3.0, torch.nan]))
    assert found.mean.tolist() == [3.0, 6.0]
    assert found.aleatoric.tolist() == [3.0, 6.0]
    assert found.epistemic.tolist() == [1.0, 1.0]
    density = (math.exp(-2) * 2**3 / 6 + math.exp(-4) * 4**3 / 6) / 2
    assert float(found.log_density[0]) == pytest.approx(math.log(density), rel=1e-5)
    assert math.isnan(float(found.log_density[1]))


@pytest.mark.parametrize(
    ("df", "mean", "variance"), [(2.0, 0.0, math.inf), (1.0, math.nan, math.nan)]
)
def test_moments_that_do_not_exist_are_inf_or_nan(df: float, mean: float, variance: float) -> None:
    draws = [dist.StudentT(torch.tensor([df]), 0.0, 1.0)] * 3
    found = summed(draws, torch.zeros(1))
    assert float(found.mean) == pytest.approx(mean, nan_ok=True)
    assert float(found.aleatoric) == pytest.approx(variance, nan_ok=True)
    assert math.isfinite(float(found.log_density))
    assert float(found.lower) <= float(found.upper)


def test_a_distribution_that_knows_no_moments_has_none() -> None:
    class Silent(dist.Normal):  # type: ignore[misc]
        @property
        def variance(self) -> torch.Tensor:
            raise NotImplementedError

    found = summed([Silent(torch.zeros(2), torch.ones(2))], torch.zeros(2))
    assert found.mean.tolist() == [0.0, 0.0]
    assert found.aleatoric.isnan().all()


@pytest.mark.parametrize(("draws", "samples"), [(19, 1), (20, 2), (200, 1)])
def test_intervals_cover_nine_in_ten(draws: int, samples: int) -> None:
    """Of 40,000 outcomes: within 4 standard errors; ends at the 5 % and 95 % of K drawn ones cover less."""
    n = 40_000
    y = torch.randn(n, generator=stream(3))
    normal = dist.Normal(torch.zeros(n), torch.ones(n))
    found = summed([normal] * draws, y, samples, seed=4)
    inside = (found.lower <= y) & (y <= found.upper)
    # Each example has ends of its own, so coverages are independent coin tosses.
    assert float(inside.double().mean()) == pytest.approx(0.9, abs=4 * math.sqrt(0.09 / n))
    assert samples_for(draws) * draws >= 38


def test_intervals_follow_the_spread_between_draws() -> None:
    """Draws that disagree by 20 standard deviations: the interval spans both."""
    draws = [dist.Normal(torch.full((1,), m), torch.ones(1)) for m in (-10.0, 10.0)] * 30
    found = summed(draws, torch.zeros(1))
    assert float(found.lower) < -9.0
    assert float(found.upper) > 9.0


def test_intervals_of_counts_end_at_counts_and_cover_at_least_nine_in_ten() -> None:
    n = 20_000
    rate = torch.full((n,), 2.5)
    y = torch.poisson(rate, generator=stream(3))
    found = summed([dist.Poisson(rate)] * 30, y, 1, seed=4)
    for end in (found.lower, found.upper):
        assert torch.equal(end, end.round())
    assert float(((found.lower <= y) & (y <= found.upper)).double().mean()) >= 0.9
    # Of 30 draws the places are 1.55 and 29.45: the first and the last.
    draws = torch.cat(
        [draw_outcomes(dist.Poisson(rate), s) for s in [stream(4)] for _ in range(30)]
    )
    assert torch.equal(found.lower, draws.amin(0))
    assert torch.equal(found.upper, draws.amax(0))

    # The same numbers as outcomes that are no counts end between two draws.
    class Smooth(dist.Poisson):  # type: ignore[misc]
        support = dist.constraints.real

    smooth = summed([Smooth(rate)] * 30, y, 1, seed=4)
    inner = draws.sort(0).values[1]
    torch.testing.assert_close(smooth.lower, found.lower + 0.55 * (inner - found.lower))


def test_crps_by_pairs_of_different_draws() -> None:
    mean = torch.randn(6, 4, generator=stream(1))
    y = torch.tensor([0.3, torch.nan, 30.0, 0.0])
    for samples in (1, 3):
        draws = [dist.Normal(m, 0.5) for m in mean]
        found = summed(draws, y, samples, seed=2)
        same = stream(2)
        drawn = torch.stack([draw_outcomes(draw, same, samples) for draw in draws]).double()
        pairs = torch.stack(
            [
                (drawn[i][:, None] - drawn[j][None]).abs().mean((0, 1))
                for i in range(6)
                for j in range(6)
                if i != j
            ]
        )
        exact = (drawn - y).abs().mean((0, 1)) - pairs.mean(0) / 2
        torch.testing.assert_close(found.crps, exact.float(), equal_nan=True)
    alone = summed([dist.Normal(mean[0], 0.5)], y, 200)
    one = draw_outcomes(dist.Normal(mean[0], 0.5), stream(0), 200)
    known = ~y.isnan()
    torch.testing.assert_close(alone.crps[known], crps(one[:, known], y[known]).float())
    assert summed([dist.Normal(mean[0], 0.5)], y, 1).crps.isnan().all()


def test_outcomes_depend_on_the_stream_alone_and_leave_the_global_one() -> None:
    normal = dist.Normal(torch.zeros(5), torch.ones(5))
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = draw_outcomes(normal, stream(7), 3)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert torch.equal(draw_outcomes(normal, stream(7), 3), first)
    assert not torch.equal(draw_outcomes(normal, stream(8), 3), first)
    assert first.shape == (3, 5)
    one = stream(7)
    assert not torch.equal(draw_outcomes(normal, one, 3), draw_outcomes(normal, one, 3))


def test_missing_outcomes_are_no_reason_to_fail_on_a_bounded_support() -> None:
    y = torch.tensor([torch.nan, 0.5])
    draw = number_draw(dist.Beta(torch.ones(2), torch.ones(2)), y, stream())
    assert draw.log_density.isnan().tolist() == [True, False]
    assert draw.outcomes.shape == (1, 2)


def test_what_does_not_fit_is_refused() -> None:
    normal = dist.Normal(torch.zeros(3), 1.0)
    assert "batch shape [3]" in message(NumberAccumulator(torch.zeros(2), stream()).add, normal)
    vector = normal.to_event(1)
    assert "event shape [3]" in message(NumberAccumulator(torch.zeros(3), stream()).add, vector)
    assert "no draws" in message(NumberAccumulator(torch.zeros(2), stream()).result)
    assert "no draws" in message(ClassAccumulator().result)
