"""FedRep (Collins et al., ICML 2021): heads first, then the common body, in turns."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pyro_pfedbayes.inference.algorithm import ClientUpdate, Cohort, Round, Tensors
from pyro_pfedbayes.inference.algorithms.components.point import PERSONAL
from pyro_pfedbayes.inference.algorithms.components.settings import Count
from pyro_pfedbayes.inference.algorithms.components.split import AlternatingMethod
from pyro_pfedbayes.inference.engine.client_step import GradientEngine
from pyro_pfedbayes.inference.engine.point_descent import descend


@dataclass(frozen=True)
class FedRep(AlternatingMethod):
    """Settings of FedRep.

    Of a round's R minibatches the first train the head under the server's body, the others the body under that head;
    the body is averaged.
    """

    personal_steps: Count = 10
    """Minibatches on which each head is fitted to the averaged body for its personal model."""

    name = "fedrep"

    def client_update(
        self, engine: GradientEngine, server: Tensors, cohort: Cohort, at: Round
    ) -> ClientUpdate:
        """Head, then body."""
        private, descent, heads = self.private(engine.model), self.descent(at), self.heads
        index = cohort.plan.index
        first, rest = (replace(cohort.plan, index=i) for i in (index[:, :heads], index[:, heads:]))
        theta = self.starting_weights(engine.model, server, cohort)
        theta, _ = descend(engine, theta, first, descent, trained=private)
        later = replace(descent, rate=lambda step: descent.rate(heads + step))
        theta, loss = descend(engine, theta, rest, later, trained=~private)
        return ClientUpdate(*self.parted(engine.model, theta), loss)

    def personalize(self, engine: GradientEngine, server: Tensors, cohort: Cohort) -> Tensors:
        """Each head fitted to the averaged body."""
        start = self.starting_weights(engine.model, server, cohort)
        descent, private = self.constant_descent(self.lr), self.private(engine.model)
        return {PERSONAL: descend(engine, start, cohort.plan, descent, trained=private)[0]}
