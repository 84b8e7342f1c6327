"""The runs that a table takes: a stable name and a whole configuration for each."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.experiments.config.resolve import resolve
from pyro_pfedbayes.experiments.config.sections import Config, Tree, parse_config
from pyro_pfedbayes.experiments.tables.declaration.cross_checks import settings_of
from pyro_pfedbayes.experiments.tables.declaration.spec import DataEntry, Method, Spec, slug

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
    tuning: tuple[tuple[Job, ...], ...]
    """Runs that are tried, by point; empty if there is no choice."""
    final: tuple[tuple[Job, ...], ...]  # runs by point: those of the point chosen are reported
    models: tuple[str, ...] = ("personal", "global")  # which are judged

    @property
    def key(self) -> tuple[str, str]:
        """Label of the data and name of the method."""
        return self.entry.label, self.method.name

    @property
    def beginnings(self) -> Iterator[tuple[Point, Job, Job]]:
        """Each point with its first final run and its first tuning run, which may be the same."""
        for point, final, tried in zip(
            self.points, self.final, self.tuning or self.final, strict=True
        ):
            yield point, final[0], tried[0]

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

    Messages begin with ``where``. Options have no part in the results: ``data.dir``, ``run.device``.
    """
    cells = []
    for entry in spec.entries():
        for method in spec.methods_on(entry):
            cell = _cell(spec, entry, method, options or {})
            models = _checked(cell, where).algorithm.models
            cells.append(dataclasses.replace(cell, models=method.models or tuple(models)))
    if not cells:
        raise UserError(f"{where}no method runs on any data; look at `on`")
    return Plan(spec, tuple(cells))


def point_text(point: Point) -> str:
    """``lr=0.1, mu=1.0``."""
    return ", ".join(f"{key}={value}" for key, value in point.items())


@contextlib.contextmanager
def mistakes_at(cell: Cell, point: Point, where: str) -> Iterator[None]:
    """Say of a mistake which method, data and settings it is in."""
    settings = f" ({point_text(point)})" if point else ""
    try:
        yield
    except UserError as problem:
        place = f"method '{cell.method.name}' on {cell.entry.label}{settings}"
        raise UserError(f"{where}{place}: {problem}") from None


def _cell(spec: Spec, entry: DataEntry, method: Method, options: Mapping[str, Any]) -> Cell:
    head, tuning = spec.head, spec.tuning
    declared = _tree(spec, entry, method)

    def job(point: Point, rounds: int, seed: int) -> Job:
        varied = {f"run.{key}": value for key, value in (("rounds", rounds), ("seed", seed))}
        varied |= point
        if entry.sweep is not None:
            varied[entry.sweep.setting] = entry.value
        tree = {section: dict(values) for section, values in declared.items()}
        for setting, value in varied.items():
            section, _, key = setting.rpartition(".")
            tree[section or "algorithm"][key] = value
        name = _id(entry.label, method.name, tree)
        for option, value in options.items():
            section, _, key = option.partition(".")
            tree[section].setdefault(key, value)
        return Job(name, entry.label, method.name, point, seed, rounds, tree)

    points = [
        dict(zip(method.grid, values, strict=True))
        for values in itertools.product(*method.grid.values())
    ]
    rounds = method.rounds or head.rounds
    # A method with a length of its own is tuned at the same share of it.
    trial = max(1, round(rounds * (tuning.rounds or head.rounds) / head.rounds))
    tried = points if len(points) > 1 else []
    return Cell(
        entry,
        method,
        tuple(points),
        tuple(tuple(job(p, trial, s) for s in tuning.seeds or head.seeds[:1]) for p in tried),
        tuple(tuple(job(p, rounds, s) for s in method.seeds or head.seeds) for p in points),
    )


def _tree(spec: Spec, entry: DataEntry, method: Method) -> Tree:
    """What all runs of a cell have in common."""
    head, fields = spec.head, settings_of(method)
    common = {"local_steps": head.local_steps, "batch_size": head.batch_size}
    # Settings of another model than the method's have no meaning for it.
    own_model = method.model.get("name") not in (None, entry.model.get("name"))
    return {
        "data": {"validation": head.validation, **entry.settings},
        "model": {**({} if own_model else entry.model), **method.model},
        "algorithm": {
            "name": method.algorithm_name,
            **{k: v for k, v in common.items() if v is not None and k in fields},
            **method.settings,
        },
        "run": {
            "participation": head.participation,
            "eval_every": head.eval_every,
            "eval_draws": head.eval_draws,
            "posterior_draws": 0,
        },
    }


def _id(data: str, method: str, tree: Tree) -> str:
    """A folder's name from what was declared, so that defaults of a later version do not change it."""
    text = json.dumps([data, method, tree], sort_keys=True, default=str)
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    return f"{slug(f'{data}-{method}')[:60]}-s{tree['run']['seed']}-{digest}"


def _checked(cell: Cell, where: str) -> Config:
    """The configuration of the first point; those of all are checked."""
    configs = []
    for point, *jobs in cell.beginnings:
        with mistakes_at(cell, point, where):
            for job in jobs:
                config = resolve(parse_config(job.tree))
                if config.data.clients is not None:
                    config.algorithm.check(config.run.rounds, config.data.clients)
                configs.append(config)
    return configs[0]
