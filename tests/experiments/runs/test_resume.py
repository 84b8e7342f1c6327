"""Runs that end in the middle: Ctrl-C, a kill, a full disk, a damaged folder."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.experiments.runs import lifecycle as session
from pyro_pfedbayes.experiments.runs.build import build_experiment
from pyro_pfedbayes.experiments.runs.folder import RunFolder
from pyro_pfedbayes.inference.federation import checkpoint
from tests.experiments.helpers import (
    Outcome,
    assert_same_run,
    lines,
    pfedbayes,
    quiet,
    tensors,
    tiny_config,
    tiny_options,
)


class Killed(BaseException):
    """A process that ends with no chance to say anything."""


# -- interruption and resumption --------------------------------------------------------------------------


def stopped(tmp_path: Path, after: int, how: type[BaseException], **changes: Any) -> Path:
    """A tiny run that ended in the middle."""
    folder = tmp_path / f"stopped-{after}"
    progress = quiet()
    tell = progress.round

    def round(report: Any) -> None:
        tell(report)
        if report.index == after:
            raise how

    progress.round = round  # type: ignore[method-assign]
    with pytest.raises((session.Interrupted, Killed)):
        session.begin(build_experiment(tiny_config(**changes)), folder, progress)
    return folder


@pytest.mark.parametrize("after", [1, 3, 4, 5])
def test_resuming_gives_the_bits_of_an_uninterrupted_run(
    finished: tuple[Path, Outcome], tmp_path: Path, after: int
) -> None:
    folder = stopped(tmp_path, after, KeyboardInterrupt)
    assert RunFolder.open(folder).load()[0].round == after
    assert not (folder / "summary.json").exists()
    outcome = pfedbayes("resume", folder)
    assert (outcome.code, outcome.err) == (0, "")
    assert_same_run(folder, finished[0])


def test_a_killed_run_resumes_from_the_checkpoint_without_doubled_lines(
    finished: tuple[Path, Outcome], tmp_path: Path
) -> None:
    # Killed in round 5, after an evaluation whose checkpoint was never written.
    folder = stopped(tmp_path, 5, Killed, run__checkpoint_every=3, run__eval_every=2)
    assert RunFolder.open(folder).load()[0].round == 3
    assert [line["round"] for line in lines(folder)] == [2, 4]
    assert pfedbayes("resume", folder).code == 0
    assert [line["round"] for line in lines(folder)] == [2, 4, 6]
    assert all(torch.equal(t, tensors(folder)[n]) for n, t in tensors(finished[0]).items())


def test_killed_before_the_first_checkpoint_it_starts_over(
    finished: tuple[Path, Outcome], tmp_path: Path
) -> None:
    folder = stopped(tmp_path, 1, Killed)
    assert RunFolder.open(folder).load()[0].round == 0
    assert pfedbayes("resume", folder).code == 0
    assert_same_run(folder, finished[0])


def test_a_finished_run_says_so(finished: tuple[Path, Outcome]) -> None:
    before = {p: p.stat().st_mtime_ns for p in finished[0].rglob("*")}
    outcome = pfedbayes("resume", finished[0])
    assert outcome.code == 0
    assert "is finished" in outcome.out
    assert {p: p.stat().st_mtime_ns for p in finished[0].rglob("*")} == before


def test_a_run_cannot_be_made_longer(finished: tuple[Path, Outcome]) -> None:
    outcome = pfedbayes("resume", finished[0], "--rounds", "9")
    assert outcome.code == 2
    assert "takes no --rounds" in outcome.err


def test_ctrl_c_exits_with_130_and_says_how_to_carry_on(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    options = tiny_options(run__rounds=100_000, run__eval_every=1, run__eval_draws=1)
    command = [sys.executable, "-m", "pyro_pfedbayes.experiments.cli.main"]
    process = subprocess.Popen(
        [*command, "run", "--out", str(folder), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("round 1/100000")
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.splitlines()[-1].startswith("pfedbayes: interrupted after round ")
    assert f"`pfedbayes resume {folder}` carries on" in err
    assert "Traceback" not in err
    state, _ = RunFolder.open(folder).load()
    assert state.round >= 1
    assert f"round {state.round}:" in err


def test_ctrl_c_elsewhere_is_130_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pyro_pfedbayes.experiments.config.registry.preset_names", interrupt)
    outcome = pfedbayes("list")
    assert (outcome.code, outcome.err) == (130, "pfedbayes: interrupted\n")


# -- checkpoints that cannot be trusted -------------------------------------------------------------------


def damage(folder: Path, how: str) -> None:
    file = next((folder / "checkpoint").glob("state-*.safetensors"))
    index = folder / "checkpoint" / "state.json"
    content = json.loads(index.read_text())
    if how == "flipped":
        data = bytearray(file.read_bytes())
        data[-3] ^= 1
        file.write_bytes(data)
    elif how == "cut":
        file.write_bytes(file.read_bytes()[:-50])
    elif how == "gone":
        file.unlink()
    elif how == "no index":
        index.unlink()
    elif how == "half index":
        index.write_text(index.read_text()[:-30])
    elif how == "other format":
        index.write_text(json.dumps(content | {"format": "someone's 3"}))
    elif how == "wrong types":
        index.write_text(json.dumps(content | {"round": "six"}))
    elif how == "no meta":
        index.write_text(json.dumps(content | {"meta": {"note": "made in Python"}}))
    elif how == "no config":
        (folder / "config.toml").unlink()
    else:
        (folder / "config.toml").write_text("[data\n")


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("flipped", "is damaged"),
        ("cut", "is damaged"),
        ("gone", "cannot read checkpoint file"),
        ("no index", "there is no checkpoint in"),
        ("half index", "not readable JSON"),
        ("other format", "not a checkpoint of this version"),
        ("wrong types", "is damaged"),
        ("no meta", "is damaged"),
        ("no config", "is not the folder of a run"),
        ("broken config", "is not readable TOML"),
    ],
)
def test_a_damaged_run_is_refused_by_every_command(run_copy: Path, how: str, message: str) -> None:
    (run_copy / "summary.json").unlink()
    damage(run_copy, how)
    np.savez(run_copy.parent / "x.npz", x=np.zeros((1, 8, 8), dtype=np.uint8))
    predict = ("predict", run_copy, "--client", "0", "--input", run_copy.parent / "x.npz")
    for command in (("resume", run_copy), ("evaluate", run_copy), predict):
        outcome = pfedbayes(*command)
        assert outcome.code == 2, command
        assert message in outcome.err
        assert len(outcome.err.splitlines()) == 1


def test_another_runs_checkpoint_is_refused(run_copy: Path, tmp_path: Path) -> None:
    other = stopped(tmp_path, 4, Killed, model__hidden=[5])
    shutil.rmtree(run_copy / "checkpoint")
    shutil.copytree(other / "checkpoint", run_copy / "checkpoint")
    outcome = pfedbayes("evaluate", run_copy)
    assert outcome.code == 2
    assert "model.hidden is [6], but the run began with [5]" in outcome.err


def test_tensors_of_another_model_are_refused(run_copy: Path, tmp_path: Path) -> None:
    other = stopped(tmp_path, 4, Killed, model__hidden=[5])
    folder = RunFolder(run_copy)
    _, meta = folder.load()
    folder.save(RunFolder(other).load()[0], meta)
    outcome = pfedbayes("evaluate", run_copy)
    assert outcome.code == 2
    assert "does not belong to this run: loc of the server is" in outcome.err


def test_settings_changed_afterwards_are_refused(run_copy: Path) -> None:
    (run_copy / "summary.json").unlink()
    text = (run_copy / "config.toml").read_text()
    (run_copy / "config.toml").write_text(text.replace("zeta = 1.0", "zeta = 2.0"))
    outcome = pfedbayes("resume", run_copy)
    assert outcome.code == 2
    assert "algorithm.zeta is 2.0, but the run began with 1.0" in outcome.err


def test_data_changed_afterwards_are_refused(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(90, 4)), rng.integers(0, 3, 90)
    np.savez(tmp_path / "d.npz", x=x, y=y)
    own = {"data__scheme": None, "data__train_per_class": None, "data__test_per_class": None}
    options = tiny_options(**own, data__name=str(tmp_path / "d.npz"), run__rounds=4)
    assert pfedbayes("run", "--out", tmp_path / "r", *options).code == 0
    x[::2] += 1.0
    np.savez(tmp_path / "d.npz", x=x, y=y)
    outcome = pfedbayes("evaluate", tmp_path / "r")
    assert outcome.code == 2
    assert "data set 'd' is not what it was" in outcome.err


# -- a full disk ------------------------------------------------------------------------------------------


def full_disk(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_full_disk_at_a_checkpoint_keeps_the_one_before(
    finished: tuple[Path, Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    folder = tmp_path / "r"

    def save_file(*arguments: Any) -> None:
        calls.append(arguments)
        if len(calls) > 2:
            # safetensors leaves half a file behind.
            Path(arguments[1]).write_bytes(b"half")
            full_disk()
        safetensors.torch.save_file(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save_file", save_file)
        outcome = pfedbayes("run", "--out", folder, *tiny_options())
    assert outcome.code == 2
    assert (
        f"cannot write checkpoint {folder / 'checkpoint'}: No space left on device" in outcome.err
    )
    assert f"saved up to round 2: `pfedbayes resume {folder}` carries on" in outcome.err
    assert RunFolder.open(folder).load()[0].round == 2
    assert not list(folder.rglob(".*"))
    assert pfedbayes("resume", folder).code == 0
    assert_same_run(folder, finished[0])


def test_full_disk_at_a_line_takes_the_half_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(tmp_path)
    folder.append_metrics({"round": 1})

    @contextlib.contextmanager
    def half(path: Path, *_: Any, **__: Any) -> Iterator[Any]:
        with open(path, "a") as file:
            yield types.SimpleNamespace(write=lambda text: file.write(text[:4]))
        full_disk()

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", half)
        with pytest.raises(
            UserError, match=r"cannot write .*metrics.jsonl: No space left on device"
        ):
            folder.append_metrics({"round": 2})
    assert lines(tmp_path) == [{"round": 1}]


def test_full_disk_at_the_posterior_can_be_made_good(
    finished: tuple[Path, Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "r"
    with monkeypatch.context() as patch:
        patch.setattr("pyro_pfedbayes.datatree.tree.save_datatree", full_disk)
        outcome = pfedbayes("run", "--out", folder, *tiny_options())
    assert outcome.code == 2
    assert f"cannot write {folder / 'posterior.nc'}: No space left on device" in outcome.err
    assert not (folder / "posterior.nc").exists()
    assert not (folder / "summary.json").exists()
    assert pfedbayes("resume", folder).code == 0
    assert_same_run(folder, finished[0])


@pytest.mark.parametrize(
    "what",
    [
        "runs.folder.write_atomically",
        "runs.lifecycle.Experiment.description",
        "runs.folder.save_checkpoint",
    ],
)
def test_full_disk_at_the_beginning_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(f"pyro_pfedbayes.experiments.{what}", full_disk)
    outcome = pfedbayes("run", "--out", tmp_path / "deep" / "r", *tiny_options())
    assert outcome.code in (1, 2)
    assert "No space left on device" in outcome.err
    assert list(tmp_path.iterdir()) == []
