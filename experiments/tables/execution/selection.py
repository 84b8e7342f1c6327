"""Choosing a point of a grid, on validation examples only."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from pyro_pfedbayes.experiments.tables.declaration.plan import Cell, Job
from pyro_pfedbayes.experiments.tables.execution.folder import TableFolder
from pyro_pfedbayes.experiments.tables.execution.run_values import Figures, read_figures


@dataclass(frozen=True)
class Trial:
    """How a point did on validation examples, averaged over the tuning seeds; NaN if a run failed."""

    number: int  # of the point
    value: float  # first measure
    nll: float
    reason: str | None = None  # why a run failed


@dataclass(frozen=True)
class Choice:
    """The point that a cell's final runs are made with."""

    number: int | None  # of the point; None if all of them failed
    trials: tuple[Trial, ...]  # all points that were tried; empty if there was only one
    model: str  # whose figures decided
    first: str | None = None  # the measure that decided; None if no run told

    @property
    def reason(self) -> str | None:
        """Why there is no point."""
        return self.trials[0].reason if self.number is None else None


def choose(cell: Cell, folder: TableFolder) -> Choice:
    """The point with the best first measure of the personal model (the global one, if there is no other).

    Ties go to the lower NLL, then to the earlier point. The cell's tuning runs are settled.
    """
    if not cell.tuning:
        return Choice(0, (), "")
    tried = [_figures(cell, runs, folder) for runs in cell.tuning]
    figures = [found for runs in tried if not isinstance(runs, str) for found in runs]
    # If all failed, the model that would have decided.
    judged = {model for found in figures for model in found.validation} or {*cell.models}
    model = "personal" if "personal" in judged else "global"
    first = figures[0].first if figures else None
    trials = tuple(_trial(number, runs, model) for number, runs in enumerate(tried))
    sign = 1 if first == "rmse" else -1
    best = min(
        (trial for trial in trials if not math.isnan(trial.value)),
        key=lambda t: (sign * t.value, math.inf if math.isnan(t.nll) else t.nll),
        default=None,
    )
    return Choice(best.number if best else None, trials, model, first)


def _figures(cell: Cell, runs: Sequence[Job], folder: TableFolder) -> list[Figures] | str:
    """Those of the runs of a point, or why one failed."""
    for job in runs:
        if not folder.finished(job.id):
            return folder.failure(job.id) or "not finished"
    return [read_figures(folder.run(job.id), cell.models) for job in runs]


def _trial(number: int, runs: list[Figures] | str, model: str) -> Trial:
    if isinstance(runs, str):
        return Trial(number, math.nan, math.nan, runs)
    if not all(model in run.validation for run in runs):
        return Trial(number, math.nan, math.nan, "no validation example was judged")
    value, nll = map(statistics.fmean, zip(*(run.validation[model] for run in runs), strict=True))
    return Trial(number, value, nll, "its figures are not finite" if math.isnan(value) else None)
