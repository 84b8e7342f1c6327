"""The figures of a run that people quote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyro_pfedbayes.inference.state import FederationState

__all__ = ["summarize"]


def summarize(state: FederationState) -> dict[str, Any]:
    """``last``, ``best`` and ``selected`` accuracy, and the last NLL, ECE and Brier score, of both models.

    ``best`` is the peak on the test set, the paper's protocol and an optimistic one; ``selected`` is the test
    accuracy of the round that was best on the validation examples, None if there are none.
    """
    records = state.history
    return {
        "rounds": state.round,
        "personal": _column(records, "personal"),
        "global": _column(records, "global"),
        "gradient_steps": state.gradient_steps,
        "seconds": {name: round(value, 2) for name, value in state.seconds.items()},
    }


def _column(records: Sequence[Mapping[str, Any]], key: str) -> dict[str, Any]:
    rows = [record[key] for record in records if "accuracy" in record[key]]
    if not rows:
        return {"accuracy": {"last": None, "best": None, "selected": None}}
    judged = [row for row in rows if "validation_accuracy" in row]
    selected = None
    if judged:
        # Few validation examples tie often; the likelihood then decides.
        chosen = max(judged, key=lambda row: (row["validation_accuracy"], -row["validation_nll"]))
        selected = chosen["accuracy"]
    last = rows[-1]
    column = {
        "accuracy": {
            "last": last["accuracy"],
            "best": max(row["accuracy"] for row in rows),
            "selected": selected,
        },
        **{name: last[name] for name in ("nll", "ece", "brier")},
    }
    if "mean_weights_accuracy" in last:
        column["mean_weights_accuracy"] = last["mean_weights_accuracy"]
    return column
