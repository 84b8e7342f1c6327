"""``pfedbayes run``, ``resume`` and ``partition``: files, results, and what happens when something fails."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.experiments.helpers import TINY, Outcome, pfedbayes, quiet, tiny_config, tiny_options

from pyro_pfedbayes.datatree import load_datatree
from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.experiments import session
from pyro_pfedbayes.experiments.build import build_experiment
from pyro_pfedbayes.experiments.runfolder import RunFolder
from pyro_pfedbayes.inference import checkpoint


class Killed(BaseException):
    """A process that ends with no chance to say anything."""


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    (file,) = (folder / "checkpoint").glob("state-*.safetensors")
    return dict(load_file(file))


def summary(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return found


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def without_seconds(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != "seconds"}


def assert_same_run(one: Path, other: Path) -> None:
    assert without_seconds(summary(one)) == without_seconds(summary(other))
    assert [without_seconds(x) for x in lines(one)] == [without_seconds(x) for x in lines(other)]
    ours, theirs = tensors(one), tensors(other)
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name
    trees = load_datatree(one / "posterior.nc"), load_datatree(other / "posterior.nc")
    for group in ("posterior_predictive", "log_likelihood", "observation_stats"):
        assert trees[0][group].to_dataset().equals(trees[1][group].to_dataset()), group


# -- a run ------------------------------------------------------------------------------------------------


def test_a_run_leaves_what_it_promises(finished: tuple[Path, Outcome]) -> None:
    folder, outcome = finished
    assert (outcome.code, outcome.err) == (0, "")
    assert sorted(p.name for p in folder.iterdir()) == sorted(
        [
            "config.toml",
            "metrics.jsonl",
            "summary.json",
            "checkpoint",
            "posterior.nc",
            "partition.png",
        ]
    )
    assert (folder / "partition.png").read_bytes().startswith(b"\x89PNG")
    assert not list(folder.rglob("*.pkl")) + list(folder.rglob("*.pt")) + list(folder.rglob(".*"))
    found = summary(folder)
    assert {k: found[k] for k in ("algorithm", "data", "split", "seed", "rounds", "clients")} == {
        **{"algorithm": "pfedbayes", "data": "digits", "split": "blocks"},
        **{"seed": 0, "rounds": 6, "clients": 6},
    }
    for key in ("personal", "global"):
        assert found[key]["accuracy"].keys() == {"last", "best", "selected"}
        assert 0 <= found[key]["accuracy"]["selected"] <= found[key]["accuracy"]["best"] <= 1
        assert found[key]["nll"] > 0
        assert 0 <= found[key]["ece"] <= 1
        assert 0 <= found[key]["brier"] <= 2
    # 3 shared rounds and 1 later one of the kinds phase with 4 clients, the first of it and the personal one with all 6.
    assert found["gradient_steps"] == 2 * (3 * 4 + 6 + 4 + 6)
    assert found["seconds"].keys() == {"train", "evaluate"}
    assert {"torch", "pyro-ppl", "pyro-pfedbayes", "python"} <= found["versions"].keys()
    assert [line["round"] for line in lines(folder)] == [2, 4, 6]
    assert lines(folder)[-1]["personal"]["accuracy"] == found["personal"]["accuracy"]["last"]


def test_its_output_is_a_line_an_evaluation_and_a_table(finished: tuple[Path, Outcome]) -> None:
    folder, outcome = finished
    reported = [line for line in outcome.out.splitlines() if line.startswith("round ")]
    assert [line.split()[1] for line in reported] == ["2/6", "4/6", "6/6"]
    assert all("PM" in x and "GM" in x and "loss" in x and "s left" in x for x in reported)
    (heading,) = [line for line in outcome.out.splitlines() if "test accuracy" in line]
    assert heading.index("selected") < heading.index("last") < heading.index("peak")
    (row,) = [line for line in outcome.out.splitlines() if "personal models" in line]
    assert f"{100 * summary(folder)['personal']['accuracy']['selected']:.1f}" in row
    assert "GM at mean weights" in outcome.out
    assert str(folder) in outcome.out


def test_the_configuration_is_kept_resolved_and_runs_again(
    finished: tuple[Path, Outcome], tmp_path: Path
) -> None:
    folder, _ = finished
    kept = tomllib.loads((folder / "config.toml").read_text())
    assert kept["run"]["device"] == "cpu"
    assert kept["run"]["engine"] in ("eager", "traced", "compiled")
    assert kept["data"]["labels_per_client"] == 5
    assert kept["algorithm"]["zeta"] == 1.0
    again = pfedbayes("run", folder / "config.toml", "--out", tmp_path / "again")
    assert again.code == 0
    assert_same_run(tmp_path / "again", folder)


def test_no_validation_examples_no_selected_column(tmp_path: Path) -> None:
    outcome = pfedbayes(
        *("run", "--out", tmp_path / "r"),
        *tiny_options(data__validation=0.0, run__rounds=4, run__posterior_draws=0),
    )
    assert outcome.code == 0
    assert summary(tmp_path / "r")["personal"]["accuracy"]["selected"] is None
    (heading,) = [line for line in outcome.out.splitlines() if "test accuracy" in line]
    assert "selected" not in heading
    assert heading.index("last") < heading.index("peak")
    assert not (tmp_path / "r" / "posterior.nc").exists()


def test_options_win_over_the_file_and_the_file_over_defaults(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("[algorithm]\nlocal_steps = 3\nzeta = 4.0\n[run]\nseed = 7\nrounds = 9\n")
    sizes = {"data.train_per_class": 5, "data.test_per_class": 2, "data.clients": 4}
    options = [f"--set={k}={v}" for k, v in sizes.items()]
    outcome = pfedbayes(
        *("run", file, "--rounds", "2", "--participation", "0.5", "--device", "cpu", *options),
        *("--set", "algorithm.zeta=2.0", "--set", "algorithm.personal_rounds=0"),
        *("--set", "run.posterior_draws=0", "--set", "model.hidden=[4]", "--out", tmp_path / "r"),
    )
    assert outcome.code == 0, outcome.err
    kept = tomllib.loads((tmp_path / "r" / "config.toml").read_text())
    assert (kept["algorithm"]["local_steps"], kept["algorithm"]["zeta"]) == (3, 2.0)
    assert (kept["run"]["seed"], kept["run"]["rounds"], kept["run"]["participation"]) == (7, 2, 0.5)
    assert kept["algorithm"]["batch_size"] == 100
    assert summary(tmp_path / "r")["gradient_steps"] == 2 * 2 * 3


def test_out_defaults_to_a_new_folder_under_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = tiny_options(run__rounds=4, run__posterior_draws=0)
    for _ in range(2):
        assert pfedbayes("run", *options).code == 0
    made = list((tmp_path / "runs").iterdir())
    assert len(made) == 2
    assert all(path.name.startswith("digits-2") for path in made)


def test_an_empty_folder_will_do_but_not_one_that_holds_something(
    finished: tuple[Path, Outcome], tmp_path: Path
) -> None:
    folder, _ = finished
    before = (folder / "config.toml").read_bytes()
    outcome = pfedbayes("run", "--out", folder, *tiny_options())
    assert outcome.code == 2
    assert "holds a run already" in outcome.err
    assert f"pfedbayes resume {folder}" in outcome.err
    assert (folder / "config.toml").read_bytes() == before

    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").touch()
    assert "is not empty" in pfedbayes("run", "--out", tmp_path / "notes").err
    assert "is a file" in pfedbayes("run", "--out", tmp_path / "notes" / "a.txt").err
    (tmp_path / "empty").mkdir()
    options = tiny_options(run__rounds=4, run__posterior_draws=0)
    assert pfedbayes("run", "--out", tmp_path / "empty", *options).code == 0


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
    command = [sys.executable, "-m", "pyro_pfedbayes.experiments.cli"]
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

    monkeypatch.setattr("pyro_pfedbayes.experiments.registry.preset_names", interrupt)
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
    folder, save, calls = tmp_path / "r", checkpoint.save_file, []

    def save_file(*arguments: Any) -> None:
        calls.append(arguments)
        if len(calls) > 2:
            # safetensors leaves half a file behind.
            Path(arguments[1]).write_bytes(b"half")
            full_disk()
        save(*arguments)

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


def test_full_disk_at_a_line_takes_the_half_back(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.append_metrics({"round": 1})
    (tmp_path / "full").symlink_to("/dev/full")
    folder.metrics = tmp_path / "full"
    with pytest.raises(UserError, match=r"cannot write .*full: No space left on device"):
        folder.append_metrics({"round": 2})
    assert lines(tmp_path) == [{"round": 1}]


def test_full_disk_at_the_posterior_can_be_made_good(
    finished: tuple[Path, Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "r"
    with monkeypatch.context() as patch:
        patch.setattr("xarray.DataTree.to_netcdf", full_disk)
        outcome = pfedbayes("run", "--out", folder, *tiny_options())
    assert outcome.code == 2
    assert f"cannot write {folder / 'posterior.nc'}: No space left on device" in outcome.err
    assert not (folder / "posterior.nc").exists()
    assert not (folder / "summary.json").exists()
    assert pfedbayes("resume", folder).code == 0
    assert_same_run(folder, finished[0])


@pytest.mark.parametrize(
    "what",
    ["runfolder.write_atomically", "session.Experiment.description", "runfolder.save_checkpoint"],
)
def test_full_disk_at_the_beginning_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(f"pyro_pfedbayes.experiments.{what}", full_disk)
    outcome = pfedbayes("run", "--out", tmp_path / "deep" / "r", *tiny_options())
    assert outcome.code in (1, 2)
    assert "No space left on device" in outcome.err
    assert list(tmp_path.iterdir()) == []


# -- clients that diverge ---------------------------------------------------------------------------------


def table_with_an_extreme_client(path: Path, extreme: tuple[str, ...]) -> None:
    rng = np.random.default_rng(0)
    site = np.array(["east", "north", "south"])[np.arange(60) % 3]
    x = rng.normal(size=(60, 4))
    x[np.isin(site, extreme)] *= 1e38
    np.savez(
        path,
        **{"x_train": x, "y_train": np.arange(60) % 2, "site_train": site},
        **{"x_test": rng.normal(size=(12, 4)), "y_test": np.arange(12) % 2, "site_test": site[:12]},
    )


OWN = {name: None for name in TINY if name.startswith("data.") or "kind" in name or "part" in name}


def test_a_diverging_client_is_named_and_left_out(tmp_path: Path) -> None:
    table_with_an_extreme_client(tmp_path / "d.npz", ("north",))
    own = {name.replace(".", "__"): None for name in OWN}
    options = tiny_options(**own, data__column="site", data__scaling="plain")
    outcome = pfedbayes("run", "--data", tmp_path / "d.npz", "--out", tmp_path / "r", *options)
    assert outcome.code == 0, outcome.err
    (warning,) = outcome.err.splitlines()
    assert warning.startswith("pfedbayes: warning: client 1 diverged in round 1 ")
    assert summary(tmp_path / "r")["dropped"] == {"1": 6}
    assert "client 1 diverged in 6 rounds" in outcome.out
    assert all(tensor.isfinite().all() for tensor in tensors(tmp_path / "r").values())


def test_all_clients_diverging_ends_the_run(tmp_path: Path) -> None:
    table_with_an_extreme_client(tmp_path / "d.npz", ("north", "east", "south"))
    own = {name.replace(".", "__"): None for name in OWN}
    options = tiny_options(**own, data__column="site", data__scaling="plain")
    outcome = pfedbayes("run", "--data", tmp_path / "d.npz", "--out", tmp_path / "r", *options)
    assert outcome.code == 2
    assert "every client diverged" in outcome.err
    assert "carries on" not in outcome.err


# -- partition --------------------------------------------------------------------------------------------


def test_partition_prints_a_table_and_draws_a_picture(tmp_path: Path) -> None:
    outcome = pfedbayes("partition", "digits", "--clients", "4", "--plot", tmp_path / "p.png")
    assert outcome.code == 0, outcome.err
    assert "4 clients, blocks" in outcome.out
    rows = [line.split() for line in outcome.out.splitlines()]
    assert [row[0] for row in rows if row and row[0].isdigit() and len(row) == 14] == list("0123")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_partition_refuses_pictures_of_other_kinds(tmp_path: Path) -> None:
    assert "give a name that ends in" in pfedbayes("partition", "--plot", tmp_path / "p.txt").err
    outcome = pfedbayes("partition", "--plot", tmp_path / "none" / "p.png")
    assert outcome.code == 2
    assert "cannot write" in outcome.err
