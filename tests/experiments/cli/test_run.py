"""``pfedbayes run``, ``resume`` and ``partition``: files, results, and what happens when something fails."""

from __future__ import annotations

import tomllib
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyro_pfedbayes.experiments.runs import lifecycle as session
from tests.experiments.helpers import (
    TINY,
    Outcome,
    assert_same_run,
    lines,
    pfedbayes,
    summary,
    tensors,
    tiny_options,
)

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
    # 3 shared rounds and the second for kinds with 4 clients; the first for kinds and the personal one with all.
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
    command = f"run {file} --rounds 2 --participation 0.5 --device cpu --out {tmp_path / 'r'}"
    more = ("algorithm.zeta=2.0", "algorithm.personal_rounds=0", "run.posterior_draws=0")
    outcome = pfedbayes(
        *command.split(), *options, *(f"--set={value}" for value in (*more, "model.hidden=[4]"))
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
    class Stopped(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Stopped:
            return cls(2030, 5, 6, 7, 8, 9, tzinfo=tz)

    monkeypatch.setattr(session, "datetime", Stopped)
    monkeypatch.chdir(tmp_path)
    options = tiny_options(run__rounds=4, run__posterior_draws=0)
    for _ in range(2):
        assert pfedbayes("run", *options).code == 0
    made = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert made == ["digits-20300506-070809", "digits-20300506-070809-2"]


def test_an_empty_folder_will_do_but_not_one_that_holds_something(
    finished: tuple[Path, Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = finished
    before = (folder / "config.toml").read_bytes()
    with monkeypatch.context() as patch:
        # It is said at once, not after minutes of loading.
        patch.setattr("pyro_pfedbayes.experiments.runs.build.build_experiment", None)
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


# -- clients that diverge ---------------------------------------------------------------------------------


def table_with_an_extreme_client(path: Path, extreme: tuple[str, ...]) -> None:
    rng = np.random.default_rng(0)
    site = np.array(["east", "north", "south"])[np.arange(60) % 3]
    x = rng.normal(size=(60, 4))
    x[np.isin(site, extreme)] *= 1e38
    arrays: dict[str, Any] = {"x_train": x, "y_train": np.arange(60) % 2, "site_train": site}
    arrays |= {"x_test": rng.normal(size=(12, 4)), "y_test": np.arange(12) % 2}
    np.savez(path, **arrays, site_test=site[:12])


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
    assert f"(no round is saved in {tmp_path / 'r'})" in outcome.err
    assert "carries on" not in outcome.err


# -- uploads that are left out ----------------------------------------------------------------------------


def test_the_result_says_whose_uploads_were_screened_and_how_often(tmp_path: Path) -> None:
    plain = {"clients": 5, "train_per_class": 24, "test_per_class": 4, "validation": 0.3}
    spoilt = {"corrupt_clients": [2], "corruption": "labels", "corruption_strength": 5}
    learns = {"local_steps": 10, "batch_size": 30, "lr": 5e-3, "personal_rounds": 0, "kinds": 1}
    options = tiny_options(
        **{f"data__{name}": value for name, value in {**plain, **spoilt}.items()},
        **{f"algorithm__{name}": value for name, value in learns.items()},
        **{"algorithm__kind_rounds": 0, "algorithm__screening": "held-out", "model__hidden": [30]},
        **{"run__rounds": 14, "run__participation": None, "run__posterior_draws": 0},
    )
    outcome = pfedbayes("run", "--out", tmp_path / "r", *options)
    assert (outcome.code, outcome.err) == (0, "")
    found = summary(tmp_path / "r")["screened"]
    assert found.keys() == {"2"}
    assert found == lines(tmp_path / "r")[-1]["screened"]
    assert f"left uploads out of the average: client 2 in {found['2']} rounds\n" in outcome.out
    # Two rounds are fewer than it takes to be left out.
    clean = pfedbayes("run", "--out", tmp_path / "c", *options, "--set", "run.rounds=2")
    assert "screening left no client out" in clean.out
    assert summary(tmp_path / "c")["screened"] == {}


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
