"""The mean-field server: independent Gaussians, the paper's w."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyro.distributions as dist
from pyro.distributions import TorchDistribution
from torch import Tensor

from pyro_pfedbayes.families.base import LocScaleFamily
from pyro_pfedbayes.families.rows import GaussianRows, moments


@dataclass(frozen=True)
class MeanField(LocScaleFamily):
    """W = Π N(loc, scale²), by ``loc [T]`` and ``scale [T]``.

    The projection is exact for every Gaussian client: it matches mean and variance of each weight,
    loc = Σ p μ_i and scale² = Σ p [σ²_i + (μ_i - loc)²] (Zhang et al. 2022, section 3).

    Example:
        >>> import torch
        >>> rows = GaussianRows(torch.tensor([[0.0], [2.0]]), torch.ones(2, 1))
        >>> MeanField().project(rows, torch.ones(2), {})
        {'loc': tensor([1.]), 'scale': tensor([1.4142])}
    """

    name = "mean-field"

    def distribution(self, w: Mapping[str, Tensor]) -> TorchDistribution:
        """An ``Independent(Normal)`` of event shape ``[T]``."""
        return dist.Normal(w["loc"], w["scale"]).to_event(1)

    def project(
        self, rows: GaussianRows, weights: Tensor, previous: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Moment matching; ``previous`` is not used."""
        loc, scale = moments(rows, weights)
        return {"loc": loc, "scale": scale}
