"""The data set of a run, loaded again where that is possible: for sizes, and for pictures of examples."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.experiments.reports.files.run_files import RunFiles

Array = NDArray[Any]
_SMALLEST = 4  # pixels a side that make a picture


@dataclass(frozen=True)
class ReloadedData:
    """What a report takes from the data set."""

    names: tuple[str, ...]  # names of all clients, by number
    train: tuple[int, ...]  # training examples of each
    test: tuple[int, ...]  # test examples of each
    images: bool  # whether examples are images
    x: Array  # inputs as the networks saw them, ``[n, *features]``
    loc: float = 0.0  # subtracted from images that lay in [-1, 1]
    scale: float = 1.0  # divided by afterwards


def reload_dataset(run: RunFiles) -> ReloadedData:
    """Load and deal a run's examples once more; nothing is downloaded."""
    from pyro_pfedbayes.data.datasets import DATASETS, load_dataset
    from pyro_pfedbayes.experiments.runs.build import build_data, fingerprint

    section = run.folder.config().data
    if section.name in DATASETS:
        load_dataset(section.name, data_dir=section.dir, download=False)
    data, rule = build_data(section)
    partition = data.partition
    _check_unchanged(run, [index.numpy() for index in partition.test], fingerprint(data))
    images = len(data.dataset.feature_shape) == 3
    centred = images and rule.loc is not None and rule.scale is not None
    return ReloadedData(
        names=partition.names,
        train=tuple(partition.sizes("train").tolist()),
        test=tuple(partition.sizes("test").tolist()),
        images=images and min(data.dataset.feature_shape[1:]) >= _SMALLEST,
        x=data.dataset.x.numpy(),
        loc=rule.loc[0] if centred and rule.loc else 0.0,
        scale=rule.scale[0] if centred and rule.scale else 1.0,
    )


def picture(data: ReloadedData, index: int) -> Any:
    """An example as rows of grey values, or of triples, in [0, 1]; None if it is no image."""
    if not data.images or not 0 <= index < len(data.x):
        return None
    values = data.x[index].astype(np.float64) * data.scale + data.loc
    values = np.clip((values + 1) / 2, 0, 1)
    if len(values) in (3, 4):
        return values[:3].transpose(1, 2, 0).round(3).tolist()
    return values[0].round(3).tolist()


def _check_unchanged(run: RunFiles, test: list[Array], found: str) -> None:
    """Raise UserError if the examples are not those that the run was judged on."""
    stored = run.posterior
    changed = False
    if stored is not None and stored.index is not None:
        changed = any(
            not 0 <= owner < len(test)
            or not np.array_equal(
                np.sort(test[owner]), np.sort(stored.index[stored.owner == owner])
            )
            for owner in np.unique(stored.owner).tolist()
        )
    saved = _saved_fingerprint(run)
    if changed or (saved is not None and saved != found):
        raise UserError("the data set is not what it was when the run began")


def _saved_fingerprint(run: RunFiles) -> str | None:
    try:
        state: Mapping[str, Any] = json.loads((run.folder.checkpoint / "state.json").read_text())
        return str(state["meta"]["data"]["fingerprint"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
