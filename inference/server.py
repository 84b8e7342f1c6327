"""Server rules: from the clients' uploads to the next w, streamed over chunks of clients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from pyro_pfedbayes.gaussian import MeanFieldGaussian
from pyro_pfedbayes.moments import MomentAccumulator

__all__ = ["MeanAccumulator", "closed_form", "momentum_step"]


def closed_form(uploads: Iterable[tuple[Tensor, Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """The minimiser of mean_i KL(q^i‖w) (Zhang et al. 2022, section 3).

    Args:
        uploads: Chunks of means ``[S, T]``, standard deviations ``[S, T]`` and weights ``[S]``.

    Returns:
        Mean ``[T]`` and standard deviation ``[T]`` of w.
    """
    moments = MomentAccumulator()
    for loc, scale, weights in uploads:
        q = MeanFieldGaussian.unchecked({"theta": loc}, {"theta": scale}, stacked=True)
        moments.add(q, weights)
    w = moments.result()
    return w.loc["theta"], w.scale["theta"]


def momentum_step(previous: Tensor, average: Tensor, beta: float) -> Tensor:
    """V <- (1 - beta) v + beta mean_i v_i, the server's step of Algorithm 1 (Zhang et al. 2022, section 4)."""
    return (1.0 - beta) * previous + beta * average


class MeanAccumulator:
    """Weighted mean over clients of named tensors, in float64 and in memory that does not grow with their number.

    Example:
        >>> mean = MeanAccumulator()
        >>> mean.add({"v": torch.tensor([[1.0], [2.0]])}, torch.tensor([1.0, 1.0]))
        >>> mean.add({"v": torch.tensor([[6.0]])}, torch.tensor([2.0]))
        >>> mean.result()["v"]
        tensor([3.7500])
    """

    def __init__(self) -> None:
        self._totals: dict[str, Tensor] = {}
        self._dtypes: dict[str, torch.dtype] = {}
        self._weight = 0.0

    def add(self, rows: Mapping[str, Tensor], weights: Tensor) -> None:
        """Add rows ``[S, ...]`` with weights ``[S]``."""
        for name, tensor in rows.items():
            total = torch.einsum("s,s...->...", weights.double(), tensor.double())
            self._totals[name] = self._totals.get(name, 0.0) + total
            self._dtypes[name] = tensor.dtype
        self._weight += float(weights.sum())

    def result(self) -> dict[str, Tensor]:
        """The means ``[...]``, in the dtype that was added."""
        return {
            name: (total / self._weight).to(self._dtypes[name])
            for name, total in self._totals.items()
        }
