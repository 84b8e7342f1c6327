"""The figures of one finished run, by model and by the round that they are taken from."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.experiments.runs.folder import RunFolder
from pyro_pfedbayes.inference.federation.summary import chosen_rounds, first_of

MODELS = ("personal", "global")
SELECTORS = ("selected", "last", "best")


@dataclass(frozen=True)
class Figures:
    """What a run is quoted by.

    Attributes:
        first: The first measure: ``"accuracy"`` or ``"rmse"``.
        values: Measures on test examples by model and selector, such as ``values["personal", "last"]["nll"]``.
        validation: The first measure and the NLL on validation examples of the selected round, by model.
        rounds: The length of the run.
        clients: How many clients it had.
        seconds: Of training.
        evaluation: Seconds of evaluation.
        bytes_uploaded: By all clients together; None of a run that did not count.
        gradient_steps: By all clients together.
    """

    first: str
    values: Mapping[tuple[str, str], Mapping[str, float]]
    validation: Mapping[str, tuple[float, float]]
    rounds: int
    clients: int
    seconds: float
    evaluation: float
    bytes_uploaded: int | None
    gradient_steps: int


def read_figures(folder: RunFolder, models: tuple[str, ...] = MODELS) -> Figures:
    """Read ``summary.json`` and ``metrics.jsonl`` of a finished run.

    Args:
        folder: The run.
        models: Those that are judged.
    """
    try:
        summary = json.loads(folder.summary.read_text(encoding="utf-8"))
        lines = folder.metrics.read_text(encoding="utf-8").splitlines()
        records = [json.loads(line) for line in lines]
        return _figures(summary, records, models)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
        raise UserError(
            f"{folder.path} is damaged: {type(problem).__name__} {problem}; delete it to run it again"
        ) from problem


def _figures(
    summary: Mapping[str, Any], records: list[dict[str, Any]], models: tuple[str, ...]
) -> Figures:
    values: dict[tuple[str, str], dict[str, float]] = {}
    validation: dict[str, tuple[float, float]] = {}
    first = "accuracy"
    for model in models:
        chosen = chosen_rounds(records, model)
        if chosen:
            first = first_of(records, model)
        for selector, row in chosen.items():
            values[model, selector] = {
                name: _number(value)
                for name, value in row.items()
                if not name.startswith(("validation_", "mean_weights_"))
            }
        if "selected" in chosen:
            row = chosen["selected"]
            validation[model] = (
                _number(row[f"validation_{first}"]),
                _number(row["validation_nll"]),
            )
    return Figures(
        first,
        values,
        validation,
        int(summary["rounds"]),
        int(summary["clients"]),
        float(summary["seconds"]["train"]),
        float(summary["seconds"]["evaluate"]),
        summary.get("bytes_uploaded"),
        int(summary["gradient_steps"]),
    )


def _number(value: float | None) -> float:
    """JSON has no NaN: it is null there."""
    return math.nan if value is None else float(value)
