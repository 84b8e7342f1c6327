"""What methods with point estimates have in common: settings, a server that averages, beliefs that are points.

A method is a frozen dataclass derived from `PointMethod` that says what differs from FedAvg, which is how this class
works as it stands. Weights are flat vectors over all sites of the model, in unconstrained coordinates; their priors and
roles play no part.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from pyro_pfedbayes.inference.algorithm import ClientUpdate, Cohort, Judged, Round, Tensors, Upload
from pyro_pfedbayes.inference.algorithms.components.settings import (
    Count,
    NonNegative,
    Positive,
    check_settings,
)
from pyro_pfedbayes.inference.beliefs.points import THETA, PointBelief, point_start
from pyro_pfedbayes.inference.beliefs.sites import Belief
from pyro_pfedbayes.inference.engine.client_step import GradientEngine
from pyro_pfedbayes.inference.engine.point_descent import Descent, descend
from pyro_pfedbayes.inference.engine.schedules import Schedule, learning_rate
from pyro_pfedbayes.inference.objective.estimators import EstimatorKind
from pyro_pfedbayes.inference.server.rules import averaged, averaged_into
from pyro_pfedbayes.models.declared import DeclaredModel

PERSONAL = "personal"
"""Name, in a client's row, of the weights of a personal model that `Personalizing.personalize` made."""


@dataclass(frozen=True)
class PointMethod:
    """Settings and functions that point methods share."""

    lr: Positive = 0.05  # learning rate of the local steps
    momentum: Annotated[float, "[0, 1)"] = 0.0
    """Polyak momentum of the local steps, from rest in every round."""
    weight_decay: NonNegative = 0.0  # factor of the weights that is added to their gradient
    lr_schedule: Schedule = "constant"
    """How the learning rate changes over the rounds, from ``lr`` to ``lr_final``."""
    lr_final: NonNegative = 0.0  # where a schedule that is not constant ends
    local_steps: Count = 20  # minibatches R of a round
    batch_size: Count = 100  # examples b of a minibatch
    weighting: Literal["examples", "uniform"] = "examples"
    """Average clients by number of ``"examples"`` or ``"uniform"``."""

    name: ClassVar[str] = "point"
    models: ClassVar[tuple[Judged, ...]] = ("personal", "global")
    estimator: ClassVar[EstimatorKind] = "plain"
    copied: ClassVar[tuple[str, ...]] = (THETA,)
    """Entries of a new client's row that are the server's weights."""
    extras: ClassVar[tuple[str, ...]] = ()
    """Entries of a client's row that `predicted` takes beside the weights."""

    def __post_init__(self) -> None:
        check_settings(self)

    def check(self, rounds: int, clients: int) -> None:
        """Any number of rounds and clients will do."""

    def init(self, model: DeclaredModel) -> Tensors:
        """The server's weights before any round, ``theta [P]``."""
        return {THETA: point_start(model)}

    def client_init(self, model: DeclaredModel, server: Tensors, count: int) -> Tensors:
        """Rows of new clients, with the server's weights."""
        return {name: server[THETA].expand(count, -1).clone() for name in self.copied}

    def phase(self, at: Round) -> str:
        """``"shared"``: clients learn, the server averages."""
        return "shared"

    def needs_everyone(self, at: Round) -> bool:
        """Only those drawn take part."""
        return False

    def gradient_steps(self, at: Round) -> int:
        """One gradient a minibatch."""
        return self.local_steps

    def client_update(
        self, engine: GradientEngine, server: Tensors, cohort: Cohort, at: Round
    ) -> ClientUpdate:
        """R steps from `starting_weights`, pulled back to them by `proximal`, and what `parted` makes of the end."""
        start, weight = self.starting_weights(engine.model, server, cohort), self.proximal
        pull = (lambda v: weight * (v - start)) if weight else None
        theta, loss = descend(engine, start, cohort.plan, self.descent(at), pull=pull)
        return ClientUpdate(*self.parted(engine.model, theta), loss)

    def starting_weights(self, model: DeclaredModel, server: Tensors, cohort: Cohort) -> Tensor:
        """Where the clients' steps begin, ``[S, P]``: at the server's weights."""
        return server[THETA].expand(len(cohort.clients), -1)

    @property
    def proximal(self) -> float:
        """Factor of half the squared distance to the starting weights in the local objective."""
        return 0.0

    def parted(self, model: DeclaredModel, theta: Tensor) -> tuple[Tensors, Tensors]:
        """What of trained weights stays with their clients, and what is sent: all of them."""
        return {}, {THETA: theta}

    def averaged_places(self, model: DeclaredModel, at: Round) -> Tensor | None:
        """Which weights are sent, bool ``[P]``, where it is not all of them."""
        return None

    def server_update(
        self, model: DeclaredModel, server: Tensors, uploads: Iterable[Upload], at: Round
    ) -> Tensors:
        """Averages of what clients sent, over what the server had; what they did not send stays."""
        sent = ((upload.tensors, self.importance(upload)) for upload in uploads)
        places = self.averaged_places(model, at)
        if places is None:
            return {**server, **averaged(sent)}
        rows = ((tensors[THETA], weights) for tensors, weights in sent)
        return {**server, THETA: averaged_into(server[THETA], places, rows)}

    def personalize(self, engine: GradientEngine, server: Tensors, cohort: Cohort) -> Tensors:
        """Personal models of a method with ``personal_steps``: the weights that clients would start from."""
        return {PERSONAL: self.starting_weights(engine.model, server, cohort)}

    def personal_belief(self, model: DeclaredModel, clients: Tensors) -> Belief:
        """The clients' own weights, or the personal models made from the server's before an evaluation."""
        theta = clients[PERSONAL] if PERSONAL in clients else clients[THETA]
        if not self.extras:
            return PointBelief(model, theta, stacked=True)
        extras = {name: clients[name] for name in self.extras}
        return PointBelief(model, theta, stacked=True, extras=extras, rule=self.predicted)

    def predicted(self, model: DeclaredModel, values: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Class probabilities ``[n, C]`` of one client with `extras`, for inputs ``[n, *features]``."""
        raise NotImplementedError

    def global_belief(self, model: DeclaredModel, server: Tensors) -> Belief:
        """The server's weights."""
        return PointBelief(model, server[THETA])

    def importance(self, upload: Upload) -> Tensor:
        """Weights of clients in an average ``[S]``."""
        return upload.sizes if self.weighting == "examples" else torch.ones_like(upload.sizes)

    def descent(self, at: Round, lr: float | None = None) -> Descent:
        """How local steps of a round are made, with the rate ``lr`` (None for the method's) when the run begins."""
        begin = lr or self.lr

        def rate(step: int) -> float:
            progress = (at.index + step / self.local_steps) / at.total
            return learning_rate(self.lr_schedule, begin, self.lr_final, progress)

        return Descent(rate, self.momentum, self.weight_decay)

    def constant_descent(self, lr: float) -> Descent:
        """The same at one rate, for steps outside the rounds."""
        return Descent(lambda step: lr, self.momentum, self.weight_decay)
