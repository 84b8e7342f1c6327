"""Families of beliefs: what a client may believe, what a server may hold, and how one becomes the other."""

from pyro_pfedbayes.families.base import ClientFamily, ServerFamily
from pyro_pfedbayes.families.clients import (
    FullRankNormal,
    LowRankNormal,
    MeanFieldNormal,
    inverse_softplus,
)
from pyro_pfedbayes.families.covariance import FullCovariance, LowRank
from pyro_pfedbayes.families.divergence import divergence
from pyro_pfedbayes.families.elementwise import Laplace, MeanField, StudentT
from pyro_pfedbayes.families.mixture import GaussianMixture, Mixture
from pyro_pfedbayes.families.rows import GaussianRows

__all__ = [
    "ELEMENTWISE",
    "ClientFamily",
    "FullCovariance",
    "FullRankNormal",
    "GaussianMixture",
    "GaussianRows",
    "Laplace",
    "LowRank",
    "LowRankNormal",
    "MeanField",
    "MeanFieldNormal",
    "Mixture",
    "ServerFamily",
    "StudentT",
    "divergence",
    "inverse_softplus",
]

ELEMENTWISE = (MeanField, Laplace, StudentT)
"""Servers whose weights are independent: their tensors are all ``[T]``, and may be given one a client, ``[S, T]``."""
