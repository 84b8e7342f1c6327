"""pFedMe (Dinh et al., NeurIPS 2020): personal models near the common one, by Moreau envelopes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.inference.algorithm import ClientUpdate, Cohort, Round, Tensors, Upload
from pyro_pfedbayes.inference.algorithms.components.point import PointMethod
from pyro_pfedbayes.inference.algorithms.components.settings import Count, Positive
from pyro_pfedbayes.inference.beliefs.points import THETA
from pyro_pfedbayes.inference.engine.client_step import GradientEngine
from pyro_pfedbayes.inference.engine.point_descent import batch, nll
from pyro_pfedbayes.inference.server.rules import momentum_step
from pyro_pfedbayes.models.declared import DeclaredModel


@dataclass(frozen=True)
class PFedMe(PointMethod):
    """Settings of pFedMe: minimise over w the mean of min_theta F_i(theta) + (lam/2) |theta - w|^2.

    For each of R minibatches a client makes K steps on theta, then moves its copy of the common weights:
    w_i <- w_i - lr lam (w_i - theta). Personal models are the theta, kept apart from w_i.
    """

    lr: Positive = 0.01  # step of the copies (the authors' eta)
    weighting: Literal["examples", "uniform"] = "uniform"  # the paper averages uniformly
    lam: Positive = 15.0  # the authors' lambda, the weight of the pull
    inner_steps: Count = 5  # steps K on the same minibatch
    inner_lr: Positive = 0.05  # their length; inner_lr * lam must be below 2, or they diverge
    beta: Positive = 1.0  # the server's step: w <- (1 - beta) w + beta mean(w_i)

    name = "pfedme"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.inner_lr * self.lam >= 2:
            raise UserError(
                f"inner_lr is {self.inner_lr} and lam {self.lam}; their product must be below 2, or the inner steps "
                "diverge"
            )

    def gradient_steps(self, at: Round) -> int:
        """K gradients a minibatch."""
        return self.local_steps * self.inner_steps

    def client_update(
        self, engine: GradientEngine, server: Tensors, cohort: Cohort, at: Round
    ) -> ClientUpdate:
        """R minibatches; theta begins the round at w and carries on from minibatch to minibatch."""
        copies = self.starting_weights(engine.model, server, cohort).clone()
        theta = copies.clone()
        descent = self.descent(at)
        total = theta.new_zeros(len(theta))
        for step in range(cohort.plan.steps):
            examples = batch(cohort.plan, step)
            rate = descent.rate(step)
            for _ in range(self.inner_steps):
                loss, gradients = engine.differentiate(nll, {THETA: theta}, examples)
                decay = self.weight_decay * theta
                direction = gradients[THETA] + decay + self.lam * (theta - copies)
                # The inner rate follows the outer one's schedule.
                theta.sub_(direction, alpha=self.inner_lr * rate / self.lr)
                total += loss
            copies.sub_(copies - theta, alpha=rate * self.lam)
        loss = total / (cohort.plan.steps * self.inner_steps)
        return ClientUpdate({THETA: theta}, {THETA: copies}, loss)

    def server_update(
        self, model: DeclaredModel, server: Tensors, uploads: Iterable[Upload], at: Round
    ) -> Tensors:
        """A step towards the mean of the copies."""
        mean = super().server_update(model, server, uploads, at)[THETA]
        return {THETA: momentum_step(server[THETA], mean, self.beta)}
