"""What a table's runs reached: figures over seeds, paired differences with intervals, and what failed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scipy.special import stdtrit

from pyro_pfedbayes.experiments.reports.collect.comparison import Spread, spread_of
from pyro_pfedbayes.experiments.runs.result_tables import counted
from pyro_pfedbayes.experiments.tables.declaration.plan import Cell, Job, Plan, Point
from pyro_pfedbayes.experiments.tables.declaration.spec import DataEntry
from pyro_pfedbayes.experiments.tables.execution.folder import TableFolder
from pyro_pfedbayes.experiments.tables.execution.run_values import Figures, Key
from pyro_pfedbayes.experiments.tables.execution.schedule import Choice, Schedule

# Differences whose spread is below this share of the figures differ by rounding only.
_SAME = 1e-12
# Cells with failures that are named in a message.
_SHOWN = 5


@dataclass(frozen=True)
class Paired:
    """A mean difference over the seeds that both have, and its 95 % t-interval.

    The interval is NaN where it is not defined: of one seed, and of differences that are all the same, whose spread
    would say that they are certain.
    """

    mean: float
    lower: float
    upper: float
    seeds: int


def paired(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Paired | None:
    """The mean of ``ours - theirs`` by seed, with Student's interval ``mean ± t sd / sqrt(n)``.

    None if no seed has both figures.

    Example:
        >>> found = paired({1: 3.0, 2: 5.0, 3: 1.0}, {1: 1.0, 2: 2.0})
        >>> found.mean, round(found.upper - found.mean, 3), found.seeds
        (2.5, 6.353, 2)
    """
    both = [seed for seed in ours if math.isfinite(ours[seed] - theirs.get(seed, math.nan))]
    found = spread_of([ours[seed] - theirs[seed] for seed in both])
    if not both:
        return None
    largest = max(abs(figure[seed]) for figure in (ours, theirs) for seed in both)
    half = math.nan
    if len(both) > 1 and found.sd > _SAME * largest:
        half = float(stdtrit(len(both) - 1, 0.975)) * found.sd / math.sqrt(len(both))
    return Paired(found.mean, found.mean - half, found.mean + half, len(both))


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
        return spread_of(list(self.by_seed(key).values()))


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
        return selector_of([r for r in self.cells if r.cell.entry.sweep is None] or self.cells)

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


@dataclass(frozen=True)
class Failures:
    """What went wrong in one cell."""

    place: str  # data and method
    tuning: int  # tuning runs that failed
    seeds: tuple[int, ...]  # of the reported runs that failed
    reason: str | None  # why there are no reported runs at all

    @property
    def incomplete(self) -> bool:
        """Whether the table lacks figures; a point of a grid that failed just drops out."""
        return bool(self.seeds) or self.reason is not None

    def __str__(self) -> str:
        """``wine fedavg (2 tuning runs, seeds 1, 3)``."""
        parts = [counted(self.tuning, "tuning run")] if self.tuning else []
        if self.seeds:
            seeds = ", ".join(map(str, self.seeds))
            parts.append(f"seed{'' if len(self.seeds) == 1 else 's'} {seeds}")
        return f"{self.place} ({', '.join(parts) or f'nothing to choose: {self.reason}'})"


def failures(results: Results, folder: TableFolder) -> list[Failures]:
    """The cells in which something failed, in the table's order."""
    found = [_failures(result, folder) for result in results.cells]
    return [one for one in found if one.tuning or one.incomplete]


def lacking_line(found: Sequence[Failures]) -> str | None:
    """What to say of cells that lack figures, which is an error; None if there are none."""
    cells = [one for one in found if one.incomplete]
    runs = counted(sum(one.tuning + len(one.seeds) for one in cells), "run")
    return f"{runs} failed: {_listed(cells)} (--retry makes them anew)" if cells else None


def dropped_line(found: Sequence[Failures]) -> str | None:
    """What to say of points of grids that failed where another was chosen; None if there are none."""
    cells = [one for one in found if not one.incomplete]
    runs = counted(sum(one.tuning for one in cells), "tuning run")
    return f"{runs} failed, other points were chosen: {_listed(cells)}" if cells else None


def _listed(cells: Sequence[Failures]) -> str:
    more = "" if len(cells) <= _SHOWN else f"; and {counted(len(cells) - _SHOWN, 'more cell')}"
    return "; ".join(map(str, cells[:_SHOWN])) + more


def _failures(result: CellResult, folder: TableFolder) -> Failures:
    cell, choice = result.cell, result.choice
    tried = {job.id for job in cell.tuning_jobs if not folder.finished(job.id)}
    return Failures(
        f"{cell.entry.label} {cell.method.name}",
        sum(folder.failure(name) is not None for name in tried),
        tuple(run.job.seed for run in result.runs if run.status == "failed"),
        result.reason if choice is not None and choice.number is None else None,
    )
