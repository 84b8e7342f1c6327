"""LG-FedAvg (Liang et al., 2020): low layers of each client's own, common top layers."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from pyro_pfedbayes.inference.algorithms.fedper import FedPer
from pyro_pfedbayes.models.declared import DeclaredModel


@dataclass(frozen=True)
class LGFedAvg(FedPer):
    """Settings of LG-FedAvg: `FedPer` the other way round, ``head`` being what is shared.

    The official code begins at weights that FedAvg has trained for hundreds of rounds; here all begin at the model's
    start, as for every other method.
    """

    name = "lg-fedavg"

    def private(self, model: DeclaredModel) -> Tensor:
        """Which weights stay with a client, bool ``[P]``: all but the head's."""
        return ~super().private(model)
