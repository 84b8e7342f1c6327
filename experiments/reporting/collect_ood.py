"""What a run stored of examples unlike its clients' own, and why a part of it is not there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from pyro_pfedbayes.experiments.reporting.data import NOT_STORED, Corrupted, Foreign, Unseen
from pyro_pfedbayes.experiments.reporting.ood import (
    corrupted_report,
    foreign_report,
    unseen_report,
)
from pyro_pfedbayes.experiments.reporting.reading import Columns, Posterior

__all__ = ["Detection", "detection"]

Array = NDArray[Any]
_NOT_STORED = {
    "unseen": "it is of an older version, or no client has classes that it never saw",
    "foreign": (
        "it is of an older version, or there was no other data set of pictures of the same shape "
        "(run.foreign names one)"
    ),
    "corrupted": "it is of an older version, its inputs are no pictures, or run.shifts was false",
}
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
    stored: Posterior, seen: Columns, y: Array, owner: Array, rows: Array, missing: dict[str, str]
) -> Detection:
    """Judge the personal models by what a run stored, and note in ``missing`` what it did not.

    Args:
        stored: What the run stored.
        seen: Predictions of test examples, whole rows only.
        y: Known labels of those.
        owner: Client of each.
        rows: Where they lie among all.
        missing: Parts that are not there, and why; added to.
    """
    if not stored.is_class:
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
            why = (
                f"{NOT_STORED}: {_NOT_STORED[part]}" if columns is None else _NOTHING_TO_TELL[part]
            )
            missing[part] = why
    return found
