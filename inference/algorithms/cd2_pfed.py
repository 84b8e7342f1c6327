"""CD2-pFed (Shen et al., CVPR 2022): some channels of every layer stay private, and the two parts teach each other.

No source of the authors' is public; what the paper leaves open is decided here and said in `CD2PFed` and `channels_at`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.inference.algorithm import ClientUpdate, Cohort, Round, Tensors, Upload, Values
from pyro_pfedbayes.inference.algorithms.components.features import layers_of, sequential
from pyro_pfedbayes.inference.algorithms.components.point import PERSONAL, PointMethod
from pyro_pfedbayes.inference.algorithms.components.settings import NonNegative
from pyro_pfedbayes.inference.beliefs.points import THETA, point_layout
from pyro_pfedbayes.inference.engine.client_step import ClientObjective, GradientEngine
from pyro_pfedbayes.inference.engine.point_descent import descend, mean_nll, nll
from pyro_pfedbayes.models.declared import DeclaredModel

SHARED, ALONE = "shared", "alone"


@dataclass(frozen=True)
class Channels:
    """Which weights are whose when a share of each layer's channels is private.

    A weight belongs to the channel that it leads to and to the one that it comes from; inputs and classes are common.
    """

    shared: Tensor
    """Weights between shared channels, bool ``[P]``: all that is averaged. At these alone the network is the shared
    part."""
    alone: Tensor
    """Weights between private channels, bool ``[P]``, and those that touch none: the private part. What leads from one
    part to the other is private, but in neither."""
    split: bool  # whether any channel is private


@dataclass(frozen=True)
class DistillationObjective:
    """Mean NLL of the whole network plus ``weight`` times the symmetric divergence of its two parts.

    It is (KL(s‖p) + KL(p‖s)) / 2 in nats, averaged over the batch, s and p being the class probabilities of the shared
    and of the private part.
    """

    weight: float

    def __call__(self, model: DeclaredModel, params: Values, own: Values, common: Values) -> Tensor:
        """Of flat weights, x, y and mask, and of the parts ``shared [P]`` and ``alone [P]``."""
        theta, layout = params[THETA], point_layout(model)

        def log_probs(weights: Tensor) -> Tensor:
            probs = model.predict(model.constrain(layout.unflatten(weights)), own["x"])
            return probs.clamp_min(torch.finfo(probs.dtype).tiny).log()

        s, p = (log_probs(theta * common[part]) for part in (SHARED, ALONE))
        # KL(s‖p) + KL(p‖s) = sum of (s - p)(log s - log p).
        each = 0.5 * ((s.exp() - p.exp()) * (s - p)).sum(-1)
        counts = own.get("mask", torch.ones_like(each, dtype=torch.bool))
        divergence = (each * counts).sum() / counts.sum()
        values = model.constrain(layout.unflatten(theta))
        return mean_nll(model, values, own) + self.weight * divergence


@dataclass(frozen=True)
class CD2PFed(PointMethod):
    """Settings of CD2-pFed.

    A round: client i puts the server's shared weights beside its private ones, trains the whole network on
    `DistillationObjective`, and sends the shared weights. The share p of private channels grows over the rounds;
    weights that become private begin at the server's last average. The personal model is the averaged shared part with
    the client's private one. Averages over time of the private weights, which the paper speaks of, are left out.
    """

    private: Annotated[float, "[0, 1)"] = 0.5
    """Share p of the channels of each hidden layer that is private at the end; the last channels."""
    growth: Literal["linear", "constant"] = "linear"
    """``"linear"`` from 0 in the first round; ``"constant"`` for p in all rounds."""
    distillation: NonNegative = 1.0  # weight of the divergence

    name = "cd2-pfed"
    models = ("personal",)
    copied = (THETA, PERSONAL)
    personal_steps = 1
    """Putting a personal model together takes no gradient."""

    def share(self, at: Round) -> float:
        """The share of private channels in a round."""
        if self.growth == "constant" or at.total == 1:
            return self.private
        return self.private * at.index / (at.total - 1)

    def init(self, model: DeclaredModel) -> Tensors:
        """The server's weights, all shared so far."""
        channels_at(model, self.private, self.name)
        server = super().init(model)
        return {**server, SHARED: torch.ones_like(server[THETA], dtype=torch.bool)}

    def averaged_places(self, model: DeclaredModel, at: Round) -> Tensor:
        """What is shared in the round."""
        return channels_at(model, self.share(at), self.name).shared

    def starting_weights(self, model: DeclaredModel, server: Tensors, cohort: Cohort) -> Tensor:
        """The server's shared weights beside the clients' private ones."""
        return torch.where(server[SHARED], server[THETA], cohort.state[THETA])

    def client_update(
        self, engine: GradientEngine, server: Tensors, cohort: Cohort, at: Round
    ) -> ClientUpdate:
        """R steps on the whole network."""
        parts = channels_at(engine.model, self.share(at), self.name)
        objective: ClientObjective = nll
        common = None
        # Without private channels there is nobody to teach.
        if self.distillation and parts.split:
            objective = DistillationObjective(self.distillation)
            common = {SHARED: parts.shared, ALONE: parts.alone}
        start, descent = self.starting_weights(engine.model, server, cohort), self.descent(at)
        theta, loss = descend(
            engine, start, cohort.plan, descent, objective=objective, common=common
        )
        return ClientUpdate({THETA: theta}, {THETA: theta[:, parts.shared]}, loss)

    def server_update(
        self, model: DeclaredModel, server: Tensors, uploads: Iterable[Upload], at: Round
    ) -> Tensors:
        """Average what is shared; weights that are no longer shared stay as they were."""
        shared = self.averaged_places(model, at)
        return {**super().server_update(model, server, uploads, at), SHARED: shared}


def channels_at(model: DeclaredModel, share: float, method: str) -> Channels:
    """Divide the weights of a sequential network by channels.

    Outputs of every layer but the last are channels: the last ``floor(share * channels)`` of them are private.
    """
    layers, layout = layers_of(sequential(model, method)), point_layout(model)
    shapes, device = layout.shapes, model.start.device
    shared, alone = (
        {name: torch.ones(shape, dtype=torch.bool) for name, shape in shapes.items()}
        for _ in range(2)
    )
    before: Tensor | None = None
    for name, child in layers:
        if not isinstance(child, nn.Linear | nn.Conv2d) or getattr(child, "groups", 1) != 1:
            raise UserError(
                f"{method} divides channels of nn.Linear and nn.Conv2d without groups; layer {name!r} is "
                f"a {type(child).__name__}"
            )
        outputs = child.weight.shape[0]
        private = torch.arange(outputs) >= outputs - math.floor(share * outputs + 1e-9)
        for site in (site for site in shapes if site.startswith(f"{name}.")):
            # Rows are channels that a weight leads to; those of the last layer are classes, common to both parts.
            ones = [1] * (len(shapes[site]) - 1)
            ends = [] if name == layers[-1][0] else [private.view(-1, *ones)]
            if before is not None and site == f"{name}.weight":
                # After flattening, a channel is several inputs in a row.
                coming = before.repeat_interleave(shapes[site][1] // len(before))
                ends.append(coming.view(1, -1, *ones[1:]))
            for end in ends:
                shared[site] &= ~end
                alone[site] &= end
        before = private
    if all(site.startswith(f"{layers[-1][0]}.") for site in shapes):
        raise UserError(f"{method} needs a hidden layer, whose channels it can divide")
    flat = layout.flatten(shared).to(device)
    return Channels(flat, layout.flatten(alone).to(device), split=not bool(flat.all()))
