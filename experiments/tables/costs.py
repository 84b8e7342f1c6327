"""What a table's page shows of the cost of runs: seconds, bytes sent, gradient steps."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pyro_pfedbayes.experiments.tables.collect import CellResult
from pyro_pfedbayes.experiments.tables.document import Mark
from pyro_pfedbayes.experiments.tables.numbers import ABSENT
from pyro_pfedbayes.experiments.tables.plan import point_text

__all__ = ["COSTS", "costs", "megabytes", "seconds"]

OWN = " (its own)"
COSTS = (
    "seconds of training",
    "MB sent",
    "kB sent a client and round",
    "gradient steps a client and round",
    "rounds",
    "points tried",
    "settings",
)
"""Headings of `costs`."""


def costs(result: CellResult) -> tuple[Mark, ...]:
    """What a run of a cell costs, in the order of `COSTS`: means over the finished ones."""
    method, found = result.cell.method, result.figures
    places = [f.clients * f.rounds for f in found]
    sent = [b / 1e3 / n for b, n in zip(_bytes(result), places, strict=True)]
    own_rounds = OWN if method.rounds is not None else ""
    own_steps = OWN if {"local_steps"} & (method.settings.keys() | method.grid.keys()) else ""
    steps = _mean([f.gradient_steps / n for f, n in zip(found, places, strict=True)], "{:.4g}")
    tuned = result.point
    settings = [point_text(part) for part in (tuned or {}, method.settings, method.model) if part]
    return (
        seconds(result),
        megabytes(result),
        _mean(sent, "{:.1f}"),
        Mark(f"{steps.text}{own_steps}"),
        Mark(f"{result.cell.final[0][0].rounds}{own_rounds}"),
        Mark(f"{len(result.cell.points)}"),
        Mark("not chosen" if tuned is None else "; ".join(settings) or "defaults"),
    )


def seconds(result: CellResult) -> Mark:
    """Of training, without evaluations."""
    return _mean([f.seconds for f in result.figures], "{:.1f}")


def megabytes(result: CellResult) -> Mark:
    """What all clients sent together."""
    return _mean([sent / 1e6 for sent in _bytes(result)], "{:.2f}")


def _bytes(result: CellResult) -> list[float]:
    sent = [f.bytes_uploaded for f in result.figures]
    return [math.nan if count is None else float(count) for count in sent]


def _mean(values: Sequence[float], form: str) -> Mark:
    finite = [value for value in values if math.isfinite(value)]
    return Mark(form.format(sum(finite) / len(finite)) if finite else ABSENT)
