"""What the sections of a page have in common."""

from __future__ import annotations

import math
from collections.abc import Callable

from pyro_pfedbayes.experiments.reporting.data import (
    NOT_STORED,
    Estimate,
    ModelReport,
    ReportData,
)
from pyro_pfedbayes.experiments.reporting.html import UNDEFINED, paragraph

__all__ = ["DASH", "Shown", "estimate", "gone", "models", "sentence"]

Shown = Callable[[float | None], str]
DASH = f"{UNDEFINED} means not defined."


def estimate(found: Estimate | None, shown: Shown) -> str:
    """A measure, and its interval in brackets."""
    if found is None:
        return NOT_STORED
    if not math.isfinite(found.lower):
        return shown(found.value)
    return f"{shown(found.value)} ({shown(found.lower)} to {shown(found.upper)})"


def gone(data: ReportData, part: str) -> str:
    """Why a part is not there."""
    return paragraph(sentence(data.missing.get(part, NOT_STORED)), "gone")


def models(data: ReportData) -> dict[str, ModelReport]:
    """The kinds of model that there are numbers of."""
    both = {"personal": data.personal, "global": data.global_}
    return {name: found for name, found in both.items() if found is not None}


def sentence(text: str) -> str:
    """A reason as a sentence."""
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")
