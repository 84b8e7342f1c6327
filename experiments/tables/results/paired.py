"""Differences between two methods over the seeds that both have, with intervals."""

from __future__ import annotations

import importlib
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# Differences whose spread is below this share of the figures differ by rounding only.
_SAME = 1e-12


@dataclass(frozen=True)
class Spread:
    """Mean and spread of some numbers."""

    mean: float  # naN of none
    sd: float  # standard deviation (divided by n - 1); NaN of fewer than two
    runs: int  # how many there are


@dataclass(frozen=True)
class Paired:
    """A mean difference and its 95 % interval."""

    mean: float  # over the seeds that both have
    lower: float
    """Lower end of the t-interval; NaN where it is not defined: of one seed, and of differences that are all the same,
    whose spread would say that they are certain."""
    upper: float  # upper end
    seeds: int  # how many both have


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

    Args:
        ours: A figure by seed.
        theirs: That of the method compared with.

    Returns:
        None if no seed has both figures.

    Example:
        >>> found = paired({1: 3.0, 2: 5.0, 3: 1.0}, {1: 1.0, 2: 2.0})
        >>> found.mean, round(found.upper - found.mean, 3), found.seeds
        (2.5, 6.353, 2)
    """
    both = [seed for seed in ours if seed in theirs]
    told = spread([ours[seed] - theirs[seed] for seed in both])
    if not told.runs:
        return None
    finite = [seed for seed in both if math.isfinite(ours[seed] - theirs[seed])]
    largest = max(abs(figure[seed]) for figure in (ours, theirs) for seed in finite)
    if told.runs == 1 or told.sd <= _SAME * largest:
        return Paired(told.mean, math.nan, math.nan, told.runs)
    # The quantile of Student's t: SciPy has no types.
    quantile = importlib.import_module("scipy.special").stdtrit
    half = float(quantile(told.runs - 1, 0.975)) * told.sd / math.sqrt(told.runs)
    return Paired(told.mean, told.mean - half, told.mean + half, told.runs)
