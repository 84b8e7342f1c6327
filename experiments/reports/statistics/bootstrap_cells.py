"""What the intervals of means, calibration errors, risk-coverage curves and detection are computed from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_pfedbayes.experiments.reports.statistics.intervals import Part
from pyro_pfedbayes.experiments.reports.statistics.resampled_measures import (
    adaptive_error,
    area_above,
    binned_error,
    false_positive_rate,
    risk_area,
    risk_at,
)
from pyro_pfedbayes.experiments.reports.statistics.resampled_sums import Column, ordered_cells

Array = NDArray[Any]


def means_part(values: Sequence[Tensor]) -> Part:
    """The mean of each of some values ``[n]``, all finite."""
    nowhere = np.zeros(len(values[0]), np.int64)
    columns = [Column(nowhere, np.ones(len(nowhere)), 1)]
    columns += [Column(nowhere, each.double().numpy(), 1) for each in values]

    def measured(sums: list[Array]) -> Array:
        return np.concatenate(sums[1:], 1) / sums[0]

    return Part(columns, measured)


def calibration_part(probs: Tensor, y: Tensor, bins: int) -> Part:
    """ECE and adaptive ECE of probabilities ``[n, C]`` and labels ``[n]``."""
    confidence, choice = probs.max(-1)
    gap = (choice == y).double().numpy() - confidence.double().numpy()
    cell, cells = ordered_cells(confidence.numpy())
    columns = [
        Column(_bins_of(confidence, bins), gap, bins),
        Column(cell, np.ones(len(gap)), cells),
        Column(cell, gap, cells),
    ]

    def measured(sums: list[Array]) -> Array:
        binned, count, ordered = sums
        total = count.sum(1)
        return np.stack([binned_error(total, binned), adaptive_error(count, ordered, bins)], 1)

    return Part(columns, measured, centred=True)


def classwise_part(probs: Tensor, y: Tensor, bins: int) -> Part:
    """Class-wise ECE; arguments as for `calibration_part`."""
    columns = [Column(np.zeros(len(y), np.int64), np.ones(len(y)), 1)]
    for number in range(probs.shape[1]):
        said = probs[:, number].contiguous()
        gap = (y == number).double() - said.double()
        columns.append(Column(_bins_of(said, bins), gap.numpy(), bins))

    def measured(sums: list[Array]) -> Array:
        total = sums[0][:, 0] * (len(sums) - 1)
        return binned_error(total, np.concatenate(sums[1:], 1))[:, None]

    return Part(columns, measured, centred=True)


def selective_part(doubt: Tensor, cost: Tensor, shares: Sequence[float]) -> Part:
    """AURC, its excess over the best order, and the risk at each share of examples answered."""
    errors = cost.double().numpy()
    one = np.ones(len(errors))
    (cell, cells), (best, bests) = ordered_cells(doubt.numpy()), ordered_cells(errors)
    columns = [
        Column(cell, one, cells),
        Column(cell, errors, cells),
        Column(best, one, bests),
        Column(best, errors, bests),
    ]

    def measured(sums: list[Array]) -> Array:
        area = risk_area(sums[0], sums[1])
        excess = np.maximum(area - risk_area(sums[2], sums[3]), 0.0)
        return np.column_stack([area, excess, risk_at(sums[0], sums[1], shares)])

    return Part(columns, measured)


def detection_part(inside: Tensor, outside: Tensor) -> Part:
    """AUROC and FPR95 of one score, of examples from inside ``[n]`` followed by those from outside ``[m]``."""
    side = np.repeat([0.0, 1.0], [len(inside), len(outside)])
    cell, cells = ordered_cells(torch.cat([inside, outside]).numpy())
    columns = [Column(cell, 1.0 - side, cells), Column(cell, side, cells)]

    def measured(sums: list[Array]) -> Array:
        own, out = sums
        return np.stack([area_above(own, out), false_positive_rate(own, out)], 1)

    return Part(columns, measured)


def _bins_of(confidence: Tensor, bins: int) -> Array:
    # As `uncertainty.expected_calibration_error` has them: in the probabilities' own format.
    found: Array = torch.clamp((confidence * bins).ceil().long() - 1, 0, bins - 1).numpy()
    return found
