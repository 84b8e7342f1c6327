"""Reports on methods that keep one set of weights: none of their uncertainty is epistemic, and none is split."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from pyro_pfedbayes.experiments.reports.schema import ClientRow, Estimate, OodScore, ReportData

POINT = (
    "The method keeps one set of weights (one draw is stored), and so its uncertainty has no epistemic part: nothing "
    "of it is split, and scores by that part are not defined"
)
POINT_GAIN = (
    "not defined: the method keeps one set of weights, not a posterior, and so has no epistemic part and no "
    "information gain"
)
_PARTS = ("aleatoric", "epistemic", "epistemic_sd")


def undefine_split(data: ReportData) -> ReportData:
    """Make NaN of both parts of the entropy, and of scores by the epistemic one: 0 and 0.5 would be false."""
    names = ("personal", "global_", "unseen", "foreign", "corrupted", "least_certain")
    return dataclasses.replace(data, **{name: _undefined(getattr(data, name)) for name in names})


def undefine_client(row: ClientRow) -> ClientRow:
    """The same of a client."""
    return dataclasses.replace(
        row, personal=_undefined(row.personal), global_=_undefined(row.global_)
    )


def _undefined(value: Any) -> Any:
    """A part of a report with NaN for all that `_PARTS` names, however deep."""
    nothing = Estimate(math.nan)
    if isinstance(value, OodScore):
        if value.name == "epistemic":
            return OodScore(value.name, nothing, nothing, math.nan)
        return value
    if isinstance(value, tuple):
        return tuple(_undefined(each) for each in value)
    if not isinstance(value, Mapping) and not dataclasses.is_dataclass(value):
        return value
    parts = value if isinstance(value, Mapping) else vars(value)
    found = {
        name: (nothing if isinstance(part, Estimate) else math.nan)
        if name in _PARTS
        else _undefined(part)
        for name, part in parts.items()
    }
    make: Any = type(value)
    return found if isinstance(value, Mapping) else make(**found)
