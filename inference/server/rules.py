"""Server rules: from the clients' uploads to the next w, streamed over chunks of clients."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor

from pyro_pfedbayes.families import GaussianRows
from pyro_pfedbayes.gaussians.barycentre import MomentAccumulator
from pyro_pfedbayes.gaussians.mean_field import MeanFieldGaussian
from pyro_pfedbayes.models.declared import Declaration

Tensors = Mapping[str, Tensor]


def closed_form(uploads: Iterable[tuple[Tensor, Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """The minimiser of mean_i KL(q^i‖w) (Zhang et al. 2022, section 3), as mean and standard deviation ``[T]``.

    From chunks of means ``[S, T]``, standard deviations ``[S, T]`` and weights ``[S]``; it needs sums only, so memory
    does not grow with the clients.
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


def project(
    declared: Declaration, uploads: Iterable[tuple[Tensors, Tensor]], previous: Tensors
) -> dict[str, Tensor]:
    """The server's next state: the w of its family nearest to what clients sent, and averages of everything else.

    From chunks of what S clients sent with their weights ``[S]``, and the present w.
    """
    mean = MeanAccumulator()

    def gaussians() -> Iterator[tuple[Tensor, Tensor, Tensor | None, Tensor]]:
        for tensors, weights in uploads:
            sent = dict(tensors)
            yield sent.pop("loc"), sent.pop("scale"), sent.pop("factor", None), weights
            mean.add(sent, weights)

    if not declared.shared.shapes:
        return averaged(uploads)
    if declared.mean_field:
        loc, scale = closed_form((m, s, weights) for m, s, _, weights in gaussians())
        return {"loc": loc, "scale": scale, **mean.result()}
    *columns, weights = zip(*gaussians(), strict=True)
    rows = GaussianRows.cat([GaussianRows(*part) for part in zip(*columns, strict=True)])
    return {**declared.server.project(rows, torch.cat(weights), previous), **mean.result()}


def averaged(uploads: Iterable[tuple[Tensors, Tensor]]) -> dict[str, Tensor]:
    """Weighted means over clients of all that they sent."""
    mean = MeanAccumulator()
    for tensors, weights in uploads:
        mean.add(tensors, weights)
    return mean.result()


def averaged_into(theta: Tensor, where: Tensor, uploads: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
    """A copy of weights ``[P]`` with means over clients at some places, from chunks ``[S, places]`` and ``[S]``."""
    after = theta.clone()
    after[where] = averaged(({"theta": rows}, weights) for rows, weights in uploads)["theta"]
    return after


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
        means = {name: total / self._weight for name, total in self._totals.items()}
        return {name: mean.to(self._dtypes[name]) for name, mean in means.items()}
