"""Short runs give the numbers that were recorded in ``goldens/numbers.json``, through the command line alone.

A change that must not alter numbers is held by these. On another processor or PyTorch arithmetic may differ in its
last bits: digests are compared where a probe of the arithmetic gives the recorded one, and elsewhere the numbers
within a tolerance. After a change that is meant to alter them, ``python tests/test_goldens.py`` records them afresh.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import importlib.metadata
import io
import json
import math
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

FOLDER = Path(__file__).parent / "goldens"
NUMBERS = FOLDER / "numbers.json"
OLD_RUN, STOPPED_RUN = FOLDER / "finished", FOLDER / "stopped"
"""Runs of version 0.1.0 as they were before the code was sorted into rooms: one finished, one stopped by a signal."""

SMALL = {
    "data.clients": 4,
    "data.train_per_class": 6,
    "data.test_per_class": 4,
    "data.validation": 0.2,
    "model.hidden": [6],
    "algorithm.local_steps": 2,
    "run.eval_every": 2,
}
TABLE = ["--data", "diabetes", "--set", "data.validation=0.2", "--set", "algorithm.local_steps=3"]
RUNS: dict[str, list[str]] = {
    "pfedbayes": ["--set", "algorithm.kind_rounds=1", "--set", "algorithm.personal_rounds=1"],
    **{name: ["--algorithm", name] for name in ("fedavg", "ditto", "fedrep", "pfedgp")},
    "numbers": TABLE,
}
SPEC = """
[table]
rounds = 2
local_steps = 2
batch_size = 10
seeds = [0, 1]
validation = 0.2

[[data]]
name = "digits"
clients = 4
train_per_class = 6
test_per_class = 4
model = {hidden = [6]}

[[method]]
name = "pfedbayes"

[[method]]
name = "fedavg"
"""
VARYING = {"seconds", "versions", "folder", "folders", "created_at", "checksum", "checksums"}
"""Keys of what differs from run to run: times, places, and who made it."""


def command(*arguments: str) -> str:
    """What ``pfedbayes`` prints when it is run in this process."""
    (entry,) = importlib.metadata.entry_points(group="console_scripts", name="pfedbayes")
    out, told = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(told):  # noqa: SIM117
        with pytest.raises(SystemExit) as stop:
            entry.load()(list(arguments))
    assert stop.value.code == 0, told.getvalue()
    return out.getvalue()


def lasting(value: Any) -> Any:
    """A tree of JSON without what differs from run to run."""
    if isinstance(value, dict):
        return {k: lasting(v) for k, v in value.items() if k not in VARYING}
    return [lasting(v) for v in value] if isinstance(value, list) else value


def leaves(value: Any) -> Iterator[float]:
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from leaves(part)
    elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        yield float(value)


def digest(value: Any) -> dict[str, Any]:
    """A tree of JSON in short: a digest of all of it, how many numbers it holds, and their mean size."""
    tree = lasting(value)
    numbers = list(leaves(tree))
    text = json.dumps(tree, sort_keys=True)
    return {
        "sha256": hashlib.sha256(text.encode()).hexdigest(),
        "numbers": len(numbers),
        "mean_size": math.fsum(map(abs, numbers)) / max(1, len(numbers)),
    }


def checkpoint(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for file in sorted((folder / "checkpoint").rglob("*.safetensors")):
        for name, tensor in sorted(safetensors.torch.load_file(file).items()):
            found[name] = [list(tensor.shape), tensor.double().nan_to_num().flatten().tolist()]
    assert found
    return digest(found)


def arithmetic() -> str:
    """Names the arithmetic of this machine: equal where short runs give equal bits."""
    draws = torch.randn(64, 200, generator=torch.Generator().manual_seed(0))
    results = torch.cat([(draws @ draws.T).flatten(), draws.exp().log_softmax(1).flatten()])
    found = hashlib.sha256(results.numpy().tobytes()).hexdigest()[:16]
    return f"torch {torch.__version__}, {found}"


def run(name: str, into: Path) -> dict[str, Any]:
    """One short run and its report."""
    small = (
        [] if name == "numbers" else [o for k, v in SMALL.items() for o in ("--set", f"{k}={v}")]
    )
    command("run", *small, *RUNS[name], "--rounds", "4", "--device", "cpu", "--out", str(into))
    metrics = [json.loads(line) for line in (into / "metrics.jsonl").read_text().splitlines()]
    found = {
        "summary": lasting(json.loads((into / "summary.json").read_text())),
        "metrics": digest(metrics),
        "checkpoint": checkpoint(into),
    }
    if name in ("pfedbayes", "numbers"):
        report = json.loads(command("report", str(into), "--json"))
        found["report"] = {k: digest(v) for k, v in report.items() if k not in VARYING}
    return found


def table(into: Path) -> dict[str, Any]:
    (into / "spec.toml").write_text(SPEC)
    command("table", str(into / "spec.toml"), "-o", str(into / "table"))
    with (into / "table" / "results.csv").open() as file:
        rows = [lasting(row) for row in csv.DictReader(file)]
    return {
        "columns": list(rows[0]),
        "rows": len(rows),
        "results": digest([list(row.values()) for row in rows]),
    }


def assert_same(found: Any, wanted: Any, exact: bool, where: str) -> None:
    if exact:
        assert found == wanted, where
    elif isinstance(wanted, dict):
        assert found.keys() == wanted.keys(), where
        for key in wanted.keys() - {"sha256"}:
            assert_same(found[key], wanted[key], exact, f"{where}.{key}")
    elif isinstance(wanted, float):
        assert found == pytest.approx(wanted, rel=0.02, abs=0.02), where
    else:
        assert found == wanted, where


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(NUMBERS.read_text())
    return found


@pytest.mark.parametrize("name", RUNS)
def test_a_short_run_gives_the_recorded_numbers(
    name: str, recorded: dict[str, Any], tmp_path: Path
) -> None:
    exact = recorded["arithmetic"] == arithmetic()
    assert_same(run(name, tmp_path / name), recorded[name], exact, name)


def test_a_small_table_gives_the_recorded_figures(recorded: dict[str, Any], tmp_path: Path) -> None:
    assert_same(table(tmp_path), recorded["table"], recorded["arithmetic"] == arithmetic(), "table")


def test_an_older_run_still_opens(recorded: dict[str, Any], tmp_path: Path) -> None:
    """It evaluates, predicts, reports and trains on as on the day it was made."""
    exact = recorded["arithmetic"] == arithmetic()
    folder = Path(shutil.copytree(OLD_RUN, tmp_path / "run"))
    assert_same(old_run(folder, tmp_path), recorded["old run"], exact, "old run")


def old_run(folder: Path, place: Path) -> dict[str, Any]:
    evaluated = json.loads(command("evaluate", str(folder), "--json"))
    report = json.loads(command("report", str(folder), "--json"))
    stopped = Path(shutil.copytree(STOPPED_RUN, place / "stopped"))
    command("resume", str(stopped))
    return {
        "evaluate": digest(evaluated),
        "personal": digest(report["personal"]),
        "resumed": checkpoint(stopped),
    }


def record() -> None:
    torch.set_num_threads(1)  # as in the tests
    with tempfile.TemporaryDirectory() as made:
        place = Path(made)
        found: dict[str, Any] = {"arithmetic": arithmetic()}
        found |= {name: run(name, place / name) for name in RUNS}
        found["table"] = table(place)
        found["old run"] = old_run(Path(shutil.copytree(OLD_RUN, place / "old")), place)
    NUMBERS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(record())
