"""The command line as such: errors in one line, exit codes, help, and a quick start."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pyro_pfedbayes.experiments.cli.inspect
from tests.experiments.helpers import pfedbayes

COMMANDS = ("run", "resume", "evaluate", "predict", "partition", "list", "bench")


def npz(path: Path, **changes: Any) -> Path:
    rng = np.random.default_rng(0)
    arrays = {"x": rng.normal(size=(60, 4)), "y": np.arange(60) % 3, "site": np.arange(60) % 4}
    np.savez(path, **(arrays | changes))
    return path


def nan_at_row_3() -> np.ndarray:
    x = np.ones((60, 4))
    x[3, 1] = np.nan
    return x


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rnu"], "No such command 'rnu'. Did you mean 'run'?"),
        (["run", "--ruonds", "3"], "No such option: --ruonds (Possible options: --rounds)"),
        (["run", "--rounds", "many"], "Invalid value for '--rounds'"),
        (["run", "digit"], "unknown preset 'digit'; did you mean 'digits'?"),
        (["run", "none.toml"], "cannot read none.toml: No such file"),
        (["run", "--data", "mnits"], "unknown data set 'mnits'; did you mean 'mnist'?"),
        (["run", "--data", "none.npz"], "no such file: none.npz"),
        (["run", "--split", "smal"], "data.split is 'smal'; did you mean 'small'?"),
        (
            ["run", "--algorithm", "pfedbays"],
            "unknown algorithm 'pfedbays'; did you mean 'pfedbayes'?",
        ),
        (["run", "--model", "mpl"], "unknown model 'mpl'; did you mean 'mlp'?"),
        (["run", "--clients", "40"], "class '8' has 174 examples, but the split needs 600"),
        (["run", "--clients", "0"], "data.clients is 0; it must be at least 1"),
        (["run", "--participation", "11"], "participation is 11, but there are only 10 clients"),
        (["run", "--participation", "some"], "run.participation is 'some'; it must be a number of"),
        (["run", "--participation", "0"], "participation is 0"),
        (["run", "--participation", "nan"], "run.participation is nan; it must be a number of"),
        (["run", "--seed", "9" * 23], "run.seed is 99999999999999999999999; it must be an integer"),
        (["partition", "--seed", "-1"], "run.seed is -1; it must be an integer from 0"),
        (["run", "--device", "gpu"], "device is 'gpu'"),
        (["run", "--set", "algorithm.zeta=0"], "zeta is 0.0; it must be a positive number"),
        (["run", "--set", "algorithm.zeta=-1"], "zeta is -1.0; it must be a positive number"),
        (["run", "--set", "algorithm.zeta=nan"], "zeta is nan; it must be a positive number"),
        (
            ["run", "--set", "algorithm.zeat=1"],
            "unknown key 'algorithm.zeat'; did you mean 'zeta'?",
        ),
        (
            ["run", "--set", "algoritm.zeta=1"],
            "unknown section 'algoritm'; did you mean 'algorithm'?",
        ),
        (["run", "--set", "zeta=1"], "give section.key=value"),
        (["run", "--set", "run.engine=eagre"], "engine is 'eagre'; did you mean 'eager'?"),
        (["run", "--set", "data.alpha=0.5"], "data.alpha has no effect with data.scheme 'blocks'"),
        (["run", "--set", "data.scheme=column"], "data.column does not say which one"),
        (["run", "--set", "data.scheme=column", "--set", "data.column=site"], "no column 'site'"),
        (
            ["run", "--model", "linear", "--set", "model.hidden=[3]"],
            "unknown key 'model.hidden' (known: rho, missing, name)",
        ),
        (["run", "--model", "vgg"], "pools 8x8 images to nothing"),
        (["run", "--set", "model.rho=-1e9"], "standard deviation of 0 or infinity"),
        (["run", "--set", "algorithm.kind_rounds=200"], "leave at least one shared round"),
        (["resume", "nowhere"], "nowhere is not the folder of a run: there is no such folder"),
        (["evaluate", "nowhere"], "nowhere is not the folder of a run"),
        (["evaluate", ".", "--part", "tset"], "unknown part 'tset'; did you mean 'test'?"),
        (["predict", ".", "--input", "x.npz"], "Missing option '--client'"),
    ],
)
def test_a_mistake_ends_in_one_line_and_nothing_written(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = pfedbayes(*arguments)
    assert outcome.code == 2
    assert message in outcome.err
    assert outcome.err.startswith("pfedbayes: ")
    assert outcome.err.count("\n") == 1
    assert outcome.out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": nan_at_row_3()}, "NaN or infinite values in 1 of 60 examples, first in row 3"),
        ({"x": np.full((60, 4), np.inf)}, "NaN or infinite values in 60 of 60 examples"),
        ({"y": np.arange(60) % 3 + 1}, "labels out of range"),
        ({"y": np.arange(60) - 2}, "labels out of range"),
        ({"y": np.arange(60) % 2 - 1}, "data.target=number reads them as numbers"),
        ({"y": np.arange(59) % 3}, "different lengths: 60 and 59"),
        ({"y": np.array([{}] * 60)}, "object array"),
    ],
)
def test_bad_data_end_in_one_line_and_nothing_written(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = npz(tmp_path / "d.npz", **changes)
    outcome = pfedbayes("run", "--data", path, "--out", tmp_path / "r")
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert message in outcome.err
    assert not (tmp_path / "r").exists()


def test_own_data_need_sizes_for_a_label_scheme(tmp_path: Path) -> None:
    path = npz(tmp_path / "d.npz")
    outcome = pfedbayes("run", "--data", path, "--set", "data.scheme=random")
    assert "needs data.train_per_class and data.test_per_class" in outcome.err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_no_cuda_is_said_before_anything_is_written(tmp_path: Path) -> None:
    outcome = pfedbayes("run", "--device", "cuda", "--out", tmp_path / "r")
    assert outcome.code == 2
    assert "there is no CUDA device here; use cpu or auto" in outcome.err
    assert not (tmp_path / "r").exists()


def test_toml_that_is_wrong_is_told_with_the_files_name(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("[data\n")
    assert f"{file} is not valid TOML" in pfedbayes("run", file).err
    file.write_text("zeta = 2\n")
    for options in ([], ["--set", "run.rounds=3"], ["--algorithm", "pfedbayes"]):
        err = pfedbayes("run", file, *options).err
        assert err.startswith(f"pfedbayes: {file}: key 'zeta' stands outside a section; ")
    file.write_text("algorithm = 2\n")
    err = pfedbayes("run", file, "--algorithm", "pfedbayes").err
    assert f"{file}: 'algorithm' must be a section of keys, not 2" in err
    file.write_text('[data]\nnmae = "x"\n[run]\nrounds = "3"\n')
    err = pfedbayes("run", file).err
    assert err.startswith(f"pfedbayes: {file}: unknown key 'data.nmae'; did you mean 'name'?; ")
    assert "run.rounds is '3'; it must be an integer" in err


@pytest.mark.parametrize(
    ("problem", "code", "message"),
    [
        (PermissionError(13, "Permission denied", "there"), 1, "there: Permission denied"),
        (RuntimeError("two\nlines"), 1, "internal error: RuntimeError: two lines (please report"),
        (MemoryError(), 1, "out of memory"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_other_failures_are_one_line_too(
    problem: BaseException, code: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise problem

    monkeypatch.setattr("pyro_pfedbayes.experiments.config.registry.preset_names", fail)
    outcome = pfedbayes("list")
    assert outcome.code == code
    assert outcome.err.startswith(f"pfedbayes: {message}")
    assert outcome.err.count("\n") == 1


@pytest.mark.parametrize(
    ("value", "shown"), [("0", False), ("", False), ("1", True), ("true", True)]
)
def test_tracebacks_are_shown_if_asked_for(
    value: str, shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("oh")

    monkeypatch.setattr("pyro_pfedbayes.experiments.config.registry.preset_names", fail)
    monkeypatch.setenv("PFEDBAYES_TRACEBACK", value)
    err = pfedbayes("list").err
    assert ("Traceback" in err, "PFEDBAYES_TRACEBACK=1 shows where" in err) == (shown, not shown)


def test_warnings_are_one_line_and_warnings_elsewhere_are_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def warn() -> list[str]:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("mind\nthis", UserWarning, stacklevel=1)
        return []

    before = warnings.showwarning
    monkeypatch.setattr("pyro_pfedbayes.experiments.config.registry.preset_names", warn)
    outcome = pfedbayes("list")
    assert (outcome.code, outcome.err) == (0, "pfedbayes: warning: mind this\n")
    assert warnings.showwarning is before


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_helps_with_an_example(command: str) -> None:
    outcome = pfedbayes(command, "--help")
    assert outcome.code == 0
    assert re.search(r"Examples?:\s+pfedbayes", outcome.out), outcome.out


def test_help_and_version() -> None:
    outcome = pfedbayes()
    assert outcome.code == 0
    assert all(f" {command} " in outcome.out for command in COMMANDS)
    assert re.fullmatch(r"pfedbayes \d+\.\d+\.\d+\S*\n", pfedbayes("--version").out)


def test_list_names_everything_a_line_each() -> None:
    lines = pfedbayes("list").out.splitlines()
    named = {line.split()[0] for line in lines if line.startswith(" ")}
    sizes = {
        f"{data}-{size}"
        for data in ("mnist", "fmnist", "cifar10")
        for size in ("small", "medium", "large")
    }
    assert {"pfedbayes", "mlp", "linear", "vgg", "digits", "cifar10"} | sizes <= named


def test_bench_passes_its_options_on(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []
    monkeypatch.setattr(
        "pyro_pfedbayes.experiments.runs.bench.bench_command",
        lambda **options: seen.append(options),
    )
    assert pfedbayes("bench", "--steps", "7", "--quick", "--json").code == 0
    assert seen == [{"steps": 7, "quick": True, "as_json": True}]


@pytest.mark.parametrize("arguments", [["--help"], ["list"], ["run", "--help"]])
def test_what_runs_nothing_loads_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys\nfrom pyro_pfedbayes.experiments.cli.main import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit as stop:\n"
        "    heavy = {'torch', 'pyro', 'pydantic', 'arviz_base', 'xarray', 'matplotlib', 'sklearn'}\n"
        "    print(stop.code, sorted(heavy & sys.modules.keys()), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONWARNINGS": "error"},
    )
    # typer itself checks values with pydantic.
    assert done.stderr.strip() in ("0 []", "0 ['pydantic']")


def test_a_reader_that_stops_reading_gets_no_traceback() -> None:
    command = f"{sys.executable} -m pyro_pfedbayes.experiments.cli.main list | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    assert pyro_pfedbayes.experiments.cli.inspect.list_names.__doc__
