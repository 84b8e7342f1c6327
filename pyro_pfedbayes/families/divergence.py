"""KL divergences in closed form between what clients believe and what a server holds."""

from __future__ import annotations

import math
from typing import Any

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import (
    Independent,
    Laplace,
    LowRankMultivariateNormal,
    MultivariateNormal,
    Normal,
    kl_divergence,
)

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.families.elementwise import folded_mean
from pyro_pfedbayes.families.mixture import GaussianMixture
from pyro_pfedbayes.families.precision import half_log_det, mahalanobis, precision_diagonal

_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


def divergence(q: TorchDistribution, p: TorchDistribution) -> Tensor:
    """KL(q‖p) in nats, in closed form; for a `GaussianMixture` p a closed upper bound of it.

    Closed are: any Gaussian q over vectors (independent, low-rank plus diagonal, or by a Cholesky factor) against each
    of these, and against independent Laplace distributions; and whatever torch has a formula for, under any nesting
    of ``Independent``. Runs under ``torch.func.vmap`` where validation is off.

    For a mixture p = Σ π_k w_k the result is -log Σ_k π_k exp(-KL(q‖w_k)) >= KL(q‖p). It is Jensen's bound, log
    Σ_k π_k w_k(θ) >= Σ_k r_k log(π_k w_k(θ) / r_k), at its best r (Hershey and Olsen 2007, section 7). It is tight when
    q lies at one of components far apart, and when all components are equal.

    Args:
        q: What is integrated over, batch shape ``B``.
        p: Of the same event shape; its batch shape broadcasts with that of q.

    Returns:
        Batch shape of q and p broadcast.

    Example:
        >>> q = Independent(Normal(torch.zeros(3), torch.ones(3)), 1)
        >>> p = LowRankMultivariateNormal(torch.ones(3), torch.zeros(3, 1), torch.ones(3))
        >>> round(float(divergence(q, p)), 4)
        1.5
    """
    if q.event_shape != p.event_shape:
        shapes = f"{list(q.event_shape)} and {list(p.event_shape)}"
        raise UserError(f"a divergence needs equal event shapes, not {shapes}")
    q_base, q_dims = _unwrap(q)
    p_base, p_dims = _unwrap(p)
    if q_dims == p_dims and isinstance(q_base, Normal) and isinstance(p_base, Normal | Laplace):
        return _sum(kl_divergence(q_base, p_base), q_dims)
    if isinstance(q_base, _VECTOR) or (isinstance(q_base, Normal) and q_dims == 1):
        if isinstance(p_base, GaussianMixture):
            return _mixture_bound(q, p_base)
        if isinstance(p_base, Normal):
            return _normal_cross_entropy(q, p_base).sub(q.entropy())
        if isinstance(p_base, Laplace):
            return _laplace_cross_entropy(q, p_base).sub(q.entropy())
        if isinstance(p_base, _VECTOR):
            return _vector_cross_entropy(q_base, p_base).sub(q.entropy())
    if q_dims != p_dims:
        raise NotImplementedError(
            f"no closed divergence of {type(q_base).__name__} to {type(p_base).__name__}"
        )
    return _sum(kl_divergence(q_base, p_base), q_dims)


_VECTOR = (LowRankMultivariateNormal, MultivariateNormal)


def _unwrap(distribution: Any) -> tuple[Any, int]:
    """The innermost distribution, and how many of its batch dimensions are part of the event."""
    dims = 0
    while isinstance(distribution, Independent):
        dims += distribution.reinterpreted_batch_ndims
        distribution = distribution.base_dist
    return distribution, dims


def _sum(value: Tensor, dims: int) -> Tensor:
    return value.flatten(-dims).sum(-1) if dims else value


def _normal_cross_entropy(q: TorchDistribution, p: Any) -> Tensor:
    """-E_q log p(θ), which takes only the marginal moments of q."""
    distance = (q.variance + (q.mean - p.loc).square()) / p.scale.square()
    total: Tensor = (0.5 * distance + p.scale.log() + _HALF_LOG_2PI).sum(-1)
    return total


def _laplace_cross_entropy(q: TorchDistribution, p: Any) -> Tensor:
    sigma = q.variance.sqrt()
    z = (q.mean - p.loc) / sigma
    total: Tensor = (sigma * folded_mean(z) / p.scale + (2.0 * p.scale).log()).sum(-1)
    return total


def _mixture_bound(q: TorchDistribution, p: GaussianMixture) -> Tensor:
    base, _ = _unwrap(q)
    if isinstance(base, Normal):
        # Weight by weight: with many weights the difference of two large sums would lose digits.
        one = Normal(base.loc.unsqueeze(-2), base.scale.unsqueeze(-2), validate_args=False)
        each = kl_divergence(one, p.component_distribution.base_dist).sum(-1)
    else:
        distance = q.variance.unsqueeze(-2) + (q.mean.unsqueeze(-2) - p.loc).square()
        distance = 0.5 * distance / p.scale.square() + p.scale.log() + _HALF_LOG_2PI
        each = distance.sum(-1) - q.entropy().unsqueeze(-1)
    return -torch.logsumexp(p.log_shares - each, -1)


def _vector_cross_entropy(q: Any, p: Any) -> Tensor:
    """-E_q log p(θ) for Gaussians, through the diagonal and the factor of Cov(q)."""
    if isinstance(q, Normal):
        diagonal, factor = q.scale.square(), None
    elif isinstance(q, LowRankMultivariateNormal):
        diagonal, factor = q._unbroadcasted_cov_diag, q._unbroadcasted_cov_factor
    else:
        diagonal, factor = None, q._unbroadcasted_scale_tril
    # ½ tr(P E[(θ - m)(θ - m)ᵀ]), P the precision of p: the mean's offset and the factor's columns alike.
    offset: Tensor = (q.mean - p.loc).unsqueeze(-1)
    total = mahalanobis(p, offset)
    if diagonal is not None:
        total = total + (precision_diagonal(p) * diagonal).sum(-1)
    if factor is not None:
        total = total + mahalanobis(p, factor)
    return 0.5 * total + half_log_det(p) + _HALF_LOG_2PI * offset.shape[-2]
