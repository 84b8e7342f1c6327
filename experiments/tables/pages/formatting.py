"""Numbers as a table shows them: accuracies in percent to two places, as papers do."""

from __future__ import annotations

import math

from pyro_pfedbayes.experiments.tables.declaration.spec import Figure
from pyro_pfedbayes.experiments.tables.results.paired import Paired, Spread
from pyro_pfedbayes.measures.registry import MEASURES

ABSENT = "–"


def spread_text(found: Spread, measure: str, of: int) -> str:
    """``94.13 ± 0.27``; ``(2 of 3)`` follows if not all runs have the figure.

    Example:
        >>> spread_text(Spread(0.9413, 0.0027, 3), "accuracy", 3)
        '94.13 ± 0.27'
    """
    if not found.runs:
        return ABSENT
    text = _shown(found.mean, measure)
    if not math.isnan(found.sd):
        text += f" ± {_shown(found.sd, measure)}"
    return text if found.runs == of else f"{text} ({found.runs} of {of})"


def difference_text(found: Paired | None, measure: str) -> str:
    """``−1.20 [−2.01, −0.39], n = 3``, in points of percent if the measure is; n is the number of seeds.

    Example:
        >>> difference_text(Paired(-0.012, math.nan, math.nan, 2), "accuracy")
        '−1.20 [not defined], n = 2'
    """
    if found is None:
        return ABSENT
    interval = f"{_signed(found.lower, measure)}, {_signed(found.upper, measure)}"
    if math.isnan(found.lower):
        interval = "not defined"
    return f"{_signed(found.mean, measure)} [{interval}], n = {found.seeds}"


def paper_text(figure: Figure | None) -> str:
    """A reference figure, which is in percent as it is given."""
    if figure is None:
        return ABSENT
    parts = figure if isinstance(figure, tuple) else (figure,)
    return " ± ".join(f"{part:.2f}" for part in parts)


def _shown(value: float, measure: str) -> str:
    unit = MEASURES[measure].unit
    return {"%": f"{100 * value:.2f}", "outcome": f"{value:.4g}"}.get(unit, f"{value:.3f}")


def _signed(value: float, measure: str) -> str:
    text = _shown(abs(value), measure)
    if not float(text):
        return text
    return f"−{text}" if value < 0 else f"+{text}"
