"""Examples that clients keep as features, in rows of one size for all, for methods that predict by them."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from pyro_pfedbayes.inference.algorithm import Cohort
from pyro_pfedbayes.inference.algorithms.components.features import features_at
from pyro_pfedbayes.models.declared import DeclaredModel

__all__ = ["EMPTY", "LABELS", "MEMORY", "embedded", "kept", "remembered"]

MEMORY, LABELS = "memory", "labels"
"""Names of stored features ``[capacity, D]`` and of their labels ``[capacity]`` in a client's row."""
EMPTY = -1
"""Label of a place that holds no example."""


def kept(y: Tensor, capacity: int) -> Tensor:
    """Which of a client's examples to keep: each class by its share, but at least one of each; no random choice.

    Args:
        y: Labels ``[n]``; those below 0 are unknown, and not kept.
        capacity: How many at most.

    Returns:
        Their places, ascending, int64.
    """
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


def embedded(
    model: DeclaredModel,
    theta: Tensor,
    cohort: Cohort,
    row: int,
    part: Literal["train", "validation"],
    capacity: int | None = None,
    *,
    chunk: int = 8192,
) -> tuple[Tensor, Tensor]:
    """Features ``[m, D]`` and labels ``[m]`` of the labelled examples of one client of a cohort.

    Args:
        model: The declared model.
        theta: Flat weights ``[P]``.
        cohort: The clients.
        row: Which of them.
        part: Which of its examples.
        capacity: How many at most, as `kept`; None for all.
        chunk: Examples that pass through the network at once.
    """
    x, y = cohort.examples(cohort.clients[row], part)
    place = kept(y, len(y) if capacity is None else capacity)
    x, y = x[place], y[place]
    with torch.no_grad():
        found = [features_at(model, theta, piece) for piece in x.split(chunk)]
    return torch.cat(found), y


def remembered(z: Tensor, y: Tensor, capacity: int) -> tuple[Tensor, Tensor]:
    """Features ``[m, D]`` and labels ``[m]`` in places of a fixed number, the rest empty."""
    memory = z.new_zeros((capacity, z.shape[1]))
    labels = y.new_full((capacity,), EMPTY)
    memory[: len(z)], labels[: len(y)] = z, y
    return memory, labels
