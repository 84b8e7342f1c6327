"""Which run comes next: all tuning runs of a cell, then the final ones of the point that was chosen."""

from __future__ import annotations

from collections.abc import Iterator

from pyro_pfedbayes.experiments.tables.declaration.plan import Cell, Job, Plan
from pyro_pfedbayes.experiments.tables.execution.folder import TableFolder
from pyro_pfedbayes.experiments.tables.execution.run_values import Figures, read_figures
from pyro_pfedbayes.experiments.tables.execution.selection import Choice, choose


class Schedule:
    """What is done and what is left of a plan; progress itself is in the folder.

    Args:
        plan: All runs.
        folder: Tells which are settled.
    """

    def __init__(self, plan: Plan, folder: TableFolder) -> None:
        self.plan, self.folder = plan, folder
        self.started: set[str] = set()
        self._settled: set[str] = set()
        self._choices: dict[tuple[str, str], Choice] = {}
        self._figures: dict[tuple[str, tuple[str, ...]], Figures] = {}

    def settled(self, job: Job) -> bool:
        """Whether a run is finished or has failed."""
        if job.id not in self._settled and self.folder.settled(job.id):
            self._settled.add(job.id)
        return job.id in self._settled

    def choice(self, cell: Cell) -> Choice | None:
        """The point chosen in a cell, once its tuning runs are settled."""
        if cell.key not in self._choices:
            if not all(self.settled(job) for runs in cell.tuning for job in runs):
                return None
            self._choices[cell.key] = choose(cell, self.folder)
        return self._choices[cell.key]

    def figures(self, job: Job, models: tuple[str, ...]) -> Figures:
        """Those of a finished run, read once."""
        if (job.id, models) not in self._figures:
            self._figures[job.id, models] = read_figures(self.folder.run(job.id), models)
        return self._figures[job.id, models]

    def next(self) -> Job | None:
        """A run that can be started now, cell by cell; None if there is none (others may have to end first)."""
        for cell in self.plan.cells:
            for job in self._ready(cell):
                if job.id not in self.started and not self.settled(job):
                    return job
        return None

    def left(self) -> dict[str, Job]:
        """Runs still to be made; where nothing is chosen yet, those of the first point stand for the final ones."""
        found: dict[str, Job] = {}
        for cell in self.plan.cells:
            choice = self.choice(cell)
            number = 0 if choice is None else choice.number
            runs = [job for tried in cell.tuning for job in tried]
            runs += [] if number is None else cell.final[number]
            found |= {job.id: job for job in runs if not self.settled(job)}
        return found

    def total(self) -> int:
        """How many runs the table takes."""
        made: set[str] = set()
        for cell in self.plan.cells:
            choice = self.choice(cell)
            number = 0 if choice is None else choice.number
            made |= {job.id for tried in cell.tuning for job in tried}
            made |= set() if number is None else {job.id for job in cell.final[number]}
        return len(made)

    def _ready(self, cell: Cell) -> Iterator[Job]:
        for tried in cell.tuning:
            yield from tried
        choice = self.choice(cell)
        if choice is not None and choice.number is not None:
            yield from cell.final[choice.number]
