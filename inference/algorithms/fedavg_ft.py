"""FedAvg with fine-tuning: each client carries the averaged weights on with its own examples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pyro_pfedbayes.inference.algorithm import Cohort, Judged, Tensors
from pyro_pfedbayes.inference.algorithms.components.point import PERSONAL
from pyro_pfedbayes.inference.algorithms.fedavg import FedAvg
from pyro_pfedbayes.inference.beliefs.points import THETA
from pyro_pfedbayes.inference.engine.client_step import GradientEngine
from pyro_pfedbayes.inference.engine.point_descent import Descent, descend
from pyro_pfedbayes.models.declared import DeclaredModel


@dataclass(frozen=True)
class FedAvgFineTuned(FedAvg):
    """Settings of FedAvg with fine-tuning; the rounds are FedAvg's.

    Attributes:
        personal_steps: Minibatches that a client works through from the server's weights, for its personal model.
        personal_lr: Their learning rate; None for ``lr``.
    """

    personal_steps: int = 20
    personal_lr: float | None = None

    name: ClassVar[str] = "fedavg-ft"
    models: ClassVar[tuple[Judged, ...]] = ("personal", "global")
    positive: ClassVar[tuple[str, ...]] = ("personal_lr",)
    whole: ClassVar[tuple[str, ...]] = ("personal_steps",)

    def personalize(self, engine: GradientEngine, server: Tensors, cohort: Cohort) -> Tensors:
        """Steps from the server's weights, at a constant rate."""
        start = server[THETA].expand(len(cohort.clients), -1)
        lr = self.personal_lr or self.lr
        descent = Descent(lambda step: lr, self.momentum, self.weight_decay)
        theta, _ = descend(engine, start, cohort.plan, descent)
        return {PERSONAL: theta}

    def client_init(self, model: DeclaredModel, server: Tensors, count: int) -> Tensors:
        """Not fine-tuned yet."""
        return {PERSONAL: server[THETA].expand(count, -1).clone()}
