"""What is declared about a model's sites: roles, families, and the coordinates that the engine works in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import pyro.distributions as dist
from torch import Tensor

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.families import MeanField, MeanFieldNormal
from pyro_pfedbayes.families.base import ClientFamily, ServerFamily
from pyro_pfedbayes.gaussians.flat_layout import FlatLayout
from pyro_pfedbayes.gaussians.mean_field import MeanFieldGaussian
from pyro_pfedbayes.models.likelihoods.base import Outcome
from pyro_pfedbayes.models.roles import Role

PrivateGuide = Callable[[Any], Any]
"""Makes a Pyro AutoGuide from a model, such as the class ``AutoMultivariateNormal`` itself."""


@dataclass(frozen=True)
class Declaration:
    """Who knows what about each site, and in which families."""

    # Of every latent site in unconstrained coordinates, in one order
    shapes: Mapping[str, tuple[int, ...]]
    roles: Mapping[str, Role]
    server: ServerFamily = field(default_factory=MeanField)  # of w over the shared sites
    guide: ClientFamily = field(default_factory=MeanFieldNormal)  # of q^i over them
    # Makes the AutoGuide of the private sites; None for mean-field Normals
    private_guide: PrivateGuide | None = None
    own_prior: bool = False  # in the first round the model's own priors stand in for w

    def __post_init__(self) -> None:
        for field_name, given, method, example in (
            ("server", self.server, "project", "families.Laplace()"),
            ("guide", self.guide, "draw", "families.FullRankNormal()"),
        ):
            if isinstance(given, type) or not hasattr(given, method):
                shown = f"the class {given.__name__}" if isinstance(given, type) else repr(given)
                raise UserError(
                    f"{field_name} is {shown}; give a {field_name} family, such as {example} (docs/families.md)"
                )
        if self.private_guide is not None and not callable(self.private_guide):
            raise UserError(
                f"private_guide is {self.private_guide!r}; give an AutoGuide class, such as AutoMultivariateNormal"
            )
        if not self.shared.shapes and not self.private.shapes:
            raise UserError(
                "every site is a point estimate: there is nothing to be Bayesian about; "
                "make at least one shared or private"
            )
        if self.private_guide is not None and not self.private.shapes:
            raise UserError("private_guide is given, but no site is private")
        if self.shared.shapes:
            self.server.check(self.guide, self.shared.size)

    @cached_property
    def shared(self) -> FlatLayout:
        """Flat order of the shared sites."""
        return self._layout("shared")

    @cached_property
    def private(self) -> FlatLayout:
        """Flat order of the private sites."""
        return self._layout("private")

    @cached_property
    def point(self) -> FlatLayout:
        """Flat order of the sites that are point estimates."""
        return self._layout("point")

    @property
    def num_weights(self) -> int:
        """Scalar weights of one client, in unconstrained coordinates."""
        return FlatLayout(self.shapes).size

    @property
    def mean_field(self) -> bool:
        """Whether w and q^i are the paper's mean-field Gaussians."""
        return isinstance(self.server, MeanField) and isinstance(self.guide, MeanFieldNormal)

    @property
    def plain(self) -> bool:
        """Whether this is the paper's setting: every site shared, mean-field Gaussians throughout."""
        return self.mean_field and not self.private.shapes and not self.point.shapes

    def _layout(self, kind: str) -> FlatLayout:
        return FlatLayout(
            {name: shape for name, shape in self.shapes.items() if self.roles[name].kind == kind}
        )


class DeclaredModel(Protocol):
    """What engine, algorithms and predictions need to know of a model."""

    declaration: Declaration
    outcome: Outcome
    covariates: tuple[str, ...]  # data columns beside x, the last columns of the inputs

    @property
    def start(self) -> MeanFieldGaussian:
        """Where every site begins, in unconstrained coordinates; unstacked."""

    def client_program(self, x: Tensor, y: Tensor | None = None) -> Any:
        """The generative program of ONE client in the sites' own coordinates, with its own priors.

        ``x [b, *features]``, covariates last; ``y [b]`` at site ``"y"``, None to draw them.
        """

    def sites_program(self) -> Any:
        """Draw one client's latent sites from their own priors, without its data."""

    def event_dim(self, name: str) -> int:
        """Dimensions of a site that are one event."""

    def constrain(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Site values ``[..., *shape]`` from unconstrained coordinates."""

    def transform(self, name: str) -> dist.transforms.Transform | None:
        """From unconstrained coordinates to a site's own; None for the identity."""

    def observation(self, values: Mapping[str, Tensor], x: Tensor) -> dist.TorchDistribution:
        """Distribution of the observations, batch ``[n]``, for given values of all sites."""

    def predict(self, values: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Class probabilities ``[n, C]`` or predictive means ``[n]`` for given values of all sites."""

    def moved(self, device: Any) -> DeclaredModel:
        """The same model on a device."""

    def check_covariates(self, columns: Mapping[str, Tensor]) -> None:
        """Refuse covariates ``[n]`` that the model cannot take (UserError)."""

    def check_fits(self, x: Tensor, y: Tensor, where: str) -> None:
        """Refuse data that the model cannot take: a few inputs ``x``, covariates last, and all observations ``y``."""
