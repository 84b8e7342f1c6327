"""Families of a client's belief q: Gaussians of diagonal, low-rank plus diagonal, and full covariance."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import pyro.distributions as dist
import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.nn.functional import softplus

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.families.base import ClientFamily
from pyro_pfedbayes.randomness import generator

FULL_RANK_LIMIT = 3000
FACTOR_SHARE = 0.01  # of the variance, at the start of a low-rank belief


def inverse_softplus(scale: Tensor) -> Tensor:
    """The rho whose softplus is ``scale`` (> 0), without overflow for large scales."""
    return scale + torch.log(-torch.expm1(-scale))


@dataclass(frozen=True)
class MeanFieldNormal(ClientFamily):
    """Independent Gaussians N(loc, softplus(rho)²), by ``loc [T]`` and ``rho [T]``.

    Example:
        >>> family = MeanFieldNormal()
        >>> q = family.start(torch.zeros(3), torch.full((3,), 0.5))
        >>> family.std(q)
        tensor([0.5000, 0.5000, 0.5000])
    """

    name = "mean-field"

    def sizes(self, num_weights: int) -> dict[str, int]:
        return {"loc": num_weights, "rho": num_weights}

    def start(self, loc: Tensor, scale: Tensor) -> dict[str, Tensor]:
        return {"loc": loc.clone(), "rho": inverse_softplus(scale)}

    def distribution(self, params: Mapping[str, Tensor]) -> TorchDistribution:
        return dist.Normal(params["loc"], softplus(params["rho"])).to_event(1)

    def spread(self, params: Mapping[str, Tensor]) -> tuple[Tensor, None]:
        return softplus(params["rho"]), None


@dataclass(frozen=True)
class LowRankNormal(ClientFamily):
    """Gaussians of covariance diag(softplus(rho)²) + F Fᵀ, by ``loc [T]``, ``rho [T]`` and ``factor [T * rank]``.

    ``factor`` is F ``[T, rank]`` row by row.

    Args:
        rank: Number of columns of F, >= 1 and below the number of weights.

    Example:
        >>> LowRankNormal(2).sizes(10)
        {'loc': 10, 'rho': 10, 'factor': 20}
    """

    rank: int

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise UserError(f"rank of a low-rank belief is {self.rank}: give at least 1")

    name = "low-rank"

    def check(self, num_weights: int) -> None:
        if self.rank >= num_weights:
            raise UserError(
                f"rank {self.rank} of a low-rank belief is not below its {num_weights} weights: "
                "give a smaller one, or take FullRankNormal()"
            )

    def sizes(self, num_weights: int) -> dict[str, int]:
        return {"loc": num_weights, "rho": num_weights, "factor": num_weights * self.rank}

    def start(self, loc: Tensor, scale: Tensor) -> dict[str, Tensor]:
        """Parameters of means ``loc [..., T]`` and marginal standard deviations ``scale [..., T]``.

        F starts with a hundredth of the variance, in fixed directions that differ from column to column: at F = 0
        its gradient vanishes, and equal columns would stay equal.
        """
        num_weights = loc.shape[-1]
        pattern = torch.randn(
            num_weights, self.rank, generator=generator(0, "low-rank start"), dtype=torch.float64
        )
        pattern = pattern / pattern.norm(dim=-1, keepdim=True)
        factor = math.sqrt(FACTOR_SHARE) * scale.unsqueeze(-1) * pattern.to(scale)
        rho = inverse_softplus(math.sqrt(1.0 - FACTOR_SHARE) * scale)
        return {"loc": loc.clone(), "rho": rho, "factor": factor.flatten(-2)}

    def distribution(self, params: Mapping[str, Tensor]) -> TorchDistribution:
        scale, factor = self.spread(params)
        return dist.LowRankMultivariateNormal(params["loc"], factor, scale.square())

    def noise_size(self, num_weights: int) -> int:
        return num_weights + self.rank

    def spread(self, params: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        return softplus(params["rho"]), params["factor"].unflatten(-1, (-1, self.rank))


@dataclass(frozen=True)
class FullRankNormal(ClientFamily):
    """Gaussians of any covariance L Lᵀ, by ``loc [T]`` and ``tril [T (T + 1) / 2]``.

    ``tril`` is the lower triangle row by row; the diagonal of L is the softplus of what stands there.

    Example:
        >>> family = FullRankNormal()
        >>> q = family.start(torch.zeros(2), torch.tensor([1.0, 2.0]))
        >>> family.distribution(q).covariance_matrix
        tensor([[1., 0.],
                [0., 4.]])
    """

    name = "full-rank"

    def check(self, num_weights: int) -> None:
        if num_weights > FULL_RANK_LIMIT:
            gib = 4 * num_weights**2 / 2**30
            raise UserError(
                f"a full-rank belief over {num_weights:,} weights has a T x T matrix of {gib:,.1f} GiB (float32) "
                f"a client, and more of them in training: at most {FULL_RANK_LIMIT} weights; take "
                "LowRankNormal(rank) or MeanFieldNormal()"
            )

    def sizes(self, num_weights: int) -> dict[str, int]:
        return {"loc": num_weights, "tril": num_weights * (num_weights + 1) // 2}

    def start(self, loc: Tensor, scale: Tensor) -> dict[str, Tensor]:
        dense = torch.diag_embed(inverse_softplus(scale))
        row, column = torch.tril_indices(loc.shape[-1], loc.shape[-1], device=loc.device)
        return {"loc": loc.clone(), "tril": dense[..., row, column]}

    def distribution(self, params: Mapping[str, Tensor]) -> TorchDistribution:
        return dist.MultivariateNormal(params["loc"], scale_tril=_unpack(params))

    def spread(self, params: Mapping[str, Tensor]) -> tuple[None, Tensor]:
        return None, _unpack(params)


def _unpack(params: Mapping[str, Tensor]) -> Tensor:
    """L ``[..., T, T]``; reads by position, as vmap has no rule for writing into a fresh matrix."""
    num_weights, packed = params["loc"].shape[-1], params["tril"]
    index = torch.arange(num_weights, device=packed.device)
    row, column = index.unsqueeze(1), index.unsqueeze(0)
    # Above the diagonal any position will do, so that of the mirrored entry: it is set to 0 below.
    position = torch.maximum(row, column) * (torch.maximum(row, column) + 1) // 2
    position = position + torch.minimum(row, column)
    dense = packed.index_select(-1, position.flatten()).unflatten(-1, (num_weights, num_weights))
    dense = torch.where(row == column, softplus(dense), dense)
    return torch.where(row >= column, dense, torch.zeros_like(dense))
