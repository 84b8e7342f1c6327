"""Which run comes next: all tuning runs of a cell, then the final ones of the point that was chosen."""

from __future__ import annotations

from pyro_pfedbayes.experiments.tables.declaration.plan import Cell, Job, Plan
from pyro_pfedbayes.experiments.tables.execution.folder import TableFolder
from pyro_pfedbayes.experiments.tables.execution.run_values import Figures, read_figures
from pyro_pfedbayes.experiments.tables.execution.selection import Choice, choose


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
