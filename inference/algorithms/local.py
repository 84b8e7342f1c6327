"""Local training only: no client hears of another, the bound that any federation must beat."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from pyro_pfedbayes.inference.algorithm import Cohort, Tensors
from pyro_pfedbayes.inference.algorithms.components.point import PointMethod
from pyro_pfedbayes.inference.beliefs.points import THETA
from pyro_pfedbayes.models.declared import DeclaredModel


@dataclass(frozen=True)
class Local(PointMethod):
    """Settings of local training: each client carries on with its own weights; nothing is ever sent.

    The weights of the "global model" stay where they began.
    """

    name = "local"
    models = ("personal",)

    def starting_weights(self, model: DeclaredModel, server: Tensors, cohort: Cohort) -> Tensor:
        """The client's own."""
        return cohort.state[THETA]

    def parted(self, model: DeclaredModel, theta: Tensor) -> tuple[Tensors, Tensors]:
        """All stay."""
        return {THETA: theta}, {}
