"""FedAvg (McMahan et al., AISTATS 2017): clients train the common weights, the server averages them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pyro_pfedbayes.inference.algorithm import Judged
from pyro_pfedbayes.inference.algorithms.components.point import PointMethod


@dataclass(frozen=True)
class FedAvg(PointMethod):
    """Settings of FedAvg.

    A round: client i makes R steps of stochastic gradient descent on its mean loss from the server's w, and sends w_i;
    w becomes the mean of the w_i, weighted by n_i. Nothing stays with a client, and there are no personal models.
    """

    name = "fedavg"
    models: ClassVar[tuple[Judged, ...]] = ("global",)
