"""Clients to project, dense references, and a minimiser to compare with."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributions import MultivariateNormal, kl_divergence

from pyro_pfedbayes.families import (
    ClientFamily,
    FullRankNormal,
    GaussianRows,
    LowRankNormal,
    MeanFieldNormal,
)

CLIENTS: tuple[ClientFamily, ...] = (MeanFieldNormal(), LowRankNormal(2), FullRankNormal())
WEIGHTS = torch.tensor([1.0, 2.0, 0.5, 1.5, 3.0])  # of five clients


def params_of(
    family: ClientFamily,
    clients: int = 5,
    num_weights: int = 4,
    spread: float = 1.0,
    dtype: torch.dtype = torch.float64,
) -> dict[str, Tensor]:
    """Beliefs near nothing in particular, with clear correlations where the family has any."""
    stream = torch.Generator().manual_seed(7)
    loc = spread * torch.randn(clients, num_weights, generator=stream, dtype=dtype)
    scale = 0.2 + torch.rand(clients, num_weights, generator=stream, dtype=dtype)
    params = family.start(loc, scale)
    return {
        name: value + 0.5 * torch.randn(value.shape, generator=stream, dtype=dtype)
        for name, value in params.items()
    }


def rows_of(family: ClientFamily, **options: int | float | torch.dtype) -> GaussianRows:
    return family.rows(params_of(family, **options))  # type: ignore[arg-type]


def covariances(rows: GaussianRows) -> Tensor:
    """Dense ``[S, T, T]``."""
    dense = torch.diag_embed(rows.scale.square())
    return dense if rows.factor is None else dense + rows.factor @ rows.factor.mT


def mean_kl(rows: GaussianRows, weights: Tensor, loc: Tensor, covariance: Tensor) -> Tensor:
    """Σ p_i KL(q_i‖N(loc, covariance)) by torch's dense formula."""
    q = MultivariateNormal(rows.loc, covariances(rows))
    return (weights / weights.sum()) @ kl_divergence(q, MultivariateNormal(loc, covariance))


def minimise(objective: Callable[..., Tensor], *start: Tensor) -> tuple[list[Tensor], float]:
    """Minimise over unconstrained tensors by LBFGS until the gradient is gone."""
    tensors = [value.detach().clone().requires_grad_() for value in start]
    optimizer = torch.optim.LBFGS(
        tensors,
        max_iter=2000,
        tolerance_grad=1e-10,
        tolerance_change=1e-14,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = objective(*tensors)
        value.backward()
        return value

    optimizer.step(closure)
    return [value.detach() for value in tensors], float(objective(*tensors).detach())
