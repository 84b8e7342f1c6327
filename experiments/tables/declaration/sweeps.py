"""Sweeps: methods on data again and again, with one setting at each of several values."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection
from typing import Any

from pydantic import Field

from pyro_pfedbayes.errors import UserError, nearest
from pyro_pfedbayes.experiments.tables.declaration.section import Figure, Part

_SETTING = r"(model\.\w+|data\.\w+|run\.participation|\w+)"
# Numbers that span more than this factor are drawn on a logarithmic axis.
_WIDE = 8


class PaperRow(Part):
    """Reference figures at one value, in percent.

    Attributes:
        at: The value.
        pm: Of the personal models.
        gm: Of the global model.
    """

    at: Any
    pm: Figure | None = None
    gm: Figure | None = None


class Sweep(Part):
    """One ``[[sweep]]``.

    Attributes:
        name: Names it in the table and in files.
        setting: What is varied: a setting of the methods, ``model.KEY``, ``data.KEY`` or ``run.participation``.
        values: What it is set to, in the order shown.
        methods: Names of the methods that run; None for all.
        on: Names or labels of the data they run on; None for all.
        paper: Reference figures for the first of the methods.
    """

    name: str = Field(min_length=1, description="a text")
    setting: str
    values: tuple[Any, ...] = Field(min_length=1, description="a list of values")
    methods: tuple[str, ...] | None = Field(None, description="a list of names of methods")
    on: tuple[str, ...] | None = Field(None, description="a list of names of data")
    paper: tuple[PaperRow, ...] = Field(
        (), description="figures by value: [{at = 1.0, pm = 97.4, gm = 90.1}]"
    )

    def varied(self, value: Any) -> tuple[str, str, Any]:
        """Section, key and value of a run's configuration."""
        section, _, key = self.setting.rpartition(".")
        return section or "algorithm", key, value

    def paper_at(self, value: Any) -> PaperRow | None:
        """The reference at a value, if there is one."""
        return next((row for row in self.paper if _same(row.at, value)), None)

    def stem(self, base: str) -> str:
        """Name of the files of its figure on some data, without an ending."""
        parts = (re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") for text in (self.name, base))
        return "-".join(["sweep", *parts])


class Swept(Part):
    """What a sweep made of a data set: one value of its setting.

    Attributes:
        sweep: Which.
        value: Of the setting.
        base: Label of the data as they were declared.
    """

    sweep: Sweep
    value: Any
    base: str


def value_text(value: Any) -> str:
    """A value for people.

    Example:
        >>> value_text(0.5), value_text("rotating"), value_text([20, 10])
        ('0.5', 'rotating', '[20, 10]')
    """
    return value if isinstance(value, str) else json.dumps(value)


def scale_of(values: Collection[Any]) -> str | None:
    """How an axis shows values: ``"log"``, ``"linear"``, or None for a place each, as they have no order.

    Example:
        >>> scale_of([0.5, 1, 20]), scale_of([-3, -1]), scale_of(["blocks", "random"])
        ('log', 'linear', None)
    """
    if not all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        return None
    if not all(math.isfinite(v) for v in values):
        return None
    wide = min(values) > 0 and max(values) > _WIDE * min(values)
    return "log" if wide else "linear"


def _same(a: Any, b: Any) -> bool:
    """Whether two values are one: 1 and 1.0 are, 1 and true are not."""
    return bool(a == b) and isinstance(a, bool) == isinstance(b, bool)


def check_sweep(
    sweep: Sweep,
    data: Collection[str],
    methods: Collection[str],
    tuned: Collection[str],
    where: str,
) -> None:
    """See that a sweep fits the rest of its table.

    Args:
        sweep: Which.
        data: Names and labels that `on` may have.
        methods: Names of all methods.
        tuned: Settings in the grids of the methods that it runs.
        where: How messages begin.
    """
    own = f"{where}sweep '{sweep.name}': "
    if not re.fullmatch(_SETTING, sweep.setting):
        raise UserError(
            f"{own}setting is '{sweep.setting}'; give a setting of the methods, model.KEY, data.KEY or "
            "run.participation"
        )
    if sweep.setting in ("name", "data.name", "data.split"):
        raise UserError(f"{own}{sweep.setting} is not varied by a sweep; declare rows or columns")
    for number, value in enumerate(sweep.values):
        # 1 is one client, 1.0 is all of them.
        exact = sweep.setting == "run.participation"
        earlier = sweep.values[:number]
        if any(_same(value, v) and (not exact or type(value) is type(v)) for v in earlier):
            raise UserError(f"{own}values holds {value_text(value)} twice")
    for what, names, known in (("methods", sweep.methods, methods), ("on", sweep.on, data)):
        for name in names or ():
            if name not in known:
                noun = "method" if what == "methods" else "data"
                hint = nearest(name, sorted(known)) or f" (known: {', '.join(sorted(known))})"
                raise UserError(f"{own}{what} names no {noun} '{name}'{hint}")
    for number, row in enumerate(sweep.paper):
        at = value_text(row.at)
        if not any(_same(row.at, value) for value in sweep.values):
            told = ", ".join(map(value_text, sweep.values))
            raise UserError(f"{own}paper has figures at {at}, which is no value of it ({told})")
        if any(_same(row.at, other.at) for other in sweep.paper[:number]):
            raise UserError(f"{own}paper has figures at {at} twice")
    if sweep.setting in tuned:
        raise UserError(f"{own}{sweep.setting} is both swept and tuned in a grid; keep one")
