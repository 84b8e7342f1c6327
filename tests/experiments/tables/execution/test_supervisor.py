"""``pfedbayes table``: its runs, and tables that end in the middle."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.experiments.runs.lock import LOCK, locked
from pyro_pfedbayes.experiments.runs.progress import Progress
from pyro_pfedbayes.experiments.tables.execution import single_run as execute
from pyro_pfedbayes.experiments.tables.execution.single_run import outcome_of
from tests.experiments.helpers import pfedbayes
from tests.experiments.tables.helpers import HEAD, OURS, plan, rows, spec_file, zeta

Made = tuple[Path, Path]
WILD = zeta(2.0) | {"name": "wild", "settings": {"lr": 1e30, "personal_rounds": 1}}
FILES = ("results.csv", "differences.csv", "tuning.csv", "table.md", "table.html", "table.tex")
# Long enough to be stopped in the middle; it saves its state now and then.
LONG: dict[str, Any] = {"rounds": 80, "seeds": [1], "eval_every": 20, "local_steps": 5}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A table that is finished, and its file; to read from only."""
    folder = tmp_path_factory.mktemp("table")
    file = spec_file(folder)
    outcome = pfedbayes("table", file, "-o", folder / "out")
    assert (outcome.code, outcome.err) == (0, "")
    lines = outcome.out.splitlines()
    assert [line.split()[0] for line in lines[:4]] == ["[1/4]", "[2/4]", "[3/4]", "[4/4]"]
    assert all("PM" in line and "GM" in line for line in lines[:4])
    assert "left" in lines[2]
    assert "left" not in lines[3]
    return folder / "out", file


@pytest.fixture
def copy(made: Made, tmp_path: Path) -> Made:
    """A copy of it to go on with."""
    return Path(shutil.copytree(made[0], tmp_path / "out")), made[1]


def values(out: Path) -> list[tuple[str, ...]]:
    """All figures of a table but times."""
    names = ("method", "seed", "selector", "model", "measure", "value", "status")
    return [tuple(row[name] for name in names) for row in rows(out / "results.csv")]


def summaries(out: Path) -> dict[str, int]:
    """When each finished run was finished."""
    return {p.parent.name: p.stat().st_mtime_ns for p in (out / "runs").glob("*/summary.json")}


def started(file: Path, out: Path, *options: str) -> subprocess.Popen[str]:
    """``pfedbayes table`` in a process of its own."""
    command = [sys.executable, "-m", "pyro_pfedbayes.experiments.cli.main", "table", str(file)]
    return subprocess.Popen(
        [*command, "-o", str(out), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(what: Callable[[], bool], process: subprocess.Popen[str] | None = None) -> None:
    """Until something has happened, a minute at most."""
    end = time.monotonic() + 60
    while not what():
        assert time.monotonic() < end, "it did not happen"
        assert process is None or process.poll() is None, "the process ended too early"
        time.sleep(0.02)


def under_way(out: Path) -> list[Path]:
    """Folders of runs that have been saved after some round, but are not finished."""
    found = []
    for folder in (out / "runs").glob("*"):
        states = [p.name for p in (folder / "checkpoint").glob("state-*.safetensors")]
        if not (folder / "summary.json").exists() and any(s > "state-000000z" for s in states):
            found.append(folder)
    return found


# -- a whole table ----------------------------------------------------------------------------------------


def test_a_table_leaves_what_it_promises(made: Made) -> None:
    out, _ = made
    assert sorted(p.name for p in out.iterdir()) == sorted(
        [*FILES, "failed", "runs", "table.json"] + [p.name for p in out.glob("results.parquet")]
    )
    assert len(summaries(out)) == 4
    for run in (out / "runs").iterdir():
        assert sorted(p.name for p in run.iterdir()) == [
            *("config.toml", "metrics.jsonl", "summary.json")
        ]
    # 2 methods, 2 seeds, 2 models, 3 selectors, 4 measures.
    assert len(values(out)) == 96
    assert "## digits-blocks" in (out / "table.md").read_text()


def test_bytes_and_seconds_are_those_of_the_run_in_the_units_that_are_said(made: Made) -> None:
    """Means and deviations of 460 weights (64-6-10), Adam's two averages of both, and its count: 4 bytes a number.

    Four clients send them in two rounds; in the third, which is personal, they send nothing.
    """
    out, _ = made
    sent = (3 * 2 * 460 + 1) * 4 * 4 * 2
    found = rows(out / "results.csv")
    assert {row["bytes_uploaded"] for row in found} == {str(sent)}
    for run in (out / "runs").iterdir():
        train = json.loads((run / "summary.json").read_text())["seconds"]["train"]
        assert str(train) in {row["seconds"] for row in found}
    headings = ("seconds of training", "MB sent", "kB sent a client and round")
    # Over all 4 clients and 3 rounds.
    cells = (f"{sent / 1e6:.2f}", f"{sent / 1e3 / 12:.1f}")
    for page, between in (("md", " | "), ("tex", " & "), ("html", '</th><th scope="col">')):
        text = (out / f"table.{page}").read_text()
        assert between.join(headings) in text
        assert between.replace('th scope="col"', "td").replace("th", "td").join(cells) in text


def test_a_finished_table_is_only_written_anew(copy: Made) -> None:
    out, file = copy
    before, figures = summaries(out), values(out)
    for name in FILES:
        (out / name).unlink()
    outcome = pfedbayes("table", file, "-o", out)
    assert (outcome.code, outcome.err) == (0, "")
    assert "[1/" not in outcome.out
    assert (summaries(out), values(out)) == (before, figures)


def test_processes_side_by_side_find_the_same_figures(made: Made, tmp_path: Path) -> None:
    outcome = pfedbayes("table", made[1], "-o", tmp_path / "out", "--jobs", "2")
    assert (outcome.code, outcome.err) == (0, "")
    assert values(tmp_path / "out") == values(made[0])


def test_checkpoints_are_kept_if_asked_for(tmp_path: Path) -> None:
    file = spec_file(tmp_path, OURS, seeds=[1], keep_checkpoints=True)
    assert pfedbayes("table", file, "-o", tmp_path / "out").code == 0
    (run,) = (tmp_path / "out" / "runs").iterdir()
    assert pfedbayes("evaluate", run).code == 0


def test_a_grid_is_tuned_and_the_choice_is_told(tmp_path: Path) -> None:
    """With a step of 1e-6 nothing is learnt: the other point is chosen."""
    method = {"name": "pfedbayes", "grid": {"lr": [1e-6, 0.03]}}
    file = spec_file(tmp_path, method, rounds=12, seeds=[1], tuning={"points": 2, "seeds": [5]})
    assert pfedbayes("table", file, "-o", tmp_path / "out").code == 0
    tuning = rows(tmp_path / "out" / "tuning.csv")
    assert [(row["point"], row["chosen"]) for row in tuning] == [
        ('{"lr": 1e-06}', "false"),
        ('{"lr": 0.03}', "true"),
    ]
    assert float(tuning[0]["value"]) < float(tuning[1]["value"])
    assert len(summaries(tmp_path / "out")) == 3
    assert "| 2 | lr=0.03 |" in (tmp_path / "out" / "table.md").read_text()


# -- going on ---------------------------------------------------------------------------------------------


def test_a_table_may_grow(copy: Made, tmp_path: Path) -> None:
    out, _ = copy
    before = summaries(out)
    larger = spec_file(tmp_path / "b", OURS, zeta(4.0), zeta(8.0), seeds=[1, 2, 3], title="More")
    outcome = pfedbayes("table", larger, "-o", out)
    assert (outcome.code, outcome.err) == (0, "")
    assert "[5/9]" in outcome.out
    assert before.items() < summaries(out).items()
    assert len(summaries(out)) == 9


@pytest.mark.parametrize(
    ("methods", "changes", "message"),
    [
        ((OURS, zeta(4.0)), {"rounds": 5}, "table.rounds was 3, is 5"),
        ((OURS,), {}, "2 runs not of this table: method 'zeta 4' is gone; put it back"),
        (
            (OURS, zeta(4.0)),
            {"seeds": [2, 3]},
            "2 runs not of this table: table.seeds has no 1 any more;",
        ),
        (
            (OURS, zeta(4.0, settings={"zeta": 3.0, "personal_rounds": 1})),
            {"title": "New"},
            "method 'zeta 4': settings.zeta was 4.0, is 3.0",
        ),
    ],
)
def test_the_folder_of_another_table_is_refused(
    made: Made, tmp_path: Path, methods: tuple[Any, ...], changes: dict[str, Any], message: str
) -> None:
    before = {p: p.stat().st_mtime_ns for p in made[0].rglob("*")}
    outcome = pfedbayes("table", spec_file(tmp_path, *methods, **changes), "-o", made[0])
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert "runs not of this table" in outcome.err
    assert message in outcome.err
    assert {p: p.stat().st_mtime_ns for p in before if p != made[0]} == {
        p: t for p, t in before.items() if p != made[0]
    }


def test_a_folder_that_holds_other_things_is_refused(made: Made, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    outcome = pfedbayes("table", made[1], "-o", tmp_path)
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert "is not empty and not the folder of a table" in outcome.err
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]


def test_two_processes_on_one_folder(made: Made) -> None:
    with locked(made[0]):
        outcome = pfedbayes("table", made[1], "-o", made[0])
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert f"{made[0]} is in use by another process (pid {os.getpid()})" in outcome.err


class Killed(BaseException):
    """A process that ends with no chance to say anything."""


def stops_after(monkeypatch: pytest.MonkeyPatch, rounds: int, how: type[BaseException]) -> None:
    """Let the next runs end in the middle after so many rounds in all."""
    count = 0

    def round(self: Progress, report: Any) -> None:
        nonlocal count
        count += 1
        if count == rounds:
            raise how

    monkeypatch.setattr(Progress, "round", round)


def test_ended_in_a_run_it_goes_on_there(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the second round of the second run, whose folder then holds the state of its beginning."""
    out = tmp_path / "out"
    stops_after(monkeypatch, 5, Killed)
    with pytest.raises(Killed):
        pfedbayes("table", made[1], "-o", out)
    monkeypatch.undo()
    before = summaries(out)
    assert len(before) == 1
    (run,) = [p for p in (out / "runs").iterdir() if p.name not in before]
    beginning = (run / "config.toml").stat().st_mtime_ns
    outcome = pfedbayes("table", made[1], "-o", out)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith("[2/4]")
    assert before.items() < summaries(out).items()
    assert (run / "config.toml").stat().st_mtime_ns == beginning
    assert values(out) == values(made[0])


def test_ctrl_c_in_this_process(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    stops_after(monkeypatch, 5, KeyboardInterrupt)
    outcome = pfedbayes("table", made[1], "-o", out)
    monkeypatch.undo()
    assert outcome.code == 130
    assert outcome.err == f"pfedbayes: interrupted; `pfedbayes table {made[1]} -o {out}` goes on\n"
    # The rounds so far are saved.
    assert len(under_way(out)) == 1
    found = [row["status"] for row in rows(out / "results.csv")]
    assert (found.count("finished"), found.count("open")) == (24, 3)
    assert "not run yet" in (out / "table.md").read_text()
    assert pfedbayes("table", made[1], "-o", out).code == 0
    assert values(out) == values(made[0])


def test_ctrl_c_and_a_kill_with_processes_side_by_side(tmp_path: Path) -> None:
    file, out = spec_file(tmp_path, **LONG), tmp_path / "out"
    with started(file, out, "--jobs", "2") as process:
        wait_for(lambda: len(under_way(out)) == 2, process)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err == f"pfedbayes: interrupted; `pfedbayes table {file} -o {out} --jobs 2` goes on\n"
    assert not list(out.rglob(LOCK))
    reached = saved(out)
    with started(file, out, "--jobs", "2") as process:
        wait_for(lambda: len(under_way(out)) == 2 and saved(out) > reached, process)
        workers = [int((run / LOCK).read_text()) for run in under_way(out)]
        process.send_signal(signal.SIGKILL)
    assert process.pid not in workers
    wait_for(lambda: all(map(gone, workers)))
    # They did not first bring their runs to an end.
    assert under_way(out)
    outcome = pfedbayes("table", file, "-o", out)
    assert (outcome.code, outcome.err) == (0, "")
    assert pfedbayes("table", file, "-o", tmp_path / "whole").code == 0
    assert values(out) == values(tmp_path / "whole")


def saved(out: Path) -> list[str]:
    """The states that runs under way are saved in."""
    return sorted(p.name for run in under_way(out) for p in run.rglob("state-*.safetensors"))


def gone(pid: int) -> bool:
    """Whether a process has ended."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (ProcessLookupError, FileNotFoundError):
        return True


def test_a_folder_that_was_half_made_is_made_anew(copy: Made) -> None:
    out, file = copy
    figures = values(out)
    run = next((out / "runs").iterdir())
    for name in ("summary.json", "metrics.jsonl"):
        (run / name).unlink()
    assert pfedbayes("table", file, "-o", out).code == 0
    assert values(out) == figures


# -- runs that fail ---------------------------------------------------------------------------------------


def test_a_run_that_fails_is_told_and_the_table_goes_on(tmp_path: Path) -> None:
    file, out = spec_file(tmp_path, WILD, OURS, seeds=[1]), tmp_path / "out"
    outcome = pfedbayes("table", file, "-o", out)
    assert outcome.code == 1
    assert outcome.err == (
        "pfedbayes: 1 run failed: digits-blocks wild (seed 1) (--retry makes them anew)\n"
    )
    assert "wild, seed 1: failed: round 1: every client diverged" in outcome.out
    assert "| wild | failed: round 1: every client diverged" in (out / "table.md").read_text()
    found = rows(out / "results.csv")
    (failed,) = [row for row in found if row["method"] == "wild"]
    assert failed["status"] == "failed"
    assert failed["reason"].startswith("round 1: every client diverged")
    assert "no round is saved" not in failed["reason"]
    assert {row["status"] for row in found if row["method"] == "pfedbayes"} == {"finished"}
    # It is not tried again, unless that is asked for.
    again = pfedbayes("table", file, "-o", out)
    assert "diverged (" not in again.out.partition("accuracy")[0]
    assert (again.code, again.err) == (1, outcome.err)
    anew = pfedbayes("table", file, "-o", out, "--retry").out
    assert "[2/2] digits-blocks wild, seed 1: failed" in anew
    assert "[1/2]" not in anew


def test_a_point_that_drops_out_is_told_but_no_failure_of_the_table(tmp_path: Path) -> None:
    method = {"name": "pfedbayes", "grid": {"lr": [1e30, 0.03]}}
    file = spec_file(tmp_path, method, seeds=[1], tuning={"points": 2, "seeds": [5]})
    outcome = pfedbayes("table", file, "-o", tmp_path / "out")
    assert (outcome.code, outcome.err) == (0, "")
    assert (
        "1 tuning run failed, other points were chosen: digits-blocks pfedbayes (1 tuning run)"
        in outcome.out
    )
    found = [(row["model"], row["chosen"]) for row in rows(tmp_path / "out" / "tuning.csv")]
    assert found == [("personal", "false"), ("personal", "true")]


# It is well when all methods are tried out in this process, and not when it runs in another.
DEADLY = """
import os, signal
import pyro_pfedbayes as pfb
home = HOME
def deadly(data, *, hidden: int = 3):
    if os.getpid() != home:
        os.kill(os.getpid(), signal.SIGKILL)
    return pfb.BayesianModel(pfb.mlp([64, hidden, 10]), pfb.Categorical(10))
"""


def test_a_process_that_is_killed_fails_its_run_only(tmp_path: Path) -> None:
    (tmp_path / "deadly.py").write_text(DEADLY.replace("HOME", str(os.getpid())))
    deadly = zeta(2.0) | {"name": "deadly", "model": {"name": f"{tmp_path}/deadly.py:deadly"}}
    file = spec_file(tmp_path, deadly, OURS, seeds=[1])
    outcome = pfedbayes("table", file, "-o", tmp_path / "out", "--jobs", "2")
    assert outcome.code == 1
    assert "1 run failed: digits-blocks deadly (seed 1)" in outcome.err
    assert "deadly, seed 1: failed: its process was ended by SIGKILL; out of memory?" in outcome.out
    assert "pfedbayes, seed 1: PM" in outcome.out


@pytest.mark.parametrize(
    ("problem", "status", "reason"),
    [
        (ZeroDivisionError("by nought"), "failed", "ZeroDivisionError: by nought"),
        (UserError("not this"), "failed", "not this"),
        (OSError(errno.ENOSPC, "No space left on device"), "stop", "No space left"),
        (KeyboardInterrupt(), "interrupted", ""),
    ],
)
def test_what_becomes_of_errors(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    problem: BaseException,
    status: str,
    reason: str,
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        try:
            raise problem
        except OSError as cause:
            raise UserError(f"cannot write it: {cause.strerror}") from cause

    monkeypatch.setattr(execute, "begin", fail)
    job = plan(OURS).cells[0].final[0][0]
    found = outcome_of(job.tree, tmp_path / "run", False)
    assert found.status == status
    assert reason in found.reason


def test_a_full_disk_stops_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(execute, "begin", fail)
    file = spec_file(tmp_path, OURS)
    outcome = pfedbayes("table", file, "-o", tmp_path / "out")
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert "digits-blocks pfedbayes, seed 1: " in outcome.err
    assert f"`pfedbayes table {file} -o {tmp_path / 'out'}` goes on" in outcome.err
    assert not list((tmp_path / "out" / "failed").iterdir())
    assert HEAD["rounds"] == 3
