"""kNN-Per (Marfoq et al., ICML 2022): the common network's answer mixed with that of a client's nearest examples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.inference.algorithm import Cohort, Judged, Tensors
from pyro_pfedbayes.inference.algorithms.components.feature_memory import (
    EMPTY,
    LABELS,
    MEMORY,
    embedded,
    remembered,
)
from pyro_pfedbayes.inference.algorithms.components.features import feature_size, features
from pyro_pfedbayes.inference.algorithms.fedavg import FedAvg
from pyro_pfedbayes.inference.beliefs.points import THETA, PointBelief, point_layout
from pyro_pfedbayes.inference.beliefs.sites import Belief
from pyro_pfedbayes.inference.engine.client_step import GradientEngine
from pyro_pfedbayes.models.declared import DeclaredModel

MIX = "mix"
"""Name of the weight of the neighbours' answer in a client's row."""
GRID = 11
"""Weights 0, 0.1, ..., 1 that are tried on validation examples."""
BLOCK = 1024
"""Inputs whose distances to all stored examples are held at once."""

Distance = Literal["squared", "euclidean"]


@dataclass(frozen=True)
class KNNPer(FedAvg):
    """Settings of kNN-Per; the rounds are FedAvg's.

    After them each client stores the features (before the last layer) and labels of its training examples. With
    N_k(x) the k stored examples nearest to x, p(y | x) = lambda_i p_kNN(y | x) + (1 - lambda_i) p_w(y | x) and
    p_kNN(y | x) proportional to the sum over N_k(x) of 1[y_j = y] exp(-d(z, z_j)).

    Attributes:
        neighbours: k; all stored examples if there are fewer.
        distance: d: ``"squared"`` for |z - z_j|^2 / (D scale) as in the authors' code, D being the number of features;
            ``"euclidean"`` for |z - z_j| / scale as in the paper.
        scale: Scale of d.
        capacity: Places for stored examples of a client, the same for all.
        mix: lambda_i, in [0, 1], of a client whose validation examples do not choose it.
        tune: Whether lambda_i is chosen among 0, 0.1, ..., 1 by accuracy (then NLL) on the client's validation
            examples, if it has any.
    """

    neighbours: int = 10
    distance: Distance = "squared"
    scale: float = 1.0
    capacity: int = 5000
    mix: float = 0.5
    tune: bool = True

    name: ClassVar[str] = "knn-per"
    models: ClassVar[tuple[Judged, ...]] = ("personal", "global")
    positive: ClassVar[tuple[str, ...]] = ("scale",)
    whole: ClassVar[tuple[str, ...]] = ("neighbours", "capacity")
    personal_steps: ClassVar[int] = 1
    """Storing examples takes no gradient."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.mix <= 1:
            raise UserError(f"mix is {self.mix}; it must lie in [0, 1]")

    def init(self, model: DeclaredModel) -> Tensors:
        """The server's weights."""
        feature_size(model, self.name)
        return super().init(model)

    def client_init(self, model: DeclaredModel, server: Tensors, count: int) -> Tensors:
        """Nothing stored."""
        theta = server[THETA]
        size = feature_size(model, self.name)
        return {
            THETA: theta.expand(count, -1).clone(),
            MEMORY: theta.new_zeros((count, self.capacity, size)),
            LABELS: torch.full((count, self.capacity), EMPTY, device=theta.device),
            MIX: theta.new_zeros(count),
        }

    def personalize(self, engine: GradientEngine, server: Tensors, cohort: Cohort) -> Tensors:
        """Store each client's examples, and choose how much they count."""
        model, theta = engine.model, server[THETA]
        rows = [self._row(model, theta, cohort, row) for row in range(len(cohort.clients))]
        stacked = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
        return {THETA: theta.expand(len(rows), -1).clone(), **stacked}

    def _row(self, model: DeclaredModel, theta: Tensor, cohort: Cohort, row: int) -> Tensors:
        z, y = embedded(model, theta, cohort, row, "train", self.capacity)
        memory, labels = remembered(z, y, self.capacity)
        mix = theta.new_tensor(self.mix)
        if self.tune:
            x, held = cohort.examples(cohort.clients[row], "validation")
            x, held = x[held >= 0], held[held >= 0]
            if len(held):
                values = model.constrain(point_layout(model).unflatten(theta))
                own = {**values, MEMORY: memory, LABELS: labels}
                mix = _best_mix(*self._both(model, own, x), held)
        return {MEMORY: memory, LABELS: labels, MIX: mix}

    def _both(
        self, model: DeclaredModel, values: Mapping[str, Tensor], x: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The answers ``[n, C]`` of the neighbours and of the network."""
        with torch.no_grad():
            network = model.predict(values, x)
            near = neighbour_probabilities(
                features(model, values, x),
                values[MEMORY],
                values[LABELS],
                network,
                self.neighbours,
                self.scale,
                self.distance,
            )
        return near, network

    def personal_belief(self, model: DeclaredModel, clients: Tensors) -> Belief:
        """The common weights, and each client's stored examples."""
        extras = {name: clients[name] for name in (MEMORY, LABELS, MIX)}
        rule = partial(_mixed, self)
        return PointBelief(model, clients[THETA], stacked=True, extras=extras, rule=rule)


def _mixed(method: KNNPer, model: DeclaredModel, values: Mapping[str, Tensor], x: Tensor) -> Tensor:
    near, network = method._both(model, values, x)
    return values[MIX] * near + (1 - values[MIX]) * network


def neighbour_probabilities(
    z: Tensor,
    memory: Tensor,
    labels: Tensor,
    otherwise: Tensor,
    neighbours: int,
    scale: float = 1.0,
    distance: Distance = "squared",
) -> Tensor:
    """What the nearest stored examples say of some features.

    Args:
        z: Features ``[n, D]``.
        memory: Stored features ``[capacity, D]``.
        labels: Their labels ``[capacity]``, -1 in empty places.
        otherwise: Class probabilities ``[n, C]`` where nothing is stored at all.
        neighbours: How many count.
        scale: Of the distance.
        distance: As for `KNNPer`.

    Returns:
        Class probabilities ``[n, C]``.
    """
    stored = labels >= 0
    memory, labels = memory[stored], labels[stored]
    if not len(memory):
        return otherwise
    k, parts = min(neighbours, len(memory)), []
    for piece in z.split(BLOCK):
        gap = torch.cdist(piece, memory)
        gap = gap.square() / (z.shape[1] * scale) if distance == "squared" else gap / scale
        near = gap.topk(k, largest=False)
        weight = (-near.values).softmax(-1)
        found = piece.new_zeros((len(piece), otherwise.shape[1]))
        parts.append(found.scatter_add(1, labels[near.indices], weight))
    return torch.cat(parts) if parts else otherwise


def _best_mix(near: Tensor, network: Tensor, y: Tensor) -> Tensor:
    """The weight of the neighbours that is right most often, then most surely; the smallest of those as good."""
    best: tuple[float, float] | None = None
    chosen = 0.0
    for step in range(GRID):
        mix = step / (GRID - 1)
        of_truth = mix * near + (1 - mix) * network
        right = float((of_truth.argmax(1) == y).double().mean())
        truth = of_truth.gather(1, y[:, None]).clamp_min(torch.finfo(near.dtype).tiny)
        score = right, float(truth.log().mean())
        if best is None or score > best:
            best, chosen = score, mix
    return near.new_tensor(chosen)
