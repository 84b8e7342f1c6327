"""FedTGP (Zhang et al., AAAI 2024): clients send class means of features, never weights; the server keeps them apart.

A generator on the server, an embedding of each class through two linear layers with a ReLU between them, is trained so
that clients' class means lie nearest to the prototype of their class, by a margin.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from pyro_pfedbayes.inference.algorithm import ClientUpdate, Cohort, Round, Tensors, Upload, Values
from pyro_pfedbayes.inference.algorithms.components.feature_memory import (
    labelled_features,
    stacked,
)
from pyro_pfedbayes.inference.algorithms.components.features import (
    class_count,
    feature_size,
    features,
)
from pyro_pfedbayes.inference.algorithms.components.point import PointMethod
from pyro_pfedbayes.inference.algorithms.components.settings import Count, NonNegative, Positive
from pyro_pfedbayes.inference.beliefs.points import THETA, point_layout
from pyro_pfedbayes.inference.engine.client_step import GradientEngine
from pyro_pfedbayes.inference.engine.point_descent import counted, descend, mean_nll
from pyro_pfedbayes.models.declared import DeclaredModel
from pyro_pfedbayes.randomness import generator

PROTOTYPES, KNOWN, COUNTS = "prototypes", "known", "counts"
GENERATOR = tuple(
    f"generator.{part}" for part in ("embedding", "hidden", "hidden_bias", "out", "out_bias")
)


@dataclass(frozen=True)
class PrototypeObjective:
    """Mean NLL of a client's minibatch plus ``weight`` times the mean squared gap of features and prototypes."""

    weight: float

    def __call__(self, model: DeclaredModel, params: Values, own: Values, common: Values) -> Tensor:
        """Of flat weights, x, y and mask, and of all ``prototypes [C, D]`` and which are ``known [C]``."""
        values = model.constrain(point_layout(model).unflatten(params[THETA]))
        y, counts = counted(own)
        gap = features(model, values, own["x"]) - common[PROTOTYPES][y]
        with_prototype = counts & common[KNOWN][y]
        distance = (gap.square().mean(-1) * with_prototype).sum() / counts.sum().clamp_min(1)
        return mean_nll(model, values, own) + self.weight * distance


@dataclass(frozen=True)
class FedTGP(PointMethod):
    """Settings of FedTGP.

    A round: client i trains its own weights on NLL + pull |f_i(x) - P_y|^2 / D, P being the prototypes that the server
    sent, and sends the mean features of each of its classes, and how many examples each has. The server trains its
    generator to tell those means apart (`prototype_loss`). A client predicts by the nearest prototype:
    p(y = c | x) proportional to exp(-|f_i(x) - P_c|).
    """

    lr: Positive = 0.01
    pull: NonNegative = 10.0
    """Weight of the distance to the prototypes; 0 leaves clients to themselves, but for their predictions."""
    margin: Positive = 100.0
    """The most by which the true prototype must be nearer than the others."""
    server_epochs: Count = 100  # passes of the generator's training over a round's class means
    server_batch: Count = 10  # class means in one of its steps
    server_lr: Positive = 0.01  # its learning rate

    name = "fedtgp"
    models = ("personal",)
    extras = (PROTOTYPES, KNOWN)
    personal_steps = 1
    """Taking up the latest prototypes takes no gradient."""

    def init(self, model: DeclaredModel) -> Tensors:
        """Where all clients begin, and no prototype yet."""
        server, classes = super().init(model), class_count(model, self.name)
        prototypes = server[THETA].new_zeros((classes, feature_size(model, self.name)))
        return {**server, PROTOTYPES: prototypes, KNOWN: prototypes.new_zeros(classes).bool()}

    def client_init(self, model: DeclaredModel, server: Tensors, count: int) -> Tensors:
        """The common first weights, and the server's prototypes."""
        return {**super().client_init(model, server, count), **self._sent(server, count)}

    def client_update(
        self, engine: GradientEngine, server: Tensors, cohort: Cohort, at: Round
    ) -> ClientUpdate:
        """R steps from a client's own weights; then the means of its features, class by class."""
        model = engine.model
        objective, common = PrototypeObjective(self.pull), {n: server[n] for n in self.extras}
        options = cohort.state[THETA], cohort.plan, self.descent(at)
        theta, loss = descend(engine, *options, objective=objective, common=common)
        rows = []
        for row, own in enumerate(theta):
            z, y = labelled_features(model, own, cohort, row, "train")
            members = F.one_hot(y, len(server[KNOWN])).to(z.dtype)
            counts = members.sum(0)
            means = members.T @ z / counts.clamp_min(1)[:, None]
            rows.append({PROTOTYPES: means, COUNTS: counts})
        state = {THETA: theta, **self._sent(server, len(theta))}
        return ClientUpdate(state, stacked(rows), loss)

    def server_update(
        self, model: DeclaredModel, server: Tensors, uploads: Iterable[Upload], at: Round
    ) -> Tensors:
        """Train the generator on the round's class means; its output for each class is sent next."""
        sent = Upload.cat(list(uploads)).tensors
        present = sent[COUNTS] > 0
        owners, y = present.nonzero(as_tuple=True)
        z = sent[PROTOTYPES][owners, y]
        if not len(z):
            return server
        weights = {name: server[name] for name in GENERATOR if name in server}
        weights = weights or _generator_start(server[PROTOTYPES], at.seed)
        stream = generator(at.seed, "prototypes", at.index)
        weights = self._trained(weights, z, y, margin_of(z, y, self.margin), stream)
        known = server[KNOWN] | present.any(0)
        return {**server, **weights, PROTOTYPES: _generated(weights), KNOWN: known}

    def _trained(
        self, weights: Tensors, z: Tensor, y: Tensor, margin: float, stream: torch.Generator
    ) -> dict[str, Tensor]:
        """The generator after its epochs of gradient descent on class means ``[m, D]`` of classes ``[m]``."""
        leaves = {name: value.detach().clone().requires_grad_() for name, value in weights.items()}
        descent = torch.optim.SGD(leaves.values(), lr=self.server_lr)
        with torch.enable_grad():
            for _ in range(self.server_epochs):
                order = torch.randperm(len(z), generator=stream).to(z.device)
                for rows in order.split(self.server_batch):
                    descent.zero_grad()
                    prototype_loss(z[rows], y[rows], _generated(leaves), margin).backward()
                    descent.step()
        return {name: leaf.detach() for name, leaf in leaves.items()}

    def personalize(self, engine: GradientEngine, server: Tensors, cohort: Cohort) -> Tensors:
        """Take up the latest prototypes."""
        return self._sent(server, len(cohort.clients))

    def _sent(self, server: Tensors, count: int) -> dict[str, Tensor]:
        """What the server sends to so many clients."""
        return {n: server[n].expand(count, *server[n].shape).clone() for n in self.extras}

    def predicted(self, model: DeclaredModel, values: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """By the prototypes last received."""
        return nearest_prototype(features(model, values, x), values[PROTOTYPES], values[KNOWN])


def prototype_loss(z: Tensor, y: Tensor, prototypes: Tensor, margin: float) -> Tensor:
    """Cross-entropy of class means under softmax(-distance), the true class's distance lengthened by a margin."""
    lengthened = _distances(z, prototypes) + margin * F.one_hot(y, len(prototypes))
    return F.cross_entropy(-lengthened, y)


def margin_of(z: Tensor, y: Tensor, most: float) -> float:
    """The largest distance of a class to its nearest other one, at most ``most``; 0 of a single class.

    A class lies at the mean of its means ``z [m, D]`` over clients, those with its label in ``y [m]``.
    """
    classes = y.unique()
    if len(classes) < 2:
        return 0.0
    means = torch.stack([z[y == c].mean(0) for c in classes])
    gaps = _distances(means, means)
    gaps.fill_diagonal_(float("inf"))
    return min(float(gaps.min(1).values.max()), most)


def nearest_prototype(z: Tensor, prototypes: Tensor, known: Tensor) -> Tensor:
    """Class probabilities ``[n, C]`` proportional to exp(-|z - P_c|).

    Prototypes that are not ``known [C]``, as no client has ever trained them, are taken to lie twice as far away as the
    farthest that is; where there is none at all, classes are equally likely.
    """
    distance = torch.where(known, _distances(z, prototypes), 0.0)
    farthest = distance.max(-1, keepdim=True).values
    return (-torch.where(known, distance, 2 * farthest)).softmax(-1)


def _distances(a: Tensor, b: Tensor) -> Tensor:
    """Euclidean distances ``[m, C]``; the smallest number in place of 0, where the root has no slope."""
    gap = (a[:, None] - b).square().sum(-1)
    return gap.clamp_min(torch.finfo(gap.dtype).tiny).sqrt()


def _generator_start(like: Tensor, seed: int) -> dict[str, Tensor]:
    """A generator's first weights, for prototypes ``like [C, D]``: embeddings N(0, 1), layers within 1 / sqrt(D)."""
    classes, size = like.shape
    stream, bound = generator(seed, "prototype generator"), size**-0.5

    def layer(*shape: int) -> Tensor:
        return (torch.rand(shape, generator=stream) * 2 - 1).mul_(bound).to(like)

    embedding = torch.randn(classes, size, generator=stream).to(like)
    layers = layer(size, size), layer(size), layer(size, size), layer(size)
    return dict(zip(GENERATOR, (embedding, *layers), strict=True))


def _generated(weights: Mapping[str, Tensor]) -> Tensor:
    """The prototypes ``[C, D]`` that a generator makes."""
    embedding, hidden, hidden_bias, out, out_bias = (weights[name] for name in GENERATOR)
    return F.linear(F.relu(F.linear(embedding, hidden, hidden_bias)), out, out_bias)
