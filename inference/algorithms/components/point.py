"""What methods with point estimates have in common: settings, a server that averages, beliefs that are points.

A method is a frozen dataclass derived from `PointMethod` that says how its clients learn (``client_update``), and what
differs from averaging all weights. Weights are flat vectors over all sites of the model, in unconstrained coordinates;
their priors and roles play no part.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
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
from pyro_pfedbayes.inference.algorithms.components.settings import check_settings
from pyro_pfedbayes.inference.beliefs.points import THETA, PointBelief, point_start
from pyro_pfedbayes.inference.beliefs.sites import Belief
from pyro_pfedbayes.inference.engine.client_step import GradientEngine
from pyro_pfedbayes.inference.engine.point_descent import Descent
from pyro_pfedbayes.inference.engine.schedules import Schedule, learning_rate
from pyro_pfedbayes.inference.objective.estimators import EstimatorKind
from pyro_pfedbayes.inference.server.rules import averaged
from pyro_pfedbayes.models.declared import DeclaredModel

PERSONAL = "personal"
"""Name, in a client's row, of the weights of a personal model that `Personalizing.personalize` made."""


@dataclass(frozen=True)
class PointMethod:
    """Settings and functions that point methods share.

    Attributes:
        lr: Learning rate of the local steps.
        momentum: Polyak momentum of the local steps, in [0, 1), from rest in every round.
        weight_decay: Factor of the weights that is added to their gradient.
        lr_schedule: How the learning rate changes over the rounds, from ``lr`` to ``lr_final``.
        lr_final: Where a schedule that is not constant ends.
        local_steps: Minibatches R of a round.
        batch_size: Examples b of a minibatch.
        weighting: Average clients by number of ``"examples"`` or ``"uniform"``.
    """

    lr: float = 0.05
    momentum: float = 0.0
    weight_decay: float = 0.0
    lr_schedule: Schedule = "constant"
    lr_final: float = 0.0
    local_steps: int = 20
    batch_size: int = 100
    weighting: Literal["examples", "uniform"] = "examples"

    name: ClassVar[str] = "point"
    """Name on the command line."""
    models: ClassVar[tuple[Judged, ...]] = ("personal", "global")
    """Which models the method is about."""
    estimator: ClassVar[EstimatorKind] = "plain"
    """Points draw no noise."""
    positive: ClassVar[tuple[str, ...]] = ()
    """Further settings that must be above 0."""
    not_negative: ClassVar[tuple[str, ...]] = ()
    """Further settings that must be at least 0."""
    whole: ClassVar[tuple[str, ...]] = ()
    """Further settings that must be whole numbers from 1 on."""

    def __post_init__(self) -> None:
        whole = ("local_steps", "batch_size", *self.whole)
        check_settings(self, positive=("lr", *self.positive), least=dict.fromkeys(whole, 1))
        if not 0 <= self.momentum < 1:
            raise UserError(f"momentum is {self.momentum}; it must lie in [0, 1)")
        for name in ("weight_decay", "lr_final", *self.not_negative):
            if not 0 <= getattr(self, name) < float("inf"):
                raise UserError(f"{name} is {getattr(self, name)}; it must be a number >= 0")

    def check(self, rounds: int, clients: int) -> None:
        """Any number of rounds and clients will do."""

    def init(self, model: DeclaredModel) -> Tensors:
        """The server's weights before any round, ``theta [P]``."""
        return {THETA: point_start(model)}

    def client_init(self, model: DeclaredModel, server: Tensors, count: int) -> Tensors:
        """A client that has kept nothing has the server's weights."""
        del model
        return {THETA: server[THETA].expand(count, -1).clone()}

    def phase(self, at: Round) -> str:
        """``"shared"``: clients learn, the server averages."""
        del at
        return "shared"

    def needs_everyone(self, at: Round) -> bool:
        """Only those drawn take part."""
        del at
        return False

    def gradient_steps(self, at: Round) -> int:
        """One gradient a minibatch."""
        del at
        return self.local_steps

    def client_update(
        self, engine: GradientEngine, server: Tensors, cohort: Cohort, at: Round
    ) -> ClientUpdate:
        """A cohort's local work of one round; what a method is."""
        raise NotImplementedError

    def server_update(
        self, model: DeclaredModel, server: Tensors, uploads: Iterable[Upload], at: Round
    ) -> Tensors:
        """Averages of what clients sent, over what the server held; what they did not send stays."""
        del model, at
        weighed = ((upload.tensors, self.importance(upload)) for upload in uploads)
        return {**server, **averaged(weighed)}

    def personal_belief(self, model: DeclaredModel, clients: Tensors) -> Belief:
        """The clients' own weights, or the personal models made from the server's before an evaluation."""
        own = clients[PERSONAL] if PERSONAL in clients else clients[THETA]
        return PointBelief(model, own, stacked=True)

    def global_belief(self, model: DeclaredModel, server: Tensors) -> Belief:
        """The server's weights."""
        return PointBelief(model, server[THETA])

    def importance(self, upload: Upload) -> Tensor:
        """Weights of clients in an average ``[S]``."""
        return upload.sizes if self.weighting == "examples" else torch.ones_like(upload.sizes)

    def descent(self, at: Round, steps: int | None = None, lr: float | None = None) -> Descent:
        """How local steps of a round are made.

        Args:
            at: The round.
            steps: Minibatches of the round; None for ``local_steps``.
            lr: Rate at the beginning of the run; None for ``lr``.
        """
        total, begin = steps or self.local_steps, lr or self.lr

        def rate(step: int) -> float:
            progress = (at.index + step / total) / at.total
            return learning_rate(self.lr_schedule, begin, self.lr_final, progress)

        return Descent(rate, self.momentum, self.weight_decay)
