"""The command line run in this process, and runs small enough for it."""

from __future__ import annotations

import contextlib
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from pyro_pfedbayes.datatree.tree import load_datatree
from pyro_pfedbayes.experiments.cli.main import main
from pyro_pfedbayes.experiments.config.sections import (
    Config,
    parse_config,
    read_source,
    with_settings,
)
from pyro_pfedbayes.experiments.runs.progress import Progress, make_progress

# Partial participation, all three phases, and a checkpoint that is older than some rounds.
TINY: dict[str, Any] = {
    "data.clients": 6,
    "data.scheme": "blocks",
    "data.train_per_class": 6,
    "data.test_per_class": 3,
    "data.validation": 0.2,
    "model.hidden": [6],
    "model.rho": -3.0,
    "algorithm.local_steps": 2,
    "algorithm.batch_size": 8,
    "algorithm.kinds": 2,
    "algorithm.kind_rounds": 2,
    "algorithm.personal_rounds": 1,
    "run.rounds": 6,
    "run.participation": 4,
    "run.device": "cpu",
    "run.eval_every": 2,
    "run.eval_draws": 2,
    "run.checkpoint_every": 2,
    "run.posterior_draws": 3,
}


@dataclass(frozen=True)
class Outcome:
    """What a command left on the terminal."""

    code: int
    out: str
    err: str


def pfedbayes(*arguments: str | Path) -> Outcome:
    """Run a command; nothing but its exit may come out of it."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as stop:
            code = stop.code
    assert isinstance(code, int)
    return Outcome(code, out.getvalue(), err.getvalue())


def tiny_options(**changes: Any) -> list[str]:
    """``--set`` options of a tiny run; ``run__rounds=3`` changes ``run.rounds``, None leaves a key out."""
    values = TINY | {name.replace("__", "."): value for name, value in changes.items()}
    return [
        part
        for name, value in values.items()
        if value is not None
        for part in ("--set", f"{name}={json.dumps(value)}")
    ]


def tiny_config(**changes: Any) -> Config:
    """The same, laid over the preset that ``pfedbayes run`` begins with."""
    values = TINY | {name.replace("__", "."): value for name, value in changes.items()}
    settings = [(name, value) for name, value in values.items() if value is not None]
    return parse_config(with_settings(read_source(None).tree, settings))


def quiet() -> Progress:
    """Progress that nobody reads."""
    from rich.console import Console

    return make_progress(Console(file=io.StringIO()), Console(file=io.StringIO()))


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    """A checkpoint's tensors."""
    (file,) = (folder / "checkpoint").glob("state-*.safetensors")
    return dict(safetensors.torch.load_file(file))


def summary(folder: Path) -> dict[str, Any]:
    """What ``summary.json`` holds."""
    found: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return found


def lines(folder: Path) -> list[dict[str, Any]]:
    """The records of ``metrics.jsonl``."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def without_seconds(values: dict[str, Any]) -> dict[str, Any]:
    """All but the times, which no two runs share."""
    return {key: value for key, value in values.items() if key != "seconds"}


def assert_same_run(one: Path, other: Path) -> None:
    """Two runs are the same in every bit."""
    assert without_seconds(summary(one)) == without_seconds(summary(other))
    assert [without_seconds(x) for x in lines(one)] == [without_seconds(x) for x in lines(other)]
    ours, theirs = tensors(one), tensors(other)
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name
    trees = load_datatree(one / "posterior.nc"), load_datatree(other / "posterior.nc")
    for group in ("posterior_predictive", "log_likelihood", "observation_stats"):
        assert trees[0][group].to_dataset().equals(trees[1][group].to_dataset()), group
