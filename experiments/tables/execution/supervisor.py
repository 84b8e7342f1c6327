"""Making a table's runs, one after the other or side by side, and telling how far it is."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.experiments.runs.lifecycle import Interrupted
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
    """Make all runs that are left.

    Args:
        schedule: Which come next.
        pool: Makes them; it is closed at the end.
        console: Where progress is told.
        hint: How to go on, for messages.
        refresh: Called whenever a run has ended.
    """
    clock, folder = TimeLeft(), schedule.folder
    for done in schedule.plan.jobs().values():
        if folder.finished(done.id):
            _time(schedule, done, clock)
    with _bar(console, schedule) as show:
        try:
            while True:
                while len(pool.running) < pool.places and (job := schedule.next()) is not None:
                    schedule.started.add(job.id)
                    show(f"{job}  {_estimate(schedule, clock, pool)}")
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
                result = _result(schedule, job, clock)
                count = f"[{schedule.total() - len(schedule.left())}/{schedule.total()}]"
                text = f"{count} {job}: {result}  {_estimate(schedule, clock, pool)}"
                console.print(text.rstrip(), markup=False, highlight=False, soft_wrap=True)
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


@contextlib.contextmanager
def _bar(console: Console, schedule: Schedule) -> Iterator[Callable[[str], None]]:
    """On a terminal a bar over all runs; elsewhere the lines of runs that ended must do."""
    if not console.is_terminal:
        yield lambda text: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (
        TextColumn("run"),
        MofNCompleteColumn(),
        BarColumn(bar_width=20),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=schedule.total())

        def show(text: str) -> None:
            total = schedule.total()
            bar.update(task, total=total, completed=total - len(schedule.left()), description=text)

        yield show


def _estimate(schedule: Schedule, clock: TimeLeft, pool: Pool) -> str:
    left = schedule.left()
    seconds = clock.left(left.values(), min(pool.places, max(1, len(left))))
    return "" if seconds is None or not left else f"{span(seconds)} left"


def _time(schedule: Schedule, job: Job, clock: TimeLeft) -> float:
    """Seconds that a finished run took, which the clock counts."""
    figures = schedule.figures(job)
    clock.add(job, figures.seconds + figures.evaluation)
    return figures.seconds + figures.evaluation


def _result(schedule: Schedule, job: Job, clock: TimeLeft) -> str:
    reason = schedule.folder.failure(job.id)
    if reason is not None:
        return f"failed: {reason}"
    found, parts = schedule.figures(job), []
    for short, model in (("PM", "personal"), ("GM", "global")):
        value = found.values.get((model, "last"), {}).get(found.first)
        if value is not None:
            shown = f"{100 * value:.1f} %" if found.first == "accuracy" else f"{value:.4g}"
            parts.append(f"{short} {shown}")
    return "  ".join([*parts, span(_time(schedule, job, clock))])
