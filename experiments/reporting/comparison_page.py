"""The page that compares several runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyro_pfedbayes.experiments.reporting.answer import for_whom, how_good
from pyro_pfedbayes.experiments.reporting.compare import Comparison, Group, Spread, run_measures
from pyro_pfedbayes.experiments.reporting.data import ReportData
from pyro_pfedbayes.experiments.reporting.figures_numbers import plot_comparison, plot_tempering
from pyro_pfedbayes.experiments.reporting.html import (
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

__all__ = ["comparison_json", "comparison_page"]

# Heading, factor, whether more is better; coverage has no better side.
_SHOWN: Mapping[str, tuple[str, float, bool | None]] = {
    "pm_accuracy": ("PM accuracy %", 100, True),
    "gm_accuracy": ("GM accuracy %", 100, True),
    "pm_rmse": ("PM RMSE", 1, False),
    "gm_rmse": ("GM RMSE", 1, False),
    "pm_nll": ("PM NLL", 1, False),
    "gm_nll": ("GM NLL", 1, False),
    "pm_ece": ("PM ECE %", 100, False),
    "gm_ece": ("GM ECE %", 100, False),
    "pm_brier": ("PM Brier", 1, False),
    "pm_crps": ("PM CRPS", 1, False),
    "pm_coverage90": ("PM in 90 %", 100, None),
    "pm_accuracy_at_90": ("PM accuracy % at 90 % coverage", 100, True),
    "pm_aurc": ("PM AURC", 1, False),
    "unseen_auroc_epistemic": ("AUROC unseen, epistemic", 1, True),
    "unseen_auroc_total": ("AUROC unseen, total", 1, True),
    "unseen_auroc_max_probability": ("AUROC unseen, 1 - max p", 1, True),
    "foreign_auroc_epistemic": ("AUROC other data, epistemic", 1, True),
    "foreign_auroc_total": ("AUROC other data, total", 1, True),
    "foreign_auroc_max_probability": ("AUROC other data, 1 - max p", 1, True),
    "corrupted_auroc_epistemic": ("AUROC damaged, epistemic", 1, True),
    "corrupted_auroc_total": ("AUROC damaged, total", 1, True),
    "corrupted_auroc_max_probability": ("AUROC damaged, 1 - max p", 1, True),
    "pm_ece_scaled": ("PM ECE % after temperature", 100, False),
    "pm_nll_scaled": ("PM NLL after temperature", 1, False),
}
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
    sections.append(("Every run", _runs(reports)))
    title = f"{amount(len(reports), 'run')} of {amount(len(found.groups), 'method')} compared"
    under = "PM: personal models, GM: the global model; on test examples, at the last round"
    return document(title, under, _answer(found), sections)


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


def _answer(found: Comparison) -> str:
    parts = []
    for name in ("pm_accuracy", "pm_rmse", "pm_nll", "pm_ece"):
        ranked = [
            g for g in found.groups if name in g.spread and math.isfinite(g.spread[name].mean)
        ]
        if len(ranked) < 2:
            continue
        heading, factor, more = _SHOWN[name]
        ranked.sort(key=lambda group: group.spread[name].mean, reverse=bool(more))
        told = "; ".join(f"{g.label}: {_cell(g.spread[name], factor)}" for g in ranked[:3])
        parts.append(f"<li><strong>{escaped(heading)}</strong>, best first: {prose(told)}</li>")
    if not parts:
        return paragraph("The runs have no measure in common, or are all of one method.")
    fewest = min(len(group.folders) for group in found.groups)
    caution = (
        "Some methods have one run only, so nothing tells whether differences are more than chance."
        if fewest < 2
        else "± is the standard deviation over runs; a difference of about its size may well be chance."
    )
    listed = f"<ul>{''.join(parts)}</ul>{paragraph(caution)}"
    return f'<div class="answer"><p><strong>Which is better?</strong></p>{listed}</div>'


def _methods(found: Comparison) -> str:
    names = _measured(found.groups)
    rows = [
        [_headed(name), *(_cell(g.spread.get(name), _SHOWN[name][1]) for g in found.groups)]
        for name in names
    ]
    rows.append(["runs", *(str(len(group.folders)) for group in found.groups)])
    caption = (
        f"Mean ± standard deviation over runs; ↑ higher is better, ↓ lower is. {UNDEFINED} means not stored or not "
        "defined."
    )
    text = table(caption, ["measure", *(group.label for group in found.groups)], rows)
    blocks = []
    for name in (name for name in _FIGURES if name in names):
        heading, factor, _ = _SHOWN[name]
        values = {group.label: group.values.get(name, ()) for group in found.groups}
        told = "; ".join(f"{g.label}: {_cell(g.spread.get(name), factor)}" for g in found.groups)
        figure = plot_comparison(values, heading, scale=factor)
        blocks.append(figure_block(figure, f"{heading} by method. {told}.", heading))
    return text + side_by_side(*blocks)


def _differences(found: Comparison) -> str:
    names = [n for n in _measured(found.groups) if any(n in d.spread for d in found.differences)]
    rows = [
        [
            _headed(name),
            *(_cell(d.spread.get(name), _SHOWN[name][1], signed=True) for d in found.differences),
        ]
        for name in names
    ]
    rows.append(["seeds", *(", ".join(d.seeds) for d in found.differences)])
    caption = (
        f"Each method minus {found.differences[0].against}, of runs with the same seed: mean ± standard deviation of "
        "the differences. Pairing takes away what the seed's data and start have in common."
    )
    return table(caption, ["measure", *(d.label for d in found.differences)], rows)


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


def _runs(reports: Sequence[ReportData]) -> str:
    names = [n for n in _SHOWN if any(n in run_measures(report) for report in reports)]
    rows = []
    for report in reports:
        measures = run_measures(report)
        cells = [_value(measures.get(name), _SHOWN[name][1]) for name in names]
        needy = sum(bool(row.reasons) for row in report.clients)
        rows.append([report.folder, *cells, str(needy) if report.clients else UNDEFINED])
    heads = ["run", *(_SHOWN[name][0] for name in names), "clients in need"]
    text = table("pfedbayes report DIR shows a single run in full.", heads, rows)
    items = []
    for report in reports:
        whom, lines = for_whom(report)
        notes = "; ".join([*lines, *report.notes])
        told = prose(f"{how_good(report)} {whom} {notes}")
        items.append(f"<li><strong>{escaped(report.folder)}</strong>: {told}</li>")
    return text + f"<ul>{''.join(items)}</ul>"


def _measured(groups: Sequence[Group]) -> list[str]:
    return [name for name in _SHOWN if any(name in group.values for group in groups)]


def _headed(name: str) -> str:
    heading, _, more = _SHOWN[name]
    arrows: Mapping[bool | None, str] = {True: " ↑", False: " ↓", None: ""}
    return heading + arrows[more]


def _cell(spread: Spread | None, factor: float, *, signed: bool = False) -> str:
    if spread is None or not math.isfinite(spread.mean):
        return UNDEFINED
    shown = _value(spread.mean, factor)
    if signed and spread.mean > 0:
        shown = f"+{shown}"
    return shown if math.isnan(spread.sd) else f"{shown} ± {_value(spread.sd, factor)}"


def _value(value: float | None, factor: float) -> str:
    if value is None or not math.isfinite(value):
        return UNDEFINED
    show: Callable[[float], str] = percent if factor == 100 else number
    return f"{100 * value:.2f}" if show is percent else number(value)
