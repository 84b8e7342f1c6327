"""What a table's page shows: an overview by data set; sweeps; accuracy, differences and cost of each cell."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from pyro_pfedbayes.experiments.reports.collect.comparison import spread_of
from pyro_pfedbayes.experiments.tables.declaration.plan import point_text
from pyro_pfedbayes.experiments.tables.declaration.spec import (
    DataEntry,
    Paper,
    Sweep,
    value_text,
)
from pyro_pfedbayes.experiments.tables.pages.columns import (
    ABSENT,
    SHORT,
    Column,
    costs,
    difference_text,
    failure_notes,
    first_measure,
    make_sheet,
    paper_text,
    spreads,
)
from pyro_pfedbayes.experiments.tables.pages.document import (
    Block,
    Document,
    Heading,
    Mark,
    Picture,
    Sheet,
    Text,
    plain_environment,
)
from pyro_pfedbayes.experiments.tables.pages.sweep_figure import Curve, Curves, make_curves
from pyro_pfedbayes.experiments.tables.results import (
    CellResult,
    Paired,
    Results,
    selector_of,
)
from pyro_pfedbayes.measures.registry import MEASURES

SHOWN = {"selected": "selected", "last": "last", "best": "(best)"}
FEW = 3
_COSTS = ("seconds of training", "MB sent")
Cells = Sequence[CellResult | None]
Rows = Mapping[str, Cells]
"""By method, a cell for each value."""


def lay_out(results: Results) -> Document:
    """The page of a table."""
    return Document(results.plan.spec.head.title, tuple(_blocks(results)))


def _blocks(results: Results) -> Iterator[Block]:
    spec, selector = results.plan.spec, results.selector()
    text = _text(
        "introduction.jinja",
        head=spec.head,
        tuning=spec.tuning,
        selector=selector,
        most_points=max(len(cell.points) for cell in results.plan.cells),
        own_seeds=[m for m in spec.methods if m.seeds not in (None, spec.head.seeds)],
    )
    yield Text(" ".join(text.split()))
    declared = [entry for entry in spec.data if results.on(entry)]
    for name in dict.fromkeys(entry.name for entry in declared):
        entries = [entry for entry in declared if entry.name == name]
        yield _overview(results, name, entries, selector)
    for sweep in spec.sweeps:
        yield from _sweep_blocks(results, sweep)
    for entry in declared:
        cells = results.on(entry)
        names = [result.cell.method.name for result in cells]
        caption = "Accuracy in percent" if first_measure(cells) == "accuracy" else "RMSE"
        columns = [
            spreads(f"{short} {shown}", cells, model, selector)
            for model, short in SHORT.items()
            for selector, shown in SHOWN.items()
        ]
        columns += _paper([_reference(result, entry) for result in cells])
        notes = [note for result in cells for note in failure_notes(result)]
        yield Heading(entry.label)
        yield make_sheet(caption, names, columns, notes)
        yield _comparison(results, names, cells, selector)
        spent = [costs(result) for result in cells]
        columns = [(heading, [row[heading] for row in spent]) for heading in spent[0]]
        yield make_sheet("Cost of a run; settings, the tuned ones first", names, columns)


def _text(template: str, **values: object) -> str:
    return plain_environment().get_template(template).render(values)


def _pair(
    cells: Cells, selector: str, measure: str | None = None, before: str = "", after: str = ""
) -> list[Column]:
    """A measure of the personal models and of the global one."""
    return [
        spreads(f"{before}{short}{after}", cells, model, selector, measure)
        for model, short in SHORT.items()
    ]


def _overview(results: Results, name: str, entries: Sequence[DataEntry], selector: str) -> Sheet:
    cells = [result for entry in entries for result in results.on(entry)]
    methods = list(dict.fromkeys(result.cell.method.name for result in cells))
    columns: list[Column] = []
    for entry in entries:
        by_method = {result.cell.method.name: result for result in results.on(entry)}
        rows = [by_method.get(method) for method in methods]
        size = "" if len(entries) == 1 else f"{entry.label.removeprefix(f'{name}-')} "
        columns += _pair(rows, selector, before=size)
        columns += _paper([_reference(row, entry) for row in rows], size)
    return make_sheet(f"{name}: {_shown(cells)}, {selector}", methods, columns)


def _comparison(
    results: Results, names: list[str], cells: Sequence[CellResult], selector: str
) -> Sheet:
    first, against = first_measure(cells), results.plan.spec.paired_with
    columns: list[Column] = []
    pairs: list[Paired] = []
    if against in names:
        for model, short in SHORT.items():
            found = [results.difference(result, (model, selector, first)) for result in cells]
            pairs += [pair for pair in found if pair is not None]
            marks = [
                Mark(_difference(results, result, pair, model, first))
                for result, pair in zip(cells, found, strict=True)
            ]
            columns.append((f"{short} − {against}", marks))
    further = ("nll", "ece") if first == "accuracy" else ("mae", "nll", "coverage90")
    for measure in further:
        columns += _pair(cells, selector, measure, after=f" {MEASURES[measure].short}")
    if not pairs:
        return make_sheet("Likelihood and calibration", names, columns)
    notes = _text(
        "pairs.jinja",
        few=FEW if any(1 < pair.seeds <= FEW for pair in pairs) else None,
        undefined=any(math.isnan(pair.lower) for pair in pairs),
    )
    caption = f"Differences from {against}, paired by seed, with 95 % t-intervals; likelihood and calibration"
    return make_sheet(caption, names, columns, notes.splitlines())


def _difference(
    results: Results, result: CellResult, pair: Paired | None, model: str, first: str
) -> str:
    """A difference, or why there is none."""
    against = results.compared_with(result)
    if pair is None and against is not None and against is not result:
        cells = (against, result)
        if all(cell.figures and model in cell.cell.models for cell in cells):
            return "no seed in common"
    return difference_text(pair, first)


def _shown(cells: Sequence[CellResult]) -> str:
    return "accuracy" if first_measure(cells) == "accuracy" else "RMSE"


def _reference(result: CellResult | None, entry: DataEntry) -> Paper:
    return {} if result is None else result.cell.method.paper.get(entry.label, {})


def _paper(papers: Sequence[Paper], size: str = "") -> list[Column]:
    """Reference figures; `make_sheet` leaves out those of models that have none."""
    return [
        (f"paper {size}{short}", [Mark(paper_text(paper.get(short.lower()))) for paper in papers])
        for short in SHORT.values()
    ]


def _sweep_blocks(results: Results, sweep: Sweep) -> Iterator[Block]:
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
        title = f"{sweep.name} on {base}"
        caption = f"{title}: {_shown(cells)}, {selector}"
        notes = [note for cell in cells for note in failure_notes(cell)]
        notes += _sweep_notes(sweep, rows)
        figures, nll, spent = _sweep_columns(sweep, rows, selector, first)
        yield make_sheet(caption, values, figures, notes, sweep.setting)
        yield make_sheet(f"{title}: NLL, {selector}", values, nll, (), sweep.setting)
        yield make_sheet(f"{title}: cost of a run", values, spent, (), sweep.setting)
        curves = _curves(sweep, rows, selector, first)
        if curves.shown:
            bars = any(math.isfinite(d) for curve in curves.shown for d in curve.deviations)
            explained = "; bars are standard deviations" if bars else ""
            yield Picture(f"{caption}{explained}", sweep.stem(base), curves)


def _sweep_notes(sweep: Sweep, rows: Rows) -> Iterator[str]:
    """What the methods' settings are, and whose the reference figures are."""
    for name, cells in rows.items():
        found = [cell for cell in cells if cell is not None]
        method = found[0].cell.method
        own = {**method.settings, **{f"model.{k}": value for k, value in method.model.items()}}
        fixed = {key: value for key, value in own.items() if key != sweep.setting}
        parts = [point_text(fixed)] if fixed else []
        parts += [
            f"{point_text(cell.point)} was chosen at {value_text(cell.cell.entry.value)}"
            for cell in found
            if cell.point
        ]
        yield f"{name}: {'; '.join(parts) or 'defaults'}"
    if sweep.paper:
        yield (
            f"paper: reference figures of {_first_method(sweep, rows)}, which may be of other rounds and a peak"
        )


def _sweep_columns(
    sweep: Sweep, rows: Rows, selector: str, first: str
) -> tuple[list[Column], list[Column], list[Column]]:
    """The first measure of each method's models at each value, beside reference figures; the NLL; and costs."""
    figures: list[Column] = []
    nll: list[Column] = []
    spent: list[Column] = []
    for name, cells in rows.items():
        # A method alone is not named.
        who = "" if len(rows) == 1 else f"{name} "
        figures += _pair(cells, selector, first, before=who)
        if first == "accuracy" and name == _first_method(sweep, rows):
            figures += _paper([sweep.paper_at(value) for value in sweep.values])
        nll += _pair(cells, selector, "nll", before=who)
        for heading in _COSTS:
            marks = [Mark(ABSENT) if cell is None else costs(cell)[heading] for cell in cells]
            spent.append((f"{who}{heading}", marks))
    return figures, nll, spent


def _first_method(sweep: Sweep, rows: Rows) -> str:
    """The one that reference figures are of."""
    return next(name for name in (*(sweep.methods or ()), *rows) if name in rows)


def _curves(sweep: Sweep, rows: Rows, selector: str, first: str) -> Curves:
    label, factor = ("accuracy, percent", 100.0) if first == "accuracy" else ("RMSE", 1.0)
    curves = []
    for name, cells in rows.items():
        for model in SHORT:
            found = [
                spread_of([]) if c is None else c.spread((model, selector, first)) for c in cells
            ]
            means = tuple(factor * f.mean for f in found)
            curves.append(Curve(name, model, means, tuple(factor * f.sd for f in found)))
    for model, short in SHORT.items():
        papers = [sweep.paper_at(value).get(short.lower()) for value in sweep.values]
        pairs = [
            f if isinstance(f, tuple) else (math.nan if f is None else f, math.nan) for f in papers
        ]
        means, deviations = zip(*pairs, strict=True)
        curves.append(Curve("paper", model, means, deviations, True))
    return make_curves(sweep.setting, label, sweep.values, curves)
