"""What the sections of a page have in common."""

from __future__ import annotations

import math
from collections.abc import Callable

from pyro_pfedbayes.experiments.reports.figures.classes import MODELS
from pyro_pfedbayes.experiments.reports.pages.html import UNDEFINED, paragraph
from pyro_pfedbayes.experiments.reports.schema import (
    NOT_STORED,
    Estimate,
    ModelReport,
    ReportData,
)

NOT_ABOUT = "not what the method is about"
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
    """The kinds of model that there are numbers of, the one that the method is about first."""
    both = {"personal": data.personal, "global": data.global_}
    if data.lead == "global":
        both = {"global": data.global_, "personal": data.personal}
    return {name: found for name, found in both.items() if found is not None}


def titles(data: ReportData) -> dict[str, str]:
    """How ``personal`` and ``global`` are called, and which of them the method is not about."""
    return {
        model: name if model in data.about else f"{name} ({NOT_ABOUT})"
        for model, name in MODELS.items()
    }


def about_personal(data: ReportData) -> str:
    """A paragraph for sections that are on the personal models alone, where the method is not about them."""
    if "personal" in data.about:
        return ""
    return paragraph(
        "These figures are of the personal models, which are not what the method is about."
    )


def sentence(text: str) -> str:
    """A reason as a sentence."""
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")
