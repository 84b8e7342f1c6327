"""Examples that clients store as features, in rows of one size for all, for methods that predict by them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from pyro_pfedbayes.inference.algorithm import Cohort, Tensors
from pyro_pfedbayes.inference.algorithms.components.features import feature_size, features_at
from pyro_pfedbayes.inference.algorithms.components.point import PointMethod
from pyro_pfedbayes.inference.algorithms.components.settings import Count
from pyro_pfedbayes.inference.beliefs.points import THETA
from pyro_pfedbayes.inference.engine.client_step import GradientEngine
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


def filled_memory(z: Tensor, y: Tensor, capacity: int) -> dict[str, Tensor]:
    """The row of a client that stores features ``[m, D]`` and labels ``[m]``; the other places are empty."""
    memory, labels = z.new_zeros((capacity, z.shape[1])), y.new_full((capacity,), EMPTY)
    memory[: len(z)], labels[: len(y)] = z, y
    return {MEMORY: memory, LABELS: labels}


def stacked(rows: Sequence[Tensors]) -> dict[str, Tensor]:
    """Rows of single clients, one after the other."""
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


class MemoryMethod(PointMethod):
    """A method whose clients store at most ``capacity`` training examples as features, and predict by them."""

    capacity: Count
    personal_steps = 1
    """Storing examples takes no gradient."""

    def init(self, model: DeclaredModel) -> Tensors:
        """The server's weights."""
        feature_size(model, self.name)
        return super().init(model)

    def client_init(self, model: DeclaredModel, server: Tensors, count: int) -> Tensors:
        """Nothing stored."""
        theta, rows = server[THETA], super().client_init(model, server, count)
        memory = theta.new_zeros((count, self.capacity, feature_size(model, self.name)))
        labels = torch.full((count, self.capacity), EMPTY, device=theta.device)
        return {**rows, MEMORY: memory, LABELS: labels}

    def personalize(self, engine: GradientEngine, server: Tensors, cohort: Cohort) -> Tensors:
        """Each client's stored examples beside the server's weights."""
        model, theta = engine.model, server[THETA]
        rows = [self.stored(model, theta, cohort, row) for row in range(len(cohort.clients))]
        return {THETA: theta.expand(len(rows), -1).clone(), **stacked(rows)}

    def stored(self, model: DeclaredModel, theta: Tensor, cohort: Cohort, row: int) -> Tensors:
        """What one client of a cohort stores at the server's weights ``[P]``."""
        raise NotImplementedError
