"""The runs that a table takes: a stable name and a whole configuration for each."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.experiments.config.registry import algorithm_class
from pyro_pfedbayes.experiments.config.resolve import resolve
from pyro_pfedbayes.experiments.config.sections import Config, Tree, parse_config
from pyro_pfedbayes.experiments.tables.declaration.spec import DataEntry, Method, Spec

Point = Mapping[str, Any]
"""Values of the tuned settings."""


@dataclass(frozen=True)
class Job:
    """One run."""

    id: str  # names its folder; the same declaration gives the same name
    data: str  # label
    method: str
    point: Point
    seed: int
    rounds: int
    tree: Tree

    def __str__(self) -> str:
        """For people: ``mnist-small fedavg, lr=0.1, seed 1``."""
        parts = (f"{self.data} {self.method}", point_text(self.point), f"seed {self.seed}")
        return ", ".join(filter(None, parts))


@dataclass(frozen=True)
class Cell:
    """One method on one data set."""

    entry: DataEntry
    method: Method
    points: tuple[Point, ...]  # of its grid; one empty point if it has none
    tuning: tuple[
        tuple[Job, ...], ...
    ]  # runs that are tried, by point; empty if there is no choice
    final: tuple[tuple[Job, ...], ...]  # runs by point: those of the point chosen are reported
    models: tuple[str, ...] = ("personal", "global")  # which are judged

    @property
    def key(self) -> tuple[str, str]:
        """Label of the data and name of the method."""
        return self.entry.label, self.method.name

    @property
    def tuning_jobs(self) -> list[Job]:
        """Runs that are tried, point by point."""
        return [job for runs in self.tuning for job in runs]

    @property
    def jobs(self) -> list[Job]:
        """All runs that could be made."""
        return [job for runs in (*self.final, *self.tuning) for job in runs]


@dataclass(frozen=True)
class Plan:
    """All cells of a table, data by data, method by method."""

    spec: Spec
    cells: tuple[Cell, ...]

    def jobs(self) -> dict[str, Job]:
        """All runs that could be made, by name: with each point of a grid as the chosen one."""
        return {job.id: job for cell in self.cells for job in cell.jobs}

    def cell_of(self, job: Job) -> Cell:
        """The cell that a run belongs to."""
        return next(cell for cell in self.cells if cell.key == (job.data, job.method))


def make_plan(spec: Spec, where: str = "", options: Mapping[str, Any] | None = None) -> Plan:
    """Lay out the runs of a table and check the settings of each.

    Args:
        spec: The table.
        where: How messages begin, such as ``"mine.toml: "``.
        options: What has no part in the results, by ``section.key``: ``data.dir``, ``run.device``.
    """
    cells = []
    for entry in spec.entries():
        for method in spec.methods_on(entry):
            cell = _cell(spec, entry, method, options or {})
            about = _checked(cell, where)[0].algorithm.models
            cells.append(dataclasses.replace(cell, models=method.models or tuple(about)))
    if not cells:
        raise UserError(f"{where}no method runs on any data; look at `on`")
    return Plan(spec, tuple(cells))


def point_text(point: Point) -> str:
    """``lr=0.1, mu=1.0``."""
    return ", ".join(f"{key}={value}" for key, value in point.items())


def place_text(cell: Cell, point: Point, where: str = "") -> str:
    """How a message about a point of a cell begins."""
    told = f" ({point_text(point)})" if point else ""
    return f"{where}method '{cell.method.name}' on {cell.entry.label}{told}: "


def _cell(spec: Spec, entry: DataEntry, method: Method, options: Mapping[str, Any]) -> Cell:
    points = tuple(_points(method.grid))
    tuning = spec.tuning
    rounds = method.rounds or spec.head.rounds
    # A method with a length of its own is tuned at the same share of it.
    trial = max(1, round(rounds * (tuning.rounds or spec.head.rounds) / spec.head.rounds))
    seeds = tuning.seeds or spec.head.seeds[:1]

    def runs(point: Point, seeds: Sequence[int], rounds: int) -> tuple[Job, ...]:
        return tuple(_job(spec, entry, method, point, s, rounds, options) for s in seeds)

    tried = tuple(runs(point, seeds, trial) for point in points) if len(points) > 1 else ()
    reported = method.seeds or spec.head.seeds
    return Cell(entry, method, points, tried, tuple(runs(p, reported, rounds) for p in points))


def _points(grid: Mapping[str, Sequence[Any]]) -> Iterator[Point]:
    for values in itertools.product(*grid.values()):
        yield dict(zip(grid, values, strict=True))


def _job(
    spec: Spec,
    entry: DataEntry,
    method: Method,
    point: Point,
    seed: int,
    rounds: int,
    options: Mapping[str, Any],
) -> Job:
    head, settings = spec.head, {"name": method.algorithm_name}
    fields = {field.name for field in dataclasses.fields(algorithm_class(method.algorithm_name))}
    for key in ("local_steps", "batch_size"):
        common = getattr(head, key)
        if common is not None and key in fields:
            settings[key] = common
    model = dict(entry.model)
    if method.model.get("name", model.get("name")) != model.get("name"):
        model = {}
    tuned = {k.removeprefix("model."): v for k, v in point.items() if k.startswith("model.")}
    own = {k: v for k, v in point.items() if not k.startswith("model.")}
    tree: Tree = {
        "data": {"validation": head.validation, **entry.settings},
        "model": {**model, **method.model, **tuned},
        "algorithm": {**settings, **method.settings, **own},
        "run": {
            "rounds": rounds,
            "seed": seed,
            "participation": head.participation,
            "eval_every": head.eval_every,
            "eval_draws": head.eval_draws,
            "posterior_draws": 0,
        },
    }
    if entry.swept is not None:
        section, key, value = entry.swept.sweep.varied(entry.swept.value)
        tree[section][key] = value
    name = _id(entry.label, method.name, tree)
    for key, value in options.items():
        section, _, key = key.partition(".")
        tree[section].setdefault(key, value)
    return Job(name, entry.label, method.name, point, seed, rounds, tree)


def _id(data: str, method: str, tree: Tree) -> str:
    """A folder's name from what was declared, so that defaults of a later version do not change it."""
    text = json.dumps([data, method, tree], sort_keys=True, default=str)
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    short = re.sub(r"[^a-z0-9]+", "-", f"{data}-{method}".lower()).strip("-")[:60]
    return f"{short}-s{tree['run']['seed']}-{digest}"


def _checked(cell: Cell, where: str) -> list[Config]:
    """The configuration of each point."""
    found = []
    for point, final, trial in zip(cell.points, cell.final, cell.tuning or cell.final, strict=True):
        try:
            for job in (trial[0], final[0]):
                config = resolve(parse_config(job.tree))
                if config.data.clients is not None:
                    config.algorithm.check(config.run.rounds, config.data.clients)
            found.append(config)
        except UserError as problem:
            raise UserError(f"{place_text(cell, point, where)}{problem}") from None
    return found
