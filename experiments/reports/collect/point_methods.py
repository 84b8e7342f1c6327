"""Reports on methods that keep one set of weights: none of their uncertainty is epistemic, and none is split."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from pyro_pfedbayes.experiments.reports.schema import (
    ClientRow,
    Corrupted,
    Estimate,
    ModelReport,
    OodScore,
    ReportData,
)

__all__ = ["POINT", "POINT_GAIN", "undefine_client", "undefine_split"]

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
    found = data
    for kind in ("unseen", "foreign", "corrupted"):
        part = getattr(found, kind)
        if part is not None:
            scores = tuple(map(_score, part.scores))
            found = dataclasses.replace(found, **{kind: dataclasses.replace(part, scores=scores)})
    return dataclasses.replace(
        found,
        personal=_model(data.personal),
        global_=_model(data.global_),
        corrupted=_levels(found.corrupted),
        least_certain=tuple(
            dataclasses.replace(example, epistemic=math.nan) for example in data.least_certain
        ),
    )


def undefine_client(row: ClientRow) -> ClientRow:
    """The same of a client."""
    return dataclasses.replace(
        row,
        personal=_parts(row.personal),
        global_=None if row.global_ is None else _parts(row.global_),
    )


def _parts(measures: Mapping[str, float]) -> dict[str, float]:
    return {name: math.nan if name in _PARTS else value for name, value in measures.items()}


def _model(model: ModelReport | None) -> ModelReport | None:
    if model is None:
        return None
    nothing = Estimate(math.nan)
    measures = {name: nothing if name in _PARTS else own for name, own in model.measures.items()}
    return dataclasses.replace(model, measures=measures)


def _score(score: OodScore) -> OodScore:
    nothing = Estimate(math.nan)
    return OodScore(score.name, nothing, nothing, math.nan) if score.name == "epistemic" else score


def _levels(found: Corrupted | None) -> Corrupted | None:
    if found is None:
        return None
    levels = tuple(
        dataclasses.replace(
            level,
            epistemic=math.nan,
            auroc={
                name: math.nan if name == "epistemic" else value
                for name, value in level.auroc.items()
            },
        )
        for level in found.levels
    )
    return dataclasses.replace(found, levels=levels)
