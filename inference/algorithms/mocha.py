"""Multi-task learning of networks in the manner of MOCHA (Smith et al., NeurIPS 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from pyro_pfedbayes.inference.algorithm import ClientUpdate, Cohort, Round, Tensors
from pyro_pfedbayes.inference.algorithms.components.client_weights import (
    ROWS,
    StoringMethod,
    stored_rows,
)
from pyro_pfedbayes.inference.algorithms.components.settings import NonNegative
from pyro_pfedbayes.inference.beliefs.points import THETA
from pyro_pfedbayes.inference.engine.client_step import GradientEngine
from pyro_pfedbayes.inference.engine.point_descent import descend

JITTER = 1e-6


def coupling(theta: Tensor, relationship: str) -> Tensor:
    """The matrix A ``[M, M]`` of the penalty tr(W A W^T) over clients, the columns of W being their weights.

    ``"mean"``: A = I - 11^T / M, the squared distances from the mean; ``"learned"``: the inverse of
    (W^T W)^(1/2) / tr (W^T W)^(1/2) (Zhang & Yeung 2010).

    Example:
        >>> coupling(torch.zeros(2, 3), "mean")
        tensor([[ 0.5000, -0.5000],
                [-0.5000,  0.5000]])
    """
    clients = len(theta)
    one = torch.eye(clients, dtype=theta.dtype, device=theta.device)
    if relationship == "mean":
        return one - 1.0 / clients
    values, vectors = torch.linalg.eigh((theta @ theta.T).double())
    root = values.clamp_min(0.0).sqrt()
    share = root / root.sum() + JITTER
    inverse: Tensor = (vectors / share) @ vectors.T
    return inverse.to(theta.dtype)


@dataclass(frozen=True)
class Mocha(StoringMethod):
    """Settings of multi-task learning: minimise sum F_i(w_i) + lam tr(W A W^T) + ridge |W|^2.

    MOCHA itself is a primal-dual solver for convex losses; for networks each client follows the gradient of its own
    column while the others' stand still for a round. The server stores all weights and makes A (`coupling`).
    """

    lam: NonNegative = 0.01  # weight of the coupling; 0 is local training
    ridge: NonNegative = 0.0  # weight of the squared norm
    relationship: Literal["mean", "learned"] = "mean"  # how A is made, see `coupling`

    name = "mocha"

    def client_update(
        self, engine: GradientEngine, server: Tensors, cohort: Cohort, at: Round
    ) -> ClientUpdate:
        """R steps from the client's own weights, coupled to those of the others."""
        theta = cohort.state[THETA]
        own = theta.new_zeros(len(theta), 1)
        others = torch.zeros_like(theta)
        if ROWS in server:
            rows, places, at_rows = stored_rows(server, cohort.clients)
            matrix = coupling(rows, self.relationship)
            own[places] = matrix.diagonal()[at_rows, None]
            others[places] = (matrix @ rows)[at_rows] - own[places] * rows[at_rows]

        def pull(v: Tensor) -> Tensor:
            return 2 * self.lam * (own * v + others) + 2 * self.ridge * v

        theta, loss = descend(engine, theta, cohort.plan, self.descent(at), pull=pull)
        return ClientUpdate(*self.parted(engine.model, theta), loss)
