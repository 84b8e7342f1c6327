"""What a table's page shows: an overview by data set, then accuracy, differences and cost of each cell."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from pyro_pfedbayes.experiments.tables.declaration.spec import DataEntry
from pyro_pfedbayes.experiments.tables.pages.columns import (
    SHORT,
    Column,
    first_measure,
    make_sheet,
    spreads,
)
from pyro_pfedbayes.experiments.tables.pages.costs import costs
from pyro_pfedbayes.experiments.tables.pages.document import (
    Block,
    Document,
    Heading,
    Mark,
    Sheet,
    Text,
)
from pyro_pfedbayes.experiments.tables.pages.formatting import (
    difference_text,
    paper_text,
)
from pyro_pfedbayes.experiments.tables.pages.sweep_layout import sweep_blocks
from pyro_pfedbayes.experiments.tables.results.collect import CellResult, Results
from pyro_pfedbayes.experiments.tables.results.paired import Paired
from pyro_pfedbayes.measures.registry import MEASURES

SHOWN = {"selected": "selected", "last": "last", "best": "(best)"}
FEW = 3


def lay_out(results: Results) -> Document:
    """The page of a table."""
    spec, selector = results.plan.spec, results.selector()
    blocks: list[Block] = [Text(_what(results, selector))]
    names = list(dict.fromkeys(entry.name for entry in spec.data))
    for name in names:
        entries = [entry for entry in spec.data if entry.name == name and results.on(entry)]
        if entries:
            blocks.append(_overview(results, name, entries, selector))
    for sweep in spec.sweeps:
        blocks += sweep_blocks(results, sweep)
    for entry in spec.data:
        cells = results.on(entry)
        if cells:
            blocks += [
                Heading(entry.label),
                _accuracy(entry, cells),
                _compared(results, entry, cells, selector),
                _cost(entry, cells),
            ]
    return Document(spec.head.title, tuple(blocks))


def _what(results: Results, selector: str) -> str:
    head, tuning = results.plan.spec.head, results.plan.spec.tuning
    seeds = ", ".join(map(str, head.seeds))
    steps = "" if head.local_steps is None else f" of {head.local_steps} local steps"
    chosen = {
        "selected": "the round that was best on validation examples",
        "last": "the last round",
    }[selector]
    parts = [
        f"Mean ± standard deviation over the seeds {seeds}; {head.rounds} rounds{steps} unless a method says "
        "otherwise. Figures without a deviation are of one seed.",
        f"PM: personal models, GM: the global one, on the clients' test examples. Figures are those of {chosen} "
        f"(“{selector}”) where nothing else is said; “best” is the peak on the test set, an optimistic figure.",
        "The best mean of a column is bold.",
    ]
    if any(cell.tuning for cell in results.plan.cells):
        tried = ", ".join(map(str, tuning.seeds or head.seeds[:1]))
        most = max(len(cell.points) for cell in results.plan.cells)
        parts.append(
            f"Methods were tuned on validation examples: at most {most} points each, with the seed {tried} and "
            f"{tuning.rounds or head.rounds} rounds."
        )
    own = [
        f"{m.name} {', '.join(map(str, m.seeds))}"
        for m in results.plan.spec.methods
        if m.seeds is not None and m.seeds != head.seeds
    ]
    if own:
        parts.append(f"Methods with seeds of their own: {'; '.join(own)}.")
    return " ".join(parts)


def _overview(results: Results, name: str, entries: Sequence[DataEntry], selector: str) -> Sheet:
    methods = list(dict.fromkeys(r.cell.method.name for e in entries for r in results.on(e)))
    columns: list[Column] = []
    for entry in entries:
        cells = {result.cell.method.name: result for result in results.on(entry)}
        rows = [cells.get(method) for method in methods]
        size = "" if len(entries) == 1 else f"{entry.label.removeprefix(f'{name}-')} "
        columns += [
            spreads(f"{size}{SHORT[model]}", rows, model, selector, None) for model in SHORT
        ]
        columns += _paper(entry, rows, size)
    first = first_measure([result for entry in entries for result in results.on(entry)])
    shown = "accuracy" if first == "accuracy" else "RMSE"
    caption = f"{name}: {shown}, {selector}"
    return make_sheet(caption, methods, columns, results.cells, failures=False)


def _accuracy(entry: DataEntry, cells: Sequence[CellResult]) -> Sheet:
    first = first_measure(cells)
    columns = [
        spreads(f"{SHORT[model]} {SHOWN[selector]}", cells, model, selector, None)
        for model in SHORT
        for selector in SHOWN
    ]
    columns += _paper(entry, cells, "")
    caption = "Accuracy in percent" if first == "accuracy" else "RMSE"
    return make_sheet(caption, _names(cells), columns, cells)


def _compared(
    results: Results, entry: DataEntry, cells: Sequence[CellResult], selector: str
) -> Sheet:
    first, against = first_measure(cells), results.plan.spec.paired_with
    columns: list[Column] = []
    pairs: list[Paired] = []
    if any(result.cell.method.name == against for result in cells):
        for model, short in SHORT.items():
            found = [results.difference(r, model, selector, first) for r in cells]
            pairs += [pair for pair in found if pair is not None]
            marks = [
                Mark(_difference(results, result, pair, model, first))
                for result, pair in zip(cells, found, strict=True)
            ]
            columns.append((f"{short} − {against}", marks))
    further = ("nll", "ece") if first == "accuracy" else ("mae", "nll", "coverage90")
    columns += [
        spreads(f"{SHORT[model]} {MEASURES[measure].short}", cells, model, selector, measure)
        for measure in further
        for model in SHORT
    ]
    caption = "Likelihood and calibration"
    if pairs:
        caption = (
            f"Differences from {against}, paired by seed, with 95 % t-intervals; {caption.lower()}"
        )
    sheet = make_sheet(caption, _names(cells), columns, cells, failures=False)
    return dataclasses.replace(sheet, notes=_on_pairs(pairs))


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


def _on_pairs(pairs: Sequence[Paired]) -> tuple[str, ...]:
    """What must be known to read the differences that are shown."""
    if not pairs:
        return ()
    notes = ["n is the number of seeds that both methods have."]
    if any(1 < pair.seeds <= FEW for pair in pairs):
        notes[0] += (
            f" Intervals from {FEW} seeds or fewer are wide, and hold only if differences over seeds are normal."
        )
    if any(math.isnan(pair.lower) for pair in pairs):
        notes.append(
            "Not defined: of one seed, or where the differences are the same with all seeds, which does not make them "
            "certain."
        )
    return tuple(notes)


def _cost(entry: DataEntry, cells: Sequence[CellResult]) -> Sheet:
    rows = [costs(result) for result in cells]
    columns = [(heading, [row[heading] for row in rows]) for heading in rows[0]]
    caption = "Cost of a run; settings, the tuned ones first"
    return make_sheet(caption, _names(cells), columns, cells, failures=False)


def _names(cells: Sequence[CellResult]) -> list[str]:
    return [result.cell.method.name for result in cells]


def _paper(entry: DataEntry, rows: Sequence[CellResult | None], size: str) -> list[Column]:
    """Reference figures, for those models that some method has one of."""
    columns = []
    for short in ("pm", "gm"):
        figures = [
            None if r is None else r.cell.method.paper.get(entry.label, {}).get(short) for r in rows
        ]
        if any(figure is not None for figure in figures):
            marks = [Mark(paper_text(figure)) for figure in figures]
            columns.append((f"paper {size}{short.upper()}", marks))
    return columns
