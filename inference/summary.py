"""The figures of a run that people quote."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pyro_pfedbayes.inference.evaluation import HEADLINE
from pyro_pfedbayes.inference.state import FederationState

__all__ = ["summarize"]

_FURTHER: Mapping[str, tuple[str, ...]] = {
    "class": ("nll", "ece", "brier"),
    "number": ("mae", "nll", "coverage90"),
}


def summarize(state: FederationState, outcome: str = "class") -> dict[str, Any]:
    """``last``, ``best`` and ``selected`` of the first measure, and the others after the last round, of both models.

    The first measure is the accuracy of classes and the RMSE of numbers. ``best`` is the best on the test set (the
    highest accuracy, the lowest RMSE), the paper's protocol and an optimistic one; ``selected`` is that of the round
    that was best on the validation examples, None if there are none.

    Args:
        state: Where a run stands; its history is what is summed up.
        outcome: ``"class"`` or ``"number"``; decides where no round was judged on any example.
    """
    records = state.history
    return {
        "rounds": state.round,
        "personal": _column(records, "personal", outcome),
        "global": _column(records, "global", outcome),
        "gradient_steps": state.gradient_steps,
        "seconds": {name: round(value, 2) for name, value in state.seconds.items()},
    }


def _column(records: Sequence[Mapping[str, Any]], key: str, outcome: str) -> dict[str, Any]:
    for kind, first in HEADLINE.items():
        if any(
            name in record[key] for record in records for name in (first, f"validation_{first}")
        ):
            outcome = kind
    first = HEADLINE[outcome]
    rows = [record[key] for record in records if first in record[key]]
    if not rows:
        return {first: {"last": None, "best": None, "selected": None}}
    sign = -1 if outcome == "number" else 1

    def worth(row: Mapping[str, Any], name: str) -> float:
        """The larger, the better; what is no number is worse than all that are."""
        value = row.get(name)
        return -math.inf if value is None or math.isnan(value) else sign * value

    judged = [row for row in rows if f"validation_{first}" in row]
    selected = None
    if judged:
        # Few validation examples tie often; the likelihood then decides.
        chosen = max(judged, key=lambda row: (worth(row, f"validation_{first}"), _negative(row)))
        selected = chosen[first]
    last = rows[-1]
    column = {
        first: {
            "last": last[first],
            "best": max(rows, key=lambda row: worth(row, first))[first],
            "selected": selected,
        },
        **{name: last[name] for name in _FURTHER[outcome]},
    }
    if f"mean_weights_{first}" in last:
        column[f"mean_weights_{first}"] = last[f"mean_weights_{first}"]
    return column


def _negative(row: Mapping[str, Any]) -> float:
    """Minus the validation NLL; one that is not finite comes back from a checkpoint as None."""
    nll = row["validation_nll"]
    return -math.inf if nll is None or math.isnan(nll) else -nll
