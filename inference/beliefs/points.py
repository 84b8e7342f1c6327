"""Beliefs of methods that keep one set of weights: all probability on a point."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.gaussians.flat_layout import FlatLayout
from pyro_pfedbayes.models.declared import DeclaredModel

THETA = "theta"
"""Name of the flat weights of a point method, of a client and of the server."""

PredictionRule = Callable[[DeclaredModel, Mapping[str, Tensor], Tensor], Tensor]
"""From a model, values (sites, and what else a belief holds) and inputs ``[n, ...]`` to probabilities ``[n, C]``."""


def point_layout(model: DeclaredModel) -> FlatLayout:
    """Order of all sites in one flat vector, in unconstrained coordinates; roles make no difference to a point."""
    return FlatLayout(model.declaration.shapes)


def point_start(model: DeclaredModel) -> Tensor:
    """Where all sites begin, ``[P]``."""
    return point_layout(model).flatten(model.start.loc)


@dataclass(frozen=True, eq=False)
class PointBelief:
    """One value for every site of a declared model, of one client, of N stacked ones, or of the server.

    Its posterior predictive is the model's prediction at that value; there is no epistemic uncertainty.
    """

    model: DeclaredModel  # the declared model
    theta: Tensor  # all sites in unconstrained coordinates, flat ``[P]``, or ``[N, P]`` if stacked
    stacked: bool = False  # whether there is a leading client dimension
    extras: Mapping[str, Tensor] | None = None
    """What a prediction rule needs beside the sites, such as stored examples; ``[N, ...]`` each if stacked."""
    rule: PredictionRule | None = None  # how classes are predicted; None for the model's own way

    @staticmethod
    def cat(parts: Sequence[PointBelief]) -> PointBelief:
        """Join stacks of clients."""
        first = parts[0]
        extras = None
        if first.extras is not None:
            extras = {
                name: torch.cat([(part.extras or {})[name] for part in parts])
                for name in first.extras
            }
        return replace(first, theta=torch.cat([part.theta for part in parts]), extras=extras)

    @property
    def names(self) -> tuple[str, ...]:
        """The sites: all of them."""
        return tuple(self.model.declaration.shapes)

    @property
    def clients(self) -> int | None:
        """The number of clients N if stacked, else None."""
        return len(self.theta) if self.stacked else None

    @property
    def num_weights(self) -> int:
        """The number of scalar weights of one client, in unconstrained coordinates."""
        return self.theta.shape[-1]

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.theta.device

    def client(self, i: int) -> PointBelief:
        """One client of a stack."""
        if self.clients is None:
            raise UserError("this belief is of one: only a stacked one has clients")
        if not 0 <= i < self.clients:
            raise UserError(f"there is no client {i}: give 0 to {self.clients - 1}")
        extras = None
        if self.extras is not None:
            extras = {name: value[i] for name, value in self.extras.items()}
        return replace(self, theta=self.theta[i], stacked=False, extras=extras)

    @property
    def loc(self) -> dict[str, Tensor]:
        """The sites in their own coordinates, and the extras."""
        with torch.no_grad():
            values = self.model.constrain(point_layout(self.model).unflatten(self.theta))
        return {**values, **(self.extras or {})}

    def sample(
        self, draws: int | None = None, generator: torch.Generator | None = None
    ) -> dict[str, Tensor]:
        """The point, ``draws`` times over ``{site: [draws?, N?, *shape]}``; no random number is used."""
        del generator
        values = self.loc
        if draws is None:
            return values
        if draws < 1:
            raise UserError(f"draws is {draws}: give a whole number >= 1, or None")
        return {name: value.expand(draws, *value.shape) for name, value in values.items()}

    def kl(self, other: PointBelief) -> Tensor:
        """No information gain is defined between points."""
        raise UserError(
            "a point estimate has no information gain: KL divergence needs two densities"
        )
