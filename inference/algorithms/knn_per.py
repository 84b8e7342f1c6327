"""kNN-Per (Marfoq et al., ICML 2022): the common network mixed with an average over a client's nearest examples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from pyro_pfedbayes.inference.algorithm import Cohort, Tensors
from pyro_pfedbayes.inference.algorithms.components.feature_memory import (
    LABELS,
    MEMORY,
    MemoryMethod,
    filled_memory,
    labelled_features,
)
from pyro_pfedbayes.inference.algorithms.components.features import features
from pyro_pfedbayes.inference.algorithms.components.settings import Count, Positive
from pyro_pfedbayes.inference.beliefs.points import THETA, point_layout
from pyro_pfedbayes.models.declared import DeclaredModel

MIX = "mix"
"""Name of the weight of the neighbours' probabilities in a client's row."""
GRID = 11
"""Weights 0, 0.1, ..., 1 that are tried on validation examples."""
BLOCK = 1024
"""Inputs whose distances to all stored examples are in memory at once."""

Distance = Literal["squared", "euclidean"]


@dataclass(frozen=True)
class KNNPer(MemoryMethod):
    """Settings of kNN-Per; the rounds are FedAvg's.

    After them each client stores the features (before the last layer) and labels of its training examples. With
    N_k(x) the k stored examples nearest to x, p(y | x) = lambda_i p_kNN(y | x) + (1 - lambda_i) p_w(y | x) and
    p_kNN(y | x) proportional to the sum over N_k(x) of 1[y_j = y] exp(-d(z, z_j)).
    """

    neighbours: Count = 10  # k; all stored examples if there are fewer
    distance: Distance = "squared"
    """d: ``"squared"`` for |z - z_j|^2 / (D scale) as in the authors' code, D being the number of features;
    ``"euclidean"`` for |z - z_j| / scale as in the paper."""
    scale: Positive = 1.0  # scale of d
    capacity: Count = 5000  # places for stored examples of a client, the same for all
    mix: Annotated[float, "[0, 1]"] = 0.5
    """lambda_i of a client whose validation examples do not choose it."""
    tune: bool = True
    """Whether lambda_i is chosen among 0, 0.1, ..., 1 by accuracy (then NLL) on the client's validation examples, if
    it has any."""

    name = "knn-per"
    models = ("personal", "global")
    extras = (MEMORY, LABELS, MIX)

    def client_init(self, model: DeclaredModel, server: Tensors, count: int) -> Tensors:
        """Nothing stored, which counts for nothing."""
        return {**super().client_init(model, server, count), MIX: server[THETA].new_zeros(count)}

    def stored(self, model: DeclaredModel, theta: Tensor, cohort: Cohort, row: int) -> Tensors:
        """A client's examples, and how much they count."""
        z, y = labelled_features(model, theta, cohort, row, "train", self.capacity)
        memory, mix = filled_memory(z, y, self.capacity), theta.new_tensor(self.mix)
        x, y = cohort.examples(cohort.clients[row], "validation")
        known = y >= 0
        if self.tune and bool(known.any()):
            values = model.constrain(point_layout(model).unflatten(theta))
            mix = _best_mix(*self._both(model, {**values, **memory}, x[known]), y[known])
        return {**memory, MIX: mix}

    def _both(
        self, model: DeclaredModel, values: Mapping[str, Tensor], x: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Class probabilities ``[n, C]`` of the neighbours and of the network."""
        options = self.neighbours, self.scale, self.distance
        with torch.no_grad():
            network, z = model.predict(values, x), features(model, values, x)
            near = neighbour_probabilities(z, values[MEMORY], values[LABELS], network, *options)
        return near, network

    def predicted(self, model: DeclaredModel, values: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """The mixture of both."""
        near, network = self._both(model, values, x)
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
    """Class probabilities ``[n, C]`` of the nearest stored examples, at features ``[n, D]``.

    Stored features are ``[capacity, D]``, their labels -1 in empty places; ``otherwise [n, C]`` holds if all are.
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

    def score(mix: float) -> tuple[float, float]:
        probs = mix * near + (1 - mix) * network
        right = float((probs.argmax(1) == y).double().mean())
        truth = probs.gather(1, y[:, None]).clamp_min(torch.finfo(near.dtype).tiny)
        return right, float(truth.log().mean())

    return near.new_tensor(max((step / (GRID - 1) for step in range(GRID)), key=score))
