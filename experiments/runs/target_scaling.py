"""Outcomes that are numbers, brought to a scale."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from pyro_pfedbayes.data.clients import FederatedData
from pyro_pfedbayes.data.datasets import Dataset
from pyro_pfedbayes.data.partitions.schemes import Partition
from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.models.declared import DeclaredModel

FAR, NARROW = 5.0, 0.05
"""Outcomes beyond this from 0, or of a spread outside these, are far from what models begin with."""


def standard_outcomes(dataset: Dataset, partition: Partition) -> Dataset:
    """Centre and scale outcomes, over all clients' training and validation examples; missing ones stay missing.

    The data set that is returned has ``y = (raw - loc) / scale`` and ``target_scaling = (loc, scale)``.

    Example:
        >>> y = torch.tensor([10.0, 30.0, float("nan"), 40.0])
        >>> train, none, test = torch.arange(3), torch.arange(0), torch.tensor([3])
        >>> data = Dataset("toy", torch.zeros(4, 1), y, ())
        >>> scaled = standard_outcomes(data, Partition("toy", (train,), (none,), (test,)))
        >>> scaled.y.tolist(), scaled.target_scaling
        ([-1.0, 1.0, nan, 2.0], (20.0, 10.0))
    """
    if dataset.outcome == "class":
        raise UserError(
            f"data.target_scaling is 'standard', but the outcomes of {dataset.name} are classes: "
            "leave it out, or set data.target to 'number'"
        )
    index = torch.cat([*partition.train, *partition.validation])
    raw = dataset.y.numpy().astype(np.float64)
    known = raw[index.numpy()]
    known = known[~np.isnan(known)]
    if not len(known):
        raise UserError(f"{dataset.name}: no outcome that a client trains on is known")
    loc, scale = float(known.mean()), float(known.std())
    # A constant has a deviation of rounding error only.
    if scale <= 1e-12 * abs(loc) or scale == 0:
        scale = 1.0
    y = torch.from_numpy(((raw - loc) / scale).astype(np.float32))
    return dataclasses.replace(dataset, y=y, target_scaling=(loc, scale))


def far_outcomes(model: DeclaredModel, data: FederatedData) -> str:
    """A warning that continuous outcomes are far from what a model begins with; empty if they are not.

    Priors and first weights are made for numbers around 0 of spread 1; counts have models of their own.
    """
    dataset = data.dataset
    if dataset.outcome == "class" or dataset.target_scaling is not None:
        return ""
    index = torch.cat(list(data.partition.train)).to(dataset.y.device)
    y = dataset.y[index].double()
    y = y[~y.isnan()]
    if not len(y):
        return ""
    mean, spread = float(y.mean()), float(y.std(correction=0))
    if abs(mean) <= FAR and NARROW <= spread <= FAR:
        return ""
    with torch.no_grad():
        first = model.observation(model.constrain(model.start.loc), dataset.x[index[:2]])
    if first.support.is_discrete:
        return ""
    return (
        f"warning: outcomes have mean {mean:.4g} and standard deviation {spread:.4g}, and models begin around 0 and 1; "
        "--set data.target_scaling=standard brings them there (figures stay in the data's units)"
    )
