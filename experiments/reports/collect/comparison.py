"""Several runs side by side: methods by measures, over seeds, paired by seed where that is possible."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.experiments.reports.schema import ReportData
from pyro_pfedbayes.measures.registry import MEASURES, Measure

_BOTH, _OWN = ("pm", "gm"), ("pm",)
_AUROC = Measure("AUROC", "AUROC", "", "higher")
COMPARED: Mapping[str, Measure] = {
    **{
        f"{model}_{name}": MEASURES[name].called(f"{model.upper()} {MEASURES[name].short}")
        for models, names in (
            (_BOTH, ("accuracy", "rmse", "nll", "ece")),
            (_OWN, ("brier", "crps", "coverage90")),
        )
        for name in names
        for model in models
    },
    "pm_accuracy_at_90": MEASURES["accuracy"].called("PM accuracy % at 90 % coverage"),
    "pm_aurc": MEASURES["aurc"].called("PM AURC"),
    **{
        f"{kind}_auroc_{score}": _AUROC.called(f"AUROC {examples}, {by}")
        for kind, examples in (
            ("unseen", "unseen"),
            ("foreign", "other data"),
            ("corrupted", "damaged"),
        )
        for score, by in (
            ("epistemic", "epistemic"),
            ("total", "total"),
            ("max_probability", "1 - max p"),
        )
    },
    "pm_ece_scaled": MEASURES["ece"].called("PM ECE % after temperature"),
    "pm_nll_scaled": MEASURES["nll"].called("PM NLL after temperature"),
}
"""What is compared; a measure that no run has is left out."""
# What tells repetitions of one method apart, or has no part in its result.
_NOT_THE_METHOD = (
    "run.seed",
    "data.seed",
    "run.device",
    "run.engine",
    "run.out",
    "data.dir",
    "run.chunk",
    "run.eval_every",
    "run.eval_draws",
    "run.checkpoint_every",
    "run.posterior_draws",
    "run.foreign",
    "run.shifts",
)


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation (divided by n - 1) of so many numbers; NaN where they are not defined."""

    mean: float
    sd: float
    runs: int


@dataclass(frozen=True)
class Group:
    """The runs of one method on one data set; each run's figure by measure is NaN where it has none."""

    label: str
    data: str  # data set and split, which groups must share to be ranked
    folders: tuple[str, ...]
    seeds: tuple[str, ...]  # ``run.seed`` of each
    values: Mapping[str, tuple[float, ...]]
    spread: Mapping[str, Spread]


@dataclass(frozen=True)
class Difference:
    """How a method differs from the first one on the same data, over the seeds that both have."""

    label: str
    against: str
    seeds: tuple[str, ...]
    spread: Mapping[str, Spread]


@dataclass(frozen=True)
class Comparison:
    """Several runs, compared."""

    groups: tuple[Group, ...]  # methods, in the order of the runs given
    differences: tuple[Difference, ...]
    """From the first group on the same data, paired by seed; groups without a common seed are left out."""
    tempering: tuple[tuple[float, float, float], ...]
    """ζ, accuracy and ECE of the personal models of runs on the same data that differ in ``algorithm.zeta``; of the
    first data on which some do."""
    outcome: str  # ``class`` or ``number``


def compare(reports: Sequence[ReportData]) -> Comparison:
    """Group at least two runs by method and data, and pair them by seed."""
    outcomes = {report.outcome for report in reports if report.outcome is not None}
    if len(outcomes) > 1:
        which = {report.outcome: report.folder for report in reports}
        raise UserError(
            f"the outcomes of {which['class']} are classes and those of {which['number']} are numbers; "
            "compare runs of one kind"
        )
    by_label: dict[str, list[ReportData]] = {}
    for label, report in zip(_labels(reports), reports, strict=True):
        by_label.setdefault(label, []).append(report)
    groups = tuple(_group(label, members) for label, members in by_label.items())
    first: dict[str, Group] = {}
    for group in groups:
        first.setdefault(group.data, group)
    differences = [
        _difference(first[group.data], group)
        for group in groups
        if group is not first[group.data] and set(group.seeds) & set(first[group.data].seeds)
    ]
    return Comparison(
        groups, tuple(differences), _tempering(reports), outcomes.pop() if outcomes else "class"
    )


def run_measures(report: ReportData) -> dict[str, float]:
    """The figures of one run that are compared, those of the last round; without predictions, the summary's.

    What a model makes of them that the method is not about is left out.
    """
    found: dict[str, float] = {}
    for short, key, model in (
        ("pm", "personal", report.personal),
        ("gm", "global", report.global_),
    ):
        if key not in report.about:
            continue
        summary = report.summary.get(key, {})
        for name in ("accuracy", "rmse", "nll", "ece", "brier", "coverage90", "crps"):
            value = summary.get(name) if isinstance(summary, Mapping) else None
            value = value.get("last") if isinstance(value, Mapping) else value
            if model is not None and name in model.measures:
                value = model.measures[name].value
            if isinstance(value, int | float):
                found[f"{short}_{name}"] = float(value)
    if "personal" not in report.about:
        return {name: found[name] for name in COMPARED if name in found}
    if report.personal is not None and report.personal.selective is not None:
        curve = report.personal.selective
        found["pm_aurc"] = curve.aurc.value
        if report.outcome == "class":
            found["pm_accuracy_at_90"] = curve.at["90"].value
    for kind in ("unseen", "foreign", "corrupted"):
        part = getattr(report, kind)
        for score in part.scores if part is not None else ():
            found[f"{kind}_auroc_{score.name}"] = score.auroc.value
    for fitted in report.temperature:
        if fitted.model == "personal":
            found["pm_ece_scaled"] = fitted.measures["shared"]["ece"]
            found["pm_nll_scaled"] = fitted.measures["shared"]["nll"]
    return {name: found[name] for name in COMPARED if name in found}


def _group(label: str, members: Sequence[ReportData]) -> Group:
    measured = [run_measures(report) for report in members]
    names = [name for name in COMPARED if any(name in found for found in measured)]
    values = {name: tuple(found.get(name, math.nan) for found in measured) for name in names}
    return Group(
        label,
        data_words(members[0]),
        tuple(report.folder for report in members),
        tuple(_seed(report) for report in members),
        values,
        {name: spread_of(column) for name, column in values.items()},
    )


def _difference(first: Group, other: Group) -> Difference:
    common = [seed for seed in dict.fromkeys(first.seeds) if seed in other.seeds]
    spread = {}
    for name, column in other.values.items():
        if name in first.values:
            # Several runs of one seed are the same run: the first of them counts.
            pairs = [
                column[other.seeds.index(seed)] - first.values[name][first.seeds.index(seed)]
                for seed in common
            ]
            spread[name] = spread_of(pairs)
    return Difference(other.label, first.label, tuple(common), spread)


def spread_of(values: Sequence[float]) -> Spread:
    """Mean and standard deviation of the numbers that are finite."""
    finite = [value for value in values if math.isfinite(value)]
    mean = statistics.fmean(finite) if finite else math.nan
    return Spread(mean, statistics.stdev(finite) if len(finite) > 1 else math.nan, len(finite))


def _labels(reports: Sequence[ReportData]) -> list[str]:
    """Method and data of each run, with the settings that tell runs of the same name apart."""
    base = [_base_label(report) for report in reports]
    flat = [_flat(report.settings) for report in reports]
    labels = []
    for name, settings in zip(base, flat, strict=True):
        same = [other for other_name, other in zip(base, flat, strict=True) if other_name == name]
        keys = sorted({key for other in same for key in other} - set(_NOT_THE_METHOD))
        varying = [key for key in keys if len({repr(other.get(key)) for other in same}) > 1]
        told = ", ".join(f"{key.split('.', 1)[-1]}={settings.get(key, 'unset')}" for key in varying)
        labels.append(f"{name}; {told}" if told else name)
    return labels


def _base_label(report: ReportData) -> str:
    data, method = (
        _data_of(report),
        report.settings.get("algorithm", {}).get("name", "unknown method"),
    )
    return f"{method} on {', '.join(part for part in data if part)}"


def data_words(report: ReportData) -> str:
    """Data set, split and number of clients of a run: what runs must share to be ranked."""
    section = report.settings.get("data", {})
    clients = report.summary.get("clients") or section.get("clients")
    parts = [*_data_of(report), f"{clients} clients" if clients else ""]
    return ", ".join(part for part in parts if part)


def _data_of(report: ReportData) -> tuple[str, ...]:
    section = report.settings.get("data", {})
    name = report.summary.get("data") or section.get("name", "unknown data")
    return str(name), str(report.summary.get("split") or section.get("split") or "")


def _seed(report: ReportData) -> str:
    return str(report.settings.get("run", {}).get("seed", report.summary.get("seed", "unknown")))


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def _tempering(reports: Sequence[ReportData]) -> tuple[tuple[float, float, float], ...]:
    by_data: dict[str, list[tuple[float, float, float]]] = {}
    for report in reports:
        zeta = report.settings.get("algorithm", {}).get("zeta")
        found = run_measures(report)
        if isinstance(zeta, int | float) and "pm_accuracy" in found:
            point = (float(zeta), found["pm_accuracy"], found.get("pm_ece", math.nan))
            by_data.setdefault(data_words(report), []).append(point)
    curves = (points for points in by_data.values() if len({zeta for zeta, *_ in points}) > 1)
    return tuple(sorted(next(curves, [])))
