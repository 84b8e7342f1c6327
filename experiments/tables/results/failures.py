"""Which runs of a table failed, and what that leaves it without."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyro_pfedbayes.experiments.runs.result_tables import counted
from pyro_pfedbayes.experiments.tables.execution.folder import TableFolder
from pyro_pfedbayes.experiments.tables.results.collect import CellResult, Results

_SHOWN = 5


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
