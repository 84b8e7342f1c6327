"""Columns of a table's sheets: means over seeds, the best bold, and what stands where there is none."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pyro_pfedbayes.experiments.tables.declaration.plan import point_text
from pyro_pfedbayes.experiments.tables.execution.run_values import Figures
from pyro_pfedbayes.experiments.tables.pages.document import Mark, Sheet
from pyro_pfedbayes.experiments.tables.pages.formatting import ABSENT, spread_text
from pyro_pfedbayes.experiments.tables.results.collect import CellResult
from pyro_pfedbayes.measures.registry import MEASURES

SHORT = {"personal": "PM", "global": "GM"}
LONGEST = 70
Column = tuple[str, list[Mark]]


def first_measure(cells: Sequence[CellResult]) -> str:
    """The measure that some cells are compared by; accuracy while nothing is known."""
    return next((result.first for result in cells if result.first is not None), "accuracy")


def spreads(
    heading: str,
    cells: Sequence[CellResult | None],
    model: str,
    selector: str,
    measure: str | None,
) -> Column:
    """A column of means and deviations, the best mean bold; None for the first measure."""
    first = measure or first_measure([result for result in cells if result is not None])
    means, texts = [], []
    for result in cells:
        if result is None or model not in result.cell.models:
            means.append(math.nan)
            texts.append(ABSENT)
            continue
        found = result.spread(model, selector, first)
        means.append(found.mean)
        text = spread_text(found, first, len(result.runs))
        texts.append(_instead(result) if not result.figures else text)
    best = _best(means, MEASURES[first].better)
    bold = {texts[i] for i, mean in enumerate(means) if mean == best}
    return heading, [Mark(text, text in bold) for text in texts]


def _instead(result: CellResult) -> str:
    """What stands where there is no figure."""
    if result.reason is None:
        return "not run yet"
    reason = result.reason
    return f"failed: {reason if len(reason) <= LONGEST else reason[: LONGEST - 1] + '…'}"


def _best(means: Sequence[float], better: str | None) -> float:
    finite = [mean for mean in means if math.isfinite(mean)]
    # One method alone is not the best of anything.
    if better is None or len(finite) < 2:
        return math.nan
    return max(finite) if better == "higher" else min(finite)


def make_sheet(
    caption: str,
    names: Sequence[str],
    columns: Sequence[Column],
    cells: Sequence[CellResult],
    *,
    first: str = "method",
    failures: bool = True,
) -> Sheet:
    """A sheet of columns; those in which nothing stands are left out.

    Args:
        caption: What it shows.
        names: Of its rows.
        columns: The rest.
        cells: Those whose failures are told below it.
        first: What the rows are.
        failures: Whether they are.
    """
    notes = [note for result in cells for note in _failures(result)]
    empty = [all(mark.text == ABSENT for mark in marks) for _, marks in columns]
    kept = [column for column, nothing in zip(columns, empty, strict=True) if not nothing]
    rows = [(Mark(name), *_once([marks[i] for _, marks in kept])) for i, name in enumerate(names)]
    return Sheet(
        caption,
        (first, *(heading for heading, _ in kept)),
        tuple(rows),
        tuple(notes) if failures else (),
    )


def _once(marks: Sequence[Mark]) -> list[Mark]:
    """A row in which a reason for failure stands only once."""
    found: list[Mark] = []
    for mark in marks:
        again = mark.text.startswith("failed: ") and mark in found
        found.append(Mark("failed") if again else mark)
    return found


def _failures(result: CellResult) -> list[str]:
    """Why runs failed or have no figures at their end, and grid points that dropped out."""
    name = f"{result.cell.method.name} on {result.cell.entry.label}"
    by_reason: dict[str, list[str]] = {}
    for run in result.runs:
        if run.reason is not None:
            by_reason.setdefault(run.reason, []).append(str(run.job.seed))
    notes = [
        f"{name}, seed {', '.join(seeds)}: failed: {reason}" for reason, seeds in by_reason.items()
    ]
    lost = [str(run.job.seed) for run in result.runs if run.figures and _diverged(run.figures)]
    if lost:
        notes.append(f"{name}, seed {', '.join(lost)}: diverged: predictions are not numbers")
    choice = result.choice
    for trial in choice.trials if choice is not None else ():
        if trial.reason is not None:
            point = point_text(result.cell.points[trial.number])
            notes.append(f"{name}, tuning with {point}: failed: {trial.reason}")
    return notes


def _diverged(figures: Figures) -> bool:
    """Whether a run went on to its end without a figure that a mean could count there."""
    last = [row for (_, selector), row in figures.values.items() if selector == "last"]
    return not all(math.isfinite(row[figures.first]) for row in last)
