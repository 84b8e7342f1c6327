"""Columns of a table's sheets: means over seeds, the best bold, and what stands where there is none; costs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pyro_pfedbayes.experiments.reports.collect.comparison import Spread
from pyro_pfedbayes.experiments.tables.declaration.plan import point_text
from pyro_pfedbayes.experiments.tables.declaration.spec import Figure
from pyro_pfedbayes.experiments.tables.pages.document import Mark, Sheet
from pyro_pfedbayes.experiments.tables.results import CellResult, Paired
from pyro_pfedbayes.measures.registry import MEASURES

ABSENT = "–"
SHORT = {"personal": "PM", "global": "GM"}
LONGEST = 70
OWN = " (its own)"
Column = tuple[str, list[Mark]]


def first_measure(cells: Sequence[CellResult]) -> str:
    """The measure that some cells are compared by; accuracy while nothing is known."""
    return next((result.first for result in cells if result.first is not None), "accuracy")


def spreads(
    heading: str,
    cells: Sequence[CellResult | None],
    model: str,
    selector: str,
    measure: str | None = None,
) -> Column:
    """A column of means and deviations, the best mean bold; of the first measure, if no other is named."""
    measure = measure or first_measure([result for result in cells if result is not None])
    shown = [_spread(result, model, selector, measure) for result in cells]
    finite = [mean for mean, _ in shown if math.isfinite(mean)]
    better, best = MEASURES[measure].better, math.nan
    # One method alone is not the best of anything.
    if better is not None and len(finite) > 1:
        best = max(finite) if better == "higher" else min(finite)
    bold = {text for mean, text in shown if mean == best}
    return heading, [Mark(text, text in bold) for _, text in shown]


def _spread(
    result: CellResult | None, model: str, selector: str, measure: str
) -> tuple[float, str]:
    """A mean, and what a cell shows: the mean and its deviation, or why there is none."""
    if result is None or model not in result.cell.models:
        return math.nan, ABSENT
    if result.figures:
        found = result.spread((model, selector, measure))
        return found.mean, spread_text(found, measure, len(result.runs))
    reason = result.reason
    if reason is None:
        return math.nan, "not run yet"
    short = reason if len(reason) <= LONGEST else f"{reason[: LONGEST - 1]}…"
    return math.nan, f"failed: {short}"


def make_sheet(
    caption: str,
    names: Sequence[str],
    columns: Sequence[Column],
    notes: Sequence[str] = (),
    first: str = "method",
) -> Sheet:
    """A sheet of named rows; columns in which nothing stands are left out, a reason for failure stands once a row."""
    shown = [(h, marks) for h, marks in columns if any(mark.text != ABSENT for mark in marks)]
    rows = []
    for i, name in enumerate(names):
        row = [Mark(name)]
        for _, marks in shown:
            repeated = marks[i].text.startswith("failed: ") and marks[i] in row
            row.append(Mark("failed") if repeated else marks[i])
        rows.append(tuple(row))
    headings = (first, *(heading for heading, _ in shown))
    return Sheet(caption, headings, tuple(rows), tuple(notes))


def failure_notes(result: CellResult) -> list[str]:
    """Why runs failed or have no figures at their end, and grid points that dropped out."""
    name = f"{result.cell.method.name} on {result.cell.entry.label}"
    seeds: dict[str, list[str]] = {}
    for run in result.runs:
        if run.reason is not None:
            seeds.setdefault(f"failed: {run.reason}", []).append(str(run.job.seed))
    for run in result.runs:
        if run.figures is not None and run.figures.diverged:
            text = "diverged: predictions are not numbers"
            seeds.setdefault(text, []).append(str(run.job.seed))
    notes = [f"{name}, seed {', '.join(numbers)}: {text}" for text, numbers in seeds.items()]
    return notes + [
        f"{name}, tuning with {point_text(result.cell.points[number])}: failed: {trial.reason}"
        for number, trial in enumerate(() if result.choice is None else result.choice.trials)
        if trial.reason is not None
    ]


def costs(result: CellResult) -> dict[str, Mark]:
    """What a run of a cell costs, by heading: means over the finished ones."""
    method, tuned = result.cell.method, result.point
    runs = [
        (f, f.clients * f.rounds, math.nan if f.bytes_uploaded is None else f.bytes_uploaded / 1e3)
        for f in result.figures
    ]
    own_rounds = OWN if method.rounds is not None else ""
    own_steps = OWN if "local_steps" in {*method.settings, *method.grid} else ""
    settings = [point_text(part) for part in (tuned or {}, method.settings, method.model) if part]
    texts = {
        "seconds of training": _mean([f.seconds for f, _, _ in runs], ".1f"),
        "MB sent": _mean([kilobytes / 1e3 for _, _, kilobytes in runs], ".2f"),
        "kB sent a client and round": _mean([kilobytes / n for _, n, kilobytes in runs], ".1f"),
        "gradient steps a client and round": _mean(
            [f.gradient_steps / n for f, n, _ in runs], ".4g"
        )
        + own_steps,
        "rounds": f"{result.cell.final[0][0].rounds}{own_rounds}",
        "points tried": f"{len(result.cell.points)}",
        "settings": "not chosen" if tuned is None else "; ".join(settings) or "defaults",
    }
    return {heading: Mark(text) for heading, text in texts.items()}


def _mean(values: Sequence[float], form: str) -> str:
    finite = [value for value in values if math.isfinite(value)]
    return f"{sum(finite) / len(finite):{form}}" if finite else ABSENT


def spread_text(found: Spread, measure: str, of: int) -> str:
    """``94.13 ± 0.27``; ``(2 of 3)`` follows if not all runs have the figure."""
    if not found.runs:
        return ABSENT
    text = _shown(found.mean, measure)
    if not math.isnan(found.sd):
        text += f" ± {_shown(found.sd, measure)}"
    return text if found.runs == of else f"{text} ({found.runs} of {of})"


def difference_text(found: Paired | None, measure: str) -> str:
    """``−1.20 [−2.01, −0.39], n = 3``, in points of percent if the measure is; n is the number of seeds."""
    if found is None:
        return ABSENT
    interval = f"{_signed(found.lower, measure)}, {_signed(found.upper, measure)}"
    if math.isnan(found.lower):
        interval = "not defined"
    return f"{_signed(found.mean, measure)} [{interval}], n = {found.seeds}"


def paper_text(figure: Figure | None) -> str:
    """A reference figure, which is in percent as it is given."""
    if figure is None:
        return ABSENT
    parts = figure if isinstance(figure, tuple) else (figure,)
    return " ± ".join(f"{part:.2f}" for part in parts)


def _shown(value: float, measure: str) -> str:
    unit = MEASURES[measure].unit
    return {"%": f"{100 * value:.2f}", "outcome": f"{value:.4g}"}.get(unit, f"{value:.3f}")


def _signed(value: float, measure: str) -> str:
    text = _shown(abs(value), measure)
    if not float(text):
        return text
    return f"−{text}" if value < 0 else f"+{text}"
