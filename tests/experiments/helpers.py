"""The command line run in this process, and runs small enough for it."""

from __future__ import annotations

import contextlib
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyro_pfedbayes.experiments.cli import main
from pyro_pfedbayes.experiments.config import Config, parse_config, read_source, with_settings
from pyro_pfedbayes.experiments.progress import Progress, make_progress

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
            assert isinstance(stop.code, int)
            return Outcome(stop.code, out.getvalue(), err.getvalue())


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
