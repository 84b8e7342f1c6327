"""The section of a run's page on what is unlike the clients' data; None where there is nothing to show."""

from __future__ import annotations

from markupsafe import Markup

from pyro_pfedbayes.experiments.reports.figures.out_of_distribution import (
    SCORE_NAMES,
    plot_corruptions,
    plot_detection,
)
from pyro_pfedbayes.experiments.reports.pages.formatting import estimate, number, percent
from pyro_pfedbayes.experiments.reports.pages.render import fragment
from pyro_pfedbayes.experiments.reports.schema import Corrupted, ReportData

_NAMES = {
    "unseen": "Classes never seen",
    "foreign": "Other data",
    "corrupted": "Damaged pictures",
}
_KINDS = {"unseen": "unseen classes", "foreign": "other data", "corrupted": "damaged"}
_SHORT = {"max_probability": "1 - max p"}


def detection(data: ReportData) -> Markup | None:
    """Out-of-distribution detection by unseen classes, another data set and damaged pictures."""
    missing = [part for part in _NAMES if getattr(data, part) is None]
    if len(missing) == len(_NAMES) and len({data.missing.get(part) for part in missing}) == 1:
        return None
    kinds = {
        kind: getattr(data, part).scores for part, kind in _KINDS.items() if part not in missing
    }
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
    return fragment(
        "detection.html.jinja",
        data=data,
        kinds=kinds,
        score_names=SCORE_NAMES,
        rows=rows,
        picture=plot_detection(kinds) if kinds else None,
        missing={_NAMES[part]: data.missing.get(part) for part in missing},
        damage=None if data.corrupted is None else plot_corruptions(data.corrupted),
        levels=[] if data.corrupted is None else _levels(data.corrupted),
    )


def _levels(corrupted: Corrupted) -> list[list[str]]:
    """Rows of the table of damage."""
    # Examples as they are serve every corruption, and are shown once.
    whole = [level for level in corrupted.levels if not level.strength][:1]
    return [
        [
            f"{level.corruption} {level.strength}" if level.strength else "as they are",
            percent(level.accuracy),
            percent(level.ece),
            number(level.total),
            number(level.epistemic),
            number(level.auroc.get("total")),
            number(level.auroc.get("epistemic")),
        ]
        for level in [*whole, *(level for level in corrupted.levels if level.strength)]
    ]
