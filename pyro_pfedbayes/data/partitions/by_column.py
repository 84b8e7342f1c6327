"""Clients that are the values of a column: hospitals, branches, machines, persons."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyro_pfedbayes.data.datasets import Dataset
from pyro_pfedbayes.data.partitions.allocation import Index
from pyro_pfedbayes.data.partitions.partition import Partition, deal_pools
from pyro_pfedbayes.errors import UserError, nearest


def partition_column(
    dataset: Dataset,
    column: str | int,
    test_fraction: float = 0.2,
    validation: float = 0.1,
    seed: int = 0,
) -> Partition:
    """Make each distinct value of a column a client, such as each hospital of a table of patients.

    Args:
        dataset: The data set. If it has a test part of its own, each client is evaluated on its part
            of that.
        column: Name of one of ``dataset.columns``, or the index of a column of a table ``x``.
        test_fraction: As in :func:`partition_dirichlet`.
        validation: As in :func:`partition_dirichlet`.
        seed: Chooses what is held out.

    Returns:
        The partition, clients in ascending order of the values, and named by them.

    Raises:
        UserError: If the column has more distinct values than half the examples, or a value has no
            training example.

    Example:
        >>> import torch
        >>> site = {"site": torch.tensor([7, 7, 7, 9, 9, 9])}
        >>> y = torch.tensor([0, 1, 0, 1, 0, 1])
        >>> data = Dataset("toy", torch.zeros(6, 2), y, ("no", "yes"), columns=site)
        >>> part = partition_column(data, "site", test_fraction=0.3, validation=0.0)
        >>> part.names, [len(index) for index in part.train], [len(index) for index in part.test]
        (('7', '9'), [2, 2], [1, 1])
    """
    values, what = _column(dataset, column)
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        row = int(np.isfinite(values).argmin())
        raise UserError(f"{dataset.name}: {what} is {values[row]} in row {row}: wanted a client")
    kinds, client_of = np.unique(values, return_inverse=True)
    most = max(1, len(dataset) // 2)
    if len(kinds) > most:
        raise UserError(
            f"{dataset.name}: {what} has {len(kinds)} distinct values in {len(dataset)} examples; "
            f"clients want a column with at most {most}"
        )
    names = _value_names(dataset, column, kinds)

    def deal(pool: Index, part: str) -> list[Index]:
        shares = [pool[client_of[pool] == client] for client in range(len(kinds))]
        for name, share in zip(names, shares, strict=True):
            if part == "train" and not len(share):
                raise UserError(
                    f"{dataset.name}: {what}: value {name} has no training example, only test ones"
                )
        return shares

    scheme = f"column({column})"
    partition = deal_pools(dataset, scheme, len(kinds), deal, test_fraction, validation, seed)
    return replace(partition, names=names)


def _column(dataset: Dataset, column: str | int) -> tuple[NDArray[Any], str]:
    """The values of a column, and what to call it in messages."""
    if column in dataset.columns:
        return dataset.columns[str(column)].cpu().numpy(), f"column '{column}'"
    known = ", ".join(dataset.columns) or "none"
    text = str(column)
    if text.isdecimal():
        if dataset.x.ndim == 2 and int(text) < dataset.x.shape[1]:
            return dataset.x[:, int(text)].cpu().numpy(), f"column {text} of x"
        shape = list(dataset.x.shape)
        why = f"no column {text}: x has shape {shape} (other columns: {known})"
    elif text in dataset.set_aside:
        why = f"no column '{text}': {dataset.set_aside[text]}"
    else:
        hint = nearest(text, dataset.columns)
        why = f"no column '{text}'{hint} (columns: {known}; or the index of one of a table x)"
    raise UserError(f"{dataset.name}: {why}")


def _value_names(dataset: Dataset, column: str | int, kinds: NDArray[Any]) -> tuple[str, ...]:
    """Texts as they are, integers without a point, other numbers to six digits."""
    texts = dataset.column_values.get(str(column))
    if texts is not None:
        return tuple(texts[kind] for kind in kinds)
    values = kinds.astype(np.float64)
    if column not in dataset.columns and dataset.scaling is not None:
        loc, scale = (part[int(column)].item() for part in dataset.scaling)
        # x is float32: seven digits of it are what the user wrote.
        values = np.array([float(f"{value * scale + loc:.6g}") for value in values])
    return tuple(str(int(v)) if v == math.floor(v) else f"{v:.6g}" for v in values.tolist())
