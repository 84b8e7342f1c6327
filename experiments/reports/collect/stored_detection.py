"""What a run stored of examples unlike its clients' own, and why a part of it is not there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from pyro_pfedbayes.experiments.reports.collect.out_of_distribution import (
    corrupted_report,
    foreign_report,
    unseen_report,
)
from pyro_pfedbayes.experiments.reports.files.run_files import Columns, Posterior
from pyro_pfedbayes.experiments.reports.schema import NOT_STORED, Corrupted, Foreign, Unseen

__all__ = ["Detection", "detection"]

Array = NDArray[Any]
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


@dataclass(frozen=True)
class Detection:
    """Out-of-distribution detection by classes, data sets and damage; None where there is nothing to tell."""

    unseen: Unseen | None = None
    foreign: Foreign | None = None
    corrupted: Corrupted | None = None


def detection(
    stored: Posterior,
    settings: Mapping[str, Any],
    seen: Columns,
    y: Array,
    owner: Array,
    rows: Array,
    missing: dict[str, str],
) -> Detection:
    """Judge the personal models by what a run stored, and note in ``missing`` what it did not.

    Args:
        stored: What the run stored.
        settings: ``config.toml``, for why something was not.
        seen: Predictions of test examples, whole rows only.
        y: Known labels of those.
        owner: Client of each.
        rows: Where they lie among all.
        missing: Parts that are not there, and why; added to.
    """
    if not stored.is_class:
        missing |= dict.fromkeys(
            _NOTHING_TO_TELL, "this is for classes, and the outcomes are numbers"
        )
        return Detection()
    index = None if stored.index is None else stored.index[rows]
    asked = {
        "unseen": stored.unseen,
        "foreign": stored.foreign,
        "corrupted": stored.corrupted,
    }
    name, corrupted = stored.foreign_name, stored.corrupted
    found = Detection(
        None if stored.unseen is None else unseen_report(stored.unseen, seen, owner),
        None if stored.foreign is None else foreign_report(stored.foreign, name, seen, owner),
        None if corrupted is None else corrupted_report(corrupted, seen, y, owner, index),
    )
    for part, columns in asked.items():
        if getattr(found, part) is None:
            missing[part] = (
                _why_not(part, stored, settings) if columns is None else _NOTHING_TO_TELL[part]
            )
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
