"""The weights of a network: their names, shapes and first Gaussian, and what must stay as it is."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.gaussians.mean_field import MeanFieldGaussian

PAPER_RHO = -2.5
"""Initial rho of every weight: the best of the paper's sweep (Zhang et al. 2022, appendix B.1)."""


class TensorTable(nn.Module):
    """Buffers under names that may contain dots, which ``register_buffer`` alone refuses."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._names = tuple(tensors)
        for name, tensor in tensors.items():
            self.register_buffer(name.replace(".", "/"), tensor)

    def items(self) -> list[tuple[str, Tensor]]:
        """Names and tensors, in the order given at construction."""
        return [(name, self.get_buffer(name.replace(".", "/"))) for name in self._names]


def initial_gaussian(network: nn.Module, rho: float = PAPER_RHO) -> MeanFieldGaussian:
    """The server's first Gaussian: means as the network's parameters stand, deviations ``softplus(rho)``."""
    loc = {name: weight.detach().clone() for name, weight in weights_of(network).items()}
    if not loc:
        raise UserError(
            "the network has no weights to learn: there is nothing to be Bayesian about"
        )
    scale = {name: F.softplus(torch.full_like(weight, rho)) for name, weight in loc.items()}
    if not all(bool((s > 0).all() and s.isfinite().all()) for s in scale.values()):
        raise UserError(f"rho = {rho} gives a standard deviation of 0 or infinity; try {PAPER_RHO}")
    return MeanFieldGaussian(loc, scale)


def weights_of(network: nn.Module) -> dict[str, Tensor]:
    """The parameters that are to be learnt."""
    return {name: p for name, p in network.named_parameters() if p.requires_grad}


def constants_of(network: nn.Module, like: Tensor) -> dict[str, Tensor]:
    """Copies of buffers and frozen parameters, where ``like`` is and in its floating dtype."""
    frozen = {name: p for name, p in network.named_parameters() if not p.requires_grad}
    return {
        name: value.detach().to(
            like.device, like.dtype if value.is_floating_point() else None, copy=True
        )
        for name, value in {**dict(network.named_buffers()), **frozen}.items()
    }


def check_prior(prior: MeanFieldGaussian, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse a prior over other weights than these (UserError)."""
    found = {name: tuple(prior.event_shape(name)) for name in prior.names}
    for name in [*shapes, *found]:
        if shapes.get(name) != found.get(name):
            raise UserError(
                f"weight {name!r}: the prior has shape {found.get(name)}, the network {shapes.get(name)}"
            )


def refuse_hidden_randomness(network: nn.Module) -> None:
    """Refuse batch norm and dropout (UserError)."""
    for name, module in network.named_modules():
        if isinstance(module, nn.modules.batchnorm._NormBase):
            raise UserError(
                f"network layer {name!r} normalises by the batch, which a likelihood of independent "
                "examples cannot have; use GroupNorm or LayerNorm"
            )
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0:
            raise UserError(
                f"network layer {name!r} is dropout, a second source of randomness beside the "
                "weights' own; remove it"
            )
