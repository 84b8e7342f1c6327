"""Tables small enough for tests, and folders of runs that were never made."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from pyro_pfedbayes.experiments.tables.declaration.plan import Job, Plan, make_plan
from pyro_pfedbayes.experiments.tables.declaration.reader import parse_spec
from pyro_pfedbayes.experiments.tables.execution.folder import TableFolder

DIGITS = {
    "name": "digits",
    "clients": 4,
    "scheme": "blocks",
    "train_per_class": 6,
    "test_per_class": 3,
    "model": {"hidden": [6], "rho": -3.0},
}
HEAD = {
    "rounds": 3,
    "local_steps": 2,
    "batch_size": 8,
    "seeds": [1, 2],
    "eval_every": 1,
    "eval_draws": 2,
    "validation": 0.2,
}
OURS = {"name": "pfedbayes", "settings": {"personal_rounds": 1}}


def zeta(value: float, **more: Any) -> dict[str, Any]:
    """A method of its own name that is ours with another weight of the KL."""
    settings = {"personal_rounds": 1, "zeta": value}
    return {"name": f"zeta {value:g}", "algorithm": "pfedbayes", "settings": settings, **more}


def tree(*methods: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """A table of methods on digits; ``rounds=4`` changes ``table.rounds``, ``tuning={...}`` adds a section."""
    sections = {name: changes.pop(name) for name in ("tuning", "data", "sweep") if name in changes}
    methods = methods or (OURS, zeta(4.0))
    return {"table": HEAD | changes, "data": [DIGITS], "method": list(methods), **sections}


def plan(*methods: Mapping[str, Any], **changes: Any) -> Plan:
    """The runs of such a table."""
    return make_plan(parse_spec(tree(*methods, **changes)))


def spec_file(folder: Path, *methods: Mapping[str, Any], **changes: Any) -> Path:
    """Such a table in a file."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "spec.toml"
    file.write_text(tomli_w.dumps(tree(*methods, **changes)))
    return file


def record(round: int, **columns: Sequence[float]) -> dict[str, Any]:
    """A line of ``metrics.jsonl``: accuracy and NLL on test, then on validation examples, of each model."""
    names = ("accuracy", "nll", "validation_accuracy", "validation_nll")
    found = {
        model: dict(zip(names, columns[model], strict=True)) if model in columns else {}
        for model in ("personal", "global")
    }
    return {"round": round, "seconds": {"train": 1.0}, **found}


def made_up(folder: TableFolder, job: Job, *records: Mapping[str, Any], **summary: Any) -> None:
    """The folder of a finished run that quotes these lines."""
    run = folder.run(job.id)
    run.path.mkdir(parents=True)
    run.metrics.write_text("".join(json.dumps(line) + "\n" for line in records))
    text = {
        "rounds": job.rounds,
        "clients": 4,
        "seconds": {"train": 2.0, "evaluate": 1.0},
        "gradient_steps": 24,
        "bytes_uploaded": 24_000,
        **summary,
    }
    run.summary.write_text(json.dumps(text))


def rows(file: Path) -> list[dict[str, str]]:
    """The lines of a CSV file."""
    with file.open(newline="") as text:
        return list(csv.DictReader(text))
