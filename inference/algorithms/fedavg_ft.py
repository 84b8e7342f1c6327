"""FedAvg with fine-tuning: each client carries the averaged weights on with its own examples."""

from __future__ import annotations

from dataclasses import dataclass

from pyro_pfedbayes.inference.algorithm import Cohort, Tensors
from pyro_pfedbayes.inference.algorithms.components.point import PERSONAL
from pyro_pfedbayes.inference.algorithms.components.settings import Count, Positive
from pyro_pfedbayes.inference.algorithms.fedavg import FedAvg
from pyro_pfedbayes.inference.engine.client_step import GradientEngine
from pyro_pfedbayes.inference.engine.point_descent import descend


@dataclass(frozen=True)
class FedAvgFineTuned(FedAvg):
    """Settings of FedAvg with fine-tuning; the rounds are FedAvg's."""

    personal_steps: Count = 20
    """Minibatches that a client works through from the server's weights, for its personal model."""
    personal_lr: Positive | None = None  # their learning rate; None for ``lr``

    name = "fedavg-ft"
    models = ("personal", "global")
    copied = (PERSONAL,)

    def personalize(self, engine: GradientEngine, server: Tensors, cohort: Cohort) -> Tensors:
        """Steps from the server's weights, at a constant rate."""
        start = self.starting_weights(engine.model, server, cohort)
        descent = self.constant_descent(self.personal_lr or self.lr)
        return {PERSONAL: descend(engine, start, cohort.plan, descent)[0]}
