"""One process to a folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.experiments.runs.lock import LOCK, InUse, locked
from tests.experiments.helpers import pfedbayes

HOLD = """
import sys, pathlib
from pyro_pfedbayes.experiments.runs.lock import locked
with locked(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def holder(folder: Path) -> subprocess.Popen[str]:
    """A process that holds a folder until its input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_second_process_is_told_who_holds_the_folder(tmp_path: Path) -> None:
    with holder(tmp_path) as other:
        with pytest.raises(InUse, match=rf"in use by another process \(pid {other.pid}\)"):
            locked(tmp_path).__enter__()
        other.communicate()
    with locked(tmp_path):
        assert (tmp_path / LOCK).read_text() == f"{os.getpid()}\n"
    assert not list(tmp_path.iterdir())


def test_a_killed_process_holds_nothing(tmp_path: Path) -> None:
    with holder(tmp_path) as other:
        other.send_signal(signal.SIGKILL)
    assert (tmp_path / LOCK).exists()
    with locked(tmp_path):
        pass
    assert not (tmp_path / LOCK).exists()


def test_waiting_for_a_process_that_ends(tmp_path: Path) -> None:
    with holder(tmp_path) as other:
        assert other.stdin is not None
        other.stdin.close()
        with locked(tmp_path, wait=20.0):
            assert (tmp_path / LOCK).read_text() == f"{os.getpid()}\n"


def test_within_one_process_a_folder_is_held_once(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(InUse), locked(tmp_path):
        pass
    with locked(tmp_path):
        pass


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot write .*No such file"):
        locked(tmp_path / "none").__enter__()


def test_two_resumes_of_one_run(run_copy: Path) -> None:
    (run_copy / "summary.json").unlink()
    with holder(run_copy) as other:
        outcome = pfedbayes("resume", run_copy)
        other.communicate()
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert f"{run_copy} is in use by another process (pid {other.pid})" in outcome.err
    assert pfedbayes("resume", run_copy).code == 0
    assert not (run_copy / LOCK).exists()
