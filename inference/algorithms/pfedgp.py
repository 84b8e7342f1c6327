"""pFedGP (Achituve et al., NeurIPS 2021): common features, and each client's own Gaussian processes on them.

Differences from the authors' code: Pólya-Gamma variables in mean field instead of Gibbs samples, their lower bound of
the marginal likelihood on minibatches as the objective, and no clipping of gradients.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.inference.algorithm import ClientUpdate, Cohort, Round, Tensors, Values
from pyro_pfedbayes.inference.algorithms.components import polya_gamma as pg
from pyro_pfedbayes.inference.algorithms.components.class_tree import class_tree
from pyro_pfedbayes.inference.algorithms.components.feature_memory import (
    LABELS,
    MEMORY,
    MemoryMethod,
    filled_memory,
    labelled_features,
)
from pyro_pfedbayes.inference.algorithms.components.features import (
    class_count,
    features,
    features_at,
    last_layer,
)
from pyro_pfedbayes.inference.algorithms.components.settings import Count, NonNegative, Positive
from pyro_pfedbayes.inference.algorithms.components.split import mask_of
from pyro_pfedbayes.inference.beliefs.points import THETA
from pyro_pfedbayes.inference.engine.client_step import GradientEngine
from pyro_pfedbayes.inference.engine.point_descent import counted, descend
from pyro_pfedbayes.models.declared import DeclaredModel

TREE, OMEGA = "tree", "omega"


@dataclass(frozen=True)
class GPObjective:
    """Minus the mean field's bound of log p(y) of a client's minibatch, over all nodes of its tree, per example."""

    outputscale: float
    lengthscale: float
    iterations: int

    def __call__(self, model: DeclaredModel, params: Values, own: Values, common: Values) -> Tensor:
        """Of flat weights, x, y and mask, and of the client's ``tree [M, C]``."""
        y, counts = counted(own)
        z = F.normalize(features_at(model, params[THETA], own["x"]), dim=-1)
        kappa = own[TREE][:, y] * counts / 2
        kernel = pg.rbf(z, z, self.outputscale, self.lengthscale)
        kernels = kernel.expand(len(kappa), *kernel.shape)
        c = pg.mean_field(kernels.detach(), kappa, self.iterations)
        return -pg.bound(kernels, kappa, c).sum() / counts.sum().clamp_min(1)


@dataclass(frozen=True)
class PFedGP(MemoryMethod):
    """Settings of pFedGP; the defaults of rate, momentum, decay, weights and kernel are the authors'.

    The classes of a client form a binary tree (2-means of class means); each inner node is a Gaussian process
    classifier with kernel ``outputscale · exp(-|z - z'|² / (2 lengthscale²))`` on features (what the last layer is
    given) of length 1. A round: clients build their trees, and train the features on `GPObjective`; the server averages
    the layers below the last. A client predicts by its Gaussian processes given its stored training examples, whose
    probabilities multiply along the path to a class; a class that it never saw has probability 0.
    """

    lr: Positive = 0.05
    momentum: Annotated[float, "[0, 1)"] = 0.9
    weight_decay: NonNegative = 1e-3
    weighting: Literal["examples", "uniform"] = "uniform"
    outputscale: Positive = 8.0  # prior variance of the processes, fixed
    lengthscale: Positive = 1.0  # fixed, too
    iterations: Count = 3  # rounds of the mean field, in training and prediction
    capacity: Count = 500
    """Training examples that a client builds trees and predictions from, at most; time grows with its cube."""

    name = "pfedgp"
    models = ("personal",)
    extras = (MEMORY, LABELS, TREE, OMEGA)

    def init(self, model: DeclaredModel) -> Tensors:
        """The server's weights; the last layer's are never used."""
        if len(last_layer(model, self.name)) == len(model.declaration.shapes):
            raise UserError(
                f"{self.name} learns the layers below the last, and this network has none; give it a hidden layer"
            )
        return super().init(model)

    def client_init(self, model: DeclaredModel, server: Tensors, count: int) -> Tensors:
        """Nothing stored."""
        theta, classes = server[THETA], class_count(model, self.name)
        return {
            **super().client_init(model, server, count),
            TREE: theta.new_zeros((count, classes - 1, classes)),
            OMEGA: theta.new_zeros((count, classes - 1, self.capacity)),
        }

    def averaged_places(self, model: DeclaredModel, at: Round) -> Tensor:
        """The layers below the last."""
        return ~mask_of(model, last_layer(model, self.name))

    def client_update(
        self, engine: GradientEngine, server: Tensors, cohort: Cohort, at: Round
    ) -> ClientUpdate:
        """R steps on the features, the client's tree fixed."""
        model, classes = engine.model, class_count(engine.model, self.name)
        rows = range(len(cohort.clients))
        examples = (self._examples(model, server[THETA], cohort, row) for row in rows)
        trees = torch.stack([class_tree(z, y, classes) for z, y in examples])
        used = int((trees != 0).any(-1).sum(1).max())
        body = self.averaged_places(model, at)
        theta, loss = descend(
            engine,
            self.starting_weights(model, server, cohort),
            cohort.plan,
            self.descent(at),
            objective=GPObjective(self.outputscale, self.lengthscale, self.iterations),
            own={TREE: trees[:, : max(used, 1)]},
            trained=body,
        )
        return ClientUpdate({}, {THETA: theta[:, body]}, loss)

    def stored(self, model: DeclaredModel, theta: Tensor, cohort: Cohort, row: int) -> Tensors:
        """A client's examples and tree, and its Gaussian processes conditioned on the examples."""
        z, y = self._examples(model, theta, cohort, row)
        tree = class_tree(z, y, class_count(model, self.name))
        omega = z.new_zeros((len(tree), self.capacity))
        for node, sides in enumerate(tree):
            below = sides[y].nonzero()[:, 0]
            if len(below):
                kernel = pg.rbf(z[below], z[below], self.outputscale, self.lengthscale)
                kappa = sides[y[below]] / 2
                omega[node, below] = pg.tilt(pg.mean_field(kernel, kappa, self.iterations), kappa)
        return {**filled_memory(z, y, self.capacity), TREE: tree, OMEGA: omega}

    def _examples(
        self, model: DeclaredModel, theta: Tensor, cohort: Cohort, row: int
    ) -> tuple[Tensor, Tensor]:
        z, y = labelled_features(model, theta, cohort, row, "train", self.capacity)
        return F.normalize(z, dim=-1), y

    def predicted(self, model: DeclaredModel, values: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """The processes of a client at the common features."""
        z = F.normalize(features(model, values, x), dim=-1)
        memory, labels, tree, omega = (values[name] for name in self.extras)
        kernel = self.outputscale, self.lengthscale
        return tree_probabilities(z, memory, labels, tree, omega, *kernel)


def tree_probabilities(
    z: Tensor,
    memory: Tensor,
    labels: Tensor,
    tree: Tensor,
    omega: Tensor,
    outputscale: float,
    lengthscale: float,
) -> Tensor:
    """Class probabilities ``[n, C]`` at features ``z [n, D]``, from what one client stores.

    Features ``memory [capacity, D]``, labels ``[capacity]``, -1 in empty places, a tree ``[C - 1, C]`` of `class_tree`,
    and E[ω] of each example at each node, ``[C - 1, capacity]``; and the scales of the kernel.
    """
    stored = labels >= 0
    if not bool(stored.any()):
        return z.new_full((len(z), tree.shape[1]), 1 / tree.shape[1])
    present = torch.zeros(tree.shape[1], dtype=torch.bool, device=z.device)
    present[labels[stored]] = True
    probs = present.to(z.dtype).expand(len(z), -1).clone()
    for sides, weights in zip(tree, omega, strict=True):
        below = (stored & (sides[labels.clamp_min(0)] != 0)).nonzero()[:, 0]
        if not len(below):
            continue
        points, kappa = memory[below], sides[labels[below]] / 2
        kernel = pg.rbf(points, points, outputscale, lengthscale)
        posterior = pg.conditional(kernel, kappa, weights[below])
        cross = pg.rbf(points, z, outputscale, lengthscale)
        right = pg.mean_sigmoid(*posterior.at(cross, outputscale))[:, None]
        probs = torch.where(sides > 0, probs * right, probs)
        probs = torch.where(sides < 0, probs * (1 - right), probs)
    return probs
