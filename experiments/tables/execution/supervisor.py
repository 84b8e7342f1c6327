"""Making a table's runs, one after the other or side by side, and telling how far it is."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from pyro_pfedbayes.errors import Interrupted, UserError
from pyro_pfedbayes.experiments.tables.declaration.plan import Job
from pyro_pfedbayes.experiments.tables.execution.pool import Pool
from pyro_pfedbayes.experiments.tables.execution.schedule import Schedule

if TYPE_CHECKING:
    from rich.console import Console


class TimeLeft:
    """How long further runs will take, from those that are finished: seconds a round, by data and method."""

    def __init__(self) -> None:
        self._rates: dict[tuple[str, str], list[float]] = {}

    def add(self, job: Job, seconds: float) -> None:
        """A run took so many seconds."""
        self._rates.setdefault((job.data, job.method), []).append(seconds / job.rounds)

    def left(self, jobs: Iterable[Job], places: int) -> float | None:
        """Seconds that runs will take, ``places`` at a time; None if no run has ended yet.

        A method that has not run on some data yet takes what others take there; on new data, what it takes elsewhere.
        """
        if not self._rates:
            return None
        return sum(self._rate(job) * job.rounds for job in jobs) / places

    def _rate(self, job: Job) -> float:
        rates = self._rates
        groups = (
            [rates[key] for key in rates if key == (job.data, job.method)],
            [rates[key] for key in rates if key[0] == job.data],
            [rates[key] for key in rates if key[1] == job.method],
            [*rates.values()],
        )
        alike = next(filter(None, groups))
        return statistics.fmean(rate for found in alike for rate in found)


def make_runs(
    schedule: Schedule, pool: Pool, console: Console, hint: str, refresh: Callable[[], None]
) -> None:
    """Make all runs that are left, and close the pool; ``refresh`` is called whenever a run has ended.

    On a terminal a bar shows progress; elsewhere the lines of runs that ended must do. The hint says how to go on.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    clock, folder = TimeLeft(), schedule.folder
    for done in schedule.plan.jobs().values():
        if folder.finished(done.id):
            clock.add(done, schedule.figures(done).total_seconds)
    text = TextColumn("{task.description}", markup=False)
    columns = (TextColumn("run"), MofNCompleteColumn(), BarColumn(bar_width=20), text)
    bar = Progress(*columns, console=console, transient=True)
    task = bar.add_task("", total=schedule.total())

    def progress(text: str) -> str:
        left, total = schedule.left(), schedule.total()
        seconds = clock.left(left.values(), min(pool.places, max(1, len(left))))
        remaining = "" if seconds is None or not left else f"{span(seconds)} left"
        text = f"{text}  {remaining}".rstrip()
        bar.update(task, total=total, completed=total - len(left), description=text)
        return f"[{total - len(left)}/{total}] {text}"

    with bar if console.is_terminal else contextlib.nullcontext():
        try:
            while True:
                while len(pool.running) < pool.places and (job := schedule.next()) is not None:
                    schedule.started.add(job.id)
                    progress(str(job))
                    pool.start(job, folder.runs / job.id)
                if not pool.running:
                    return
                job, outcome = pool.wait()
                if outcome.status == "interrupted":
                    raise KeyboardInterrupt
                if outcome.status == "stop":
                    raise UserError(f"{job}: {outcome.reason} ({hint})")
                if outcome.status == "failed":
                    folder.fail(job.id, outcome.reason)
                    result = f"failed: {outcome.reason}"
                else:
                    figures = schedule.figures(job)
                    clock.add(job, figures.total_seconds)
                    result = f"{figures}  {span(figures.total_seconds)}".lstrip()
                line = progress(f"{job}: {result}")
                console.print(line, markup=False, highlight=False, soft_wrap=True)
                refresh()
        except KeyboardInterrupt:
            raise Interrupted(f"interrupted; {hint}") from None
        finally:
            pool.close()


def span(seconds: float) -> str:
    """A time for people: ``50 s``, ``12 min``, ``3.5 h``."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
