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


def detection_section(data: ReportData) -> Markup | None:
    """Out-of-distribution detection by unseen classes, another data set and damaged pictures."""
    missing = [part for part in _NAMES if getattr(data, part) is None]
    if len(missing) == len(_NAMES) and len({data.missing.get(part) for part in missing}) == 1:
        return None
    kinds = {
        kind: getattr(data, part).scores for part, kind in _KINDS.items() if part not in missing
    }
    scores = "; ".join(
        f"{kind}: "
        + ", ".join(f"{SCORE_NAMES.get(s.name, s.name)} {number(s.auroc.value)}" for s in scores)
        for kind, scores in kinds.items()
    )
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
        scores=scores,
        rows=rows,
        picture=plot_detection(kinds) if kinds else None,
        missing={_NAMES[part]: data.missing.get(part) for part in missing},
        damage=None if data.corrupted is None else _damage(data.corrupted),
    )


def _damage(found: Corrupted) -> dict[str, object]:
    """A figure of accuracy and certainty by the strength of the damage, in words and as rows of a table."""
    falls = []
    for kind in dict.fromkeys(level.corruption for level in found.levels):
        levels = [level for level in found.levels if level.corruption == kind]
        first, last = levels[0], levels[-1]
        falls.append(
            f"{kind}: accuracy {percent(first.accuracy)} to {percent(last.accuracy)} %, ECE {percent(first.ece)} to "
            f"{percent(last.ece)} %, total entropy {number(first.total)} to {number(last.total)} nats"
        )
    # Examples as they are serve every corruption, and are shown once.
    whole = [level for level in found.levels if not level.strength][:1]
    damaged = [level for level in found.levels if level.strength]
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
        for level in [*whole, *damaged]
    ]
    ways = len({(level.corruption, level.strength) for level in damaged})
    return {
        "picture": plot_corruptions(found),
        "falls": "; ".join(falls),
        "rows": rows,
        "ways": ways,
    }
