"""Posterior predictives as running sums, fed one draw of the weights after another.

Memory does not grow with the number of draws, except for the outcomes that are drawn for intervals.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_pfedbayes.datatree.numeric import NumberDraw
from pyro_pfedbayes.errors import UserError

COVERAGE = 0.9
"""Probability of the central intervals."""
ENOUGH = 40
"""Outcomes that an interval is estimated from, at least: several a draw of the weights if those are few."""


@dataclass(frozen=True)
class ClassSummary:
    """Posterior predictive of classes for n inputs."""

    probs: Tensor  # class probabilities ``[n, C]``, averaged over draws
    aleatoric: Tensor  # mean over draws of the entropy, ``[n]`` in nats: noise in the data


@dataclass(frozen=True)
class NumberSummary:
    """Posterior predictive of numbers for n inputs, ``[n]`` each, in the model's units.

    ``aleatoric`` is the mean over draws of the conditional variance: noise in the data; ``epistemic`` the variance
    over draws of the conditional mean (divided by K): what more data would remove. The two sum to the predictive
    variance. Both are infinite or NaN where the likelihood's moments are, as Student's t has them with few degrees of
    freedom. ``log_density`` is the log of the mean over draws of p(y | x, weights), in nats. ``lower`` and ``upper``
    end the central 90 % interval, estimated from drawn outcomes; counts if outcomes are counts. ``crps`` is the
    continuous ranked probability score, estimated without bias from drawn outcomes. Density and score are NaN where y
    is missing.
    """

    mean: Tensor
    aleatoric: Tensor
    epistemic: Tensor
    log_density: Tensor
    lower: Tensor
    upper: Tensor
    crps: Tensor

    @staticmethod
    def joined(parts: Sequence[NumberSummary]) -> NumberSummary:
        """At least one summary, end to end."""
        names = [f.name for f in fields(NumberSummary)]
        return NumberSummary(*(torch.cat([getattr(p, name) for p in parts]) for name in names))


class ClassAccumulator:
    """Averages class probabilities over draws."""

    def __init__(self) -> None:
        self._draws = 0
        self._total = self._entropy = torch.zeros(())

    def add(self, probs: Tensor) -> None:
        """Add one draw's probabilities ``[n, C]``."""
        # Rounding may take an entropy below 0; adding 0 turns -0 into 0.
        entropy = (-torch.xlogy(probs, probs).sum(-1)).clamp_min(0.0) + 0.0
        self._total = probs.clone() if self._draws == 0 else self._total.add_(probs)
        self._entropy = entropy if self._draws == 0 else self._entropy.add_(entropy)
        self._draws += 1

    def result(self) -> ClassSummary:
        """The averages so far."""
        _require_draws(self._draws)
        return ClassSummary(self._total / self._draws, self._entropy / self._draws)


class NumberAccumulator:
    """Moments, density, interval and score of a number, over draws.

    The interval's ends are quantiles of drawn outcomes, ``samples`` a draw of the weights. Of m outcomes the one
    at place ``(m + 1) p`` is taken, which makes the expected coverage exactly 90 % for m of at least 19 independent
    ones; of fewer the extremes, which cover less. The standard error of a coverage measured on n examples is then
    about that of n coin tosses plus that of the ends: take 100 draws or more for an interval to report. Counts have
    no outcome between two, so there the ends are the next draws outward: the interval ends at counts, and covers at
    least 90 %.

    The CRPS is mean|x - y| - mean|x - x'| / 2, x and x' from different draws of the weights: those of one are alike.
    Of a single draw it is the score of what that draw says.

    Outcomes ``y [n]`` are NaN where missing; ``stream`` is on their device.
    """

    def __init__(self, y: Tensor, stream: torch.Generator, samples: int = 1) -> None:
        self._y, self._stream, self._samples = y, stream, samples
        self._draws = 0
        zero = torch.zeros(len(y), dtype=torch.float64, device=y.device)
        self._mean, self._squares, self._variance = zero, zero.clone(), zero.clone()
        self._log_density = torch.full_like(zero, -torch.inf)
        self._outcomes: list[Tensor] = []
        self._whole = False

    def add(self, observation: dist.TorchDistribution) -> None:
        """Add one draw's distribution, batch shape ``[n]``."""
        draw = number_draw(observation, self._y, self._stream, self._samples)
        self._draws += 1
        mean = draw.mean.double()
        # Welford's update: sums of squares would lose what is left after subtraction.
        step = mean - self._mean
        self._mean = self._mean + step / self._draws
        self._squares = self._squares + step * (mean - self._mean)
        self._variance = self._variance + draw.variance.double()
        self._log_density = torch.logaddexp(self._log_density, draw.log_density.double())
        self._outcomes.append(draw.outcomes.float())
        self._whole = _is_whole(observation)

    def result(self) -> NumberSummary:
        """What the draws so far make."""
        _require_draws(self._draws)
        drawn = torch.cat(self._outcomes)
        parts = (
            self._mean,
            self._variance / self._draws,
            self._squares / self._draws,
            self._log_density - math.log(self._draws),
            *_central(drawn.sort(0).values, self._whole),
            _crps(drawn.double(), self._y.double(), self._draws),
        )
        return NumberSummary(*(part.float() for part in parts))


def number_draw(
    observation: dist.TorchDistribution, y: Tensor, stream: torch.Generator, samples: int = 1
) -> NumberDraw:
    """What one draw of the weights, a distribution of batch ``[n]``, says about n outcomes, NaN where missing.

    Mean, variance, log-density (NaN where y is missing), ``[n]`` each, and drawn outcomes ``[samples, n]``.
    """
    if observation.batch_shape != y.shape or observation.event_shape:
        raise UserError(
            f"the model's observations have batch shape {list(observation.batch_shape)} and event shape "
            f"{list(observation.event_shape)} for {len(y)} examples; wanted [{len(y)}] and []"
        )
    with torch.no_grad():
        outcomes = draw_outcomes(observation, stream, samples)
        missing = y.isnan()
        # A drawn outcome lies in the support, where the density is defined.
        filled = torch.where(missing, outcomes[0].to(y.dtype), y)
        log_density = observation.log_prob(filled).masked_fill(missing, torch.nan)
        return NumberDraw(
            _moment(observation, "mean", y),
            _moment(observation, "variance", y),
            log_density,
            outcomes,
        )


def draw_outcomes(
    observation: dist.TorchDistribution, stream: torch.Generator, count: int = 1
) -> Tensor:
    """Draw ``count`` outcomes, ``[count, n]``, from a stream of random numbers.

    Distributions draw from PyTorch's global generator only, so that is seeded from the stream and put back after.
    """
    device = stream.device
    seed = int(torch.randint(2**62, (), generator=stream, device=device))
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), torch.no_grad():
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        drawn: Tensor = observation.sample(torch.Size([count]))
    return drawn


def samples_for(draws: int) -> int:
    """Outcomes to draw for each of ``draws`` draws of the weights, so that intervals have `ENOUGH`."""
    return max(1, -(-ENOUGH // max(1, draws)))


def _moment(observation: dist.TorchDistribution, name: str, like: Tensor) -> Tensor:
    try:
        moment: Tensor = getattr(observation, name)
    except NotImplementedError:
        return torch.full_like(like, torch.nan)
    return moment.expand(like.shape)


def _is_whole(observation: dist.TorchDistribution) -> bool:
    try:
        return bool(observation.support.is_discrete)
    except NotImplementedError:
        return False


def _central(ordered: Tensor, whole: bool) -> tuple[Tensor, Tensor]:
    """Both ends of the central interval of m ordered outcomes ``[m, n]``.

    They are the values at place ``(m + 1) p``, between two if that is no whole number; the next outward of ``whole``
    outcomes.
    """
    last = len(ordered) - 1
    # Rounding must not carry a place to the next draw.
    place = round(max((last + 2) * (1 - COVERAGE) / 2 - 1, 0.0), 9)
    below = int(place)
    share = 0.0 if whole else place - below
    inner = min(below + 1, last)
    ends = ordered[[below, last - below]]
    if share:
        # Not by torch.lerp: between two equal infinities it would give NaN.
        next_in = ordered[[inner, last - inner]]
        ends = torch.where(ends == next_in, ends, ends + share * (next_in - ends))
    return ends[0], ends[1]


def _crps(outcomes: Tensor, y: Tensor, draws: int) -> Tensor:
    """CRPS ``[n]`` from outcomes ``[draws · samples, n]``, those of one draw of the weights one after another."""
    m, n = outcomes.shape
    samples = m // draws
    spread, pairs = _spread(outcomes), m * (m - 1)
    if draws > 1:
        within = _spread(outcomes.reshape(draws, samples, n).movedim(0, 1)).sum(0)
        spread, pairs = spread - within, m * (m - samples)
    return (outcomes - y).abs().mean(0) - spread / pairs


def _spread(values: Tensor) -> Tensor:
    """Half the sum of |a - b| over all ordered pairs along the first of the dimensions, from k log k comparisons."""
    k = len(values)
    rank = 2.0 * torch.arange(k, dtype=values.dtype, device=values.device) - (k - 1)
    ordered = values.sort(0).values
    # The weights sum to 0, so a common level cancels; taking it out first keeps the digits.
    spread: Tensor = torch.tensordot(rank, ordered - ordered[k // 2], dims=1)
    return spread


def _require_draws(draws: int) -> None:
    if not draws:
        raise UserError("there were no draws; a posterior predictive needs at least 1")
