"""What a table declares: data sets by methods by seeds, and how methods are tuned."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from pyro_pfedbayes.experiments.config.sections import Participation, Seed
from pyro_pfedbayes.experiments.tables.declaration.section import Figure, Part, Settings
from pyro_pfedbayes.experiments.tables.declaration.sweeps import Sweep, Swept, value_text

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
