"""HeurFedAMP (Huang et al., AAAI 2021): each client is pulled to a mixture of the clients that resemble it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.inference.algorithm import (
    ClientUpdate,
    Cohort,
    Judged,
    Round,
    Tensors,
    Upload,
)
from pyro_pfedbayes.inference.algorithms.components.client_weights import held_rows, hold
from pyro_pfedbayes.inference.algorithms.components.point import PointMethod
from pyro_pfedbayes.inference.beliefs.points import THETA
from pyro_pfedbayes.inference.engine.client_step import GradientEngine
from pyro_pfedbayes.inference.engine.point_descent import descend
from pyro_pfedbayes.models.declared import DeclaredModel


def attention(theta: Tensor, sigma: float, own: float) -> Tensor:
    """How much each client takes of each other's weights: a softmax of their cosines.

    Args:
        theta: Weights ``[S, P]``.
        sigma: Sharpness of the softmax.
        own: What each takes of itself, in (0, 1).

    Returns:
        Rows that sum to 1, ``[S, S]``.

    Example:
        >>> attention(torch.eye(3), 1.0, 0.5)
        tensor([[0.5000, 0.2500, 0.2500],
                [0.2500, 0.5000, 0.2500],
                [0.2500, 0.2500, 0.5000]])
    """
    if len(theta) == 1:
        return torch.ones_like(theta[:, :1])
    unit = F.normalize(theta, dim=1)
    scores = sigma * unit @ unit.T
    scores = scores.masked_fill(
        torch.eye(len(theta), dtype=torch.bool, device=theta.device), -torch.inf
    )
    others = (1.0 - own) * torch.softmax(scores, dim=1)
    return others + own * torch.eye(len(theta), dtype=theta.dtype, device=theta.device)


@dataclass(frozen=True)
class HeurFedAMP(PointMethod):
    """Settings of HeurFedAMP.

    The server mixes for each client a cloud model u_i of the weights it holds, by `attention`; the client begins a
    round at u_i and minimises F_i(v) + (lam / 2 alpha) |v - u_i|^2. Where a client begins is not said in the paper; the
    server holds the latest weights of every client that has taken part. There is no global model; the mean of all
    weights is evaluated in its place.

    Attributes:
        sigma: Sharpness of the attention, > 0. Networks that began alike have cosines near 1: it must be large.
        self_weight: What a client takes of itself, in (0, 1); None for 1 / N of N clients.
        lam: Weight of the pull, with ``alpha``.
        alpha: Step size of the server's attention; only lam / alpha matters here.
    """

    sigma: float = 25.0
    self_weight: float | None = None
    lam: float = 1.0
    alpha: float = 1e4

    name: ClassVar[str] = "heurfedamp"
    models: ClassVar[tuple[Judged, ...]] = ("personal",)
    positive: ClassVar[tuple[str, ...]] = ("sigma", "alpha")
    not_negative: ClassVar[tuple[str, ...]] = ("lam",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.self_weight is not None and not 0 < self.self_weight < 1:
            raise UserError(f"self_weight is {self.self_weight}; it must lie in (0, 1)")

    def client_update(
        self, engine: GradientEngine, server: Tensors, cohort: Cohort, at: Round
    ) -> ClientUpdate:
        """R steps from the client's cloud model, pulled back to it."""
        clouds = self._clouds(server, cohort)
        pull = self.lam / self.alpha
        theta, loss = descend(
            engine, clouds, cohort.plan, self.descent(at), pull=lambda v: pull * (v - clouds)
        )
        return ClientUpdate({THETA: theta}, {THETA: theta}, loss)

    def server_update(
        self, model: DeclaredModel, server: Tensors, uploads: Iterable[Upload], at: Round
    ) -> Tensors:
        """Keep what each client sent last."""
        del model, at
        return hold(server, uploads)

    def _clouds(self, server: Tensors, cohort: Cohort) -> Tensor:
        """The cloud model of each client ``[S, P]``; the server's mean of all for those it has not heard of."""
        start = server[THETA].expand(len(cohort.clients), -1).clone()
        rows, places = held_rows(server, cohort.clients)
        if rows is not None:
            own = self.self_weight or 1.0 / len(rows)
            mixed = attention(rows, self.sigma, own) @ rows
            for k, place in places.items():
                start[k] = mixed[place]
        return start
