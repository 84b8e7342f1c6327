"""FedAvg (McMahan et al., AISTATS 2017): clients train the common weights, the server averages them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pyro_pfedbayes.inference.algorithm import ClientUpdate, Cohort, Judged, Round, Tensors
from pyro_pfedbayes.inference.algorithms.components.point import PointMethod
from pyro_pfedbayes.inference.beliefs.points import THETA
from pyro_pfedbayes.inference.engine.client_step import GradientEngine
from pyro_pfedbayes.inference.engine.point_descent import descend


@dataclass(frozen=True)
class FedAvg(PointMethod):
    """Settings of FedAvg.

    A round: client i makes R steps of stochastic gradient descent on its mean loss from the server's w, and sends w_i;
    w becomes the mean of the w_i, weighted by n_i. Nothing stays with a client, and there are no personal models.
    """

    name: ClassVar[str] = "fedavg"
    models: ClassVar[tuple[Judged, ...]] = ("global",)

    def client_update(
        self, engine: GradientEngine, server: Tensors, cohort: Cohort, at: Round
    ) -> ClientUpdate:
        """R steps from the server's weights."""
        start = server[THETA].expand(len(cohort.clients), -1)
        theta, loss = descend(engine, start, cohort.plan, self.descent(at))
        return ClientUpdate({}, {THETA: theta}, loss)
