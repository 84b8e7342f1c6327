"""What clients send to the server: Gaussians over a flat vector of T weights, one row a client."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.gaussians.barycentre import barycentre, importance
from pyro_pfedbayes.gaussians.mean_field import MeanFieldGaussian

_BLOCK = 1 << 18  # float64 numbers of one temporary tensor: 2 MiB, which a cache holds


@dataclass(frozen=True, eq=False)
class GaussianRows:
    """S Gaussians N(loc, diag(scale²) + factor factorᵀ), one for each client.

    Tensors are detached: what is sent carries no gradient.

    Args:
        loc: Means ``[S, T]``.
        scale: Standard deviations ``[S, T]`` of the diagonal part, >= 0.
        factor: Low-rank part ``[S, T, R]``, or None. A full-rank client sends its Cholesky factor, R = T, and a
            scale of 0.

    Example:
        >>> rows = GaussianRows(torch.zeros(2, 3), torch.full((2, 3), 3.0), torch.full((2, 3, 1), 4.0))
        >>> rows.std[0]
        tensor([5., 5., 5.])
    """

    loc: Tensor
    scale: Tensor
    factor: Tensor | None = None

    def __post_init__(self) -> None:
        """Check shapes only: values would have to be fetched from the device."""
        if self.loc.dim() != 2 or self.scale.shape != self.loc.shape:
            shapes = f"{list(self.loc.shape)} and {list(self.scale.shape)}"
            raise UserError(f"rows have loc and scale of shapes {shapes}: give [S, T] for both")
        if self.factor is not None and (
            self.factor.dim() != 3 or self.factor.shape[:2] != self.loc.shape
        ):
            shapes = f"{list(self.factor.shape)} for loc {list(self.loc.shape)}"
            raise UserError(f"rows have a factor of shape {shapes}: give [S, T, R]")
        for name in ("loc", "scale", "factor"):
            value = getattr(self, name)
            object.__setattr__(self, name, None if value is None else value.detach())

    @property
    def clients(self) -> int:
        """S, the number of clients."""
        return self.loc.shape[0]

    @property
    def num_weights(self) -> int:
        """T, the number of weights of one client."""
        return self.loc.shape[1]

    @property
    def rank(self) -> int:
        """R, the number of columns of the low-rank part; 0 without one."""
        return 0 if self.factor is None else self.factor.shape[-1]

    @property
    def variance(self) -> Tensor:
        """Marginal variances ``[S, T]``."""
        diagonal = self.scale.square()
        return diagonal if self.factor is None else diagonal + self.factor.square().sum(-1)

    @property
    def std(self) -> Tensor:
        """Marginal standard deviations ``[S, T]``."""
        return self.scale if self.factor is None else self.variance.sqrt()

    def columns(self, block: slice) -> GaussianRows:
        """The weights in ``block`` of all clients, in float64."""
        return self._map(lambda value: value[:, block].double())

    @staticmethod
    def cat(parts: Sequence[GaussianRows]) -> GaussianRows:
        """Join the rows of several groups of clients, of equal T and R."""
        if len({(part.num_weights, part.rank) for part in parts}) != 1:
            sizes = [(part.num_weights, part.rank) for part in parts]
            raise UserError(f"rows have sizes (T, R) of {sizes}: give at least one, all alike")
        factors = [part.factor for part in parts if part.factor is not None]
        return GaussianRows(
            torch.cat([part.loc for part in parts]),
            torch.cat([part.scale for part in parts]),
            torch.cat(factors) if factors else None,
        )

    def select(self, index: Sequence[int] | Tensor) -> GaussianRows:
        """Rows of some clients, by their numbers, in that order."""
        chosen = torch.as_tensor(index, dtype=torch.int64, device=self.loc.device)
        return self._map(lambda value: value[chosen])

    def _map(self, change: Callable[[Tensor], Tensor]) -> GaussianRows:
        factor = None if self.factor is None else change(self.factor)
        return GaussianRows(change(self.loc), change(self.scale), factor)


def shares(rows: GaussianRows, weights: Tensor) -> Tensor:
    """Relative importance ``weights [S]``, >= 0, as shares that sum to 1, float64, on the rows' device."""
    p = importance(weights, rows.clients).to(rows.loc.device)
    return p / p.sum()


def moments(rows: GaussianRows, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation ``[T]`` of each weight over clients, as `pyro_pfedbayes.gaussians.barycentre`."""
    q = MeanFieldGaussian.unchecked({"theta": rows.loc}, {"theta": rows.std}, stacked=True)
    w = barycentre(q, weights)
    return w.loc["theta"], w.scale["theta"]


def column_blocks(rows: GaussianRows, copies: int) -> Iterator[slice]:
    """Ranges of weights so small that ``copies`` float64 numbers a client and weight stay within 2 MiB."""
    width = max(1, _BLOCK // (rows.clients * copies))
    for start in range(0, rows.num_weights, width):
        yield slice(start, start + width)
