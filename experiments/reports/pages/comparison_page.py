"""The page that compares several runs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from pyro_pfedbayes.experiments.reports.collect.comparison import (
    COMPARED,
    Comparison,
    Difference,
    Group,
    run_measures,
)
from pyro_pfedbayes.experiments.reports.figures.comparison import plot_comparison, plot_tempering
from pyro_pfedbayes.experiments.reports.pages.formatting import UNDEFINED, amount, shown_as
from pyro_pfedbayes.experiments.reports.pages.headline import for_whom, how_good
from pyro_pfedbayes.experiments.reports.pages.render import fragment, render
from pyro_pfedbayes.experiments.reports.schema import ReportData

_FIGURES = ("pm_accuracy", "pm_rmse", "pm_nll", "pm_ece", "pm_coverage90", "unseen_auroc_epistemic")
_RANKED = ("pm_accuracy", "gm_accuracy", "pm_rmse", "gm_rmse", "pm_nll", "pm_ece")
_ARROWS: Mapping[str | None, str] = {"higher": " ↑", "lower": " ↓", None: ""}


def comparison_page(found: Comparison, reports: Sequence[ReportData]) -> str:
    """One self-contained HTML page that compares runs, whose reports are in the order given."""
    sections = [("Methods and measures", _methods(found))]
    if found.differences:
        sections.append(("Differences, paired by seed", _differences(found)))
    if found.tempering:
        picture = plot_tempering(found.tempering)
        content = fragment("tempering.html.jinja", points=found.tempering, picture=picture)
        sections.append(("Weight of the prior (ζ)", content))
    sections.append(("Every run", _runs(reports, found.outcome)))
    kinds = list(dict.fromkeys(group.data for group in found.groups))
    rankings = [(kind, _ranked(found, kind)) for kind in kinds]
    rankings = [(kind, lines) for kind, lines in rankings if lines]
    return render(
        "comparison.html.jinja",
        title=f"{amount(len(reports), 'run')} of {amount(len(found.groups), 'method')} compared",
        subtitle="PM: personal models, GM: the global model; on test examples, at the last round",
        rankings=rankings,
        kinds=kinds,
        fewest=min(len(group.folders) for group in found.groups),
        reports=reports,
        sections=sections,
    )


def comparison_json(found: Comparison, reports: Sequence[ReportData]) -> dict[str, Any]:
    """JSON values: ``groups``, ``differences``, ``tempering`` as in `Comparison`, and ``runs`` as in `ReportData`."""
    return {
        "outcome": found.outcome,
        **dataclasses.asdict(found),
        "tempering": [
            dict(zip(("zeta", "accuracy", "ece"), point, strict=True)) for point in found.tempering
        ],
        "runs": [report.as_json() for report in reports],
    }


def _ranked(found: Comparison, kind: str) -> list[tuple[str, str]]:
    """Heading and the best methods for each measure that at least two methods on the same data have."""
    lines = []
    groups = [group for group in found.groups if group.data == kind]
    for name in _RANKED:
        ranked = [g for g in groups if name in g.spread and math.isfinite(g.spread[name].mean)]
        if len(ranked) < 2:
            continue
        higher = COMPARED[name].better == "higher"
        ranked.sort(key=lambda group: group.spread[name].mean, reverse=higher)
        best = "; ".join(f"{g.label}: {_cell(g, name)}" for g in ranked[:3])
        lines.append((_heading(name, found.outcome), best))
    return lines


def _methods(found: Comparison) -> Markup:
    groups = found.groups
    names = _measured(groups)
    rows = _rows(names, groups, found.outcome)
    rows.append(["runs", *(str(len(group.folders)) for group in groups)])
    blocks = []
    for name in (name for name in _FIGURES if name in names):
        heading, scale = _heading(name, found.outcome), 100 if COMPARED[name].percent else 1
        values = {group.label: group.values.get(name, ()) for group in groups}
        means = "; ".join(f"{g.label}: {_cell(g, name)}" for g in groups)
        picture = plot_comparison(values, heading, scale=scale)
        blocks.append((picture, f"{heading} by method. {means}.", heading))
    columns = ["measure", *(group.label for group in groups)]
    return fragment("methods.html.jinja", columns=columns, rows=rows, blocks=blocks)


def _differences(found: Comparison) -> Markup:
    by_first: dict[str, list[Difference]] = {}
    for difference in found.differences:
        by_first.setdefault(difference.against, []).append(difference)
    tables = []
    for first, differences in by_first.items():
        names = [name for name in _measured(found.groups) if name in _measured(differences)]
        rows = _rows(names, differences, found.outcome)
        rows.append(["seeds (list)", *(", ".join(d.seeds) for d in differences)])
        tables.append((first, ["measure", *(d.label for d in differences)], rows))
    return fragment("differences.html.jinja", tables=tables)


def _runs(reports: Sequence[ReportData], outcome: str) -> Markup:
    measured = [run_measures(report) for report in reports]
    names = [n for n in COMPARED if any(math.isfinite(own.get(n, math.nan)) for own in measured)]
    rows, answers = [], []
    for report, measures in zip(reports, measured, strict=True):
        cells = [shown_as(COMPARED[name], 2)(measures.get(name)) for name in names]
        needy = sum(bool(row.reasons) for row in report.clients)
        rows.append([report.folder, *cells, str(needy) if report.clients else UNDEFINED])
        whom, lines = for_whom(report)
        lost = [report.missing["predictions"]] if "predictions" in report.missing else []
        notes = "; ".join([*lines, *report.notes, *lost])
        answers.append((report.folder, f"{how_good(report)} {whom} {notes}"))
    columns = ["run", *(_heading(name, outcome) for name in names), "clients in need"]
    return fragment("runs.html.jinja", columns=columns, rows=rows, answers=answers)


def _measured(groups: Sequence[Group | Difference]) -> list[str]:
    """Measures that some run has."""
    return [
        name for name in COMPARED if any(name in g.spread and g.spread[name].runs for g in groups)
    ]


def _heading(name: str, outcome: str) -> str:
    # Of numbers the area is of the squared error.
    squared = " (squared units)" if name == "pm_aurc" and outcome == "number" else ""
    return COMPARED[name].short + squared


def _rows(
    names: Sequence[str], columns: Sequence[Group | Difference], outcome: str
) -> list[list[str]]:
    """A row a measure."""
    return [
        [
            _heading(name, outcome) + _ARROWS[COMPARED[name].better],
            *(_cell(column, name) for column in columns),
        ]
        for name in names
    ]


def _cell(column: Group | Difference, name: str) -> str:
    """Mean and deviation of a measure; differences have a sign."""
    spread = column.spread.get(name)
    if spread is None or not math.isfinite(spread.mean):
        return UNDEFINED
    shown = shown_as(COMPARED[name], 2)
    sign = "+" if isinstance(column, Difference) and spread.mean > 0 else ""
    deviation = "" if math.isnan(spread.sd) else f" ± {shown(spread.sd)} (n {spread.runs})"
    return f"{sign}{shown(spread.mean)}{deviation}"
