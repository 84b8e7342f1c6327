"""What a table's page shows of a sweep: a sheet and a figure for each data set."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence

from pyro_pfedbayes.experiments.tables.declaration.plan import point_text
from pyro_pfedbayes.experiments.tables.declaration.section import Figure
from pyro_pfedbayes.experiments.tables.declaration.sweeps import Sweep, value_text
from pyro_pfedbayes.experiments.tables.pages.columns import (
    SHORT,
    Column,
    first_measure,
    make_sheet,
    spreads,
)
from pyro_pfedbayes.experiments.tables.pages.costs import costs
from pyro_pfedbayes.experiments.tables.pages.document import Block, Mark, Picture
from pyro_pfedbayes.experiments.tables.pages.formatting import ABSENT, paper_text
from pyro_pfedbayes.experiments.tables.pages.sweep_figure import Curve, Curves, make_curves
from pyro_pfedbayes.experiments.tables.results.collect import CellResult, Results, selector_of

_PERCENT = 100.0
Rows = Sequence[CellResult | None]
"""Those of one method, a value each."""


def sweep_blocks(results: Results, sweep: Sweep) -> Iterator[Block]:
    """Sheets and, once there is something to draw, a figure for each data set of a sweep.

    Args:
        results: What was found so far.
        sweep: Which.
    """
    entries = results.plan.spec.swept(sweep)
    for base in dict.fromkeys(entry.base for entry in entries):
        found = [results.on(entry) for entry in entries if entry.base == base]
        cells = [cell for at in found for cell in at]
        if not cells:
            continue
        methods = list(dict.fromkeys(cell.cell.method.name for cell in cells))
        rows = {
            name: [next((c for c in at if c.cell.method.name == name), None) for at in found]
            for name in methods
        }
        first, selector = first_measure(cells), selector_of(cells)
        measure = "accuracy" if first == "accuracy" else "RMSE"
        caption = f"{sweep.name} on {base}: {measure}, {selector}"
        names = [value_text(value) for value in sweep.values]
        columns = _columns(sweep, rows, selector, first)
        sheet = make_sheet(caption, names, columns, cells, first=sweep.setting)
        yield dataclasses.replace(sheet, notes=(*sheet.notes, *_notes(sweep, rows)))
        columns = _columns(sweep, rows, selector, "nll")
        yield make_sheet(
            f"{sweep.name} on {base}: NLL, {selector}",
            names,
            columns,
            cells,
            first=sweep.setting,
            failures=False,
        )
        yield make_sheet(
            f"{sweep.name} on {base}: cost of a run",
            names,
            _costs(rows),
            cells,
            first=sweep.setting,
            failures=False,
        )
        curves = _curves(sweep, rows, selector, first)
        if curves.shown:
            bars = any(math.isfinite(d) for curve in curves.shown for d in curve.deviations)
            told = "; bars are standard deviations" if bars else ""
            yield Picture(f"{caption}{told}", sweep.stem(base), curves)


def _notes(sweep: Sweep, rows: Mapping[str, Rows]) -> Iterator[str]:
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


def _columns(sweep: Sweep, rows: Mapping[str, Rows], selector: str, measure: str) -> list[Column]:
    """A measure of each method's models at each value; beside an accuracy the reference figures."""
    columns: list[Column] = []
    for name, cells in rows.items():
        who = "" if len(rows) == 1 else f"{name} "
        columns += [
            spreads(f"{who}{short}", cells, model, selector, measure)
            for model, short in SHORT.items()
        ]
        if measure == "accuracy" and name == _first_method(sweep, rows):
            columns += _paper(sweep)
    return columns


def _costs(rows: Mapping[str, Rows]) -> list[Column]:
    """Seconds and bytes of each method at each value."""
    columns: list[Column] = []
    for name, cells in rows.items():
        who = "" if len(rows) == 1 else f"{name} "
        found = [{} if cell is None else costs(cell) for cell in cells]
        for heading in ("seconds of training", "MB sent"):
            columns.append((f"{who}{heading}", [row.get(heading, Mark(ABSENT)) for row in found]))
    return columns


def _first_method(sweep: Sweep, rows: Mapping[str, Rows]) -> str:
    """The one that reference figures are of."""
    return next(name for name in (*(sweep.methods or ()), *rows) if name in rows)


def _paper(sweep: Sweep) -> list[Column]:
    found = []
    for short in SHORT.values():
        marks = [Mark(paper_text(figure)) for figure in _references(sweep, short)]
        found.append((f"paper {short}", marks))
    return found


def _references(sweep: Sweep, short: str) -> list[Figure | None]:
    rows = [sweep.paper_at(value) for value in sweep.values]
    return [None if row is None else row.pm if short == "PM" else row.gm for row in rows]


def _curves(sweep: Sweep, rows: Mapping[str, Rows], selector: str, first: str) -> Curves:
    percent = _PERCENT if first == "accuracy" else 1.0
    curves = []
    for name, cells in rows.items():
        for model in SHORT:
            told = [
                c.spread(model, selector, first)
                if c is not None and model in c.cell.models
                else None
                for c in cells
            ]
            means = [math.nan if t is None else percent * t.mean for t in told]
            deviations = [math.nan if t is None else percent * t.sd for t in told]
            curves.append(Curve(name, model, tuple(means), tuple(deviations)))
    for model, short in SHORT.items():
        figures = _references(sweep, short)
        curves.append(
            Curve("paper", model, tuple(map(_mean, figures)), tuple(map(_deviation, figures)), True)
        )
    label = "accuracy, percent" if first == "accuracy" else "RMSE"
    return make_curves(sweep.setting, label, sweep.values, curves)


def _mean(figure: Figure | None) -> float:
    if figure is None:
        return math.nan
    return figure[0] if isinstance(figure, tuple) else figure


def _deviation(figure: Figure | None) -> float:
    return figure[1] if isinstance(figure, tuple) else math.nan
