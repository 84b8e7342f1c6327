"""What a table's page shows: an overview by data set, then accuracy, differences and cost of each cell."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyro_pfedbayes.experiments.tables.declaration.spec import DataEntry, Figure
from pyro_pfedbayes.experiments.tables.pages.columns import (
    SHORT,
    Column,
    costs,
    failure_notes,
    first_measure,
    make_sheet,
    spreads,
)
from pyro_pfedbayes.experiments.tables.pages.document import (
    Block,
    Document,
    Heading,
    Mark,
    Sheet,
    Text,
    plain_environment,
)
from pyro_pfedbayes.experiments.tables.pages.formatting import difference_text, paper_text
from pyro_pfedbayes.experiments.tables.pages.sweep_layout import sweep_blocks
from pyro_pfedbayes.experiments.tables.results.collect import CellResult, Results
from pyro_pfedbayes.experiments.tables.results.paired import Paired
from pyro_pfedbayes.measures.registry import MEASURES

SHOWN = {"selected": "selected", "last": "last", "best": "(best)"}
FEW = 3


def lay_out(results: Results) -> Document:
    """The page of a table."""
    return Document(results.plan.spec.head.title, tuple(_blocks(results)))


def _blocks(results: Results) -> Iterator[Block]:
    spec, selector = results.plan.spec, results.selector()
    introduction = plain_environment().get_template("introduction.jinja")
    text = introduction.render(
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
        yield from sweep_blocks(results, sweep)
    for entry in declared:
        cells = results.on(entry)
        names = [result.cell.method.name for result in cells]
        caption = "Accuracy in percent" if first_measure(cells) == "accuracy" else "RMSE"
        columns = [
            spreads(f"{short} {shown}", cells, model, selector)
            for model, short in SHORT.items()
            for selector, shown in SHOWN.items()
        ]
        columns += _paper(entry, cells, "")
        notes = [note for result in cells for note in failure_notes(result)]
        yield Heading(entry.label)
        yield make_sheet(caption, names, columns, notes)
        yield _comparison(results, names, cells, selector)
        spent = [costs(result) for result in cells]
        columns = [(heading, [row[heading] for row in spent]) for heading in spent[0]]
        yield make_sheet("Cost of a run; settings, the tuned ones first", names, columns)


def _overview(results: Results, name: str, entries: Sequence[DataEntry], selector: str) -> Sheet:
    cells = [result for entry in entries for result in results.on(entry)]
    methods = list(dict.fromkeys(result.cell.method.name for result in cells))
    columns: list[Column] = []
    for entry in entries:
        by_method = {result.cell.method.name: result for result in results.on(entry)}
        rows = [by_method.get(method) for method in methods]
        size = "" if len(entries) == 1 else f"{entry.label.removeprefix(f'{name}-')} "
        columns += [spreads(f"{size}{SHORT[model]}", rows, model, selector) for model in SHORT]
        columns += _paper(entry, rows, size)
    shown = "accuracy" if first_measure(cells) == "accuracy" else "RMSE"
    return make_sheet(f"{name}: {shown}, {selector}", methods, columns)


def _comparison(
    results: Results, names: list[str], cells: Sequence[CellResult], selector: str
) -> Sheet:
    first, against = first_measure(cells), results.plan.spec.paired_with
    columns: list[Column] = []
    pairs: list[Paired] = []
    if against in names:
        for model, short in SHORT.items():
            found = [results.difference(result, model, selector, first) for result in cells]
            pairs += [pair for pair in found if pair is not None]
            marks = [
                Mark(_difference(results, result, pair, model, first))
                for result, pair in zip(cells, found, strict=True)
            ]
            columns.append((f"{short} − {against}", marks))
    further = ("nll", "ece") if first == "accuracy" else ("mae", "nll", "coverage90")
    columns += [
        spreads(f"{short} {MEASURES[measure].short}", cells, model, selector, measure)
        for measure in further
        for model, short in SHORT.items()
    ]
    caption = "Likelihood and calibration"
    if pairs:
        caption = (
            f"Differences from {against}, paired by seed, with 95 % t-intervals; {caption.lower()}"
        )
    return make_sheet(caption, names, columns, _notes_on_pairs(pairs))


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


def _notes_on_pairs(pairs: Sequence[Paired]) -> list[str]:
    """What must be known to read the differences that are shown."""
    if not pairs:
        return []
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
    return notes


def _paper(entry: DataEntry, rows: Sequence[CellResult | None], size: str) -> list[Column]:
    """Reference figures; `make_sheet` leaves out those of models that no method has one of."""
    papers: list[Mapping[Any, Figure]] = [
        {} if r is None else r.cell.method.paper.get(entry.label, {}) for r in rows
    ]
    return [
        (f"paper {size}{short}", [Mark(paper_text(p.get(key))) for p in papers])
        for key, short in (("pm", "PM"), ("gm", "GM"))
    ]
