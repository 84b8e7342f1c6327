"""The precision P of a Gaussian with a Cholesky factor L, or of covariance D + W Wᵀ with L Lᵀ = I + Wᵀ D⁻¹ W."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributions import LowRankMultivariateNormal
from torch.linalg import solve_triangular


def half_log_det(p: Any) -> Tensor:
    """Half the log determinant of the covariance, ``[...]``."""
    low_rank = isinstance(p, LowRankMultivariateNormal)
    tril: Tensor = p._capacitance_tril if low_rank else p._unbroadcasted_scale_tril
    half = tril.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    return half + 0.5 * p._unbroadcasted_cov_diag.log().sum(-1) if low_rank else half


def precision_diagonal(p: Any) -> Tensor:
    """The diagonal of P ``[..., T]``; by Woodbury P = D⁻¹ - Hᵀ H with H = L⁻¹ Wᵀ D⁻¹."""
    if not isinstance(p, LowRankMultivariateNormal):
        tril: Tensor = p._unbroadcasted_scale_tril
        identity = torch.eye(tril.shape[-1], dtype=tril.dtype, device=tril.device)
        inverse: Tensor = solve_triangular(tril, identity, upper=False)
        return inverse.square().sum(-2)
    diagonal: Tensor = p._unbroadcasted_cov_diag
    scaled = p._unbroadcasted_cov_factor.mT / diagonal.unsqueeze(-2)
    half: Tensor = solve_triangular(p._capacitance_tril, scaled, upper=False)
    return diagonal.reciprocal() - half.square().sum(-2)


def mahalanobis(p: Any, x: Tensor) -> Tensor:
    """Tr(xᵀ P x) ``[...]`` of columns ``x [..., T, K]``.

    With W it is the least of |D^-½ (x - W z)|² + |z|² over z. Woodbury's difference of two large numbers would lose
    every digit in float32 where clients are far apart.
    """
    half: Tensor
    if not isinstance(p, LowRankMultivariateNormal):
        half = solve_triangular(p._unbroadcasted_scale_tril, x, upper=False)
        return half.square().sum((-2, -1))
    factor: Tensor = p._unbroadcasted_cov_factor
    diagonal: Tensor = p._unbroadcasted_cov_diag
    scaled = factor.mT / diagonal.unsqueeze(-2)
    half = solve_triangular(p._capacitance_tril, scaled @ x, upper=False)
    z: Tensor = solve_triangular(p._capacitance_tril.mT, half, upper=True)
    rest = (x - factor @ z).square() / diagonal.unsqueeze(-1)
    return rest.sum((-2, -1)) + z.square().sum((-2, -1))
