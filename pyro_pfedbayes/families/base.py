"""What a family of distributions must offer, at the server and at a client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor

from pyro_pfedbayes.families.rows import GaussianRows


class ServerFamily(Protocol):
    """Distributions w over a flat vector of T weights, and the projection of the clients' beliefs onto them.

    The tensors of w go by name in a plain dict, without a client dimension.
    """

    @property
    def name(self) -> str:
        """How configurations call it."""
        ...

    def check(self, client_family: ClientFamily, num_weights: int) -> None:
        """Refuse a pair or a size that cannot work."""
        ...

    def start(self, loc: Tensor, scale: Tensor) -> dict[str, Tensor]:
        """The w with means ``loc [T]`` and standard deviations ``scale [T]``, weights independent."""
        ...

    def distribution(self, w: Mapping[str, Tensor]) -> TorchDistribution:
        """W as a distribution of event shape ``[T]`` and batch shape ``[]``."""
        ...

    def project(
        self, rows: GaussianRows, weights: Tensor, previous: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """The w that minimises Σ_i p_i KL(q_i‖w), p the weights as shares; each family says how nearly.

        Args:
            rows: What S clients sent.
            weights: Relative importance ``[S]`` of the clients.
            previous: The present w, where an iteration may start.
        """
        ...

    def mean(self, w: Mapping[str, Tensor]) -> Tensor:
        """Means ``[T]``."""
        ...

    def std(self, w: Mapping[str, Tensor]) -> Tensor:
        """Marginal standard deviations ``[T]``."""
        ...

    def nearest(self, w: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation ``[T]`` of the mean-field Gaussian nearest to w, argmin_q KL(q‖w).

        A client begins there. From the moments of w instead, a heavy-tailed w would grow from round to round.
        """
        ...

    def sample(self, w: Mapping[str, Tensor], generator: torch.Generator) -> Tensor:
        """One draw ``[T]``; the generator is on the device of w."""
        ...


class ClientFamily(Protocol):
    """Gaussians over a flat vector of T weights, by flat unconstrained parameters.

    Parameters go by name in a dict; all have the T of one client last, and may have leading dimensions.
    """

    @property
    def name(self) -> str:
        """How configurations call it."""
        ...

    def check(self, num_weights: int) -> None:
        """Refuse a size that cannot work."""
        ...

    def sizes(self, num_weights: int) -> dict[str, int]:
        """Length of each parameter of one client with T weights, in a fixed order."""
        ...

    def start(self, loc: Tensor, scale: Tensor) -> dict[str, Tensor]:
        """Parameters of means ``loc [..., T]`` and marginal standard deviations ``scale [..., T]``."""
        ...

    def distribution(self, params: Mapping[str, Tensor]) -> TorchDistribution:
        """The belief as a distribution of event shape ``[T]``; leading dimensions become the batch shape."""
        ...

    def noise_size(self, num_weights: int) -> int:
        """How many standard normal numbers one draw takes."""
        ...

    def draw(self, params: Mapping[str, Tensor], eps: Tensor) -> Tensor:
        """A draw ``[..., T]``, differentiable in the parameters, from noise ``eps [..., noise_size]`` ~ N(0, 1)."""
        ...

    def rows(self, params: Mapping[str, Tensor]) -> GaussianRows:
        """What is sent to the server, from the parameters ``[S, ...]`` of S clients."""
        ...

    def mean(self, params: Mapping[str, Tensor]) -> Tensor:
        """Means ``[..., T]``."""
        ...

    def std(self, params: Mapping[str, Tensor]) -> Tensor:
        """Marginal standard deviations ``[..., T]``."""
        ...


class LocFamily:
    """Server families with means ``loc [T]`` that can hold what the client can."""

    def check(self, client_family: ClientFamily, num_weights: int) -> None:
        """Refuse a size that the client's family refuses."""
        client_family.check(num_weights)

    def mean(self, w: Mapping[str, Tensor]) -> Tensor:
        """Means ``[T]``."""
        return w["loc"]


class LocScaleFamily(LocFamily):
    """Independent weights by ``loc [T]`` and ``scale [T]``; the defaults are those of a Gaussian."""

    def start(self, loc: Tensor, scale: Tensor) -> dict[str, Tensor]:
        """W with means ``loc [T]`` and standard deviations ``scale [T]``."""
        return {"loc": loc.clone(), "scale": scale.clone()}

    def std(self, w: Mapping[str, Tensor]) -> Tensor:
        """Standard deviations ``[T]``."""
        return w["scale"]

    def nearest(self, w: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation ``[T]`` of the mean-field Gaussian nearest to w, argmin_q KL(q‖w)."""
        return w["loc"], w["scale"]

    def sample(self, w: Mapping[str, Tensor], generator: torch.Generator) -> Tensor:
        """One draw ``[T]``."""
        noise = torch.empty_like(w["loc"]).normal_(generator=generator)
        return w["loc"] + w["scale"] * noise
