"""Sums over bootstrap resamples of clients and examples: what intervals of curves and areas are made from.

A curve such as accuracy by confidence, or an area such as AUROC, is a function of sums over cells of examples. Those
of a thousand resamples are one product of matrices, where a call of the measure for each resample would take minutes.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from pyro_pfedbayes.randomness import generator

Array = NDArray[Any]
Over = Literal["examples", "clients", "both"]
CELLS = 2_000
"""Most cells into which scores are ordered: of more distinct ones, neighbours share a cell."""
_BLOCK = 2**22  # examples that are drawn at a time


@dataclass(frozen=True)
class Column:
    """What each of n examples adds (float64 values) to its cell."""

    cell: Array
    values: Array
    cells: int


def ordered_cells(scores: Array, most: int = CELLS) -> tuple[Array, int]:
    """Cells of examples by their score, the lowest first; equal scores share one.

    Args:
        scores: ``[n]``, none NaN.
        most: Cells at most; of more distinct scores, cells hold about equally many examples.

    Returns:
        The cell of each ``[n]``, and how many there are: at least one.

    Example:
        >>> ordered_cells(np.array([0.5, 0.1, 0.5, 0.9]))[0].tolist()
        [1, 0, 1, 2]
    """
    distinct, place, sizes = np.unique(scores, return_inverse=True, return_counts=True)
    if len(distinct) > most:
        middle = 2 * sizes.cumsum() - sizes
        coarse = middle * most // (2 * len(scores))
        _, coarse = np.unique(coarse, return_inverse=True)
        return coarse[place], int(coarse[-1]) + 1
    return place, max(len(distinct), 1)


def plain_sums(columns: Sequence[Column]) -> list[Array]:
    """Sums of all examples as they are, ``[1, cells]`` a column."""
    return [np.bincount(c.cell, weights=c.values, minlength=c.cells)[None] for c in columns]


def resampled_sums(
    columns: Sequence[Column],
    owner: Array,
    over: Over,
    *,
    side: Array | None = None,
    resamples: int,
    seed: int = 0,
) -> list[Array]:
    """Sums over cells in each resample, ``[resamples, cells]`` a column.

    A resample takes as many clients as there are, with replacement: each whole (``"clients"``), or as many of its
    examples as it has, with replacement (``"both"``); or the examples of all clients alone (``"examples"``). Where
    examples lie on two sides, such as inside and outside, a client's two sides come together, and examples are drawn
    within each.
    """
    clients, client = np.unique(owner, return_inverse=True)
    if over == "clients":
        picked = _picked(len(clients), resamples, generator(seed, "resampled"))
        return [picked @ _by_client(column, client, len(clients)).T for column in columns]
    key = 2 * client + (0 if side is None else side)
    ends = np.cumsum([0, *(column.cells for column in columns)])
    matrix = _matrix(columns, ends)
    found = np.empty((resamples, int(ends[-1])))
    width = max(1, _BLOCK // len(owner))
    for start in range(0, resamples, width):
        block = min(width, resamples - start)
        stream = generator(seed, "resampled", start)
        picked = np.ones((block, len(clients)))
        if over == "both":
            picked = _picked(len(clients), block, stream)
        times = _times_drawn(key, picked.astype(np.int64), stream)
        found[start : start + block] = (matrix @ np.ascontiguousarray(times.T)).T
    return [found[:, first:last] for first, last in itertools.pairwise(ends)]


def _times_drawn(key: Array, picked: Array, stream: torch.Generator) -> Array:
    """How often each example is drawn among those of its key (twice its client plus its side), ``[b, n]``."""
    order, (strata, sizes) = np.argsort(key, kind="stable"), np.unique(key, return_counts=True)
    n, block = len(order), len(picked)
    lengths = picked[:, strata // 2] * sizes
    flat = lengths.ravel()
    starts = np.tile(sizes.cumsum() - sizes, block).repeat(flat)
    span = np.tile(sizes, block).repeat(flat)
    uniform = torch.rand(len(span), generator=stream, dtype=torch.float64).numpy()
    place = starts + np.minimum((uniform * span).astype(np.int64), span - 1)
    place += n * np.arange(block).repeat(lengths.sum(1))
    times = np.empty((block, n))
    times[:, order] = np.bincount(place, minlength=block * n).reshape(block, n)
    return times


def _picked(clients: int, resamples: int, stream: torch.Generator) -> Array:
    """How often each client is picked, float64 ``[resamples, N]``."""
    drawn = torch.randint(clients, (resamples, clients), generator=stream).numpy()
    drawn = drawn + clients * np.arange(resamples)[:, None]
    counts = np.bincount(drawn.ravel(), minlength=resamples * clients)
    return counts.reshape(resamples, clients).astype(np.float64)


def _by_client(column: Column, client: Array, clients: int) -> Array:
    """Sums ``[cells, N]``."""
    place = column.cell * clients + client
    found = np.bincount(place, weights=column.values, minlength=column.cells * clients)
    return found.reshape(column.cells, clients)


def _matrix(columns: Sequence[Column], ends: Array) -> Any:
    """Cells of all columns by examples, sparse."""
    sparse = importlib.import_module("scipy.sparse")
    n = len(columns[0].cell)
    cells = np.concatenate([c.cell + first for c, first in zip(columns, ends, strict=False)])
    values = np.concatenate([column.values for column in columns])
    examples = np.tile(np.arange(n), len(columns))
    return sparse.csr_matrix((values, (cells, examples)), shape=(int(ends[-1]), n))
