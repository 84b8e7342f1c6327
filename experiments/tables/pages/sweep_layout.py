"""What a table's page shows of a sweep: sheets and a figure for each data set."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from pyro_pfedbayes.experiments.tables.declaration.plan import point_text
from pyro_pfedbayes.experiments.tables.declaration.spec import Figure, Sweep, value_text
from pyro_pfedbayes.experiments.tables.pages.columns import (
    SHORT,
    Column,
    costs,
    failure_notes,
    first_measure,
    make_sheet,
    spreads,
)
from pyro_pfedbayes.experiments.tables.pages.document import Block, Mark, Picture
from pyro_pfedbayes.experiments.tables.pages.formatting import ABSENT, paper_text
from pyro_pfedbayes.experiments.tables.pages.sweep_figure import Curve, Curves, make_curves
from pyro_pfedbayes.experiments.tables.results.collect import CellResult, Results, selector_of

_COSTS = ("seconds of training", "MB sent")
Rows = Mapping[str, Sequence[CellResult | None]]
"""By method, a cell for each value."""


def sweep_blocks(results: Results, sweep: Sweep) -> Iterator[Block]:
    """Sheets and, once there is something to draw, a figure for each data set of a sweep."""
    entries = results.plan.spec.swept(sweep)
    values = [value_text(value) for value in sweep.values]
    for base in dict.fromkeys(entry.base for entry in entries):
        found = [results.on(entry) for entry in entries if entry.base == base]
        cells = [cell for at in found for cell in at]
        if not cells:
            continue
        rows: Rows = {
            name: [next((c for c in at if c.cell.method.name == name), None) for at in found]
            for name in dict.fromkeys(cell.cell.method.name for cell in cells)
        }
        first, selector = first_measure(cells), selector_of(cells)
        caption = (
            f"{sweep.name} on {base}: {'accuracy' if first == 'accuracy' else 'RMSE'}, {selector}"
        )
        notes = [note for cell in cells for note in failure_notes(cell)]
        notes += _notes(sweep, rows)
        columns = _columns(sweep, rows, selector, first)
        yield make_sheet(caption, values, columns, notes, sweep.setting)
        nll = _columns(sweep, rows, selector, "nll")
        yield make_sheet(
            f"{sweep.name} on {base}: NLL, {selector}", values, nll, first=sweep.setting
        )
        spent = [
            (f"{who}{heading}", [Mark(ABSENT) if c is None else costs(c)[heading] for c in row])
            for who, row in _named(rows)
            for heading in _COSTS
        ]
        yield make_sheet(
            f"{sweep.name} on {base}: cost of a run", values, spent, first=sweep.setting
        )
        curves = _curves(sweep, rows, selector, first)
        if curves.shown:
            bars = any(math.isfinite(d) for curve in curves.shown for d in curve.deviations)
            explained = "; bars are standard deviations" if bars else ""
            yield Picture(f"{caption}{explained}", sweep.stem(base), curves)


def _notes(sweep: Sweep, rows: Rows) -> Iterator[str]:
    """What the methods' settings are, and whose the reference figures are."""
    for name, cells in rows.items():
        found = [cell for cell in cells if cell is not None]
        method = found[0].cell.method
        own = {**method.settings, **{f"model.{k}": value for k, value in method.model.items()}}
        fixed = {key: value for key, value in own.items() if key != sweep.setting}
        parts = [point_text(fixed)] if fixed else []
        parts += [
            f"{point_text(cell.point)} was chosen at {value_text(cell.cell.entry.swept.value)}"
            for cell in found
            if cell.point and cell.cell.entry.swept is not None
        ]
        yield f"{name}: {'; '.join(parts) or 'defaults'}"
    if sweep.paper:
        yield (
            f"paper: reference figures of {_first_method(sweep, rows)}, which may be of other rounds and a peak"
        )


def _columns(sweep: Sweep, rows: Rows, selector: str, measure: str) -> list[Column]:
    """A measure of each method's models at each value; beside an accuracy the reference figures."""
    columns: list[Column] = []
    for (who, cells), name in zip(_named(rows), rows, strict=True):
        columns += [
            spreads(f"{who}{short}", cells, model, selector, measure)
            for model, short in SHORT.items()
        ]
        if measure == "accuracy" and name == _first_method(sweep, rows):
            columns += [
                (f"paper {short}", [Mark(paper_text(f)) for f in _references(sweep, model)])
                for model, short in SHORT.items()
            ]
    return columns


def _named(rows: Rows) -> list[tuple[str, Sequence[CellResult | None]]]:
    """Rows with the beginning of their headings: a method alone is not named."""
    return [("" if len(rows) == 1 else f"{name} ", cells) for name, cells in rows.items()]


def _first_method(sweep: Sweep, rows: Rows) -> str:
    """The one that reference figures are of."""
    return next(name for name in (*(sweep.methods or ()), *rows) if name in rows)


def _references(sweep: Sweep, model: str) -> list[Figure | None]:
    rows = [sweep.paper_at(value) for value in sweep.values]
    return [None if row is None else row.pm if model == "personal" else row.gm for row in rows]


def _curves(sweep: Sweep, rows: Rows, selector: str, first: str) -> Curves:
    label, factor = ("accuracy, percent", 100.0) if first == "accuracy" else ("RMSE", 1.0)
    curves = []
    for name, cells in rows.items():
        for model in SHORT:
            found = [
                c.spread(model, selector, first)
                if c is not None and model in c.cell.models
                else None
                for c in cells
            ]
            means = tuple(math.nan if f is None else factor * f.mean for f in found)
            deviations = tuple(math.nan if f is None else factor * f.sd for f in found)
            curves.append(Curve(name, model, means, deviations))
    for model in SHORT:
        pairs = [
            f if isinstance(f, tuple) else (math.nan if f is None else f, math.nan)
            for f in _references(sweep, model)
        ]
        means, deviations = zip(*pairs, strict=True)
        curves.append(Curve("paper", model, means, deviations, True))
    return make_curves(sweep.setting, label, sweep.values, curves)
