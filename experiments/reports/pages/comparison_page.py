"""The page that compares several runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pyro_pfedbayes.experiments.reports.collect.comparison import (
    COMPARED,
    Comparison,
    Difference,
    Group,
    Spread,
    run_measures,
)
from pyro_pfedbayes.experiments.reports.figures.numbers import plot_comparison, plot_tempering
from pyro_pfedbayes.experiments.reports.pages.headline import for_whom, how_good
from pyro_pfedbayes.experiments.reports.pages.html import (
    UNDEFINED,
    Section,
    amount,
    document,
    escaped,
    figure_block,
    number,
    paragraph,
    percent,
    prose,
    side_by_side,
    table,
)
from pyro_pfedbayes.experiments.reports.schema import ReportData
from pyro_pfedbayes.measures.registry import Measure

_FEW = 4  # runs below which a standard deviation is a guess
_FIGURES = ("pm_accuracy", "pm_rmse", "pm_nll", "pm_ece", "pm_coverage90", "unseen_auroc_epistemic")


def comparison_page(found: Comparison, reports: Sequence[ReportData]) -> str:
    """One self-contained HTML page that compares runs.

    Args:
        found: The comparison.
        reports: Of the runs, in the order given.
    """
    sections: list[Section] = [("Methods and measures", _methods(found))]
    if found.differences:
        sections.append(("Differences, paired by seed", _differences(found)))
    if found.tempering:
        sections.append(("Weight of the prior (ζ)", _tempering(found)))
    sections.append(("Every run", _runs(reports, found.outcome)))
    title = f"{amount(len(reports), 'run')} of {amount(len(found.groups), 'method')} compared"
    under = "PM: personal models, GM: the global model; on test examples, at the last round"
    return document(title, under, _answer(found, reports), sections)


def comparison_json(found: Comparison, reports: Sequence[ReportData]) -> dict[str, Any]:
    """JSON values: ``groups``, ``differences``, ``tempering`` as in `Comparison`, and ``runs`` as in `ReportData`."""

    def spreads(values: Mapping[str, Spread]) -> dict[str, Any]:
        return {name: vars(spread) for name, spread in values.items()}

    return {
        "outcome": found.outcome,
        "groups": [{**vars(g), "spread": spreads(g.spread)} for g in found.groups],
        "differences": [{**vars(d), "spread": spreads(d.spread)} for d in found.differences],
        "tempering": [
            {"zeta": zeta, "accuracy": accuracy, "ece": ece}
            for zeta, accuracy, ece in found.tempering
        ],
        "runs": [report.as_json() for report in reports],
    }


def _answer(found: Comparison, reports: Sequence[ReportData]) -> str:
    kinds = list(dict.fromkeys(group.data for group in found.groups))
    parts = []
    for kind in kinds:
        mine = [group for group in found.groups if group.data == kind]
        lines = _ranked(mine, found.outcome)
        if lines:
            head = f"<p>On {prose(kind)}:</p>" if len(kinds) > 1 else ""
            parts.append(f"{head}<ul>{''.join(lines)}</ul>")
    fewest = min(len(group.folders) for group in found.groups)
    few = fewest < _FEW and any(len(group.folders) > 1 for group in found.groups)
    caution = (
        "Some methods have one run only, so nothing tells whether differences are more than chance."
        if fewest < 2
        else "± is the standard deviation over runs; a difference of about its size may well be chance."
    )
    if few and fewest > 1:
        caution += f" Of {fewest} runs that deviation is itself little more than a guess."
    told = [caution] if parts else []
    if len(kinds) > 1:
        told.insert(
            0,
            f"The runs differ in their data ({'; '.join(kinds)}), so methods are ranked and paired within the same "
            "data only; figures on different data say nothing on which method is better.",
        )
    told += _incomplete(reports)
    if not parts:
        told.insert(
            0, "No two methods on the same data have a measure in common, so none is ranked."
        )
    title = "<p><strong>Which is better?</strong></p>" if parts else ""
    return f'<div class="answer">{title}{"".join(parts)}{"".join(map(paragraph, told))}</div>'


def _ranked(groups: Sequence[Group], outcome: str) -> list[str]:
    """A line a measure that at least two methods on the same data have."""
    lines = []
    for name in ("pm_accuracy", "gm_accuracy", "pm_rmse", "gm_rmse", "pm_nll", "pm_ece"):
        ranked = [g for g in groups if name in g.spread and math.isfinite(g.spread[name].mean)]
        if len(ranked) < 2:
            continue
        measure = COMPARED[name]
        ranked.sort(key=lambda group: group.spread[name].mean, reverse=measure.better == "higher")
        told = "; ".join(f"{g.label}: {_cell(g.spread[name], measure)}" for g in ranked[:3])
        lines.append(
            f"<li><strong>{escaped(_heading(name, outcome))}</strong>, best first: {prose(told)}</li>"
        )
    return lines


def _incomplete(reports: Sequence[ReportData]) -> list[str]:
    """Sentences on runs that lack something which others may have."""
    told = []
    unfinished = [report.folder for report in reports if not report.finished]
    if unfinished:
        told.append(f"Not finished, or without a readable summary: {', '.join(unfinished)}.")
    bare = [report for report in reports if report.personal is None and report.finished]
    if bare:
        told.append(
            f"Without predictions, so that only the figures of their summary are compared: "
            f"{', '.join(report.folder for report in bare)}."
        )
    point = [report.folder for report in reports if report.point]
    if point:
        told.append(
            f"One set of weights, and so no epistemic part: {', '.join(point)}; measures by that part are not defined."
        )
    return told


def _methods(found: Comparison) -> str:
    names = _measured(found.groups)
    rows = [
        [
            _headed(name, found.outcome),
            *(_cell(g.spread.get(name), COMPARED[name]) for g in found.groups),
        ]
        for name in names
    ]
    rows.append(["runs", *(str(len(group.folders)) for group in found.groups)])
    caption = (
        "Mean ± standard deviation over n runs; ↑ higher is better, ↓ lower is, among methods on the same data. "
        f"{UNDEFINED} means not stored, not defined, or of a model that the method is not about."
    )
    text = table(caption, ["measure", *(group.label for group in found.groups)], rows)
    blocks = []
    for name in (name for name in _FIGURES if name in names):
        heading, measure = _heading(name, found.outcome), COMPARED[name]
        values = {group.label: group.values.get(name, ()) for group in found.groups}
        told = "; ".join(f"{g.label}: {_cell(g.spread.get(name), measure)}" for g in found.groups)
        figure = plot_comparison(values, heading, scale=100 if measure.percent else 1)
        blocks.append(figure_block(figure, f"{heading} by method. {told}.", heading))
    return text + side_by_side(*blocks)


def _differences(found: Comparison) -> str:
    by_first: dict[str, list[Difference]] = {}
    for difference in found.differences:
        by_first.setdefault(difference.against, []).append(difference)
    tables = []
    for first, differences in by_first.items():
        names = [
            name
            for name in _measured(found.groups)
            if any(name in d.spread and d.spread[name].runs for d in differences)
        ]
        rows = [
            [
                _headed(name, found.outcome),
                *(_cell(d.spread.get(name), COMPARED[name], signed=True) for d in differences),
            ]
            for name in names
        ]
        rows.append(["seeds (list)", *(", ".join(d.seeds) for d in differences)])
        caption = (
            f"Each method minus {first}, of runs with the same seed: mean ± standard deviation of the n differences. "
            "Pairing takes away what the seed's data and start have in common."
        )
        tables.append(table(caption, ["measure", *(d.label for d in differences)], rows))
    return "".join(tables)


def _tempering(found: Comparison) -> str:
    alt = "; ".join(
        f"ζ {zeta:g}: accuracy {percent(accuracy)} %, ECE {percent(ece)} %"
        for zeta, accuracy, ece in found.tempering
    )
    return figure_block(
        plot_tempering(found.tempering),
        f"Accuracy and calibration error against ζ. {alt}.",
        "ζ weighs the divergence from the prior: a larger one tempers the posterior towards what is shared.",
    )


def _runs(reports: Sequence[ReportData], outcome: str) -> str:
    measured = [run_measures(report) for report in reports]
    names = [n for n in COMPARED if any(math.isfinite(own.get(n, math.nan)) for own in measured)]
    rows = []
    for report, measures in zip(reports, measured, strict=True):
        cells = [_value(measures.get(name), COMPARED[name]) for name in names]
        needy = sum(bool(row.reasons) for row in report.clients)
        rows.append([report.folder, *cells, str(needy) if report.clients else UNDEFINED])
    heads = ["run", *(_heading(name, outcome) for name in names), "clients in need"]
    text = table("pfedbayes report DIR shows a single run in full.", heads, rows)
    items = []
    for report in reports:
        whom, lines = for_whom(report)
        lost = [report.missing["predictions"]] if "predictions" in report.missing else []
        notes = "; ".join([*lines, *report.notes, *lost])
        told = prose(f"{how_good(report)} {whom} {notes}")
        items.append(f"<li><strong>{escaped(report.folder)}</strong>: {told}</li>")
    return text + f"<ul>{''.join(items)}</ul>"


def _measured(groups: Sequence[Group]) -> list[str]:
    """Measures that some run has."""
    return [
        name
        for name in COMPARED
        if any(name in group.spread and group.spread[name].runs for group in groups)
    ]


def _heading(name: str, outcome: str) -> str:
    # Of numbers the area is of the squared error.
    squared = " (squared units)" if name == "pm_aurc" and outcome == "number" else ""
    return COMPARED[name].short + squared


def _headed(name: str, outcome: str) -> str:
    arrows: Mapping[str | None, str] = {"higher": " ↑", "lower": " ↓", None: ""}
    return _heading(name, outcome) + arrows[COMPARED[name].better]


def _cell(spread: Spread | None, measure: Measure, *, signed: bool = False) -> str:
    if spread is None or not math.isfinite(spread.mean):
        return UNDEFINED
    shown = _value(spread.mean, measure)
    if signed and spread.mean > 0:
        shown = f"+{shown}"
    if math.isnan(spread.sd):
        return shown
    return f"{shown} ± {_value(spread.sd, measure)} (n {spread.runs})"


def _value(value: float | None, measure: Measure) -> str:
    return percent(value, 2) if measure.percent else number(value)
