"""Guides: the clients' variational posteriors q^i as Pyro programs."""

from __future__ import annotations

from operator import attrgetter

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.distributions import constraints
from pyro.infer.autoguide.utils import deep_setattr
from pyro.nn import PyroModule, PyroParam
from torch import Tensor

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.gaussians.mean_field import MeanFieldGaussian
from pyro_pfedbayes.models.bayesian import BayesianModel
from pyro_pfedbayes.models.settings import local_parameters


class MeanFieldGuide(PyroModule):  # type: ignore[misc]
    """Stacked mean-field Gaussians q^i = N(mu_i, softplus(rho_i)^2), one row a client.

    Laid out like Pyro's ``AutoNormal`` (``guide.locs.fc1.weight``, ``guide.scales.fc1.weight``), but every latent
    site *is* a ``Normal``, not a ``Delta`` over an auxiliary one. ``TraceMeanField_ELBO`` then takes the KL
    divergence to the prior in closed form, with no Monte Carlo noise.

    Args:
        model: The model that the guide is for; its ``zeta`` buffer scales both programs alike.
        start: Initial q^i, stacked ``[N, ...]``, over the model's weights.

    Raises:
        UserError: ``start`` is not stacked, or over other weights.

    Example:
        >>> import pyro_pfedbayes as pfb
        >>> model = pfb.BayesianModel(pfb.mlp([4, 8, 3]), pfb.Categorical(3))
        >>> guide = MeanFieldGuide(model, MeanFieldGaussian.stack([model.prior, model.prior]))
        >>> x = torch.zeros(2, 5, 4)
        >>> trace = pyro.poutine.trace(guide).get_trace(x)
        >>> trace.nodes["fc1.weight"]["fn"].batch_shape
        torch.Size([2])
    """

    def __init__(self, model: BayesianModel, start: MeanFieldGaussian) -> None:
        # A PyroModule decides at its construction where its parameters live.
        with local_parameters():
            super().__init__()
            self.locs, self.scales = PyroModule("locs"), PyroModule("scales")
        if not start.stacked or start.clients is None:
            raise UserError("a guide needs a stacked Gaussian, one row a client")
        self._model = (model,)
        self.num_clients = start.clients
        for name, shape in model.weight_shapes.items():
            if name not in start.loc or tuple(start.event_shape(name)) != shape:
                raise UserError(f"the guide's start lacks weight {name!r} of shape {shape}")
            for root, value, support in (
                (self.locs, start.loc, constraints.real),
                (self.scales, start.scale, constraints.softplus_positive),
            ):
                copy = value[name].detach().clone()
                with local_parameters():
                    deep_setattr(root, name, PyroParam(copy, support, event_dim=len(shape)))

    def posterior(self) -> MeanFieldGaussian:
        """The present q^i, stacked and detached."""
        names = self._model[0].weight_shapes
        with torch.no_grad():
            return MeanFieldGaussian.unchecked(
                {name: attrgetter(name)(self.locs).detach().clone() for name in names},
                {name: attrgetter(name)(self.scales).detach().clone() for name in names},
                stacked=True,
            )

    def __call__(self, *args: object, **kwargs: object) -> dict[str, Tensor]:
        """Run the guide with its parameters local to it, whatever Pyro's setting."""
        with local_parameters():
            weights: dict[str, Tensor] = super().__call__(*args, **kwargs)
        return weights

    def forward(self, *args: object, **kwargs: object) -> dict[str, Tensor]:
        """Draw every weight ``[N, *shape]``; takes and ignores what the model takes."""
        model = self._model[0]
        # Both programs must carry the same zeta: TraceMeanField_ELBO reads the guide's for closed-form sites, its
        # Monte Carlo fallback and Trace_ELBO read both.
        with pyro.plate("client", self.num_clients, dim=-1), poutine.scale(scale=model.zeta):
            return {
                name: pyro.sample(
                    name,
                    dist.Normal(
                        attrgetter(name)(self.locs), attrgetter(name)(self.scales)
                    ).to_event(len(shape)),
                )
                for name, shape in model.weight_shapes.items()
            }
