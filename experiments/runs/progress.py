"""How far a run is: a bar on a terminal; elsewhere a line an evaluated round, and now and then between."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

from rich.console import Console

from pyro_pfedbayes.experiments.runs.result_tables import short_number

if TYPE_CHECKING:
    import rich.progress

    from pyro_pfedbayes.inference.federation.loop import RoundReport

SILENCE = 20.0
"""Seconds after which a round that is not evaluated gets a line as well."""


class Progress(Protocol):
    """What a run tells while it goes on."""

    def running(self, done: int, total: int) -> contextlib.AbstractContextManager[None]:
        """Entered with the rounds that are done and those of the whole run; left when no more follow."""
        ...

    def round(self, report: RoundReport) -> None:
        """A round is finished."""
        ...

    def note(self, text: str) -> None:
        """Something that must not be overlooked."""
        ...


def make_progress(out: Console, err: Console) -> Progress:
    """A bar if standard output is a terminal, lines if not."""
    return _Bar(out, err) if out.is_terminal else _Lines(out, err)


class Clock:
    """Seconds left, from the rounds since the start of this process.

    The first round is left out as soon as there is a second: it may have waited for a compiler.
    """

    def __init__(self, done: int, total: int, now: float | None = None) -> None:
        self._total = total
        self._marks = [(done, time.perf_counter() if now is None else now)]

    def left(self, done: int, now: float | None = None) -> float:
        """Seconds left when ``done`` rounds are finished."""
        now = time.perf_counter() if now is None else now
        self._marks = [*self._marks[:2], (done, now)]
        first = self._marks[1] if len(self._marks) > 2 else self._marks[0]
        rounds = max(1, done - first[0])
        return (self._total - done) * (now - first[1]) / rounds


class _Lines:
    def __init__(self, out: Console, err: Console) -> None:
        self._out, self._err = out, err

    @contextlib.contextmanager
    def running(self, done: int, total: int) -> Iterator[None]:
        self._clock = Clock(done, total)
        self._told = time.perf_counter()
        yield

    def round(self, report: RoundReport) -> None:
        left, now = self._clock.left(report.index), time.perf_counter()
        if report.evaluation is None and now - self._told < SILENCE:
            return
        self._told = now
        found = "" if report.evaluation is None else f"{_figures(report.evaluation)}  "
        _print(
            self._out,
            f"round {report.index}/{report.total}  {found}"
            f"loss {report.loss:.4g}  {report.phase}  {left:.0f} s left",
        )

    def note(self, text: str) -> None:
        _print(self._err, f"pfedbayes: {text}")


class _Bar:
    def __init__(self, out: Console, err: Console) -> None:
        self._out, self._err = out, err
        self._bar: rich.progress.Progress | None = None
        self._figures = ""

    @contextlib.contextmanager
    def running(self, done: int, total: int) -> Iterator[None]:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        columns = (
            TextColumn("round"),
            MofNCompleteColumn(),
            BarColumn(bar_width=None),
            TextColumn("{task.description}", markup=False),
        )
        self._clock = Clock(done, total)
        with Progress(*columns, console=self._out, transient=True, expand=True) as self._bar:
            self._task = self._bar.add_task("", total=total, completed=done)
            yield
        self._bar = None

    def round(self, report: RoundReport) -> None:
        left = self._clock.left(report.index)
        if report.evaluation is not None:
            self._figures = _figures(report.evaluation) + "  "
        if self._bar is not None:
            text = f"{self._figures}loss {report.loss:.4g}  {report.phase}  {left:.0f} s left"
            self._bar.update(self._task, completed=report.index, description=text)

    def note(self, text: str) -> None:
        # Above the bar, if there is one: a second writer would tear it.
        _print(self._err if self._bar is None else self._bar.console, f"pfedbayes: {text}")


def _figures(record: dict[str, Any]) -> str:
    parts = []
    for name, key in (("PM", "personal"), ("GM", "global")):
        found = record[key]
        if "accuracy" in found:
            parts.append(f"{name} {100 * found['accuracy']:.1f} %")
        elif "rmse" in found:
            parts.append(f"{name} RMSE {short_number(found['rmse'])}")
    return "  ".join(parts) or "no test examples"


def _print(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
