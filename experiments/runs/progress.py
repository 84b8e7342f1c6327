"""How far a run is: a bar on a terminal; elsewhere a line an evaluated round, and now and then between."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as RichProgress

from pyro_pfedbayes.experiments.runs.result_tables import print_lines, short_number

if TYPE_CHECKING:
    from pyro_pfedbayes.inference.federation.loop import RoundReport

SILENCE = 20.0
"""Seconds after which a round that is not evaluated gets a line as well."""


class Progress:
    """What a run tells while it goes on; here nothing."""

    def running(self, done: int, total: int) -> contextlib.AbstractContextManager[None]:
        """Entered with the rounds that are done and those of the whole run; left when no more follow."""
        return contextlib.nullcontext()

    def round(self, report: RoundReport) -> None:
        """A round is finished."""

    def note(self, text: str) -> None:
        """Something that must not be overlooked."""


def make_progress(out: Console, err: Console) -> Progress:
    """A bar if standard output is a terminal, lines if not."""
    return _Bar(out, err) if out.is_terminal else _Lines(out, err)


class Clock:
    """Seconds left, from the rounds since the start of this process.

    The first round is left out as soon as there is a second: it may have waited for a compiler.
    """

    def __init__(self, done: int, total: int, now: float | None = None) -> None:
        self._total, self._rounds = total, 0
        self._start = (done, time.perf_counter() if now is None else now)

    def left(self, done: int, now: float | None = None) -> float:
        """Seconds left when ``done`` rounds are finished."""
        now = time.perf_counter() if now is None else now
        before, start = self._start
        if not self._rounds:
            self._start = (done, now)
        self._rounds += 1
        return (self._total - done) * (now - start) / max(1, done - before)


class _Lines(Progress):
    def __init__(self, out: Console, err: Console) -> None:
        self._out, self._err = out, err

    @contextlib.contextmanager
    def running(self, done: int, total: int) -> Iterator[None]:
        self._clock, self._last = Clock(done, total), time.perf_counter()
        yield

    def round(self, report: RoundReport) -> None:
        text, now = self._text(report), time.perf_counter()
        if report.evaluation is not None or now - self._last >= SILENCE:
            self._last = now
            figures = _figures(report.evaluation)
            print_lines(self._out, f"round {report.index}/{report.total}  {figures}{text}")

    def note(self, text: str) -> None:
        print_lines(self._err, f"pfedbayes: {text}")

    def _text(self, report: RoundReport) -> str:
        left = self._clock.left(report.index)
        return f"loss {report.loss:.4g}  {report.phase}  {left:.0f} s left"


class _Bar(_Lines):
    @contextlib.contextmanager
    def running(self, done: int, total: int) -> Iterator[None]:
        columns = (
            TextColumn("round"),
            MofNCompleteColumn(),
            BarColumn(bar_width=None),
            TextColumn("{task.description}", markup=False),
        )
        self._clock, self._figures, err = Clock(done, total), "", self._err
        with RichProgress(*columns, console=self._out, transient=True, expand=True) as self._bar:
            self._task = self._bar.add_task("", total=total, completed=done)
            # Notes stand above the bar: a second writer would tear it.
            self._err = self._out
            yield
        self._err = err

    def round(self, report: RoundReport) -> None:
        self._figures = _figures(report.evaluation) or self._figures
        text = self._figures + self._text(report)
        self._bar.update(self._task, completed=report.index, description=text)


def _figures(record: dict[str, Any] | None) -> str:
    """How good the personal and the global models are; empty in a round without evaluation."""
    if record is None:
        return ""
    parts = []
    for name, key in (("PM", "personal"), ("GM", "global")):
        found = record[key]
        if "accuracy" in found:
            parts.append(f"{name} {100 * found['accuracy']:.1f} %  ")
        elif "rmse" in found:
            parts.append(f"{name} RMSE {short_number(found['rmse'])}  ")
    return "".join(parts) or "no test examples  "
