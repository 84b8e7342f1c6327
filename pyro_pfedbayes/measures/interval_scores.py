"""How good predictive distributions of numbers are, judged from draws: CRPS, intervals, sharpness, PIT.

Draws are outcomes drawn from the posterior predictive, ``[K, n]``: K for each of n examples. Widths and CRPS come in
the outcome's own unit. torchmetrics has the CRPS as one mean, in memory n K²; ours is one number an example, in
n K log K time, so that it can be split by client and resampled; tests hold it to theirs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.measures.validation import level_of, same_length, vector
from pyro_pfedbayes.randomness import generator

_BLOCK = 2**22  # numbers that are widened to float64 at a time


@dataclass(frozen=True)
class IntervalReport:
    """Central predictive intervals of several levels, float64 ``[levels]`` each."""

    level: Tensor  # the probability that each interval should hold
    coverage: Tensor
    """Share of outcomes in it, ends included, in [0, 1]. Intervals of whole numbers end at whole numbers and hold more
    than their level by nature."""
    width: Tensor  # mean width, in the outcome's unit: sharpness. Narrow is good only where the coverage is right.


def crps(draws: Tensor, y: Tensor, *, fair: bool = True) -> Tensor:
    """Continuous ranked probability score ∫ (F(x) - 1[x >= y])² dx, from draws of F (Gneiting & Raftery 2007).

    It is mean_k |x_k - y| - Σ_k Σ_l |x_k - x_l| / (2 d), where d is

    * K (K - 1) if ``fair`` (Ferro 2014): unbiased for the CRPS of the distribution drawn from, whatever K; it may
      come out below 0 for one example;
    * K² if not: the exact CRPS of the K draws' own empirical distribution, which is too large, by
      E|x - x'| / (2 K) on average, as a score of the distribution drawn from.

    Args:
        draws: Outcomes drawn ``[K, n]``.
        y: Outcomes ``[n]``.
        fair: Which of the two.

    Returns:
        ``[n]`` in float64, in the outcome's unit, the lower the better; NaN if ``fair`` and there is only one draw.

    Raises:
        UserError: Shapes that do not fit, no draws, NaN or infinities.

    Example:
        >>> draws = torch.tensor([[0.0], [2.0]])
        >>> crps(draws, torch.tensor([1.0])).item(), crps(draws, torch.tensor([1.0]), fair=False).item()
        (0.0, 0.5)
    """
    outcomes = _checked(draws, y)
    k = len(draws)
    pairs = k * (k - 1) if fair else k * k
    rank = 2.0 * torch.arange(k, dtype=torch.float64, device=draws.device) - (k - 1)

    def block(ordered: Tensor, truth: Tensor) -> Tensor:
        distance = (ordered - truth).abs().mean(0)
        # The weights sum to 0, so the draws' level cancels; taking it out first keeps the digits.
        spread = (rank[:, None] * (ordered - ordered[k // 2])).sum(0)
        return distance - spread / pairs if pairs else torch.full_like(distance, float("nan"))

    return _by_blocks(block, draws, outcomes)


def central_interval(draws: Tensor, level: float) -> tuple[Tensor, Tensor]:
    """Central predictive intervals, between the quantiles (1 - level)/2 and (1 + level)/2 of the draws.

    Of K ordered draws the one at place (K + 1) p is the quantile p, between two if that is no whole number. So an
    outcome exchangeable with the draws lies inside with probability ``level``, exactly where the places are whole
    and the outcome is continuous. K draws bear levels up to (K - 1)/(K + 1): 39 draws for 95 %.

    If all draws are whole numbers, outcomes are counts, and the ends are the next draws outward instead of a number
    between two: intervals of counts end at counts, and hold the level at least.

    Args:
        draws: Outcomes drawn ``[K, n]``.
        level: Probability of the interval, in (0, 1).

    Returns:
        Lower and upper ends, float64 ``[n]``; NaN if there are too few draws for the level.

    Raises:
        UserError: Another shape, no draws, NaN or infinities, or a level outside (0, 1).

    Example:
        >>> lower, upper = central_interval(torch.arange(1.0, 20.0)[:, None], 0.8)
        >>> lower.item(), upper.item()
        (2.0, 18.0)
    """
    level = level_of(level)
    _checked(draws, None)
    whole = _all_whole(draws)
    ends = _by_blocks(lambda ordered, _: torch.stack(_ends(ordered, level, whole)), draws, None)
    return ends[0], ends[1]


def interval_report(
    draws: Tensor, y: Tensor, levels: Sequence[float] = (0.5, 0.8, 0.9, 0.95)
) -> IntervalReport:
    """Coverage and mean width of central intervals at several levels.

    Args:
        draws: Outcomes drawn ``[K, n]``.
        y: Outcomes ``[n]``.
        levels: Probabilities of the intervals, each in (0, 1).

    Returns:
        The report; NaN at a level for which there are too few draws (see `central_interval`), and everywhere if
        there are no examples.

    Raises:
        UserError: As `crps`, or a level outside (0, 1).

    Example:
        >>> draws = torch.arange(1.0, 20.0)[:, None].expand(19, 2)
        >>> report = interval_report(draws, torch.tensor([10.0, 30.0]), (0.5, 0.9))
        >>> report.coverage.tolist(), report.width.tolist()
        ([0.5, 0.5], [10.0, 18.0])
    """
    outcomes = _checked(draws, y)
    wanted, whole = [level_of(level) for level in levels], _all_whole(draws)

    def block(ordered: Tensor, truth: Tensor) -> Tensor:
        rows = []
        for level in wanted:
            lower, upper = _ends(ordered, level, whole)
            inside = ((lower <= truth) & (truth <= upper)).double()
            rows.append(torch.stack([inside.where(~lower.isnan(), lower), upper - lower]))
        return torch.stack(rows) if rows else ordered.new_zeros(0, 2, len(truth))

    found = _by_blocks(block, draws, outcomes).mean(-1)
    level = torch.tensor(wanted, dtype=torch.float64, device=draws.device)
    return IntervalReport(level, found[:, 0], found[:, 1])


def pit_values(draws: Tensor, y: Tensor, *, seed: int) -> Tensor:
    """Randomised probability integral transform of each outcome (Czado, Gneiting & Held 2009).

    It is (#{x_k < y} + V (1 + #{x_k = y})) / (K + 1) with V uniform on [0, 1). If y is exchangeable with the draws
    it is exactly uniform, for numbers and for counts, however few the draws: a flat histogram is calibration, a hump
    says that the predictions are too wide, a bowl that they are too narrow, a slope that they are off.

    Args:
        draws: Outcomes drawn ``[K, n]``.
        y: Outcomes ``[n]``.
        seed: Seed of V.

    Returns:
        ``[n]`` in float64, in [0, 1].

    Raises:
        UserError: As `crps`.

    Example:
        >>> (4 * pit_values(torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([2.5]), seed=0)).floor().item()
        2.0
    """
    outcomes = _checked(draws, y)

    def block(ordered: Tensor, truth: Tensor) -> Tensor:
        return torch.stack([(ordered < truth).sum(0), (ordered == truth).sum(0)])

    below, equal = _by_blocks(block, draws, outcomes)
    return pit_from_ranks(below, equal, len(draws), seed=seed)


def pit_from_ranks(below: Tensor, equal: Tensor, draws: int, *, seed: int) -> Tensor:
    """`pit_values` of draws that are not kept, from counts of those below each outcome and equal to it ``[n]``.

    NaN where the counts are.

    Example:
        >>> draws, y = torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([2.0])
        >>> ranks = pit_from_ranks(torch.tensor([1]), torch.tensor([1]), 3, seed=0)
        >>> torch.equal(ranks, pit_values(draws, y, seed=0))
        True
    """
    stream = generator(seed, "pit", device=below.device)
    jitter = torch.rand(len(below), generator=stream, dtype=torch.float64, device=below.device)
    return (below.double() + jitter * (1 + equal.double())) / (draws + 1)


def inside_from_ranks(below: Tensor, equal: Tensor, draws: int, level: float) -> Tensor:
    """Which outcomes lie in their central interval, from counts of draws that are not kept: 1, 0, or NaN.

    The interval lies between the draws at places (K + 1) p, or the next outward where that is no whole number: that of
    `central_interval` for whole numbers, and one that holds the level at least for others. NaN where the counts are, or
    if there are too few draws for the level.

    Example:
        >>> inside_from_ranks(torch.tensor([0, 1, 10, 19]), torch.zeros(4), 19, 0.9).tolist()
        [0.0, 1.0, 1.0, 0.0]
    """
    least = math.floor((draws + 1) * (1 - level_of(level)) / 2 + 1e-9)
    below, equal = below.double(), equal.double()
    inside = ((below + equal >= least) & (draws - below >= least)).double()
    lost = below.isnan() | equal.isnan() | (least < 1)
    return inside.masked_fill(lost, float("nan"))


def _checked(draws: Tensor, y: Tensor | None, name: str = "draws") -> Tensor:
    """The outcomes in float64, once both have been looked over."""
    if draws.ndim != 2 or draws.is_complex():
        raise UserError(f"{name} must hold numbers [K, n], not {draws.dtype} {list(draws.shape)}")
    if not len(draws):
        raise UserError(f"there are no {name}; at least 1 is needed")
    broken = ~draws.isfinite().all(0)
    if bool(broken.any()):
        row = int(broken.nonzero()[0, 0])
        raise UserError(f"{name} are NaN or infinite at row {row}; leave such rows out")
    if y is None:
        return torch.zeros(draws.shape[1], dtype=torch.float64, device=draws.device)
    outcomes = vector(y, "y", finite=True)
    same_length(draws.shape[1], y=outcomes)
    return outcomes


def _by_blocks(
    block: Callable[[Tensor, Tensor], Tensor], draws: Tensor, y: Tensor | None
) -> Tensor:
    """Apply ``block`` to ordered draws in float64, some examples at a time, and join along the last axis."""
    n = draws.shape[1]
    truth = torch.zeros(n, dtype=torch.float64, device=draws.device) if y is None else y
    width = max(1, _BLOCK // len(draws))
    parts = zip(draws.detach().split(width, 1), truth.split(width), strict=True)
    return torch.cat([block(part.double().sort(0).values, t) for part, t in parts], -1)


def _all_whole(draws: Tensor) -> bool:
    """Whether all draws are whole numbers; one after the other, so that most other draws are found out at the first."""
    return not draws.is_floating_point() or all(bool((row == row.floor()).all()) for row in draws)


def _ends(ordered: Tensor, level: float, whole: bool) -> tuple[Tensor, Tensor]:
    """Quantiles at both ends of the central interval, of draws in ascending order ``[K, n]``."""
    k = len(ordered)
    place = (k + 1) * (1 - level) / 2 - 1
    if place < -1e-9:
        missing = torch.full_like(ordered[0], float("nan"))
        return missing, missing
    below = max(math.floor(place + 1e-9), 0)
    share = max(place - below, 0.0)
    if whole or share < 1e-9:
        return ordered[below], ordered[k - 1 - below]
    step = share * (ordered[below + 1] - ordered[below])
    back = share * (ordered[k - 1 - below] - ordered[k - 2 - below])
    return ordered[below] + step, ordered[k - 1 - below] - back
