"""95 % intervals of pooled measures, at a price that does not grow beyond bounds with the number of examples."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_pfedbayes.experiments.reports.schema import Estimate
from pyro_pfedbayes.experiments.reports.statistics.resampled_sums import (
    Column,
    plain_sums,
    resampled_sums,
)
from pyro_pfedbayes.measures.resampling import bootstrap

Array = NDArray[Any]
Over = Literal["examples", "clients", "both"]
Ends = tuple[float, float]
"""How far the ends of an interval lie from the value: the lower one below zero, as a rule."""
RESAMPLES = 1_000
_ROWS = 40_000_000  # resampled examples beyond which whole clients are drawn instead
_WIDE = 400_000  # examples times columns of a part beyond which that is so of this part
_LEVEL = 0.95


def drawn_over(owner: Tensor) -> Over:
    """What intervals of examples that belong to ``owner`` ``[n]`` are drawn over.

    Clients, and examples within them; of very many examples whole clients only, which is as good where each client has
    many; examples if there is one client.
    """
    if len(torch.unique(owner)) < 2:
        return "examples"
    return "both" if len(owner) * RESAMPLES <= _ROWS else "clients"


def pooled_mean(
    values: Tensor, owner: Tensor, then: Callable[[float], float] = lambda value: value
) -> Estimate:
    """Mean of ``values [n]`` and its interval, both put through a growing function such as the root.

    Example:
        >>> pooled_mean(torch.tensor([4.0, 4.0]), torch.tensor([0, 1]), math.sqrt)
        Estimate(value=2.0, lower=2.0, upper=2.0)
    """
    if not len(values) or not bool(values.isfinite().all()):
        value = float(values.mean()) if len(values) else math.nan
        return Estimate(value if math.isnan(value) else then(value))
    over = drawn_over(owner)
    found = bootstrap(values, owner, over=over, resamples=_resamples(len(values), over))
    ends = (dataclasses.astuple(found))[:3]
    return Estimate(*(end if math.isnan(end) else then(end) for end in ends))


@dataclass(frozen=True)
class Part:
    """Measures that are functions of the same sums over cells: of those ``[R, cells]``, ``measured`` makes ``[R, k]``.

    ``centred`` takes the resamples' mean for the middle, rather than the measure of the examples as they are: resamples
    repeat examples, which makes calibration errors larger on average than they are.
    """

    columns: Sequence[Column]
    measured: Callable[[list[Array]], Array]
    centred: bool = False


def interval_ends(
    parts: Sequence[Part], owner: Array, side: Array | None = None
) -> list[list[Ends]]:
    """Percentile intervals of each part's measures, told from the measure on the same cells.

    So what cells leave out of the order of very many scores is left out of both, and cancels. All parts see the same
    resamples, but for parts of so many columns that whole clients are drawn for them. NaN from fewer than two examples.
    """
    if len(owner) < 2:
        return [[(math.nan, math.nan)] * _width(part) for part in parts]
    chosen = drawn_over(torch.from_numpy(owner))
    kinds = [
        "clients" if chosen == "both" and len(owner) * len(part.columns) > _WIDE else chosen
        for part in parts
    ]
    drawn: dict[int, list[Array]] = {}
    for kind in dict.fromkeys(kinds):
        mine = [place for place, other in enumerate(kinds) if other == kind]
        columns = [column for place in mine for column in parts[place].columns]
        resamples = _resamples(len(owner), kind)
        sums = iter(resampled_sums(columns, owner, kind, side=side, resamples=resamples))
        for place in mine:
            drawn[place] = [next(sums) for _ in parts[place].columns]
    return [_ends(part, drawn[place]) for place, part in enumerate(parts)]


def shifted(value: float, ends: Ends, *, least: float = -math.inf) -> Estimate:
    """A value and its interval, whose ends are told from there; the lower one is at least ``least``.

    Example:
        >>> shifted(0.5, (-0.75, 0.25), least=0.0)
        Estimate(value=0.5, lower=0.0, upper=0.75)
    """
    lower, upper = (value + each for each in ends)
    return Estimate(value, lower if math.isnan(lower) else max(lower, least), upper)


def _ends(part: Part, sums: list[Array]) -> list[Ends]:
    found = part.measured(sums)
    values = part.measured(plain_sums(part.columns))[0].tolist()
    return [_spread(found[:, i], value, part.centred) for i, value in enumerate(values)]


def _spread(found: Array, value: float, centred: bool) -> Ends:
    ordered = np.sort(found[np.isfinite(found)])
    if not len(ordered):
        return math.nan, math.nan
    low = math.floor((len(ordered) - 1) * (1 - _LEVEL) / 2)
    centre = float(ordered.mean()) if centred else value
    return float(ordered[low]) - centre, float(ordered[-1 - low]) - centre


def _width(part: Part) -> int:
    nothing = [np.ones((1, column.cells)) for column in part.columns]
    return int(part.measured(nothing).shape[1])


def _resamples(n: int, over: Over) -> int:
    """Fewer of very many examples of one client."""
    return min(RESAMPLES, max(100, _ROWS // max(n, 1))) if over == "examples" else RESAMPLES
