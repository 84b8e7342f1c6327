"""FedPer (Arivazhagan et al., 2019): a common body, and a head of each client's own."""

from __future__ import annotations

from dataclasses import dataclass

from pyro_pfedbayes.inference.algorithms.components.split import SplitMethod


@dataclass(frozen=True)
class FedPer(SplitMethod):
    """Settings of FedPer: body and head learn together; the body is averaged, the head never leaves its client.

    The personal model is the averaged body under the client's head.
    """

    name = "fedper"
