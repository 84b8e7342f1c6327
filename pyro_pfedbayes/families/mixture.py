"""A server for clients of several kinds: a mixture of mean-field Gaussians over whole vectors of weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyro.distributions as dist
import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import Normal, kl_divergence

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.families.base import ServerFamily
from pyro_pfedbayes.families.rows import GaussianRows, column_blocks, moments, shares

STARTS = 3
_SWEEPS = 100
_LEAST_SHARE = 1e-6  # of a component: one of share 0 could never win a client back


class GaussianMixture(dist.MixtureSameFamily):  # type: ignore[misc]
    """Σ_k π_k Π_t N(θ_t; loc_kt, scale²_kt): one component for the whole vector, not one a weight.

    Args:
        logits: Log of the shares π, up to a constant, ``[..., K]``.
        loc: Means ``[..., K, T]``.
        scale: Standard deviations ``[..., K, T]``.
        validate_args: As for every distribution.

    Example:
        >>> w = GaussianMixture(torch.zeros(2), torch.tensor([[-1.0], [1.0]]), torch.ones(2, 1))
        >>> w.event_shape, w.mean, w.variance
        (torch.Size([1]), tensor([0.]), tensor([2.]))
    """

    def __init__(
        self, logits: Tensor, loc: Tensor, scale: Tensor, validate_args: bool | None = None
    ) -> None:
        batch = torch.broadcast_shapes(logits.shape[:-1], loc.shape[:-2], scale.shape[:-2])
        component = dist.Normal(loc, scale, validate_args=validate_args).to_event(1)
        super().__init__(
            dist.Categorical(logits=logits.expand(*batch, -1), validate_args=validate_args),
            component.expand((*batch, loc.shape[-2])),
            validate_args=validate_args,
        )

    @property
    def log_shares(self) -> Tensor:
        """Log of the shares π, ``[..., K]``."""
        return torch.log_softmax(self.mixture_distribution.logits, -1)

    @property
    def loc(self) -> Any:
        """Means ``[..., K, T]``."""
        return self.component_distribution.mean

    @property
    def scale(self) -> Any:
        """Standard deviations ``[..., K, T]``."""
        return self.component_distribution.base_dist.scale

    def expand(self, batch_shape: Any, _instance: Any = None) -> Any:
        return super().expand(batch_shape, _instance or self.__new__(type(self)))


@dataclass(frozen=True)
class Mixture(ServerFamily):
    """W = Σ_k π_k Π N(loc_k, scale²_k), by ``logits [K]``, ``loc [K, T]`` and ``scale [K, T]``.

    The divergence to a mixture has no closed form. The projection lowers, by EM, the bound that clients use too (see
    `divergence`): Σ_i p_i times -log Σ_k π_k exp(-KL(q_i‖w_k)). Client i belongs to component k with responsibility
    r_ik ∝ π_k exp(-KL(q_i‖w_k)); w_k is then the barycentre of the clients weighted by p_i r_ik, and π_k their share.
    With many weights responsibilities are near 0 or 1: it groups the clients.

    EM goes on from the previous w if its components differ. Otherwise, as from `start`, it begins at clients
    that are far apart, three times from another first client, and keeps the best. A component that wins no client keeps
    its place and a share of 1e-6, so it can win one later.

    Args:
        components: K, the number of kinds, at most the number of clients.

    Example:
        >>> rows = GaussianRows(torch.tensor([[0.0], [5.0], [0.2], [5.2]]), torch.ones(4, 1))
        >>> family = Mixture(2)
        >>> w = family.project(rows, torch.ones(4), family.start(torch.zeros(1), torch.ones(1)))
        >>> w["loc"][:, 0].round(decimals=1)
        tensor([0.1000, 5.1000])
    """

    components: int
    name = "mixture"

    def __post_init__(self) -> None:
        if self.components < 1:
            raise UserError(f"a mixture has {self.components} components: give at least 1")

    def start(self, loc: Tensor, scale: Tensor) -> dict[str, Tensor]:
        """K equal components of means ``loc [T]`` and standard deviations ``scale [T]``.

        So w is that very Gaussian, and `project` sees by the equal components that it has nothing to go on from.
        """
        return {
            "logits": torch.zeros(self.components).to(loc),
            "loc": loc.repeat(self.components, 1),
            "scale": scale.repeat(self.components, 1),
        }

    def distribution(self, w: Mapping[str, Tensor]) -> TorchDistribution:
        return GaussianMixture(w["logits"], w["loc"], w["scale"])

    def project(
        self, rows: GaussianRows, weights: Tensor, previous: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """EM, from ``previous`` if its components differ, at most 100 sweeps."""
        p = shares(rows, weights)
        present = (p > 0).nonzero()[:, 0]
        if len(present) < self.components:
            raise UserError(
                f"a mixture of {self.components} components got {len(present)} clients: "
                "declare fewer components, or let more clients take part"
            )
        marginals = GaussianRows(rows.loc, rows.std).select(present)
        p = p[present]
        if self._distinct(previous):
            start = {name: previous[name].to(rows.loc) for name in ("logits", "loc", "scale")}
            return _em(marginals, p, start)[0]
        runs = [
            _em(marginals, p, _far_apart(marginals, self.components, first))
            for first in range(min(STARTS, marginals.clients))
        ]
        return min(runs, key=lambda run: run[1])[0]

    def component_of(self, rows: GaussianRows, w: Mapping[str, Tensor]) -> Tensor:
        """The component with the greatest responsibility for each client, int64 ``[S]``."""
        return _joint(GaussianRows(rows.loc, rows.std), w).argmax(0)

    def mean(self, w: Mapping[str, Tensor]) -> Any:
        return self.distribution(w).mean

    def std(self, w: Mapping[str, Tensor]) -> Any:
        return self.distribution(w).stddev

    def nearest(self, w: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation ``[T]`` of the whole mixture."""
        # A client that knows its component starts there instead.
        return self.mean(w), self.std(w)

    def sample(self, w: Mapping[str, Tensor], generator: torch.Generator) -> Tensor:
        k = torch.multinomial(w["logits"].softmax(0), 1, generator=generator)
        loc, scale = w["loc"].index_select(0, k)[0], w["scale"].index_select(0, k)[0]
        return loc + scale * torch.empty_like(loc).normal_(generator=generator)

    def _distinct(self, w: Mapping[str, Tensor]) -> bool:
        if "logits" not in w or len(w["logits"]) != self.components:
            return False
        both = torch.cat([w["loc"], w["scale"]], 1)
        return len(both.unique(dim=0)) == self.components


def _em(rows: GaussianRows, p: Tensor, w: dict[str, Tensor]) -> tuple[dict[str, Tensor], float]:
    """EM sweeps from w until the bound falls no further; returns w and its bound, in nats.

    Rows are marginals, without a factor. For clients with correlations the true bound is larger by a constant.
    """
    bound, best = math.inf, w
    for _ in range(_SWEEPS):
        joint = _joint(rows, w)
        now = -float((p * joint.logsumexp(0)).sum())
        settled = now >= bound - 1e-9 * (1.0 + abs(bound))
        if now < bound:
            bound, best = now, w
        if settled:
            break
        w = _maximise(rows, p * joint.softmax(0), w)
    return best, bound


def _joint(rows: GaussianRows, w: Mapping[str, Tensor]) -> Tensor:
    """Log π_k - KL(q_i‖w_k) of the clients' marginals, float64 ``[K, S]``: responsibilities up to a constant."""
    return torch.log_softmax(w["logits"].double(), 0).unsqueeze(1) - _divergences(rows, w)


def _maximise(rows: GaussianRows, mass: Tensor, w: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Barycentres for masses ``[K, S]``; a component without mass keeps its place."""
    loc, scale = w["loc"].clone(), w["scale"].clone()
    share = mass.sum(1)
    for k in (share > _LEAST_SHARE).nonzero()[:, 0].tolist():
        loc[k], scale[k] = moments(rows, mass[k])
    logits = share.clamp_min(_LEAST_SHARE).log().to(loc)
    return {"logits": logits, "loc": loc, "scale": scale}


def _divergences(rows: GaussianRows, w: Mapping[str, Tensor]) -> Tensor:
    """KL of each client's marginals to each component, float64 ``[K, S]``."""
    total = torch.zeros(len(w["loc"]), rows.clients).to(rows.loc.device, torch.float64)
    for block in column_blocks(rows, 4):
        part = rows.columns(block)
        clients = Normal(part.loc, part.scale, validate_args=False)
        for k in range(len(total)):
            loc, scale = (w[name][k, block].double() for name in ("loc", "scale"))
            component = Normal(loc, scale, validate_args=False)
            total[k] += kl_divergence(clients, component).sum(1)
    return total


def _far_apart(rows: GaussianRows, components: int, first: int) -> dict[str, Tensor]:
    """Clients as components: the first one given, then always that which is farthest from those chosen."""
    chosen = [first]
    while True:
        w = {"loc": rows.loc[chosen].clone(), "scale": rows.scale[chosen].clone()}
        if len(chosen) == components:
            return {"logits": torch.zeros(components).to(rows.loc), **w}
        nearest = _divergences(rows, w).amin(0)
        nearest[chosen] = -1.0
        chosen.append(int(nearest.argmax()))
