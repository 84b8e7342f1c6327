"""Choosing a point of a grid, on validation examples only."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from pyro_pfedbayes.experiments.tables.declaration.plan import Cell
from pyro_pfedbayes.experiments.tables.execution.folder import TableFolder
from pyro_pfedbayes.experiments.tables.execution.run_values import Figures, read_figures


@dataclass(frozen=True)
class Trial:
    """How a point did.

    Attributes:
        number: Of the point.
        value: Its first measure on validation examples, averaged over the tuning seeds; NaN if a run failed.
        nll: Its NLL there, in nats.
        reason: Why a run failed.
    """

    number: int
    value: float
    nll: float
    reason: str | None = None


@dataclass(frozen=True)
class Choice:
    """The point that a cell's final runs are made with.

    Attributes:
        number: Of the point; None if all of them failed.
        trials: All points that were tried; empty if there was only one.
        model: The model whose figures decided.
        first: The measure that decided; None if no run told.
    """

    number: int | None
    trials: tuple[Trial, ...]
    model: str
    first: str | None = None

    @property
    def reason(self) -> str | None:
        """Why there is no point."""
        return self.trials[0].reason if self.number is None else None


def choose(cell: Cell, folder: TableFolder) -> Choice:
    """The point with the best first measure of the personal model (the global one, if there is no other).

    Ties go to the lower NLL, then to the earlier point. Only the validation examples are looked at.

    Args:
        cell: Its tuning runs are settled.
        folder: Where they are.
    """
    if not cell.tuning:
        return Choice(0, (), "")
    found: list[list[Figures]] = []
    reasons: list[str | None] = []
    for runs in cell.tuning:
        failures = [folder.failure(job.id) for job in runs if not folder.finished(job.id)]
        reasons.append(next((f or "not finished" for f in failures), None))
        done = [] if failures else [folder.run(job.id) for job in runs]
        found.append([read_figures(run, cell.models) for run in done])
    figures = [f for runs in found for f in runs]
    # If all failed, the model that would have decided.
    judged = {model for f in figures for model in f.validation} or {*cell.models}
    model = "personal" if "personal" in judged else "global"
    first = figures[0].first if figures else None
    trials = tuple(
        _trial(number, runs, model, reason)
        for number, (runs, reason) in enumerate(zip(found, reasons, strict=True))
    )
    order = better_first(trials, low=first == "rmse")
    return Choice(order[0].number if order else None, trials, model, first)


def better_first(trials: Sequence[Trial], *, low: bool) -> list[Trial]:
    """Trials with a figure, the best first.

    Args:
        trials: In the order of the grid.
        low: Whether a lower figure is better.

    Example:
        >>> trials = [Trial(0, 0.9, 0.4), Trial(1, 0.9, 0.3), Trial(2, math.nan, 0.1)]
        >>> [trial.number for trial in better_first(trials, low=False)]
        [1, 0]
    """
    sign = 1 if low else -1
    judged = [trial for trial in trials if not math.isnan(trial.value)]
    return sorted(judged, key=lambda t: (sign * t.value, math.inf if math.isnan(t.nll) else t.nll))


def _trial(number: int, runs: Sequence[Figures], model: str, reason: str | None) -> Trial:
    told = [run.validation[model] for run in runs if model in run.validation]
    if reason is None and (not told or len(told) < len(runs)):
        reason = "no validation example was judged"
    if reason is not None:
        return Trial(number, math.nan, math.nan, reason)
    value, nll = (statistics.fmean(column) for column in zip(*told, strict=True))
    return Trial(number, value, nll, "its figures are not finite" if math.isnan(value) else None)
