"""One client's objective for any declared model: its own program, with the server's w and the roles laid over it.

The engine maps it over a cohort with ``torch.func.vmap``. All tensors that a step depends on are arguments.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import pyro
import pyro.distributions as dist
import torch
import torch.nn.functional as F
from pyro import poutine
from torch import Tensor

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.families import MeanFieldNormal
from pyro_pfedbayes.gaussians.flat_layout import FlatLayout
from pyro_pfedbayes.inference.beliefs.private_guides import PRIVATE, PrivateAutoGuide
from pyro_pfedbayes.inference.beliefs.site_substitution import SiteSubstitution
from pyro_pfedbayes.inference.objective.elbo import ClientELBO
from pyro_pfedbayes.inference.objective.estimators import (
    Census,
    Estimator,
    LayerNoise,
    PartlyDrawn,
    Watch,
    suited_weights,
)
from pyro_pfedbayes.inference.objective.replayed_noise import ReplayedNoise
from pyro_pfedbayes.models.declared import DeclaredModel

POINT = "point"
THETA = "theta (shared)"
"""Name of the site that holds all shared weights at once."""


def client_problem(
    model: DeclaredModel,
    w: dist.TorchDistribution | None,
    points: Tensor | None,
    zeta: Tensor,
    data_scale: Tensor,
    mask: Tensor | None = None,
    layers: LayerNoise | None = None,
) -> Callable[[Tensor, Tensor], None]:
    """The generative side of one client's problem, as a Pyro program of (x, y) in unconstrained coordinates.

    ``w`` stands in for the priors of shared sites, which become one site `THETA` (None: the model's own), ``points``
    are the point estimates, flat, and ``layers`` learns which values weights have.
    """
    declared = model.declaration

    def program(x: Tensor, y: Tensor) -> None:
        given = {} if points is None else declared.point.unflatten(points)
        if w is not None:
            with poutine.scale(scale=zeta):
                theta = pyro.sample(THETA, w)
            given |= declared.shared.unflatten(theta)
        with (
            SiteSubstitution(model, given, zeta, data_scale, mask, layers),
            layers or nullcontext(),
        ):
            model.client_program(x, y)

    return program


@dataclass(frozen=True)
class ClientLoss:
    """Negative ELBO of one client of a declared model, as a function of flat tensors."""

    model: DeclaredModel
    own_prior: bool = False  # the model's own priors stand in for w (the first round)
    estimator: Estimator | None = None  # None for plain draws of the weights
    private: PrivateAutoGuide | None = None  # of private sites; None for mean-field Normals
    _elbo: ClientELBO = field(default_factory=ClientELBO, repr=False)

    def __call__(
        self,
        params: Mapping[str, Tensor],
        prior: Mapping[str, Tensor],
        zeta: Tensor,
        data_scale: Tensor,
        noise: Tensor | ReplayedNoise,
        x: Tensor,
        y: Tensor,
        mask: Tensor | None,
        watch: Watch | None = None,
    ) -> Tensor:
        """Loss of one draw, a scalar in nats; arguments are those of `GradientEngine` for one client.

        ``noise`` holds as many standard normal numbers as `noise_size` says.
        """
        declared = self.model.declaration
        replayed = noise if isinstance(noise, ReplayedNoise) else ReplayedNoise(noise)
        layers = None
        if self.estimator is not None:
            layers = LayerNoise(self.estimator, self._moments(params), replayed.take, watch)

        def guide(*_: Any) -> None:
            with poutine.scale(scale=zeta):
                self._shared_guide(params)
                self._private_guide(params)

        w = None
        if declared.shared.shapes and not self.own_prior:
            w = declared.server.distribution(prior)
        points = params.get(POINT)
        model = client_problem(self.model, w, points, zeta, data_scale, mask, layers)
        with replayed:
            return self._elbo.total_loss(model, guide, x, y)

    def noise_size(
        self, params: Mapping[str, Tensor], prior: Mapping[str, Tensor], x: Tensor, y: Tensor
    ) -> int:
        """How many numbers a draw takes, from a run without noise."""
        noise = ReplayedNoise(None)
        one = torch.ones((), dtype=x.dtype, device=x.device)
        with torch.no_grad():
            self(params, prior, one, one, noise, x, y, None)
        if self.estimator is None and noise.used != self._guide_noise(params):
            raise UserError(
                "the program draws random numbers of its own (torch.randn or the like); draw them at a pyro.sample site"
            )
        return noise.used

    def _guide_noise(self, params: Mapping[str, Tensor]) -> int:
        """Numbers that the guide takes for a draw."""
        declared = self.model.declaration
        shared, private = declared.shared.size, declared.private.size
        total = declared.guide.noise_size(shared) if declared.shared.shapes else 0
        if self.private is not None:
            return total + self.private.values(params, None)[1]
        return total + private

    def suited_sites(
        self, params: Mapping[str, Tensor], prior: Mapping[str, Tensor], x: Tensor, y: Tensor
    ) -> frozenset[str]:
        """Which weights variance reduction may be used for, found by running it."""
        one = torch.ones((), dtype=x.dtype, device=x.device)
        stream = torch.Generator().manual_seed(0)
        noise = torch.randn(self.noise_size(params, prior, x, y), generator=stream).to(one)

        def loss(census: Census) -> Tensor:
            rows = census.rows.to(x.device)
            return self(params, prior, one, one, noise, x, y, rows, census)

        return suited_weights(len(x), loss)

    def _moments(self, params: Mapping[str, Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
        """Mean and standard deviation of every site whose guide is a mean-field Normal."""
        declared = self.model.declaration
        found: dict[str, tuple[Tensor, Tensor]] = {}
        for layout, prefix, mean_field in (
            (declared.shared, "", isinstance(declared.guide, MeanFieldNormal)),
            (declared.private, PRIVATE, self.private is None),
        ):
            if layout.shapes and mean_field:
                locs = layout.unflatten(params[prefix + "loc"])
                scales = layout.unflatten(F.softplus(params[prefix + "rho"]))
                found |= {name: (locs[name], scales[name]) for name in layout.shapes}
        return found

    def _shared_guide(self, params: Mapping[str, Tensor]) -> None:
        declared = self.model.declaration
        if not declared.shared.shapes:
            return
        mean_field = isinstance(declared.guide, MeanFieldNormal)
        if self.own_prior and mean_field:
            self._sitewise(declared.shared, params["loc"], params["rho"])
            return
        fn = declared.guide.distribution(params)
        if self.estimator is not None and self.estimator.undrawn and not self.own_prior:
            runs = tuple(
                (math.prod(shape), name not in self.estimator.undrawn)
                for name, shape in declared.shared.shapes.items()
            )
            fn = PartlyDrawn(params["loc"], F.softplus(params["rho"]), runs).to_event(1)
        theta = pyro.sample(THETA, fn, infer={"is_auxiliary": True})
        if self.own_prior:
            for name, value in declared.shared.unflatten(theta).items():
                pyro.sample(name, dist.Delta(value, event_dim=self.model.event_dim(name)))

    def _private_guide(self, params: Mapping[str, Tensor]) -> None:
        declared = self.model.declaration
        if not declared.private.shapes:
            return
        if self.private is not None:
            self.private.sample(params)
            return
        self._sitewise(declared.private, params[PRIVATE + "loc"], params[PRIVATE + "rho"])

    def _sitewise(self, layout: FlatLayout, loc: Tensor, rho: Tensor) -> None:
        """A Normal at every site, so that its divergence to the program's own prior is closed where one exists."""
        scales = layout.unflatten(F.softplus(rho))
        for name, mean in layout.unflatten(loc).items():
            fn = dist.Normal(mean, scales[name]).to_event(self.model.event_dim(name))
            pyro.sample(name, fn)
