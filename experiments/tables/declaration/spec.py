"""What a table declares: data sets by methods by seeds, how methods are tuned, and sweeps of a setting."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from pyro_pfedbayes.experiments.config.sections import Participation, Seed

Settings = Mapping[str, Any]
_Percent = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Figure = _Percent | tuple[_Percent, _Percent]
"""An accuracy in percent, or one and its standard deviation."""
Paper = Mapping[Any, Figure | None]
"""Reference figures by ``"pm"`` and ``"gm"``."""
Rounds = Annotated[int, Field(ge=1)]
Seeds = Annotated[
    tuple[Seed, ...], Field(min_length=1, description="a list of integers, such as [1, 2, 3]")
]


class Part(BaseModel):
    """A section: no other keys, no values of another type."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Head(Part):
    """Section ``[table]``: what all runs have in common."""

    title: str = "Methods compared"
    rounds: Rounds  # of every run, unless a method has its own
    seeds: Seeds  # of the runs that are reported; data are dealt anew by each
    local_steps: int | None = Field(None, ge=1)  # None: each method's default
    batch_size: int | None = Field(None, ge=1)  # None as well
    eval_every: int = Field(10, ge=0)  # ``selected`` and ``best`` are picked among these rounds
    eval_draws: int = Field(20, ge=1)
    participation: Participation = Field(
        "all", description="a number of clients, a fraction up to 1.0, or 'all'"
    )
    validation: float = Field(0.1, ge=0, lt=1)  # share held out for tuning and for ``selected``
    paired_with: str | None = None  # None: ``pfedbayes``, if it is there
    keep_checkpoints: bool = False  # of finished runs, for ``pfedbayes evaluate``
    only_sweeps: bool = False


class Tuning(Part):
    """Section ``[tuning]``: how the points of the methods' grids are tried."""

    seeds: Seeds | None = None  # None: the first of the table's
    rounds: Rounds | None = None  # None: as many as in the table
    points: int | None = Field(None, ge=1)  # at most, of a grid; None: all grids are equally large


class PaperRow(Part):
    """Reference figures at one value, in percent."""

    at: Any
    pm: Figure | None = None
    gm: Figure | None = None


class Sweep(Part):
    """One ``[[sweep]]``: methods run on data with one setting at each of several values."""

    name: str = Field(min_length=1, description="a text")
    setting: str  # of the methods, ``model.KEY``, ``data.KEY`` or ``run.participation``
    values: tuple[Any, ...] = Field(min_length=1, description="a list of values")
    methods: tuple[str, ...] | None = Field(None, description="a list of names of methods")
    on: tuple[str, ...] | None = Field(None, description="a list of names of data")
    paper: tuple[PaperRow, ...] = Field(  # of the first of the methods
        (), description="figures by value: [{at = 1.0, pm = 97.4, gm = 90.1}]"
    )

    def paper_at(self, value: Any) -> Paper:
        """The reference at a value, if there is one."""
        return next(({"pm": r.pm, "gm": r.gm} for r in self.paper if same(r.at, value)), {})

    def stem(self, base: str) -> str:
        """Name of the files of its figure on some data, without an ending."""
        return "-".join(["sweep", *(slug(text) for text in (self.name, base))])


class DataEntry(Part):
    """One ``[[data]]``, for one of its splits, and at one value of a sweep's setting if it is of a sweep."""

    label: str
    name: str
    split: str | None
    settings: Settings  # section ``data`` of its runs
    model: Settings  # section ``model`` of its runs
    base: str  # the label as declared
    sweep: Sweep | None = None
    value: Any = None

    def is_on(self, names: Sequence[str] | None) -> bool:
        """Whether an ``on`` of names and labels means these data; None means all."""
        return names is None or self.name in names or self.base in names


class Method(Part):
    """One ``[[method]]``."""

    name: str = Field(min_length=1)
    algorithm: str | None = None  # as in ``pfedbayes list``; None for the name
    settings: Settings = Field({})  # fixed
    grid: Mapping[str, tuple[Any, ...]] = Field({}, description="lists of values by setting")
    model: Settings = Field({})  # where it differs from that of the data
    rounds: Rounds | None = None
    seeds: Seeds | None = Field(None, description="a list of integers, such as [1, 2, 3]")
    on: tuple[str, ...] | None = Field(None, description="a list of names of data")
    models: tuple[Literal["personal", "global"], ...] | None = Field(  # None: those it is about
        None, description='"personal", "global" or both, as a list'
    )
    paper: Mapping[str, Mapping[Literal["pm", "gm"], Figure]] = Field(  # in percent, by label
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
    """A whole table."""

    head: Head
    tuning: Tuning
    data: tuple[DataEntry, ...]  # the columns
    methods: tuple[Method, ...]  # the rows; several of one name run on different data
    sweeps: tuple[Sweep, ...] = ()

    def methods_on(self, entry: DataEntry) -> list[Method]:
        """The methods that run on a data set, in order."""
        if entry.sweep is None and self.head.only_sweeps:
            return []
        names = None if entry.sweep is None else entry.sweep.methods
        found = [method for method in self.methods if entry.is_on(method.on)]
        return [method for method in found if names is None or method.name in names]

    def swept(self, sweep: Sweep) -> list[DataEntry]:
        """The data of a sweep, value by value of each."""
        return [
            entry.model_copy(update={"label": label, "sweep": sweep, "value": value})
            for entry in self.data
            if entry.is_on(sweep.on)
            for value in sweep.values
            for label in [f"{entry.label}, {sweep.name}={value_text(value)}"]
        ]

    def entries(self) -> list[DataEntry]:
        """All data that something runs on: those declared, then those of the sweeps."""
        return [*self.data, *(entry for sweep in self.sweeps for entry in self.swept(sweep))]

    @property
    def paired_with(self) -> str | None:
        """The method that others are compared with, if there is one."""
        default = "pfedbayes" if any(m.name == "pfedbayes" for m in self.methods) else None
        return default if self.head.paired_with is None else self.head.paired_with


def value_text(value: Any) -> str:
    """A value for people."""
    return value if isinstance(value, str) else json.dumps(value)


def same(a: Any, b: Any) -> bool:
    """Whether two values are one: 1 and 1.0 are, 1 and true are not."""
    return bool(a == b) and isinstance(a, bool) == isinstance(b, bool)


def slug(text: str) -> str:
    """A text as a part of a file's name."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
