"""Differences between two methods over the seeds that both have, with intervals."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scipy.special import stdtrit

# Differences whose spread is below this share of the figures differ by rounding only.
_SAME = 1e-12


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation (divided by n - 1) of so many numbers; NaN where they are not defined."""

    mean: float
    sd: float
    runs: int


@dataclass(frozen=True)
class Paired:
    """A mean difference over the seeds that both have, and its 95 % t-interval.

    The interval is NaN where it is not defined: of one seed, and of differences that are all the same, whose spread
    would say that they are certain.
    """

    mean: float
    lower: float
    upper: float
    seeds: int


def spread(values: Sequence[float]) -> Spread:
    """Mean and standard deviation of the numbers that are finite.

    Example:
        >>> spread([1.0, 3.0])
        Spread(mean=2.0, sd=1.4142135623730951, runs=2)
    """
    finite = [value for value in values if math.isfinite(value)]
    mean = statistics.fmean(finite) if finite else math.nan
    return Spread(mean, statistics.stdev(finite) if len(finite) > 1 else math.nan, len(finite))


def paired(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Paired | None:
    """The mean of ``ours - theirs`` by seed, with Student's interval ``mean ± t sd / sqrt(n)``.

    None if no seed has both figures.

    Example:
        >>> found = paired({1: 3.0, 2: 5.0, 3: 1.0}, {1: 1.0, 2: 2.0})
        >>> found.mean, round(found.upper - found.mean, 3), found.seeds
        (2.5, 6.353, 2)
    """
    both = [seed for seed in ours if math.isfinite(ours[seed] - theirs.get(seed, math.nan))]
    found = spread([ours[seed] - theirs[seed] for seed in both])
    if not both:
        return None
    largest = max(abs(figure[seed]) for figure in (ours, theirs) for seed in both)
    half = math.nan
    if len(both) > 1 and found.sd > _SAME * largest:
        half = float(stdtrit(len(both) - 1, 0.975)) * found.sd / math.sqrt(len(both))
    return Paired(found.mean, found.mean - half, found.mean + half, len(both))
