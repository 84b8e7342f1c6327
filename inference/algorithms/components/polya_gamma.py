"""Binary classification by Gaussian processes with Pólya-Gamma auxiliary variables, in mean field.

With f ~ N(0, K) and labels y = ±1 under a logistic likelihood, Polson, Scott & Windle (2013) write
σ(y f) = ½ exp(κ f) E[exp(-ω f²/2)], κ = y/2, ω ~ PG(1, 0): given ω, f is Gaussian. The mean field q(f) q(ω) has
E[ω] = tanh(c/2) / (2c) with c² = E[f²] (Jaakkola & Jordan 1997; Wenzel et al. 2019).

Rows that are no examples have κ = ω = 0: nothing depends on them. All functions take leading batch dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

NODES = 20
"""Nodes of the Gauss-Hermite rule for predictive probabilities."""
LEAST = 1e-4
"""Below this c, ω is 1/4 to the last bit of a float32."""


def rbf(a: Tensor, b: Tensor, outputscale: float, lengthscale: float) -> Tensor:
    """``outputscale · exp(-|a - b|² / (2 lengthscale²))``, ``[n, m]`` of points ``[n, D]`` and ``[m, D]``."""
    squares = a.square().sum(-1)[..., :, None] + b.square().sum(-1)[..., None, :]
    gap = (squares - 2 * a @ b.mT).clamp_min(0)
    kernel: Tensor = outputscale * (-gap / (2 * lengthscale**2)).exp()
    return kernel


@dataclass(frozen=True, eq=False)
class Conditional:
    """p(f | y, ω), a Gaussian: its mean at the examples, and what predictions elsewhere are made of."""

    root: Tensor  # square root of ω, ``[..., n]``
    factor: Tensor
    """Cholesky factor of I + Ω^½ K Ω^½, ``[..., n, n]``; its eigenvalues are at least 1."""
    weights: Tensor  # a with E[f] = K a, ``[..., n]``
    mean: Tensor  # E[f], ``[..., n]``

    def at(self, cross: Tensor, prior: Tensor | float) -> tuple[Tensor, Tensor]:
        """Mean and variance ``[..., m]`` elsewhere, from kernels ``cross [..., n, m]`` and prior variances."""
        mean = (cross.mT @ self.weights[..., None]).squeeze(-1)
        return mean, self.variance(cross, prior)

    def variance(self, cross: Tensor, prior: Tensor | float) -> Tensor:
        """The variance alone."""
        half = torch.linalg.solve_triangular(self.factor, self.root[..., None] * cross, upper=False)
        variance: Tensor = (prior - half.square().sum(-2)).clamp_min(0)
        return variance


def conditional(kernel: Tensor, kappa: Tensor, omega: Tensor) -> Conditional:
    """The Gaussian posterior given ω >= 0: covariance (K⁻¹ + Ω)⁻¹, mean that times κ."""
    root = omega.sqrt()
    scaled = root[..., :, None] * kernel * root[..., None, :]
    eye = torch.eye(kernel.shape[-1], dtype=kernel.dtype, device=kernel.device)
    # The checked kind looks at values, which a recording cannot; the eigenvalues are at least 1 anyway.
    factor, _ = torch.linalg.cholesky_ex(eye + scaled)
    prior_mean = (kernel @ kappa[..., None]).squeeze(-1)
    solved = torch.cholesky_solve((root * prior_mean)[..., None], factor).squeeze(-1)
    weights = kappa - root * solved
    mean = (kernel @ weights[..., None]).squeeze(-1)
    return Conditional(root, factor, weights, mean)


def mean_field(kernel: Tensor, kappa: Tensor, iterations: int) -> Tensor:
    """Where so many rounds of q(f) and q(ω) in turns lead, from c = 0: c ``[..., n]``."""
    c, prior = torch.zeros_like(kappa), torch.diagonal(kernel, dim1=-2, dim2=-1)
    for _ in range(iterations):
        q = conditional(kernel, kappa, tilt(c, kappa))
        c = (q.mean.square() + q.variance(kernel, prior)).sqrt()
    return c


def tilt(c: Tensor, kappa: Tensor) -> Tensor:
    """E[ω] = tanh(c/2) / (2c) where there is an example, 0 elsewhere."""
    c = c.clamp_min(LEAST)
    return torch.where(kappa != 0, (c / 2).tanh() / (2 * c), 0.0)


def bound(kernel: Tensor, kappa: Tensor, c: Tensor) -> Tensor:
    """A lower bound of log p(y) in nats, ``[...]``, for any c; the mean field's own at its fixed point.

    Its gradient by the kernel at a fixed c is then that of the bound: c does best already.
    """
    c = c.clamp_min(LEAST)
    omega = tilt(c, kappa)
    q = conditional(kernel, kappa, omega)
    log_det = 2 * torch.diagonal(q.factor, dim1=-2, dim2=-1).log().sum(-1)
    gaussian = 0.5 * (kappa * q.mean).sum(-1) - 0.5 * log_det
    # log(2 cosh(c/2)) without overflow.
    each = omega * c.square() / 2 - c / 2 - F.softplus(-c)
    return gaussian + torch.where(kappa != 0, each, 0.0).sum(-1)


def mean_sigmoid(mean: Tensor, variance: Tensor) -> Tensor:
    """E[σ(f)] for f ~ N(mean, variance), by a Gauss-Hermite rule."""
    at, weight = (torch.as_tensor(v).to(mean) for v in _rule())
    f = mean[..., None] + (2 * variance)[..., None].sqrt() * at
    return f.sigmoid() @ weight


@cache
def _rule() -> tuple[np.ndarray, np.ndarray]:
    at, weight = np.polynomial.hermite.hermgauss(NODES)
    return at, weight / np.sqrt(np.pi)
