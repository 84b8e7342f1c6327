"""FedProx (Li et al., MLSys 2020): FedAvg whose clients are held near the server's weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pyro_pfedbayes.inference.algorithm import ClientUpdate, Cohort, Round, Tensors
from pyro_pfedbayes.inference.algorithms.fedavg import FedAvg
from pyro_pfedbayes.inference.beliefs.points import THETA
from pyro_pfedbayes.inference.engine.client_step import GradientEngine
from pyro_pfedbayes.inference.engine.point_descent import descend


@dataclass(frozen=True)
class FedProx(FedAvg):
    """Settings of FedProx: a client minimises F_i(v) + (mu/2) |v - w|^2, w being the server's weights of the round.

    Attributes:
        mu: Weight of the proximal term, >= 0; 0 is FedAvg. The authors try 0.001, 0.01, 0.1 and 1.
    """

    mu: float = 0.01

    name: ClassVar[str] = "fedprox"
    not_negative: ClassVar[tuple[str, ...]] = ("mu",)

    def client_update(
        self, engine: GradientEngine, server: Tensors, cohort: Cohort, at: Round
    ) -> ClientUpdate:
        """R steps from the server's weights, pulled back to them."""
        start = server[THETA].expand(len(cohort.clients), -1)
        theta, loss = descend(
            engine,
            start,
            cohort.plan,
            self.descent(at),
            pull=lambda v: self.mu * (v - start),
        )
        return ClientUpdate({}, {THETA: theta}, loss)
