"""The client model: a network whose weights are drawn from the server's Gaussian, as a Pyro program."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.nn import PyroModule
from torch import Tensor, nn

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.families.base import ClientFamily, ServerFamily
from pyro_pfedbayes.gaussians.flat_layout import FlatLayout
from pyro_pfedbayes.gaussians.mean_field import MeanFieldGaussian
from pyro_pfedbayes.models import sites as latent
from pyro_pfedbayes.models import weights as network_weights
from pyro_pfedbayes.models.declared import Declaration, PrivateGuide
from pyro_pfedbayes.models.likelihoods import Likelihood, check_exposure
from pyro_pfedbayes.models.roles import PriorSpec, Role, assign_roles
from pyro_pfedbayes.models.settings import local_parameters

HYPER_SCALE = 0.1
"""Standard deviation of q^i over hyper-parameters in the beginning, in unconstrained coordinates."""


class BayesianModel(latent.HasSites, PyroModule):  # type: ignore[misc]
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
        roles: Which weights are shared, private or points, by name pattern: ``{"head.*": Private(Normal(0, 1))}``.
        server: Family of the server's w; default mean-field Gaussian.
        guide: Family of the clients' q^i over the shared weights; default mean-field Gaussian.
        private_guide: Makes a Pyro AutoGuide for the private sites, such as ``AutoMultivariateNormal``.
        first_prior: Prior of every shared weight in the first round, in place of the server's start.

    Raises:
        UserError: zeta not positive and finite, a network without weights, with batch norm or dropout, a prior over
            other weights, roles that match nothing or clash, families without a projection.

    Example:
        >>> import pyro_pfedbayes as pfb
        >>> model = pfb.BayesianModel(pfb.mlp([4, 8, 3]), pfb.Categorical(3))
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
        rho: float = network_weights.PAPER_RHO,
        prior: MeanFieldGaussian | None = None,
        zeta: float = 1.0,
        data_scale: float | Tensor = 1.0,
        roles: Mapping[str, Role | str] | None = None,
        server: ServerFamily | None = None,
        guide: ClientFamily | None = None,
        private_guide: PrivateGuide | None = None,
        first_prior: PriorSpec | None = None,
    ) -> None:
        # A PyroModule decides at its construction where its parameters live.
        with local_parameters():
            super().__init__()
        network_weights.refuse_hidden_randomness(network)
        shapes = {
            name: tuple(weight.shape)
            for name, weight in network_weights.weights_of(network).items()
        }
        prior = network_weights.initial_gaussian(network, rho) if prior is None else prior
        network_weights.check_prior(prior, shapes)
        if not (zeta > 0 and zeta < float("inf")):
            raise UserError(
                f"zeta is {zeta}; it must be a positive number (the paper uses 0.5 to 20)"
            )
        # In a tuple, or the network's own weights would count as parameters of the model.
        self._network = (network,)
        self.likelihood, self.outcome = likelihood, likelihood.outcome
        self.covariates: tuple[str, ...] = (
            () if likelihood.exposure is None else (likelihood.exposure,)
        )
        self.weight_shapes = shapes
        self.prior_loc = network_weights.TensorTable(prior.loc)
        self.prior_scale = network_weights.TensorTable(prior.scale)
        self._prior_stacked = prior.stacked
        self.constants = network_weights.TensorTable(
            network_weights.constants_of(network, like=next(iter(prior.loc.values())))
        )
        for name, value in (("zeta", zeta), ("data_scale", data_scale)):
            tensor = torch.as_tensor(value, dtype=prior.dtype, device=prior.device)
            self.register_buffer(name, tensor)
        self._declared: dict[str, Any] = {
            "roles": roles,
            "server": server,
            "guide": guide,
            "private_guide": private_guide,
            "first_prior": first_prior,
        }
        self._declare(**self._declared)

    def _declare(
        self,
        roles: Mapping[str, Role | str] | None,
        first_prior: PriorSpec | None,
        private_guide: PrivateGuide | None,
        **families: Any,
    ) -> None:
        """Work out roles, own priors and the sites that those priors sample."""
        # A pattern may also be meant for sites that the priors sample, which are not known yet.
        patterns = roles
        if isinstance(roles, Mapping):
            patterns = {k: r for k, r in roles.items() if fnmatch.filter(self.weight_shapes, k)}
        by_weight = assign_roles(self.weight_shapes, patterns)
        self._own_priors: dict[str, PriorSpec] = {}
        for name, role in by_weight.items():
            if role.kind == "private":
                self._own_priors[name] = role.prior or dist.Normal(0.0, 1.0)
            elif role.kind == "shared" and first_prior is not None:
                self._own_priors[name] = first_prior
        _check_own_priors(self._own_priors)
        sites = {
            name: latent.Site(shape, len(shape), None) for name, shape in self.weight_shapes.items()
        }
        self.hyper_sites: dict[str, latent.Site] = {}
        if any(not isinstance(spec, dist.Distribution) for spec in self._own_priors.values()):
            with latent.seeded(0):
                found = latent.find_sites(latent.site_trace(self.sites_program))
            self.hyper_sites = {k: site for k, site in found.items() if k not in sites}
        self.sites = sites | self.hyper_sites
        self.declaration = Declaration(
            {name: site.shape for name, site in self.sites.items()},
            assign_roles(self.sites, roles),
            private_guide=private_guide,
            own_prior=first_prior is not None or bool(self.hyper_sites),
            **{k: v for k, v in families.items() if v is not None},
        )

    @property
    def network(self) -> nn.Module:
        """The network, called with drawn weights only."""
        return self._network[0]

    @property
    def plain(self) -> bool:
        """Whether this is the paper's setting: all weights shared, mean-field Gaussians, no hyper-parameters."""
        return self.declaration.plain and not self.hyper_sites

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

    @property
    def start(self) -> MeanFieldGaussian:
        """Where every site begins, in unconstrained coordinates: the prior's weights, and typical hyper-parameters."""
        if not self.hyper_sites:
            return self.prior
        prior = self.prior
        typical = latent.typical_values(self.sites_program, (), self.hyper_sites, seed=0)
        loc = dict(prior.loc) | {k: v.to(prior.device, prior.dtype) for k, v in typical.items()}
        scale = {k: prior.scale.get(k, torch.full_like(v, HYPER_SCALE)) for k, v in loc.items()}
        return MeanFieldGaussian(loc, scale)

    def with_prior(
        self, prior: MeanFieldGaussian, *, zeta: float = 1.0, data_scale: float | Tensor = 1.0
    ) -> BayesianModel:
        """The same network, likelihood and declarations under another prior; this model is left as it is."""
        return BayesianModel(
            self.network,
            self.likelihood,
            prior=prior,
            zeta=zeta,
            data_scale=data_scale,
            **self._declared,
        )

    def moved(self, device: Any) -> BayesianModel:
        """The same model on a device; this model is left as it is."""
        return self.with_prior(self.prior.to(device))

    def outputs(self, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Outputs ``[n, k]`` for weights ``[*shape]`` and inputs ``[n, *features]``; all ``[N, ...]`` for a stack."""
        constants = dict(self.constants.items())

        def call(weights: dict[str, Tensor], x: Tensor) -> Tensor:
            out: Tensor = torch.func.functional_call(self.network, {**constants, **weights}, (x,))
            return out

        own = {name: weights[name] for name in self.weight_shapes}
        name, shape = next(iter(self.weight_shapes.items()))
        if own[name].dim() == len(shape):
            return call(own, x)
        stacked: Tensor = _stacked_networks(call, own, x)
        return stacked

    def forward(self, x: Tensor, y: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """Run the generative program of a cohort, all weights drawn from the prior.

        Args:
            x: Inputs ``[N, b, *features]``, one row of examples a client; covariates last.
            y: Observations ``[N, b]``; None to draw them.
            mask: Booleans ``[N, b]``, False where a row is padding that must not count. Padding must be finite.

        Returns:
            Network outputs ``[N, b, k]``.
        """
        with pyro.plate("client", x.shape[0], dim=-1):
            with poutine.scale(scale=self.zeta):
                prior = self.prior
                weights = {
                    name: pyro.sample(
                        name, dist.Normal(prior.loc[name], prior.scale[name]).to_event(len(shape))
                    )
                    for name, shape in self.weight_shapes.items()
                }
            outputs, observation, y = self._observed(weights, x, y, mask)
            with poutine.scale(scale=self.data_scale):
                pyro.sample("y", observation.to_event(1), obs=y)
        return outputs

    def sites_program(self) -> dict[str, Tensor]:
        """Draw one client's weights, each from its own prior if it has one, else from the Gaussian prior."""
        prior, weights = self.prior, {}
        drawn: dict[int, dist.TorchDistribution] = {}
        for name, shape in self.weight_shapes.items():
            spec = self._own_priors.get(name)
            if spec is None:
                fn = dist.Normal(prior.loc[name], prior.scale[name])
            else:
                if id(spec) not in drawn:
                    # One declaration is one hierarchy: its own sites are sampled once, whatever it matches.
                    drawn[id(spec)] = spec if isinstance(spec, dist.Distribution) else spec()
                fn = drawn[id(spec)].expand(torch.Size(shape))
            weights[name] = pyro.sample(name, fn.to_event(len(shape)))
        return weights

    def client_program(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        """The generative program of one client: inputs ``[b, *features]``, observations ``[b]``; returns outputs."""
        outputs, observation, y = self._observed(self.sites_program(), x, y, None)
        with pyro.plate("data", len(x)):
            pyro.sample("y", observation, obs=y)
        return outputs

    def observation(self, values: Mapping[str, Tensor], x: Tensor) -> dist.TorchDistribution:
        """Distribution of the observations, batch ``[n]``, for given weights."""
        inputs, exposure = self._split(x)
        return self.likelihood.distribution(self.outputs(values, inputs), exposure)

    def predict(self, values: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Class probabilities ``[n, C]`` or predictive means ``[n]``, for given weights."""
        inputs, exposure = self._split(x)
        return self.likelihood.predict(self.outputs(values, inputs), exposure)

    def check_covariates(self, columns: Mapping[str, Tensor]) -> None:
        """Refuse exposures that are not positive."""
        for name, values in columns.items():
            check_exposure(values, name)

    def check_fits(self, x: Tensor, y: Tensor, where: str) -> None:
        """Refuse data that network or likelihood cannot take."""
        self.likelihood.check(y, where)
        dtype = self.prior.dtype
        if dtype != x.dtype:
            raise UserError(
                f"the network's weights are {dtype}, the inputs {x.dtype}; use network.float()"
            )
        inputs, _ = self._split(x)
        try:
            with torch.no_grad():
                outputs = self.outputs(self.prior.loc, inputs)
        except (RuntimeError, ValueError, TypeError) as problem:
            raise UserError(
                f"the network does not take inputs of shape {list(inputs.shape[1:])} from {where}: {problem}"
            ) from problem
        self.likelihood.check_outputs(outputs, len(x))

    def _split(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        return (x[..., :-1], x[..., -1]) if self.covariates else (x, None)

    def _observed(
        self, weights: Mapping[str, Tensor], x: Tensor, y: Tensor | None, mask: Tensor | None
    ) -> tuple[Tensor, dist.TorchDistribution, Tensor | None]:
        """Network outputs, the masked distribution of y, and y with harmless values where it is not known."""
        inputs, exposure = self._split(x)
        outputs = self.outputs(weights, inputs)
        observation = self.likelihood.distribution(outputs, exposure)
        if y is not None and self.likelihood.missing == "mask":
            known = self.likelihood.known(y)
            mask = known if mask is None else known & mask
            y = torch.where(known, y, torch.zeros_like(y))
        return outputs, observation if mask is None else observation.mask(mask), y


@pyro.poutine.runtime.effectful(type="network")  # type: ignore[untyped-decorator]
def _stacked_networks(
    call: Callable[[dict[str, Tensor], Tensor], Tensor], weights: dict[str, Tensor], x: Tensor
) -> Tensor:
    """Run a stack of networks; an operation that Pyro's handlers see, and may answer in another way."""
    out: Tensor = torch.func.vmap(call)(weights, x)
    return out


def _check_own_priors(specs: Mapping[str, PriorSpec]) -> None:
    for name, spec in specs.items():
        if not isinstance(spec, dist.Distribution):
            if not callable(spec):
                raise UserError(
                    f"prior of {name!r} is {spec!r}; give a distribution, or a function that returns one"
                )
            with latent.seeded(0), poutine.block():
                spec = spec()
            if not isinstance(spec, dist.Distribution):
                raise UserError(
                    f"prior of {name!r}: the function returns {type(spec).__name__}; return a distribution"
                )
        if spec.batch_shape or spec.event_shape:
            raise UserError(
                f"prior of {name!r} has shape {list(spec.shape())}; give that of one scalar weight"
            )
        if spec.support.is_discrete:
            raise UserError(f"prior of {name!r} is discrete; a weight needs a continuous one")
        if not latent.is_real(latent.support_of(spec)):
            raise UserError(
                f"prior of {name!r} lives on {latent.support_of(spec)}, but a network's weight may be any real number; "
                "take a prior on the whole line"
            )
