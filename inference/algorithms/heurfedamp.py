"""HeurFedAMP (Huang et al., AAAI 2021): each client is pulled to a mixture of the clients that resemble it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from pyro_pfedbayes.inference.algorithm import Cohort, Tensors
from pyro_pfedbayes.inference.algorithms.components.client_weights import (
    ROWS,
    StoringMethod,
    stored_rows,
)
from pyro_pfedbayes.inference.algorithms.components.settings import NonNegative, Positive
from pyro_pfedbayes.inference.beliefs.points import THETA
from pyro_pfedbayes.models.declared import DeclaredModel


def attention(theta: Tensor, sigma: float, own: float) -> Tensor:
    """How much each client takes of the others' weights ``[S, P]``: a softmax of their cosines, of sharpness ``sigma``.

    Rows that sum to 1, ``[S, S]``, with ``own`` in (0, 1) for what each takes of itself.

    Example:
        >>> attention(torch.eye(3), 1.0, 0.5)
        tensor([[0.5000, 0.2500, 0.2500],
                [0.2500, 0.5000, 0.2500],
                [0.2500, 0.2500, 0.5000]])
    """
    if len(theta) == 1:
        return torch.ones_like(theta[:, :1])
    unit = F.normalize(theta, dim=1)
    eye = torch.eye(len(theta), dtype=theta.dtype, device=theta.device)
    scores = (sigma * unit @ unit.T).masked_fill(eye > 0, -torch.inf)
    return (1.0 - own) * torch.softmax(scores, dim=1) + own * eye


@dataclass(frozen=True)
class HeurFedAMP(StoringMethod):
    """Settings of HeurFedAMP.

    The server mixes for each client a cloud model u_i of the weights it stores, by `attention`; the client begins a
    round at u_i and minimises F_i(v) + (lam / 2 alpha) |v - u_i|^2. Where a client begins is not said in the paper; the
    server stores the latest weights of every client that has taken part. There is no global model; the mean of all
    weights is evaluated in its place.
    """

    sigma: Positive = 25.0
    """Sharpness of the attention. Networks that began alike have cosines near 1: it must be large."""
    self_weight: Annotated[float, "(0, 1)"] | None = None
    """What a client takes of itself; None for 1 / N of N clients."""
    lam: NonNegative = 1.0  # weight of the pull, with ``alpha``
    alpha: Positive = 1e4  # step size of the server's attention; only lam / alpha matters here

    name = "heurfedamp"

    @property
    def proximal(self) -> float:
        """Of the paper's objective."""
        return self.lam / self.alpha

    def starting_weights(self, model: DeclaredModel, server: Tensors, cohort: Cohort) -> Tensor:
        """The cloud model of each client ``[S, P]``; the server's mean of all for those it has not heard of."""
        start = server[THETA].expand(len(cohort.clients), -1).clone()
        if ROWS in server:
            rows, places, at_rows = stored_rows(server, cohort.clients)
            mixed = attention(rows, self.sigma, self.self_weight or 1.0 / len(rows)) @ rows
            start[places] = mixed[at_rows]
        return start
