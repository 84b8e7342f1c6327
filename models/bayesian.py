"""The client model: a network whose weights are drawn from the server's Gaussian, as a Pyro program."""

from __future__ import annotations

from collections.abc import Mapping

import pyro
import pyro.distributions as dist
import torch
import torch.nn.functional as F
from pyro import poutine
from pyro.nn import PyroModule
from torch import Tensor, nn

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.gaussian import MeanFieldGaussian
from pyro_pfedbayes.layout import FlatLayout
from pyro_pfedbayes.models.likelihoods import Likelihood
from pyro_pfedbayes.models.settings import local_parameters

__all__ = ["BayesianModel", "TensorTable", "initial_gaussian"]

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
    """The server's Gaussian before any training.

    Args:
        network: Module whose parameters, as they stand, become the means.
        rho: Every standard deviation is ``softplus(rho)``.

    Returns:
        An unstacked Gaussian over the network's named weights.

    Raises:
        UserError: ``rho`` whose softplus is not a positive finite number in the network's dtype.
    """
    loc = {name: weight.detach().clone() for name, weight in _weights(network).items()}
    if not loc:
        raise UserError(
            "the network has no weights to learn: there is nothing to be Bayesian about"
        )
    scale = {name: F.softplus(torch.full_like(weight, rho)) for name, weight in loc.items()}
    if not all(bool((s > 0).all() and s.isfinite().all()) for s in scale.values()):
        raise UserError(f"rho = {rho} gives a standard deviation of 0 or infinity; try {PAPER_RHO}")
    return MeanFieldGaussian(loc, scale)


class BayesianModel(PyroModule):  # type: ignore[misc]
    """Bayesian neural networks of a cohort of clients, stacked in one plate (Zhang et al. 2022, section 2).

    Calling it runs the generative story: weights from the prior ``w`` under ``poutine.scale(zeta)``,
    outputs by the network, observations from the likelihood under the client's ``data_scale``::

        theta_i ~ w,    y_ij ~ likelihood(network(x_ij; theta_i)),    i in plate "client"

    Weight sites carry the names of the network's parameters (``"fc1.weight"``); the observation is site
    ``"y"``. The prior, zeta and data_scale are buffers: they are never trained, move with ``.to()``, and a traced
    or compiled step reads their present value.

    Args:
        network: Any module that ``torch.func.vmap`` can run and whose state does not change in the forward pass (no
            batch norm, no dropout). Its parameters give the names and shapes of the weights and the initial means;
            those with ``requires_grad_(False)``, and buffers, stay as they are: a deterministic part.
        likelihood: Turns outputs into the distribution of an observation.
        rho: Standard deviation of the initial prior, as ``softplus(rho)``; ignored if ``prior`` is given.
        prior: The Gaussian to draw weights from; unstacked (shared by the cohort) or one a client.
        zeta: Weight of the KL divergence, > 0. The paper's theory asks for at least 1.
        data_scale: Factor on the log-likelihood, a number or one a client ``[N]``: n_i / b.

    Raises:
        UserError: zeta not positive and finite, a network without weights, with batch norm or dropout, a prior over
            other weights.

    Example:
        >>> from pyro_pfedbayes.models.networks import mlp
        >>> from pyro_pfedbayes.models.likelihoods import Categorical
        >>> model = BayesianModel(mlp([4, 8, 3]), Categorical(3))
        >>> x, y = torch.zeros(2, 5, 4), torch.zeros(2, 5, dtype=torch.long)   # 2 clients, 5 examples
        >>> model(x, y).shape
        torch.Size([2, 5, 3])
        >>> trace = pyro.poutine.trace(model).get_trace(x, y)
        >>> trace.nodes["fc1.weight"]["value"].shape
        torch.Size([2, 8, 4])
    """

    def __init__(
        self,
        network: nn.Module,
        likelihood: Likelihood,
        *,
        rho: float = PAPER_RHO,
        prior: MeanFieldGaussian | None = None,
        zeta: float = 1.0,
        data_scale: float | Tensor = 1.0,
    ) -> None:
        # A PyroModule decides at its construction where its parameters live.
        with local_parameters():
            super().__init__()
        _refuse_hidden_randomness(network)
        shapes = {name: tuple(weight.shape) for name, weight in _weights(network).items()}
        prior = initial_gaussian(network, rho) if prior is None else prior
        _check_prior(prior, shapes)
        if not (zeta > 0 and zeta < float("inf")):
            raise UserError(
                f"zeta is {zeta}; it must be a positive number (the paper uses 0.5 to 20)"
            )
        # In a tuple, or the network's own weights would count as parameters of the model.
        self._network = (network,)
        self.likelihood = likelihood
        self.weight_shapes = shapes
        self.prior_loc = TensorTable(prior.loc)
        self.prior_scale = TensorTable(prior.scale)
        self._prior_stacked = prior.stacked
        self.constants = TensorTable(_constants(network, like=next(iter(prior.loc.values()))))
        for name, value in (("zeta", zeta), ("data_scale", data_scale)):
            tensor = torch.as_tensor(value, dtype=prior.dtype, device=prior.device)
            self.register_buffer(name, tensor)

    @property
    def network(self) -> nn.Module:
        """The network, called with drawn weights only."""
        return self._network[0]

    @property
    def layout(self) -> FlatLayout:
        """Order of the named weights in one flat vector."""
        return FlatLayout(self.weight_shapes)

    @property
    def prior(self) -> MeanFieldGaussian:
        """The Gaussian that the weights are drawn from."""
        return MeanFieldGaussian.unchecked(
            dict(self.prior_loc.items()), dict(self.prior_scale.items()), self._prior_stacked
        )

    def with_prior(
        self, prior: MeanFieldGaussian, *, zeta: float = 1.0, data_scale: float | Tensor = 1.0
    ) -> BayesianModel:
        """The same network and likelihood under another prior; this model is left as it is."""
        return BayesianModel(
            self.network, self.likelihood, prior=prior, zeta=zeta, data_scale=data_scale
        )

    def outputs(self, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Network outputs for given weights.

        Args:
            weights: Tensors ``[*shape]``, or ``[N, *shape]`` for a stack of networks.
            x: Inputs ``[n, *features]``, or ``[N, n, *features]`` for a stack.

        Returns:
            ``[n, k]`` or ``[N, n, k]``.
        """
        constants = dict(self.constants.items())

        def call(weights: dict[str, Tensor], x: Tensor) -> Tensor:
            out: Tensor = torch.func.functional_call(self.network, {**constants, **weights}, (x,))
            return out

        name, shape = next(iter(self.weight_shapes.items()))
        if weights[name].dim() == len(shape):
            return call(dict(weights), x)
        out: Tensor = torch.func.vmap(call)(dict(weights), x)
        return out

    def forward(self, x: Tensor, y: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """Run the generative program.

        Args:
            x: Inputs ``[N, b, *features]``, one row of examples a client.
            y: Observations ``[N, b]``; None to draw them.
            mask: Booleans ``[N, b]``, False where a row is padding that must not count. Padding must be finite.

        Returns:
            Network outputs ``[N, b, k]``.
        """
        with pyro.plate("client", x.shape[0], dim=-1):
            with poutine.scale(scale=self.zeta):
                scales = dict(self.prior_scale.items())
                weights = {
                    name: pyro.sample(
                        name, dist.Normal(loc, scales[name]).to_event(len(self.weight_shapes[name]))
                    )
                    for name, loc in self.prior_loc.items()
                }
            outputs = self.outputs(weights, x)
            observation = self.likelihood.distribution(outputs)
            if mask is not None:
                observation = observation.mask(mask)
            with poutine.scale(scale=self.data_scale):
                pyro.sample("y", observation.to_event(1), obs=y)
        return outputs


def _weights(network: nn.Module) -> dict[str, Tensor]:
    """The parameters that are to be learnt."""
    return {name: p for name, p in network.named_parameters() if p.requires_grad}


def _constants(network: nn.Module, like: Tensor) -> dict[str, Tensor]:
    """Copies of buffers and frozen parameters, where ``like`` is and in its floating dtype."""
    frozen = {name: p for name, p in network.named_parameters() if not p.requires_grad}
    return {
        name: value.detach().to(
            like.device, like.dtype if value.is_floating_point() else None, copy=True
        )
        for name, value in {**dict(network.named_buffers()), **frozen}.items()
    }


def _check_prior(prior: MeanFieldGaussian, shapes: Mapping[str, tuple[int, ...]]) -> None:
    found = {name: tuple(prior.event_shape(name)) for name in prior.names}
    for name in [*shapes, *found]:
        if shapes.get(name) != found.get(name):
            raise UserError(
                f"weight {name!r}: the prior has shape {found.get(name)}, the network {shapes.get(name)}"
            )


def _refuse_hidden_randomness(network: nn.Module) -> None:
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
