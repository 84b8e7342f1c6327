"""Progress: seconds left, lines elsewhere than on a terminal, a bar on one."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from pyro_pfedbayes.experiments.runs.progress import Clock, make_progress
from pyro_pfedbayes.inference.federation.loop import RoundReport
from pyro_pfedbayes.inference.federation.state import FederationState


def report(index: int, evaluation: dict[str, Any] | None) -> RoundReport:
    state = FederationState(round=index, server={})
    return RoundReport(index, 10, 12.34, "shared", evaluation, (), state)


NUMBERS = {"personal": {"rmse": 1234.5678}, "global": {"rmse": float("inf")}}
RECORD = {"personal": {"accuracy": 0.875}, "global": {"accuracy": 0.5}}


def test_seconds_left_leave_out_the_first_round() -> None:
    clock = Clock(done=4, total=10, now=100.0)
    assert clock.left(5, now=130.0) == pytest.approx(5 * 30.0)
    assert clock.left(6, now=132.0) == pytest.approx(4 * 2.0)
    assert clock.left(8, now=136.0) == pytest.approx(2 * 2.0)
    assert clock.left(10, now=140.0) == 0.0


def test_elsewhere_than_on_a_terminal_a_line_an_evaluated_round() -> None:
    out, err = io.StringIO(), io.StringIO()
    progress = make_progress(Console(file=out), Console(file=err))
    with progress.running(0, 10):
        progress.round(report(1, None))
        progress.note("warning: mind [this]")
        progress.round(report(2, RECORD))
        progress.round(report(3, {"personal": {}, "global": {}}))
    first, second = out.getvalue().splitlines()
    assert first.startswith("round 2/10  PM 87.5 %  GM 50.0 %  loss 12.34  shared  ")
    assert first.endswith(" s left")
    assert second.startswith("round 3/10  no test examples  ")
    assert err.getvalue() == "pfedbayes: warning: mind [this]\n"


def test_without_evaluations_there_is_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("time.perf_counter", lambda: now)
    out = io.StringIO()
    progress = make_progress(Console(file=out), Console(file=out))
    with progress.running(0, 10):
        for index in range(1, 7):
            now += 8.0
            progress.round(report(index, RECORD if index == 4 else None))
    assert out.getvalue().splitlines() == [
        "round 3/10  loss 12.34  shared  56 s left",
        "round 4/10  PM 87.5 %  GM 50.0 %  loss 12.34  shared  48 s left",
    ]


def test_on_a_terminal_a_bar_with_the_last_accuracies() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100, color_system=None)
    progress = make_progress(console, Console(file=io.StringIO()))
    with progress.running(0, 10):
        progress.round(report(1, RECORD))
        progress.round(report(2, None))
        progress.note("warning: mind this")
    shown = out.getvalue()
    assert "2/10" in shown
    last = shown.rindex("PM 87.5 %  GM 50.0 %  loss 12.34  shared")
    assert "s left" in shown[last:]
    assert "pfedbayes: warning: mind this" in shown


def test_numbers_are_told_by_their_error() -> None:
    out = io.StringIO()
    progress = make_progress(Console(file=out), Console(file=out))
    with progress.running(0, 10):
        progress.round(report(1, NUMBERS))
    assert out.getvalue().startswith("round 1/10  PM RMSE 1235  GM RMSE –  loss 12.34  shared  ")
