"""Local training only: no client hears of another, the bound that any federation must beat."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from pyro_pfedbayes.inference.algorithm import (
    ClientUpdate,
    Cohort,
    Judged,
    Round,
    Tensors,
    Upload,
)
from pyro_pfedbayes.inference.algorithms.components.point import PointMethod
from pyro_pfedbayes.inference.beliefs.points import THETA
from pyro_pfedbayes.inference.engine.client_step import GradientEngine
from pyro_pfedbayes.inference.engine.point_descent import descend
from pyro_pfedbayes.models.declared import DeclaredModel


@dataclass(frozen=True)
class Local(PointMethod):
    """Settings of local training: each client carries on with its own weights; nothing is ever sent.

    The weights of the "global model" stay where they began.
    """

    name: ClassVar[str] = "local"
    models: ClassVar[tuple[Judged, ...]] = ("personal",)

    def client_update(
        self, engine: GradientEngine, server: Tensors, cohort: Cohort, at: Round
    ) -> ClientUpdate:
        """R steps from the client's own weights."""
        theta, loss = descend(engine, cohort.state[THETA], cohort.plan, self.descent(at))
        return ClientUpdate({THETA: theta}, {}, loss)

    def server_update(
        self, model: DeclaredModel, server: Tensors, uploads: Iterable[Upload], at: Round
    ) -> Tensors:
        """Nothing to learn from."""
        for _ in uploads:
            pass
        return server
