"""The mean-field server: independent Gaussians, the paper's w."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyro.distributions as dist
import torch
from pyro.distributions import TorchDistribution
from torch import Tensor

from pyro_pfedbayes.families.base import ClientFamily
from pyro_pfedbayes.families.rows import GaussianRows, moments

__all__ = ["MeanField"]


@dataclass(frozen=True)
class MeanField:
    """W = Π N(loc, scale²), by ``loc [T]`` and ``scale [T]``.

    The projection is exact for every Gaussian client: it matches mean and variance of each weight,
    loc = Σ p μ_i and scale² = Σ p [σ²_i + (μ_i - loc)²] (Zhang et al. 2022, section 3).

    Example:
        >>> rows = GaussianRows(torch.tensor([[0.0], [2.0]]), torch.ones(2, 1))
        >>> MeanField().project(rows, torch.ones(2), {})
        {'loc': tensor([1.]), 'scale': tensor([1.4142])}
    """

    @property
    def name(self) -> str:
        """``mean-field``."""
        return "mean-field"

    def check(self, client_family: ClientFamily, num_weights: int) -> None:
        """What the client can hold, the server can.

        Raises:
            UserError: If the client's family refuses the size.
        """
        client_family.check(num_weights)

    def start(self, loc: Tensor, scale: Tensor) -> dict[str, Tensor]:
        """W with means ``loc [T]`` and standard deviations ``scale [T]``."""
        return {"loc": loc.clone(), "scale": scale.clone()}

    def distribution(self, w: Mapping[str, Tensor]) -> TorchDistribution:
        """An ``Independent(Normal)`` of event shape ``[T]``."""
        return dist.Normal(w["loc"], w["scale"]).to_event(1)

    def project(
        self, rows: GaussianRows, weights: Tensor, previous: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Moment matching; ``previous`` is not used.

        Raises:
            UserError: If the weights are not fit to be importances.
        """
        loc, scale = moments(rows, weights)
        return {"loc": loc, "scale": scale}

    def mean(self, w: Mapping[str, Tensor]) -> Tensor:
        """Means ``[T]``."""
        return w["loc"]

    def std(self, w: Mapping[str, Tensor]) -> Tensor:
        """Standard deviations ``[T]``."""
        return w["scale"]

    def nearest(self, w: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation ``[T]`` of the mean-field Gaussian nearest to w, argmin_q KL(q‖w)."""
        return w["loc"], w["scale"]

    def sample(self, w: Mapping[str, Tensor], generator: torch.Generator) -> Tensor:
        """One draw ``[T]``."""
        noise = torch.empty_like(w["loc"]).normal_(generator=generator)
        return w["loc"] + w["scale"] * noise
