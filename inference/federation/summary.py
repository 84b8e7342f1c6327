"""The figures of a run that people quote."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pyro_pfedbayes.inference.federation.state import FederationState
from pyro_pfedbayes.measures.registry import MEASURES, SUMMARIZED


def summarize(state: FederationState, outcome: str = "class") -> dict[str, Any]:
    """``last``, ``best`` and ``selected`` of the first measure, and the others after the last round, of both models.

    The first measure is the accuracy of classes and the RMSE of numbers. ``best`` is the best on the test set (the
    highest accuracy, the lowest RMSE), the paper's protocol and an optimistic one; ``selected`` is that of the round
    that was best on the validation examples, None if there are none. ``outcome`` (``"class"`` or ``"number"``) decides
    about the first measure where no round was evaluated on any example.
    """
    records = state.history
    return {
        "rounds": state.round,
        "personal": _column(records, "personal", outcome),
        "global": _column(records, "global", outcome),
        "gradient_steps": state.gradient_steps,
        "bytes_uploaded": state.bytes_uploaded,
        "seconds": {name: round(value, 2) for name, value in state.seconds.items()},
    }


def first_of(records: Sequence[Mapping[str, Any]], key: str, outcome: str = "class") -> str:
    """The name of the first measure of a history's column ``key``: ``"accuracy"`` or ``"rmse"``."""
    known = {name.removeprefix("validation_") for record in records for name in record[key]}
    return next(
        (first for first, *_ in SUMMARIZED.values() if first in known), SUMMARIZED[outcome][0]
    )


def chosen_rounds(
    records: Sequence[Mapping[str, Any]], key: str, outcome: str = "class"
) -> dict[str, Mapping[str, Any]]:
    """The figures of the rounds that a history is quoted by, of its column ``key`` (``"personal"`` or ``"global"``).

    ``last``; ``best``, the best on the test set by the first measure; and ``selected``, the best on the validation
    examples (ties go to the lower validation NLL), where there are such rounds.

    Example:
        >>> rows = [{"accuracy": 0.8, "validation_accuracy": 0.9, "validation_nll": 0.5}]
        >>> rows += [{"accuracy": 0.7, "validation_accuracy": 0.9, "validation_nll": 0.4}]
        >>> found = chosen_rounds([{"personal": row} for row in rows], "personal")
        >>> {name: row["accuracy"] for name, row in found.items()}
        {'last': 0.7, 'best': 0.8, 'selected': 0.7}
    """
    first = first_of(records, key, outcome)

    def best(rows: Sequence[Mapping[str, Any]], *names: str) -> Mapping[str, Any]:
        """The row with the best measures, the first before the next ones; no number is worse than all numbers."""

        def worth(row: Mapping[str, Any], name: str) -> float:
            value = row.get(name)
            if value is None or math.isnan(value):
                return -math.inf
            higher = MEASURES[name.removeprefix("validation_")].better == "higher"
            return float(value if higher else -value)

        return max(rows, key=lambda row: [worth(row, name) for name in names])

    rows = [record[key] for record in records if first in record[key]]
    if not rows:
        return {}
    found = {"last": rows[-1], "best": best(rows, first)}
    validated = [row for row in rows if f"validation_{first}" in row]
    if validated:
        # Few validation examples tie often; the likelihood then decides.
        found["selected"] = best(validated, f"validation_{first}", "validation_nll")
    return found


def _column(records: Sequence[Mapping[str, Any]], key: str, outcome: str) -> dict[str, Any]:
    first, chosen = first_of(records, key, outcome), chosen_rounds(records, key, outcome)
    further = next(names for name, *names in SUMMARIZED.values() if name == first)
    last = chosen.get("last", {})
    figures = {which: chosen.get(which, {}).get(first) for which in ("last", "best", "selected")}
    further = [name for name in (*further, f"mean_weights_{first}") if name in last]
    return {first: figures, **{name: last[name] for name in further}}
