"""Numbers and measures as text."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

from pyro_pfedbayes.experiments.reports.figures.style import MODELS
from pyro_pfedbayes.experiments.reports.schema import NOT_STORED, Estimate, ReportData
from pyro_pfedbayes.measures.registry import Measure

UNDEFINED = "–"
NOT_ABOUT = "not what the method is about"
SHORT = {"personal": "PM", "global": "GM"}
Shown = Callable[[float | None], str]


def amount(number: int, what: str) -> str:
    """A number and its noun.

    Example:
        >>> amount(1, "client"), amount(20_000, "example")
        ('1 client', '20,000 examples')
    """
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def percent(value: float | None, digits: int = 1) -> str:
    """A share in per cent, without the sign; a dash where it is not defined."""
    return UNDEFINED if value is None or not math.isfinite(value) else f"{100 * value:.{digits}f}"


percent_2 = functools.partial(percent, digits=2)


def number(value: float | None) -> str:
    """A number to three significant places or more; a dash where it is not defined.

    Example:
        >>> number(0.12345), number(1234.5), number(float("nan"))
        ('0.123', '1,234', '–')
    """
    if value is None or not math.isfinite(value):
        return UNDEFINED
    size = abs(value)
    if size >= 1e6 or 0 < size < 1e-4:
        return f"{value:.2e}"
    return f"{value:,.0f}" if size >= 1000 else f"{value:.3f}" if size < 10 else f"{value:.1f}"


def estimate(found: Estimate | None, shown: Shown) -> str:
    """A measure, and its interval in brackets."""
    if found is None:
        return NOT_STORED
    if not math.isfinite(found.lower):
        return shown(found.value)
    return f"{shown(found.value)} ({shown(found.lower)} to {shown(found.upper)})"


def sentence(text: str) -> str:
    """A reason as a sentence."""
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def shown_as(measure: Measure, digits: int = 1) -> Shown:
    """How values of a measure are shown."""
    return functools.partial(percent, digits=digits) if measure.percent else number


def first_measure(numeric: bool) -> tuple[str, Shown]:
    """The measure that comes first, of numbers or of classes, and how it is shown."""
    return ("rmse", number) if numeric else ("accuracy", percent)


def interval(found: Estimate, shown: Shown, unit: str = "") -> str:
    """The 95 % interval of a measure in words."""
    if not math.isfinite(found.lower):
        return "no interval: too few clients or examples"
    return f"95 % interval {shown(found.lower)} to {shown(found.upper)}{unit}"


def titles(data: ReportData) -> dict[str, str]:
    """How ``personal`` and ``global`` are called, and which of them the method is not about."""
    return {
        model: name if model in data.about else f"{name} ({NOT_ABOUT})"
        for model, name in MODELS.items()
    }
