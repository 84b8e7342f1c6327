"""What a table has found so far: the reported runs of each cell, and figures over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyro_pfedbayes.experiments.tables.declaration.plan import Cell, Job, Plan, Point
from pyro_pfedbayes.experiments.tables.declaration.spec import DataEntry
from pyro_pfedbayes.experiments.tables.execution.run_values import Figures, Key
from pyro_pfedbayes.experiments.tables.execution.schedule import Choice, Schedule
from pyro_pfedbayes.experiments.tables.results.paired import Paired, Spread, paired, spread


@dataclass(frozen=True)
class RunResult:
    """A run that is reported."""

    job: Job
    figures: Figures | None  # if it is finished
    reason: str | None  # why it failed, if it did

    @property
    def status(self) -> str:
        """``"finished"``, ``"failed"`` or ``"open"``."""
        if self.figures is not None:
            return "finished"
        return "open" if self.reason is None else "failed"


@dataclass(frozen=True)
class CellResult:
    """A method on a data set."""

    cell: Cell
    choice: Choice | None  # None while the settings are not chosen
    runs: tuple[RunResult, ...]  # one a seed; none if all points failed or nothing is chosen yet

    @property
    def point(self) -> Point | None:
        """The settings chosen; None while there are none."""
        if self.choice is None or self.choice.number is None:
            return None
        return self.cell.points[self.choice.number]

    @property
    def first(self) -> str | None:
        """The first measure, of a reported run or of one that was tried; None if no run is finished."""
        for figures in self.figures:
            return figures.first
        return None if self.choice is None else self.choice.first

    @property
    def reason(self) -> str | None:
        """Why a run failed, the first reason of several; None if none did."""
        if self.choice is not None and self.choice.reason is not None:
            return self.choice.reason
        return next((run.reason for run in self.runs if run.reason is not None), None)

    @property
    def figures(self) -> list[Figures]:
        """Those of the finished runs."""
        return [run.figures for run in self.runs if run.figures is not None]

    def by_seed(self, key: Key) -> Mapping[int, float]:
        """A figure by seed, of the runs that have it."""
        return {
            run.job.seed: run.figures.values[key]
            for run in self.runs
            if run.figures is not None and key in run.figures.values
        }

    def spread(self, key: Key) -> Spread:
        """Mean and standard deviation of a figure over seeds."""
        return spread(list(self.by_seed(key).values()))


@dataclass(frozen=True)
class Results:
    """A whole table, as far as it is; cells in the plan's order."""

    plan: Plan
    cells: tuple[CellResult, ...]

    def on(self, entry: DataEntry) -> list[CellResult]:
        """The cells of one data set, method by method."""
        return [result for result in self.cells if result.cell.entry.label == entry.label]

    def measure(self, result: CellResult) -> str | None:
        """The first measure of a cell; if no run of it is finished, that of others on its data."""
        on = (result, *self.on(result.cell.entry))
        return next((other.first for other in on if other.first is not None), None)

    def selector(self) -> str:
        """That of the table's own cells; see `selector_of`."""
        return selector_of([r for r in self.cells if r.cell.entry.swept is None] or self.cells)

    def difference(self, result: CellResult, key: Key) -> Paired | None:
        """How a cell differs from that of the method compared with; None for that one itself."""
        against = self.compared_with(result)
        if against is None or against is result:
            return None
        return paired(result.by_seed(key), against.by_seed(key))

    def compared_with(self, result: CellResult) -> CellResult | None:
        """The cell on the same data of the method that others are compared with."""
        name = self.plan.spec.paired_with
        return next((r for r in self.on(result.cell.entry) if r.cell.method.name == name), None)


def selector_of(cells: Sequence[CellResult]) -> str:
    """The honest choice of a round: by validation examples if all data have some, else the last."""
    judged = all(
        model in figures.validation
        for result in cells
        for figures in result.figures
        for model, _, _ in figures.values
    )
    return "selected" if judged else "last"


def collect(schedule: Schedule) -> Results:
    """Read all runs that are reported."""
    return Results(
        schedule.plan,
        tuple(
            CellResult(
                cell,
                schedule.choice(cell),
                tuple(_run(schedule, job) for job in schedule.final(cell)),
            )
            for cell in schedule.plan.cells
        ),
    )


def _run(schedule: Schedule, job: Job) -> RunResult:
    if schedule.folder.finished(job.id):
        return RunResult(job, schedule.figures(job), None)
    return RunResult(job, None, schedule.folder.failure(job.id))
