"""What a table declares: data sets by methods by seeds, and how methods are tuned."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from pyro_pfedbayes.errors import UserError, nearest
from pyro_pfedbayes.experiments.config import Participation, Seed
from pyro_pfedbayes.experiments.registry import canonical
from pyro_pfedbayes.experiments.tables.checks import check_spec
from pyro_pfedbayes.experiments.tables.part import Figure, Part, Settings, read_part
from pyro_pfedbayes.experiments.tables.presets import table_text
from pyro_pfedbayes.experiments.tables.sweeps import Sweep, Swept, value_text

__all__ = [
    "DataEntry",
    "Head",
    "Method",
    "Spec",
    "Tuning",
    "parse_spec",
    "read_spec",
]

Rounds = Annotated[int, Field(ge=1)]
Seeds = Annotated[
    tuple[Seed, ...], Field(min_length=1, description="a list of integers, such as [1, 2, 3]")
]


class Head(Part):
    """Section ``[table]``: what all runs have in common.

    Attributes:
        title: Above the table.
        rounds: Of every run, unless a method has its own.
        seeds: Of the runs that are reported; data are dealt anew by each.
        local_steps: Minibatches of a round; None for what each method has by default.
        batch_size: Examples of a minibatch; None as well.
        eval_every: Rounds between evaluations; ``selected`` and ``best`` are picked among these.
        eval_draws: Draws of the weights in an evaluation.
        participation: Clients drawn a round.
        validation: Share of the training examples held out for tuning and for ``selected``.
        paired_with: The method that others are compared with, seed by seed; by default ``pfedbayes``, if it is there.
        keep_checkpoints: Keep the last state of finished runs, for ``pfedbayes evaluate``.
        only_sweeps: Run nothing but the sweeps.
    """

    title: str = "Methods compared"
    rounds: Rounds
    seeds: Seeds
    local_steps: int | None = Field(None, ge=1)
    batch_size: int | None = Field(None, ge=1)
    eval_every: int = Field(10, ge=0)
    eval_draws: int = Field(20, ge=1)
    participation: Participation = Field(
        "all", description="a number of clients, a fraction up to 1.0, or 'all'"
    )
    validation: float = Field(0.1, ge=0, lt=1)
    paired_with: str | None = None
    keep_checkpoints: bool = False
    only_sweeps: bool = False


class Tuning(Part):
    """Section ``[tuning]``: how the points of the methods' grids are tried.

    Attributes:
        seeds: Of the runs that are tried; None for the first of the table's.
        rounds: Of each; None for as many as in the table.
        points: How many points a method's grid may have; None: all methods have equally many.
    """

    seeds: Seeds | None = None
    rounds: Rounds | None = None
    points: int | None = Field(None, ge=1)


class DataEntry(Part):
    """One ``[[data]]``, for one of its splits.

    Attributes:
        label: Names it in the table.
        name: Of the data set.
        split: Of the paper's, if it is one.
        settings: Section ``data`` of its runs.
        model: Section ``model`` of its runs.
        swept: The value of a setting, if a sweep made it.
    """

    label: str
    name: str
    split: str | None
    settings: Settings
    model: Settings
    swept: Swept | None = None

    @property
    def base(self) -> str:
        """The label of the data as they were declared."""
        return self.label if self.swept is None else self.swept.base

    def is_on(self, names: Sequence[str] | None) -> bool:
        """Whether an ``on`` of names and labels means these data; None means all."""
        return names is None or self.name in names or self.base in names


class Method(Part):
    """One ``[[method]]``.

    Attributes:
        name: Names it in the table.
        algorithm: As in ``pfedbayes list``; None for the name.
        settings: Of the algorithm, fixed.
        grid: Settings that are tuned, with the values to try; ``model.rho`` means the model's.
        model: Settings of the model that differ from those of the data.
        rounds: If not those of the table.
        seeds: Of the runs reported, if not those of the table.
        on: Names or labels of the data it runs on; None for all.
        models: Which of its models are judged; None for those that the algorithm is about.
        paper: Reference figures by label of data: ``{"mnist-small" = {pm = [94.13, 0.27]}}``, in percent.
    """

    name: str = Field(min_length=1)
    algorithm: str | None = None
    settings: Settings = Field({})
    grid: Mapping[str, tuple[Any, ...]] = Field({}, description="lists of values by setting")
    model: Settings = Field({})
    rounds: Rounds | None = None
    seeds: Seeds | None = Field(None, description="a list of integers, such as [1, 2, 3]")
    on: tuple[str, ...] | None = Field(None, description="a list of names of data")
    models: tuple[Literal["personal", "global"], ...] | None = Field(
        None, description='"personal", "global" or both, as a list'
    )
    paper: Mapping[str, Mapping[Literal["pm", "gm"], Figure]] = Field(
        {}, description='figures by data: {"mnist-small" = {pm = [94.13, 0.27], gm = 90.44}}'
    )

    @property
    def grid_size(self) -> int:
        """Points of its grid; 1 if it has none."""
        return math.prod(map(len, self.grid.values()))

    @property
    def algorithm_name(self) -> str:
        """The algorithm's name in the registry."""
        return self.name if self.algorithm is None else self.algorithm


class Spec(Part):
    """A whole table.

    Attributes:
        head: Section ``[table]``.
        tuning: Section ``[tuning]``.
        data: Data sets and splits, the columns.
        methods: The rows; several of one name run on different data.
        sweeps: Further runs, with a setting varied.
    """

    head: Head
    tuning: Tuning
    data: tuple[DataEntry, ...]
    methods: tuple[Method, ...]
    sweeps: tuple[Sweep, ...] = ()

    def methods_on(self, entry: DataEntry) -> list[Method]:
        """The methods that run on a data set, in order."""
        if entry.swept is None and self.head.only_sweeps:
            return []
        wanted = None if entry.swept is None else entry.swept.sweep.methods
        found = [method for method in self.methods if entry.is_on(method.on)]
        return [m for m in found if wanted is None or m.name in wanted]

    def swept(self, sweep: Sweep) -> list[DataEntry]:
        """The data of a sweep, value by value of each."""
        return [
            entry.model_copy(
                update={
                    "label": f"{entry.label}, {sweep.name}={value_text(value)}",
                    "swept": Swept.model_construct(sweep=sweep, value=value, base=entry.label),
                }
            )
            for entry in self.data
            if entry.is_on(sweep.on)
            for value in sweep.values
        ]

    @property
    def data_names(self) -> list[str]:
        """What an ``on`` may hold: names and labels of the data."""
        return sorted({name for entry in self.data for name in (entry.name, entry.label)})

    def validation(self, entry: DataEntry) -> Any:
        """The share of training examples that is held out on some data."""
        if entry.swept is not None and entry.swept.sweep.setting == "data.validation":
            return entry.swept.value
        return entry.settings.get("validation", self.head.validation)

    def entries(self) -> list[DataEntry]:
        """All data that something runs on: those declared, then those of the sweeps."""
        return [*self.data, *(entry for sweep in self.sweeps for entry in self.swept(sweep))]

    @property
    def paired_with(self) -> str | None:
        """The method that others are compared with, if there is one."""
        names = {method.name for method in self.methods}
        wanted = self.head.paired_with
        return wanted if wanted is not None else "pfedbayes" if "pfedbayes" in names else None


def read_spec(given: str) -> Spec:
    """Read a table by the name of a preset, or from a file that ends in ``.toml``.

    Raises:
        UserError: No such table or file, or something wrong in it.
    """
    if not given.endswith(".toml"):
        if Path(given).exists():
            raise UserError(f"{given} is neither a table that is built in nor a .toml file")
        return parse_spec(tomllib.loads(table_text(given)), f"table {given}: ")
    try:
        tree = tomllib.loads(Path(given).read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as problem:
        raise UserError(f"{given} is not valid TOML: {problem}") from problem
    except (OSError, UnicodeDecodeError) as problem:
        reason = getattr(problem, "strerror", None) or "it is not UTF-8 text"
        raise UserError(f"cannot read {given}: {reason}") from problem
    return parse_spec(tree, f"{given}: ")


def parse_spec(tree: Mapping[str, Any], where: str = "") -> Spec:
    """Check what a file says, but for the settings of data, models and algorithms, which `make_plan` checks.

    Raises:
        UserError: Unknown keys and methods, values of another type, or parts that do not fit together.
    """
    sections = ("table", "tuning", "data", "method", "sweep")
    for name in tree:
        if name not in sections:
            raise UserError(
                f"{where}unknown section '{name}'{nearest(name, sections)} "
                "(known: [table], [tuning], [[data]], [[method]], [[sweep]])"
            )
    head = read_part(Head, "table", tree.get("table", {}), where)
    tuning = read_part(Tuning, "tuning", tree.get("tuning", {}), where)
    data = [e for given in _list(tree, "data", where) for e in _entries(given, where)]
    methods = [read_part(Method, "method", m, where) for m in _list(tree, "method", where)]
    sweeps = [read_part(Sweep, "sweep", s, where) for s in _list(tree, "sweep", where, least=0)]
    spec = Spec.model_construct(
        head=head,
        tuning=tuning,
        data=tuple(data),
        methods=tuple(methods),
        sweeps=tuple(sweeps),
    )
    check_spec(spec, where)
    return spec


def _list(tree: Mapping[str, Any], name: str, where: str, least: int = 1) -> list[Any]:
    values = tree.get(name, [])
    if not isinstance(values, list) or len(values) < least:
        raise UserError(f"{where}give at least one [[{name}]]")
    return values


def _entries(given: Any, where: str) -> list[DataEntry]:
    """A ``[[data]]``, an entry for each of its splits."""
    if not isinstance(given, Mapping):
        raise UserError(f"{where}'data' must be a section of keys, not {given!r}")
    settings = dict(given)
    label, splits = settings.pop("label", None), settings.pop("splits", None)
    model = settings.pop("model", {})
    if not isinstance(settings.get("name"), str):
        raise UserError(f"{where}a [[data]] lacks the key 'name'")
    name = settings["name"]
    if not isinstance(model, Mapping):
        raise UserError(f"{where}data '{name}': model is {model!r}; it must be a section of keys")
    if splits is not None and ("split" in settings or not isinstance(splits, list) or not splits):
        raise UserError(f"{where}data '{name}': give either split, or splits as a list of sizes")
    if label is not None and (not isinstance(label, str) or not label.strip()):
        raise UserError(f"{where}data '{name}': label is {label!r}; it must be a text")
    short = Path(name).stem if name.endswith(".npz") else canonical(name)
    found = []
    for split in [settings.get("split")] if splits is None else splits:
        own = settings if split is None else {**settings, "split": split}
        kind = split if split is not None else settings.get("scheme")
        parts = [short if label is None else label]
        if kind is not None and (label is None or splits is not None):
            parts.append(str(kind))
        found.append(
            DataEntry.model_construct(
                label="-".join(parts), name=short, split=split, settings=own, model=dict(model)
            )
        )
    return found
