"""Measures of calibration, selective prediction and detection as functions of sums over cells, many resamples at once.

Cells are ordered by a score, and the examples of a cell count as tied. Each function takes float64 sums ``[R, cells]``
and returns one number a resample; with a cell for each distinct score they are the measures of
`pyro_pfedbayes.measures.scores`, ``calibration``, ``selective`` and ``ood``, which tests hold them to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def binned_error(count: Array, gap: Array) -> Array:
    """Calibration error over bins: Σ_b |sum of (right - confidence)| / n, ``[R]``, of gaps ``[R, bins]``."""
    return _ratio(np.abs(gap).sum(1), count)


def adaptive_error(count: Array, gap: Array, bins: int) -> Array:
    """Calibration error over bins of equal mass, ``[R]``; a cell lies in the bin of its middle rank."""
    upto = count.cumsum(1)
    total = upto[:, -1]
    # Whole numbers all, so the bins are those of `calibration.adaptive_calibration_error`.
    twice = 2 * upto - count - 1
    place = np.floor(_ratio(twice * bins, (2 * total)[:, None]))
    place = np.clip(np.nan_to_num(place), 0, bins - 1).astype(np.int64)
    rows = np.arange(len(count))[:, None] * bins
    sums = np.bincount((place + rows).ravel(), weights=gap.ravel(), minlength=len(count) * bins)
    return binned_error(total, sums.reshape(-1, bins))


def risk_area(count: Array, cost: Array) -> Array:
    """Area under the risk-coverage curve, in expectation over the order of ties, ``[R]``; the most certain cell first.

    Within a cell of m examples after A others, of costs E and C, the curve's points are (C + (k - A) E / m) / k for
    k = A + 1 … A + m; their sum is E + (C - A E / m) (H(A + m) - H(A)), with the harmonic numbers H.
    """
    upto, paid = count.cumsum(1), cost.cumsum(1)
    before, spent = upto - count, paid - cost
    most = int(upto[:, -1].max()) if upto.size else 0
    harmonic = np.concatenate([[0.0], (1 / np.arange(1, most + 1)).cumsum()])
    steps = harmonic[np.rint(upto).astype(np.int64)] - harmonic[np.rint(before).astype(np.int64)]
    mean = np.where(count > 0, _ratio(cost, count), 0.0)
    return _ratio((cost + (spent - before * mean) * steps).sum(1), upto[:, -1])


def risk_at(count: Array, cost: Array, shares: Sequence[float]) -> Array:
    """Mean error of the most certain ⌈share · n⌉ examples, in expectation over the order of ties, ``[R, shares]``."""
    upto, paid = count.cumsum(1), cost.cumsum(1)
    total = upto[:, -1]
    rows, found = np.arange(len(count)), []
    for share in shares:
        answered = np.maximum(np.ceil(share * total - 1e-9), 1)
        place = (upto < answered[:, None] - 0.5).sum(1).clip(max=count.shape[1] - 1)
        before = upto[rows, place] - count[rows, place]
        spent = paid[rows, place] - cost[rows, place]
        mean = _ratio(cost[rows, place], count[rows, place])
        found.append((spent + (answered - before) * mean) / answered)
    return np.stack(found, 1)


def area_above(inside: Array, outside: Array) -> Array:
    """AUROC: how likely an example from outside lies in a higher cell than one from inside, ties half, ``[R]``."""
    below = inside.cumsum(1) - inside / 2
    return _ratio((outside * below).sum(1), inside.sum(1) * outside.sum(1))


def false_positive_rate(inside: Array, outside: Array, accepted: float = 0.95) -> Array:
    """Share from outside up to the lowest cell by which at least ``accepted`` of those inside lie, ``[R]``."""
    upto = inside.cumsum(1)
    total = upto[:, -1]
    place = (upto < (accepted - 1e-12) * total[:, None]).sum(1).clip(max=inside.shape[1] - 1)
    found = _ratio(outside.cumsum(1)[np.arange(len(inside)), place], outside.sum(1))
    return np.where(total > 0, found, np.nan)


def _ratio(above: Array, below: Array) -> Array:
    """The quotient, without a warning where it is not defined."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(above / below)
