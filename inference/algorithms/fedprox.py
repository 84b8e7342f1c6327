"""FedProx (Li et al., MLSys 2020): FedAvg whose clients are held near the server's weights."""

from __future__ import annotations

from dataclasses import dataclass

from pyro_pfedbayes.inference.algorithms.components.settings import NonNegative
from pyro_pfedbayes.inference.algorithms.fedavg import FedAvg


@dataclass(frozen=True)
class FedProx(FedAvg):
    """Settings of FedProx: a client minimises F_i(v) + (mu/2) |v - w|^2, w being the server's weights of the round."""

    mu: NonNegative = 0.01
    """Weight of the proximal term; 0 is FedAvg. The authors try 0.001, 0.01, 0.1 and 1."""

    name = "fedprox"

    @property
    def proximal(self) -> float:
        """As set."""
        return self.mu
