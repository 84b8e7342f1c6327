"""FedPer (Arivazhagan et al., 2019): a common body, and a head of each client's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pyro_pfedbayes.inference.algorithm import ClientUpdate, Cohort, Round, Tensors
from pyro_pfedbayes.inference.algorithms.components.split import OWN, SplitMethod
from pyro_pfedbayes.inference.beliefs.points import THETA
from pyro_pfedbayes.inference.engine.client_step import GradientEngine
from pyro_pfedbayes.inference.engine.point_descent import descend


@dataclass(frozen=True)
class FedPer(SplitMethod):
    """Settings of FedPer: body and head learn together; the body is averaged, the head never leaves its client.

    The personal model is the averaged body under the client's head.
    """

    name: ClassVar[str] = "fedper"

    def client_update(
        self, engine: GradientEngine, server: Tensors, cohort: Cohort, at: Round
    ) -> ClientUpdate:
        """R steps on all weights."""
        start = self.joined(engine.model, server, cohort.state[OWN])
        theta, loss = descend(engine, start, cohort.plan, self.descent(at))
        private = self.private(engine.model)
        return ClientUpdate({OWN: theta[:, private]}, {THETA: theta[:, ~private]}, loss)
