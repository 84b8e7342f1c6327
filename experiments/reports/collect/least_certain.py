"""The examples of which a run's models are least certain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyro_pfedbayes.experiments.reports.collect.classes import whole
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
    doubt = columns["total" if stored.is_class else "sd"].astype(np.float64)
    good = (
        whole(columns) if stored.is_class else whole({"mean": columns["mean"]}) & ~np.isnan(doubt)
    )
    if not good.any():
        missing["least_certain"] = "no prediction can be used"
        return ()
    order = np.argsort(np.where(good, -doubt, math.inf), kind="stable")
    rows = order[: min(SHOWN_EXAMPLES, int(good.sum()))].tolist()
    index = np.arange(len(stored.y)) if stored.index is None else stored.index
    found = []
    for row in rows:
        label, predicted, probability = _described(stored, columns, row)
        epistemic = float(columns["epistemic"][row])
        place = int(index[row])
        found.append(
            Example(
                index=place,
                client=names[stored.owner[row]],
                label=label,
                predicted=predicted,
                probability=probability,
                uncertainty=float(doubt[row]),
                epistemic=epistemic if stored.is_class else math.sqrt(max(epistemic, 0.0)),
                image=None if data is None or stored.index is None else picture(data, place),
            )
        )
    return tuple(found)


def _described(stored: Posterior, columns: Columns, row: int) -> tuple[str, str, float]:
    """Outcome, prediction and its probability."""
    if stored.is_class:
        p, label = columns["p"][row], int(stored.y[row])
        best = int(p.argmax())
        true = stored.classes[label] if 0 <= label < len(stored.classes) else "unknown"
        return true, stored.classes[best], float(p[best])
    y = float(stored.y[row])
    mean = float(columns["mean"][row])
    return "unknown" if math.isnan(y) else f"{y:.4g}", f"{mean:.4g}", math.nan
