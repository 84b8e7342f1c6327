"""What a family of distributions must offer, at the server and at a client."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor

from pyro_pfedbayes.families.rows import GaussianRows


class ClientFamily(ABC):
    """Gaussians over a flat vector of T weights, by flat unconstrained parameters.

    Parameters go by name in a dict; all have the T of one client last, and may have leading dimensions.
    """

    name: ClassVar[str]  # how configurations call it

    def check(self, num_weights: int) -> None:  # noqa: B027
        """Refuse a size that cannot work; any will do, unless a family says otherwise."""

    @abstractmethod
    def sizes(self, num_weights: int) -> dict[str, int]:
        """Length of each parameter of one client with T weights, in a fixed order."""

    @abstractmethod
    def start(self, loc: Tensor, scale: Tensor) -> dict[str, Tensor]:
        """Parameters of means ``loc [..., T]`` and marginal standard deviations ``scale [..., T]``."""

    @abstractmethod
    def distribution(self, params: Mapping[str, Tensor]) -> TorchDistribution:
        """The belief as a distribution of event shape ``[T]``; leading dimensions become the batch shape."""

    @abstractmethod
    def spread(self, params: Mapping[str, Tensor]) -> tuple[Tensor | None, Tensor | None]:
        """Scale ``[..., T]`` and factor ``[..., T, R]`` of the covariance diag(scale²) + factor factorᵀ."""

    def noise_size(self, num_weights: int) -> int:
        """How many standard normal numbers one draw takes: those of the scale, then those of the factor."""
        return num_weights

    def draw(self, params: Mapping[str, Tensor], eps: Tensor) -> Tensor:
        """A draw ``[..., T]``, differentiable in the parameters, from noise ``eps [..., noise_size]`` ~ N(0, 1)."""
        theta = params["loc"]
        scale, factor = self.spread(params)
        if scale is not None:
            theta = theta + scale * eps[..., : theta.shape[-1]]
        if factor is not None:
            common = eps[..., -factor.shape[-1] :].unsqueeze(-1)
            theta = theta + torch.matmul(factor, common).squeeze(-1)
        return theta

    def rows(self, params: Mapping[str, Tensor]) -> GaussianRows:
        """What is sent to the server, from the parameters ``[S, ...]`` of S clients."""
        loc = params["loc"]
        scale, factor = self.spread(params)
        return GaussianRows(loc, torch.zeros_like(loc) if scale is None else scale, factor)

    def mean(self, params: Mapping[str, Tensor]) -> Tensor:
        """Means ``[..., T]``."""
        return params["loc"]

    def std(self, params: Mapping[str, Tensor]) -> Tensor:
        """Marginal standard deviations ``[..., T]``."""
        scale, factor = self.spread(params)
        if factor is None:
            assert scale is not None
            return scale
        variance = factor.square().sum(-1)
        return (variance if scale is None else scale.square() + variance).sqrt()


class ServerFamily(ABC):
    """Distributions w over a flat vector of T weights, and the projection of the clients' beliefs onto them.

    The tensors of w go by name in a plain dict, without a client dimension. Unless a family says otherwise they
    are ``loc [T]`` and ``scale [T]``, and weights are independent Gaussians.
    """

    name: ClassVar[str]  # how configurations call it

    def check(self, client_family: ClientFamily, num_weights: int) -> None:
        """Refuse a pair or a size that cannot work."""
        client_family.check(num_weights)

    def start(self, loc: Tensor, scale: Tensor) -> dict[str, Tensor]:
        """The w with means ``loc [T]`` and standard deviations ``scale [T]``, weights independent."""
        return {"loc": loc.clone(), "scale": scale.clone()}

    @abstractmethod
    def distribution(self, w: Mapping[str, Tensor]) -> TorchDistribution:
        """W as a distribution of event shape ``[T]`` and batch shape ``[]``."""

    @abstractmethod
    def project(
        self, rows: GaussianRows, weights: Tensor, previous: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """The w that minimises Σ_i p_i KL(q_i‖w), p the weights as shares; each family says how nearly.

        Args:
            rows: What S clients sent.
            weights: Relative importance ``[S]`` of the clients.
            previous: The present w, where an iteration may start.
        """

    def mean(self, w: Mapping[str, Tensor]) -> Tensor:
        """Means ``[T]``."""
        return w["loc"]

    def std(self, w: Mapping[str, Tensor]) -> Tensor:
        """Marginal standard deviations ``[T]``."""
        return w["scale"]

    def nearest(self, w: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation ``[T]`` of the mean-field Gaussian nearest to w, argmin_q KL(q‖w).

        A client begins there. From the moments of w instead, a heavy-tailed w would grow from round to round.
        """
        return w["loc"], w["scale"]

    def sample(self, w: Mapping[str, Tensor], generator: torch.Generator) -> Tensor:
        """One draw ``[T]``; the generator is on the device of w."""
        noise = torch.empty_like(w["loc"]).normal_(generator=generator)
        return w["loc"] + w["scale"] * noise
