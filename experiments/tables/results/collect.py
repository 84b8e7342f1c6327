"""What a table has found so far: the reported runs of each cell, and figures over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyro_pfedbayes.experiments.tables.declaration.plan import Cell, Job, Plan, Point
from pyro_pfedbayes.experiments.tables.declaration.spec import DataEntry
from pyro_pfedbayes.experiments.tables.execution.run_values import MODELS, Figures
from pyro_pfedbayes.experiments.tables.execution.schedule import Schedule
from pyro_pfedbayes.experiments.tables.execution.selection import Choice
from pyro_pfedbayes.experiments.tables.results.paired import Paired, Spread, paired, spread


@dataclass(frozen=True)
class RunResult:
    """A run that is reported."""

    job: Job  # the run
    figures: Figures | None  # its figures, if it is finished
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

    cell: Cell  # which
    choice: Choice | None  # how its settings were chosen; None while they are not
    runs: tuple[RunResult, ...]
    """One a seed; none if all points of the grid failed or nothing is chosen yet."""

    @property
    def point(self) -> Point | None:
        """The settings chosen; None while there are none."""
        if self.choice is None or self.choice.number is None:
            return None
        return self.cell.points[self.choice.number]

    @property
    def first(self) -> str | None:
        """The first measure; None if no run is finished, of those that were tried neither."""
        told = next((run.figures.first for run in self.runs if run.figures is not None), None)
        return self.choice.first if told is None and self.choice is not None else told

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

    def by_seed(self, model: str, selector: str, measure: str) -> Mapping[int, float]:
        """A figure by seed, of the runs that have it."""
        return {
            run.job.seed: run.figures.values[model, selector][measure]
            for run in self.runs
            if run.figures is not None and measure in run.figures.values.get((model, selector), {})
        }

    def spread(self, model: str, selector: str, measure: str) -> Spread:
        """Its mean and standard deviation over seeds."""
        return spread(list(self.by_seed(model, selector, measure).values()))


@dataclass(frozen=True)
class Results:
    """A whole table, as far as it is."""

    plan: Plan  # what it is made of
    cells: tuple[CellResult, ...]  # in the plan's order

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

    def difference(
        self, result: CellResult, model: str, selector: str, measure: str
    ) -> Paired | None:
        """How a cell differs from that of the method compared with; None for that one itself."""
        against = self.compared_with(result)
        if against is None or against is result:
            return None
        figures = (r.by_seed(model, selector, measure) for r in (result, against))
        return paired(*figures)

    def compared_with(self, result: CellResult) -> CellResult | None:
        """The cell on the same data of the method that others are compared with."""
        wanted = self.plan.spec.paired_with
        cells = self.on(result.cell.entry)
        return next((r for r in cells if r.cell.method.name == wanted), None)


def selector_of(cells: Sequence[CellResult]) -> str:
    """The honest choice of a round: by validation examples if all data have some, else the last."""
    every = [f for result in cells for f in result.figures]
    told = all(
        (model, "selected") in f.values
        for f in every
        for model in MODELS
        if (model, "last") in f.values
    )
    return "selected" if told else "last"


def collect(schedule: Schedule) -> Results:
    """Read all runs that are reported."""
    found = []
    for cell in schedule.plan.cells:
        choice = schedule.choice(cell)
        runs = tuple(_run(schedule, job) for job in schedule.final(cell))
        found.append(CellResult(cell, choice, runs))
    return Results(schedule.plan, tuple(found))


def _run(schedule: Schedule, job: Job) -> RunResult:
    if schedule.folder.finished(job.id):
        return RunResult(job, schedule.figures(job), None)
    return RunResult(job, None, schedule.folder.failure(job.id))
