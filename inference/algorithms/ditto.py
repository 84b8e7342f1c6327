"""Ditto (Li et al., ICML 2021): FedAvg, and beside it a personal model of each client pulled towards it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pyro_pfedbayes.inference.algorithm import ClientUpdate, Cohort, Round, Tensors
from pyro_pfedbayes.inference.algorithms.components.point import PointMethod
from pyro_pfedbayes.inference.algorithms.components.settings import NonNegative, Positive
from pyro_pfedbayes.inference.beliefs.points import THETA
from pyro_pfedbayes.inference.engine.client_step import GradientEngine
from pyro_pfedbayes.inference.engine.point_descent import descend


@dataclass(frozen=True)
class Ditto(PointMethod):
    """Settings of Ditto: v_i minimises F_i(v) + (lam/2) |v - w|^2, w being FedAvg's weights of the round."""

    weighting: Literal["examples", "uniform"] = "uniform"  # the official code averages uniformly
    lam: NonNegative = 1.0
    """The authors' lambda: 0 is local training, a large one FedAvg. They choose among 0.1, 1 and 2."""
    personal_lr: Positive | None = None  # learning rate of v_i; None for ``lr``

    name = "ditto"

    def gradient_steps(self, at: Round) -> int:
        """One gradient for the common and one for the personal model a minibatch."""
        return 2 * self.local_steps

    def client_update(
        self, engine: GradientEngine, server: Tensors, cohort: Cohort, at: Round
    ) -> ClientUpdate:
        """R steps of both models on the same minibatches; w of the beginning pulls throughout."""
        w, own, plan = (
            self.starting_weights(engine.model, server, cohort),
            cohort.state,
            cohort.plan,
        )
        sent, loss = descend(engine, w, plan, self.descent(at))
        descent = self.descent(at, lr=self.personal_lr)
        theta, _ = descend(engine, own[THETA], plan, descent, pull=lambda v: self.lam * (v - w))
        return ClientUpdate({THETA: theta}, {THETA: sent}, loss)
