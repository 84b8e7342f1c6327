"""What a run stored of examples unlike its clients' own, and why a part of it is not there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pyro_pfedbayes.experiments.reports.collect.judged_examples import Rows
from pyro_pfedbayes.experiments.reports.collect.out_of_distribution import (
    corrupted_report,
    foreign_report,
    unseen_report,
)
from pyro_pfedbayes.experiments.reports.files.run_files import Columns, Posterior
from pyro_pfedbayes.experiments.reports.schema import NOT_STORED, Corrupted, Foreign, Unseen

_FOREIGN = {
    "none": "run.foreign was none",
    "auto": (
        "run.foreign was auto, and no other data set of pictures of the same shape was at hand (run.foreign names one)"
    ),
}
_LEFT_OUT = "run.foreign was {name}, but the run left it out with a warning, for it could not be had or does not fit"
_NOTHING_TO_TELL = {
    "unseen": "no client has both seen and unseen examples to tell apart",
    "foreign": "no client has both its own and foreign examples to tell apart",
    "corrupted": "no client has both whole and damaged examples to tell apart",
}


def detection(
    stored: Posterior, settings: Mapping[str, Any], personal: Rows, missing: dict[str, str]
) -> dict[str, Unseen | Foreign | Corrupted]:
    """Judge the personal models by what a run stored of examples unlike its clients' own."""
    if not stored.is_class:
        why = "this is for classes, and the outcomes are numbers"
        missing |= dict.fromkeys(_NOTHING_TO_TELL, why)
        return {}
    seen, owner = personal.columns, personal.owner
    index = None if stored.index is None else stored.index[personal.rows]
    reports: dict[str, Callable[[Columns], Unseen | Foreign | Corrupted | None]] = {
        "unseen": lambda asked: unseen_report(asked, seen, owner),
        "foreign": lambda asked: foreign_report(asked, stored.foreign_name, seen, owner),
        "corrupted": lambda asked: corrupted_report(asked, seen, personal.y, owner, index),
    }
    found = {}
    for part, report in reports.items():
        columns = getattr(stored, part)
        if columns is None:
            missing[part] = _why_not(part, stored, settings)
        elif (told := report(columns)) is not None:
            found[part] = told
        else:
            missing[part] = _NOTHING_TO_TELL[part]
    return found


def _why_not(part: str, stored: Posterior, settings: Mapping[str, Any]) -> str:
    """Why a run did not store a part."""
    if f"{part}_stats" in stored.damaged:
        return f"posterior.nc is damaged: {stored.damaged[f'{part}_stats']}"
    run = settings.get("run")
    run = run if isinstance(run, Mapping) else {}
    if part == "unseen":
        return (
            f"{NOT_STORED}: no client has classes that it never saw, or it is of an older version"
        )
    key = {"foreign": "foreign", "corrupted": "shifts"}[part]
    if key not in run:
        return f"{NOT_STORED}: it is of an older version (its settings do not know run.{key})"
    if part == "corrupted":
        reason = "its inputs are no pictures" if run[key] else "run.shifts was false"
        return f"{NOT_STORED}: {reason}"
    return f"{NOT_STORED}: {_FOREIGN.get(str(run[key]), _LEFT_OUT.format(name=run[key]))}"
