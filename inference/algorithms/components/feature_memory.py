"""Examples that clients store as features, in rows of one size for all, for methods that predict by them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from pyro_pfedbayes.inference.algorithm import Cohort, Tensors
from pyro_pfedbayes.inference.algorithms.components.features import features_at
from pyro_pfedbayes.models.declared import DeclaredModel

MEMORY, LABELS = "memory", "labels"
"""Names of stored features ``[capacity, D]`` and of their labels ``[capacity]`` in a client's row."""
EMPTY = -1
"""Label of a place that holds no example."""
CHUNK = 8192
"""Examples that pass through the network at once."""


def balanced_examples(y: Tensor, capacity: int) -> Tensor:
    """Places of at most so many known labels ``[n]``, ascending: each class by its share, but at least one of each."""
    place = (y >= 0).nonzero()[:, 0]
    if len(place) <= capacity:
        return place
    labels = y[place]
    counts = torch.bincount(labels)
    order = labels.argsort(stable=True)
    first = counts.cumsum(0) - counts
    rank = torch.empty_like(labels)
    rank[order] = torch.arange(len(labels), device=y.device) - first[labels[order]]
    share = rank.double() / counts[labels]
    return place[share.argsort(stable=True)[:capacity]].sort().values


def labelled_features(
    model: DeclaredModel,
    theta: Tensor,
    cohort: Cohort,
    row: int,
    part: Literal["train", "validation"],
    capacity: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Features ``[m, D]`` and labels ``[m]`` of at most so many labelled examples of one client, at ``theta [P]``."""
    x, y = cohort.examples(cohort.clients[row], part)
    place = balanced_examples(y, len(y) if capacity is None else capacity)
    with torch.no_grad():
        pieces = [features_at(model, theta, piece) for piece in x[place].split(CHUNK)]
    return torch.cat(pieces), y[place]


def empty_memory(like: Tensor, count: int, capacity: int, size: int) -> dict[str, Tensor]:
    """Rows of clients that store no features, of D = ``size``."""
    labels = torch.full((count, capacity), EMPTY, device=like.device)
    return {MEMORY: like.new_zeros((count, capacity, size)), LABELS: labels}


def filled_memory(z: Tensor, y: Tensor, capacity: int) -> dict[str, Tensor]:
    """The row of a client that stores features ``[m, D]`` and labels ``[m]``; the other places are empty."""
    memory, labels = z.new_zeros((capacity, z.shape[1])), y.new_full((capacity,), EMPTY)
    memory[: len(z)], labels[: len(y)] = z, y
    return {MEMORY: memory, LABELS: labels}


def stacked(rows: Sequence[Tensors]) -> dict[str, Tensor]:
    """Rows of single clients, one after the other."""
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
