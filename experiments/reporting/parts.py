"""What the sections of a page have in common."""

from __future__ import annotations

from collections.abc import Callable

from pyro_pfedbayes.experiments.reporting.data import NOT_STORED, ModelReport, ReportData
from pyro_pfedbayes.experiments.reporting.html import UNDEFINED, paragraph

__all__ = ["DASH", "Shown", "gone", "models", "sentence"]

Shown = Callable[[float | None], str]
DASH = f"{UNDEFINED} means not defined."


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
