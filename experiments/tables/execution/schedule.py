"""Which run comes next: all tuning runs of a cell, then the final ones of the point that validation examples choose."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from pyro_pfedbayes.experiments.tables.declaration.plan import Cell, Job, Plan
from pyro_pfedbayes.experiments.tables.execution.folder import TableFolder
from pyro_pfedbayes.experiments.tables.execution.run_values import Figures, read_figures


@dataclass(frozen=True)
class Trial:
    """How a point did on validation examples, averaged over the tuning seeds; NaN if a run failed."""

    value: float  # first measure
    nll: float
    reason: str | None = None  # why a run failed


@dataclass(frozen=True)
class Choice:
    """The point that a cell's final runs are made with."""

    number: int | None  # of the point; None if all of them failed
    trials: tuple[Trial, ...]  # all points that were tried; empty if there was only one
    model: str  # whose figures decided
    first: str | None = None  # the measure that decided; None if no run is finished

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
    trials = tuple(_trial(runs, model) for runs in tried)
    sign = 1 if first == "rmse" else -1
    best = min(
        (number for number, trial in enumerate(trials) if not math.isnan(trial.value)),
        key=lambda n: (sign * trials[n].value, math.isnan(trials[n].nll), trials[n].nll),
        default=None,
    )
    return Choice(best, trials, model, first)


def _figures(cell: Cell, runs: Sequence[Job], folder: TableFolder) -> list[Figures] | str:
    """Those of the runs of a point, or why one failed."""
    for job in runs:
        if not folder.finished(job.id):
            return folder.failure(job.id) or "not finished"
    return [read_figures(folder.run(job.id), cell.models) for job in runs]


def _trial(runs: list[Figures] | str, model: str) -> Trial:
    if isinstance(runs, str):
        return Trial(math.nan, math.nan, runs)
    if not all(model in run.validation for run in runs):
        return Trial(math.nan, math.nan, "no validation example was judged")
    value, nll = map(statistics.fmean, zip(*(run.validation[model] for run in runs), strict=True))
    return Trial(value, nll, "its figures are not finite" if math.isnan(value) else None)


class Schedule:
    """What is done and what is left of a plan; progress itself is in the folder."""

    def __init__(self, plan: Plan, folder: TableFolder) -> None:
        self.plan, self.folder = plan, folder
        self.started: set[str] = set()
        self._settled: set[str] = set()
        self._choices: dict[tuple[str, str], Choice] = {}
        self._figures: dict[str, Figures] = {}

    def settled(self, job: Job) -> bool:
        """Whether a run is finished or has failed."""
        if job.id not in self._settled and self.folder.settled(job.id):
            self._settled.add(job.id)
        return job.id in self._settled

    def choice(self, cell: Cell) -> Choice | None:
        """The point chosen in a cell, once its tuning runs are settled."""
        if cell.key not in self._choices:
            if not all(map(self.settled, cell.tuning_jobs)):
                return None
            self._choices[cell.key] = choose(cell, self.folder)
        return self._choices[cell.key]

    def figures(self, job: Job) -> Figures:
        """Those of a finished run, read once."""
        if job.id not in self._figures:
            models = self.plan.cell_of(job).models
            self._figures[job.id] = read_figures(self.folder.run(job.id), models)
        return self._figures[job.id]

    def next(self) -> Job | None:
        """A run that can be started now, cell by cell; None if there is none (others may have to end first)."""
        for cell in self.plan.cells:
            for job in (*cell.tuning_jobs, *self.final(cell)):
                if job.id not in self.started and not self.settled(job):
                    return job
        return None

    def final(self, cell: Cell) -> tuple[Job, ...]:
        """The runs of a cell that are reported; none if no point is chosen (yet)."""
        choice = self.choice(cell)
        return () if choice is None or choice.number is None else cell.final[choice.number]

    def left(self) -> dict[str, Job]:
        """Runs still to be made."""
        return {name: job for name, job in self._all().items() if not self.settled(job)}

    def total(self) -> int:
        """How many runs the table takes."""
        return len(self._all())

    def _all(self) -> dict[str, Job]:
        """All runs; where nothing is chosen yet, those of the first point stand for the final ones."""
        return {
            job.id: job
            for cell in self.plan.cells
            for job in (
                *cell.tuning_jobs,
                *(cell.final[0] if self.choice(cell) is None else self.final(cell)),
            )
        }
