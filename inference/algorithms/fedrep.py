"""FedRep (Collins et al., ICML 2021): heads first, then the common body, in turns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from pyro_pfedbayes.data.clients import BatchPlan
from pyro_pfedbayes.inference.algorithm import ClientUpdate, Cohort, Round, Tensors
from pyro_pfedbayes.inference.algorithms.components.point import PERSONAL
from pyro_pfedbayes.inference.algorithms.components.split import OWN, SplitMethod, steps_for_head
from pyro_pfedbayes.inference.beliefs.points import THETA
from pyro_pfedbayes.inference.engine.client_step import GradientEngine
from pyro_pfedbayes.inference.engine.point_descent import Descent, descend


@dataclass(frozen=True)
class FedRep(SplitMethod):
    """Settings of FedRep.

    Of a round's R minibatches the first train the head under the server's body, the others the body under that head;
    the body is averaged.

    Attributes:
        head_steps: Minibatches for the head, below ``local_steps``; None for half of them.
        personal_steps: Minibatches on which each head is fitted to the averaged body for its personal model.
    """

    head_steps: int | None = None
    personal_steps: int = 10  # type: ignore[misc]

    name: ClassVar[str] = "fedrep"
    whole: ClassVar[tuple[str, ...]] = ("head_steps", "personal_steps")

    def __post_init__(self) -> None:
        super().__post_init__()
        steps_for_head(self.head_steps, self.local_steps)

    def client_update(
        self, engine: GradientEngine, server: Tensors, cohort: Cohort, at: Round
    ) -> ClientUpdate:
        """Head, then body."""
        private = self.private(engine.model)
        theta = self.joined(engine.model, server, cohort.state[OWN])
        descent, plan = self.descent(at), cohort.plan
        heads = steps_for_head(self.head_steps, self.local_steps)
        first, rest = _part(plan, 0, heads), _part(plan, heads, plan.steps)
        theta, _ = descend(engine, theta, first, descent, trained=private)
        later = replace(descent, rate=lambda step: descent.rate(heads + step))
        theta, loss = descend(engine, theta, rest, later, trained=~private)
        return ClientUpdate({OWN: theta[:, private]}, {THETA: theta[:, ~private]}, loss)

    def personalize(self, engine: GradientEngine, server: Tensors, cohort: Cohort) -> Tensors:
        """Each head fitted to the averaged body."""
        start = self.joined(engine.model, server, cohort.state[OWN])
        descent = Descent(lambda step: self.lr, self.momentum, self.weight_decay)
        private = self.private(engine.model)
        theta, _ = descend(engine, start, cohort.plan, descent, trained=private)
        return {PERSONAL: theta}


def _part(plan: BatchPlan, begin: int, end: int) -> BatchPlan:
    """Some steps of a plan."""
    return replace(plan, index=plan.index[:, begin:end])
