"""The figures of one finished run, by model and by the round that they are taken from."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.experiments.runs.folder import RunFolder
from pyro_pfedbayes.inference.federation.summary import chosen_rounds, first_of

MODELS = ("personal", "global")
SELECTORS = ("selected", "last", "best")
Key = tuple[str, str, str]
"""Model, selector and measure."""


@dataclass(frozen=True)
class Figures:
    """What a run is quoted by; bytes and steps are those of all clients together."""

    first: str  # measure: "accuracy" or "rmse"
    values: Mapping[Key, float]  # on test examples
    validation: Mapping[str, tuple[float, float]]  # first measure and NLL, selected round, by model
    rounds: int
    clients: int
    seconds: float  # of training
    evaluation: float  # seconds
    bytes_uploaded: int | None  # None of a run that did not count
    gradient_steps: int

    @property
    def total_seconds(self) -> float:
        """Of training and evaluation."""
        return self.seconds + self.evaluation

    def __str__(self) -> str:
        """The first measure after the last round: ``PM 93.1 %  GM 80.2 %``."""
        parts = []
        for short, model in (("PM", "personal"), ("GM", "global")):
            value = self.values.get((model, "last", self.first))
            if value is not None:
                shown = f"{100 * value:.1f} %" if self.first == "accuracy" else f"{value:.4g}"
                parts.append(f"{short} {shown}")
        return "  ".join(parts)

    @property
    def diverged(self) -> bool:
        """Whether the run went on to its end without a figure that a mean could count there."""
        last = [self.values.get((model, "last", self.first), 0.0) for model in MODELS]
        return not all(map(math.isfinite, last))


def read_figures(folder: RunFolder, models: tuple[str, ...]) -> Figures:
    """Read ``summary.json`` and ``metrics.jsonl`` of a finished run, for the models that are judged."""
    try:
        summary = json.loads(folder.summary.read_text(encoding="utf-8"))
        lines = folder.metrics.read_text(encoding="utf-8").splitlines()
        records = [json.loads(line) for line in lines]
        chosen = {model: chosen_rounds(records, model) for model in models}
        judged = [model for model in models if chosen[model]]
        first = first_of(records, judged[-1]) if judged else "accuracy"
        return Figures(
            first,
            values={
                (model, selector, name): _number(value)
                for model, rounds in chosen.items()
                for selector, row in rounds.items()
                for name, value in row.items()
                if not name.startswith(("validation_", "mean_weights_"))
            },
            validation={
                model: (_number(row[f"validation_{first}"]), _number(row["validation_nll"]))
                for model, rounds in chosen.items()
                if (row := rounds.get("selected")) is not None
            },
            rounds=int(summary["rounds"]),
            clients=int(summary["clients"]),
            seconds=float(summary["seconds"]["train"]),
            evaluation=float(summary["seconds"]["evaluate"]),
            bytes_uploaded=summary.get("bytes_uploaded"),
            gradient_steps=int(summary["gradient_steps"]),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
        raise UserError(
            f"{folder.path} is damaged: {type(problem).__name__} {problem}; delete it to run it again"
        ) from problem


def _number(value: float | None) -> float:
    """JSON has no NaN: it is null there."""
    return math.nan if value is None else float(value)
