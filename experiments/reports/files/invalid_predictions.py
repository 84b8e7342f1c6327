"""Predictions that no measure can take: what is no number, or no probability."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyro_pfedbayes.experiments.runs.result_tables import counted

Array = NDArray[Any]
_NAMED = 10


def invalid_predictions_text(broken: int, not_probabilities: int) -> str:
    """What is wrong with some predictions of a client.

    Args:
        broken: How many cannot be used.
        not_probabilities: Of these, how many are numbers but no probabilities.

    Example:
        >>> invalid_predictions_text(1, 0), invalid_predictions_text(5, 5)
        ('1 prediction is not a number', '5 predictions are not probabilities')
    """
    kinds = (
        (broken - not_probabilities, "is not a number", "are not numbers"),
        (not_probabilities, "is not a probability", "are not probabilities"),
    )
    return " and ".join(
        f"{counted(count, 'prediction')} {one if count == 1 else many}"
        for count, one, many in kinds
        if count
    )


def note_invalid_predictions(
    what: str, broken: Array, not_probabilities: Array, names: Sequence[str], notes: list[str]
) -> None:
    """Add to ``notes`` one that names the clients with predictions that cannot be used, if there are any."""
    clients = np.flatnonzero(broken).tolist()
    if not clients:
        return
    shown = ", ".join(names[client] for client in clients[:_NAMED])
    more = f" and {len(clients) - _NAMED} more" if len(clients) > _NAMED else ""
    whose = f"client {shown}" if len(clients) == 1 else f"clients {shown}{more}"
    text = invalid_predictions_text(int(broken.sum()), int(not_probabilities.sum()))
    left = "it" if len(clients) == 1 else "them"
    measures = "its measures are" if len(clients) == 1 else "their measures are"
    notes.append(
        f"{text}, of the {what} for {whose}: {measures} not defined, and measures of all clients together leave "
        f"{left} out"
    )
