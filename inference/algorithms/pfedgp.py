"""pFedGP (Achituve et al., NeurIPS 2021): common features, and each client's own Gaussian processes on them.

Differences from the authors' code: Pólya-Gamma variables in mean field instead of Gibbs samples, their lower bound of
the marginal likelihood on minibatches as the objective, and no clipping of gradients.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.inference.algorithm import (
    ClientUpdate,
    Cohort,
    Judged,
    Round,
    Tensors,
    Upload,
)
from pyro_pfedbayes.inference.algorithms.components.class_tree import class_tree
from pyro_pfedbayes.inference.algorithms.components.feature_memory import (
    EMPTY,
    LABELS,
    MEMORY,
    embedded,
    remembered,
)
from pyro_pfedbayes.inference.algorithms.components.features import (
    class_count,
    feature_size,
    features,
    features_at,
    last_layer,
)
from pyro_pfedbayes.inference.algorithms.components.point import PointMethod
from pyro_pfedbayes.inference.algorithms.components.polya_gamma import (
    bound,
    conditional,
    mean_field,
    mean_sigmoid,
    rbf,
    tilt,
)
from pyro_pfedbayes.inference.algorithms.components.split import mask_of
from pyro_pfedbayes.inference.beliefs.points import THETA, PointBelief
from pyro_pfedbayes.inference.beliefs.sites import Belief
from pyro_pfedbayes.inference.engine.client_step import GradientEngine
from pyro_pfedbayes.inference.engine.point_descent import counted, descend
from pyro_pfedbayes.inference.server.rules import averaged_into
from pyro_pfedbayes.models.declared import DeclaredModel

TREE, OMEGA = "tree", "omega"


@dataclass(frozen=True)
class GPObjective:
    """Minus the mean field's bound of log p(y) of a client's minibatch, over all nodes of its tree, per example.

    Attributes:
        outputscale: Of the kernel.
        lengthscale: Of the kernel.
        iterations: Of the mean field.
    """

    outputscale: float
    lengthscale: float
    iterations: int

    def __call__(
        self,
        model: DeclaredModel,
        params: dict[str, Tensor],
        own: dict[str, Tensor],
        common: dict[str, Tensor],
    ) -> Tensor:
        """Of flat weights, x, y and mask, and of the client's ``tree [M, C]``."""
        del common
        y, counts = counted(own)
        z = F.normalize(features_at(model, params[THETA], own["x"]), dim=-1)
        kappa = own[TREE][:, y] * counts / 2
        kernel = rbf(z, z, self.outputscale, self.lengthscale)
        kernels = kernel.expand(len(kappa), *kernel.shape)
        c = mean_field(kernels.detach(), kappa, self.iterations)
        return -bound(kernels, kappa, c).sum() / counts.sum().clamp_min(1)


@dataclass(frozen=True)
class PFedGP(PointMethod):
    """Settings of pFedGP; the defaults of rate, momentum, decay, weights and kernel are the authors'.

    The classes of a client form a binary tree (2-means of class means); each inner node is a Gaussian process
    classifier with kernel ``outputscale · exp(-|z - z'|² / (2 lengthscale²))`` on features (what the last layer is
    given) of length 1. A round: clients build their trees, and train the features on `GPObjective`; the server averages
    the layers below the last. A client predicts by its Gaussian processes given its stored training examples, whose
    probabilities multiply along the path to a class; a class that it never saw has probability 0.

    Attributes:
        outputscale: Prior variance of the processes, fixed.
        lengthscale: Fixed, too.
        iterations: Rounds of the mean field, in training and prediction.
        capacity: Training examples that a client builds trees and predictions from, at most; time grows with its cube.
    """

    lr: float = 0.05
    momentum: float = 0.9
    weight_decay: float = 1e-3
    weighting: Literal["examples", "uniform"] = "uniform"
    outputscale: float = 8.0
    lengthscale: float = 1.0
    iterations: int = 3
    capacity: int = 500

    name: ClassVar[str] = "pfedgp"
    models: ClassVar[tuple[Judged, ...]] = ("personal",)
    positive: ClassVar[tuple[str, ...]] = ("outputscale", "lengthscale")
    whole: ClassVar[tuple[str, ...]] = ("iterations", "capacity")
    personal_steps: ClassVar[int] = 1
    """Conditioning on examples takes no gradient."""

    def init(self, model: DeclaredModel) -> Tensors:
        """The server's weights; the last layer's are never used."""
        feature_size(model, self.name)
        if len(last_layer(model, self.name)) == len(model.declaration.shapes):
            raise UserError(
                f"{self.name} learns the layers below the last, and this network has none; give it a hidden layer"
            )
        return super().init(model)

    def client_init(self, model: DeclaredModel, server: Tensors, count: int) -> Tensors:
        """Nothing stored."""
        theta, classes = server[THETA], class_count(model, self.name)
        size = feature_size(model, self.name)
        return {
            THETA: theta.expand(count, -1).clone(),
            MEMORY: theta.new_zeros((count, self.capacity, size)),
            LABELS: torch.full((count, self.capacity), EMPTY, device=theta.device),
            TREE: theta.new_zeros((count, classes - 1, classes)),
            OMEGA: theta.new_zeros((count, classes - 1, self.capacity)),
        }

    def client_update(
        self, engine: GradientEngine, server: Tensors, cohort: Cohort, at: Round
    ) -> ClientUpdate:
        """R steps on the features, the client's tree fixed."""
        model = engine.model
        rows = range(len(cohort.clients))
        trees = torch.stack(
            [
                class_tree(
                    *self._examples(model, server, cohort, row), class_count(model, self.name)
                )
                for row in rows
            ]
        )
        used = int((trees != 0).any(-1).sum(1).max())
        body = ~mask_of(model, last_layer(model, self.name))
        theta, loss = descend(
            engine,
            server[THETA].expand(len(rows), -1),
            cohort.plan,
            self.descent(at),
            objective=GPObjective(self.outputscale, self.lengthscale, self.iterations),
            own={TREE: trees[:, : max(used, 1)]},
            trained=body,
        )
        return ClientUpdate({}, {THETA: theta[:, body]}, loss)

    def server_update(
        self, model: DeclaredModel, server: Tensors, uploads: Iterable[Upload], at: Round
    ) -> Tensors:
        """Average the layers below the last."""
        del at
        body = ~mask_of(model, last_layer(model, self.name))
        sent = ((u.tensors[THETA], self.importance(u)) for u in uploads)
        return {THETA: averaged_into(server[THETA], body, sent)}

    def personalize(self, engine: GradientEngine, server: Tensors, cohort: Cohort) -> Tensors:
        """Store each client's examples, build its tree, and condition its Gaussian processes."""
        model = engine.model
        found = []
        for row in range(len(cohort.clients)):
            z, y = self._examples(model, server, cohort, row)
            tree = class_tree(z, y, class_count(model, self.name))
            omega = z.new_zeros((len(tree), self.capacity))
            for node, sides in enumerate(tree):
                below = sides[y].nonzero()[:, 0]
                if len(below):
                    kernel = rbf(z[below], z[below], self.outputscale, self.lengthscale)
                    kappa = sides[y[below]] / 2
                    c = mean_field(kernel, kappa, self.iterations)
                    omega[node, below] = tilt(c, kappa)
            memory, labels = remembered(z, y, self.capacity)
            found.append({MEMORY: memory, LABELS: labels, TREE: tree, OMEGA: omega})
        stacked = {name: torch.stack([row[name] for row in found]) for name in found[0]}
        return {THETA: server[THETA].expand(len(found), -1).clone(), **stacked}

    def _examples(
        self, model: DeclaredModel, server: Tensors, cohort: Cohort, row: int
    ) -> tuple[Tensor, Tensor]:
        z, y = embedded(model, server[THETA], cohort, row, "train", self.capacity)
        return F.normalize(z, dim=-1), y

    def personal_belief(self, model: DeclaredModel, clients: Tensors) -> Belief:
        """The common features, and each client's Gaussian processes."""
        extras = {name: clients[name] for name in (MEMORY, LABELS, TREE, OMEGA)}
        rule = partial(_predicted, self)
        return PointBelief(model, clients[THETA], stacked=True, extras=extras, rule=rule)


def _predicted(
    method: PFedGP, model: DeclaredModel, values: Mapping[str, Tensor], x: Tensor
) -> Tensor:
    z = F.normalize(features(model, values, x), dim=-1)
    memory, labels, tree, omega = (values[name] for name in (MEMORY, LABELS, TREE, OMEGA))
    return tree_probabilities(
        z, memory, labels, tree, omega, method.outputscale, method.lengthscale
    )


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

    Args:
        z: Where.
        memory: Features of stored examples ``[capacity, D]``.
        labels: Their labels ``[capacity]``, -1 in empty places.
        tree: ``[C - 1, C]``, as `class_tree` makes it.
        omega: E[ω] of each example at each node, ``[C - 1, capacity]``.
        outputscale: Of the kernel.
        lengthscale: Of the kernel.
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
        kernel = rbf(points, points, outputscale, lengthscale)
        posterior = conditional(kernel, kappa, weights[below])
        cross = rbf(points, z, outputscale, lengthscale)
        right = mean_sigmoid(*posterior.at(cross, outputscale))[:, None]
        probs = torch.where(sides > 0, probs * right, probs)
        probs = torch.where(sides < 0, probs * (1 - right), probs)
    return probs
