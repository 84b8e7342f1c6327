"""The examples of which a run's models are least certain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyro_pfedbayes.experiments.reports.collect.classes import whole
from pyro_pfedbayes.experiments.reports.collect.judged_examples import kind_of
from pyro_pfedbayes.experiments.reports.files.dataset_reload import ReloadedData, picture
from pyro_pfedbayes.experiments.reports.files.run_files import Columns, Posterior
from pyro_pfedbayes.experiments.reports.schema import Example

SHOWN_EXAMPLES = 12
Array = NDArray[Any]


def least_certain(
    stored: Posterior,
    columns: Columns,
    names: Sequence[str],
    data: ReloadedData | None,
    missing: dict[str, str],
) -> tuple[Example, ...]:
    """The least certain first, by the predictions ``columns``; ``data`` is for pictures."""
    kind = kind_of(stored)
    doubt = columns[kind.uncertainty].astype(np.float64)
    good = whole(kind.required(columns)) & ~np.isnan(doubt)
    if not good.any():
        missing["least_certain"] = "no prediction can be used"
        return ()
    order = np.argsort(np.where(good, -doubt, math.inf), kind="stable")
    rows = order[: min(SHOWN_EXAMPLES, int(good.sum()))].tolist()
    index = np.arange(len(stored.y)) if stored.index is None else stored.index
    found = []
    for row in rows:
        label, predicted, probability = kind.described(columns, stored.y[row], row, stored.classes)
        place = int(index[row])
        found.append(
            Example(
                index=place,
                client=names[stored.owner[row]],
                label=label,
                predicted=predicted,
                probability=probability,
                uncertainty=float(doubt[row]),
                epistemic=kind.epistemic(float(columns["epistemic"][row])),
                image=None if data is None or stored.index is None else picture(data, place),
            )
        )
    return tuple(found)
