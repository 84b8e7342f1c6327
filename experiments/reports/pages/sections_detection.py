"""The section of a run's page on what is unlike the clients' data: HTML, whatever is missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyro_pfedbayes.experiments.reports.collect.point_methods import POINT
from pyro_pfedbayes.experiments.reports.figures.out_of_distribution import (
    SCORE_NAMES,
    plot_corruptions,
    plot_detection,
)
from pyro_pfedbayes.experiments.reports.pages.html import (
    amount,
    figure_block,
    number,
    paragraph,
    percent,
    side_by_side,
    table,
)
from pyro_pfedbayes.experiments.reports.pages.section_helpers import about_personal, estimate, gone
from pyro_pfedbayes.experiments.reports.schema import Corrupted, OodScore, ReportData

_SHORT = {"max_probability": "1 - max p"}


def detection_section(data: ReportData) -> str:
    """Out-of-distribution detection by unseen classes, another data set and damaged pictures."""
    kinds, text = _kinds(data), ""
    if kinds:
        text += paragraph(
            "A model that knows what it does not know is less certain of examples that are unlike those it learned "
            "from. Here the personal models were asked about such examples, and their uncertainty was to tell them "
            "from the clients' own test examples."
        )
        text += about_personal(data)
        text += paragraph(f"{POINT}.") if data.point else ""
        text += "".join(paragraph(line) for line in _told(data))
        blocks = [_detection_figure(kinds)]
        blocks += [] if data.corrupted is None else [_damage_figure(data.corrupted)]
        text += side_by_side(*blocks) + _detection_table(kinds)
    if data.corrupted is not None:
        text += _damage_table(data.corrupted)
    names = {
        "unseen": "Classes never seen",
        "foreign": "Other data",
        "corrupted": "Damaged pictures",
    }
    missing = [part for part in names if getattr(data, part) is None]
    if len(missing) == len(names) and len({data.missing.get(part) for part in missing}) == 1:
        return gone(data, "unseen")
    return text + "".join(
        paragraph(f"{names[part]}: {data.missing.get(part, 'not stored in this run')}.", "gone")
        for part in missing
    )


def _kinds(data: ReportData) -> dict[str, Sequence[OodScore]]:
    kinds: dict[str, Sequence[OodScore]] = {}
    if data.unseen is not None:
        kinds["unseen classes"] = data.unseen.scores
    if data.foreign is not None:
        kinds["other data"] = data.foreign.scores
    if data.corrupted is not None:
        kinds["damaged"] = data.corrupted.scores
    return kinds


def _told(data: ReportData) -> list[str]:
    lines = []
    if (unseen := data.unseen) is not None:
        lines.append(
            f"Unseen classes: {amount(unseen.examples, 'example')} of other clients, each shown to one of "
            f"{amount(unseen.clients, 'client')} that has no training example of its class."
        )
    if (foreign := data.foreign) is not None:
        lines.append(
            f"Other data: {amount(foreign.examples, 'example')} of {foreign.data}, each shown to "
            f"{amount(foreign.clients, 'client')}."
        )
    if (damaged := data.corrupted) is not None:
        ways = len(
            {(level.corruption, level.strength) for level in damaged.levels if level.strength}
        )
        lines.append(
            f"Damaged: {amount(damaged.examples, 'test example')} of {amount(damaged.clients, 'client')}, each damaged "
            f"in {amount(ways, 'way')}."
        )
    return lines


def _detection_figure(kinds: Mapping[str, Sequence[OodScore]]) -> str:
    told = "; ".join(
        f"{kind}: "
        + ", ".join(f"{SCORE_NAMES.get(s.name, s.name)} {number(s.auroc.value)}" for s in scores)
        for kind, scores in kinds.items()
    )
    return figure_block(
        plot_detection(kinds),
        f"AUROC of the scores at telling examples unlike the clients' from their own. {told}.",
        "AUROC: probability that such an example scores as more uncertain than one of the client's own, with its 95 % "
        "interval.",
    )


def _detection_table(kinds: Mapping[str, Sequence[OodScore]]) -> str:
    rows = [
        [
            f"{kind.removesuffix(' classes')}, {_SHORT.get(score.name, score.name)}",
            estimate(score.auroc, number),
            estimate(score.fpr95, percent),
            number(score.client_auroc),
        ]
        for kind, scores in kinds.items()
        for score in scores
    ]
    caption = (
        "FPR95: share of such examples that pass a threshold which lets 95 % of the clients' own pass; lower is "
        "better. In brackets 95 % intervals over clients and examples, or clients alone where there are many examples."
    )
    return table(caption, ["what, score", "AUROC", "FPR95 %", "AUROC, mean of clients"], rows)


def _damage_figure(found: Corrupted) -> str:
    told = []
    for kind in dict.fromkeys(level.corruption for level in found.levels):
        levels = [level for level in found.levels if level.corruption == kind]
        first, last = levels[0], levels[-1]
        told.append(
            f"{kind}: accuracy {percent(first.accuracy)} to {percent(last.accuracy)} %, ECE {percent(first.ece)} to "
            f"{percent(last.ece)} %, total entropy {number(first.total)} to {number(last.total)} nats"
        )
    return figure_block(
        plot_corruptions(found),
        f"From whole test examples to the strongest damage. {'; '.join(told)}.",
        "Test examples damaged in three ways. Where accuracy falls, entropy should rise: if a model stays sure, its "
        "calibration error (ECE) rises instead.",
    )


def _damage_table(found: Corrupted) -> str:
    plain = [level for level in found.levels if level.strength == 0][:1]
    rows = [
        [
            f"{level.corruption} {level.strength}" if level.strength else "as they are",
            percent(level.accuracy),
            percent(level.ece),
            number(level.total),
            number(level.epistemic),
            number(level.auroc.get("total")),
            number(level.auroc.get("epistemic")),
        ]
        for level in [*plain, *(level for level in found.levels if level.strength)]
    ]
    caption = (
        "Personal models on damaged test examples, strengths 1 to 5. Entropies in nats, mean over examples; AUROC of "
        "telling them from the clients' own by the total entropy and by its epistemic part."
    )
    heads = ["damage", "accuracy %", "ECE %", "total entropy", "epistemic part"]
    return table(caption, [*heads, "AUROC, total", "AUROC, epistemic"], rows)
