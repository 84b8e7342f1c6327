"""Per-FedAvg (Fallah et al., NeurIPS 2020): common weights from which one gradient step makes a good personal model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from pyro_pfedbayes.inference.algorithm import ClientUpdate, Cohort, Round, Tensors
from pyro_pfedbayes.inference.algorithms.components.point import PERSONAL, PointMethod
from pyro_pfedbayes.inference.algorithms.components.settings import Count, Positive
from pyro_pfedbayes.inference.beliefs.points import THETA
from pyro_pfedbayes.inference.engine.client_step import GradientEngine
from pyro_pfedbayes.inference.engine.point_descent import Descent, batch, descend, nll


@dataclass(frozen=True)
class PerFedAvg(PointMethod):
    """Settings of Per-FedAvg: minimise the mean of F_i(w - alpha grad F_i(w)).

    A local step takes the next minibatches of the client: D for the inner step u = w - alpha grad f(w; D), D' for the
    outer one at u (and D'' for the Hessian-free form, which needs three); R of ``local_steps`` counts minibatches, as
    for other methods, so a round has R/2 (R/3) outer steps.

    Attributes:
        alpha: Length of the inner step; the authors' experiments take 0.001 to 0.01 for networks.
        variant: ``"first-order"`` leaves the Hessian out; ``"hessian-free"`` takes the product of Hessian and
            gradient from a central difference of gradients.
        delta: Half the width of that difference.
        personal_steps: Gradient steps of the personal model from the server's weights, on training examples; the
            method's own is one.
        lr: Length of the outer step (the authors' beta).
    """

    alpha: Positive = 0.01
    variant: Literal["first-order", "hessian-free"] = "first-order"
    delta: Positive = 1e-3
    personal_steps: Count = 1

    name = "per-fedavg"
    models = ("personal",)
    copied = (PERSONAL,)

    @property
    def _batches(self) -> int:
        """Minibatches of one outer step."""
        return 2 if self.variant == "first-order" else 3

    def gradient_steps(self, at: Round) -> int:
        """One gradient for the inner and one for the outer step; the Hessian-free form takes two more."""
        outer = max(1, self.local_steps // self._batches)
        return outer * (2 if self.variant == "first-order" else 4)

    def client_update(
        self, engine: GradientEngine, server: Tensors, cohort: Cohort, at: Round
    ) -> ClientUpdate:
        """Outer steps from the server's weights."""
        theta = self.starting_weights(engine.model, server, cohort).clone()
        descent, plan = self.descent(at), cohort.plan
        total = theta.new_zeros(len(theta))
        outer = max(1, plan.steps // self._batches)
        for k in range(outer):
            first = k * self._batches
            # A plan too short for fresh batches takes the last one again.
            steps = (min(first + j, plan.steps - 1) for j in range(self._batches))
            batches = [batch(plan, step) for step in steps]
            loss, direction = self._meta_gradient(engine, theta, batches)
            theta.sub_(direction + self.weight_decay * theta, alpha=descent.rate(first))
            total += loss
        return ClientUpdate({}, {THETA: theta}, total / outer)

    def _meta_gradient(
        self, engine: GradientEngine, theta: Tensor, batches: list[dict[str, Tensor | None]]
    ) -> tuple[Tensor, Tensor]:
        """The loss after the inner step ``[S]``, and the direction of the outer one ``[S, P]``."""

        def gradient(where: Tensor, examples: dict[str, Tensor | None]) -> tuple[Tensor, Tensor]:
            loss, found = engine.differentiate(nll, {THETA: where}, examples)
            return loss, found[THETA]

        inner = gradient(theta, batches[0])[1]
        loss, v = gradient(theta - self.alpha * inner, batches[1])
        if self.variant == "first-order":
            return loss, v
        ahead = gradient(theta + self.delta * v, batches[2])[1]
        behind = gradient(theta - self.delta * v, batches[2])[1]
        return loss, v - self.alpha * (ahead - behind) / (2 * self.delta)

    def personalize(self, engine: GradientEngine, server: Tensors, cohort: Cohort) -> Tensors:
        """Inner steps from the server's weights."""
        start = self.starting_weights(engine.model, server, cohort)
        return {PERSONAL: descend(engine, start, cohort.plan, Descent(lambda step: self.alpha))[0]}
