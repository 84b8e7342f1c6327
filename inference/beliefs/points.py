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


def check_client(clients: int | None, i: int) -> None:
    """Refuse a client that a belief of so many (None: of one) does not have."""
    if clients is None:
        raise UserError("this belief is of one: only a stacked one has clients")
    if not 0 <= i < clients:
        raise UserError(f"there is no client {i}: give 0 to {clients - 1}")


def check_draws(draws: int) -> None:
    """Refuse fewer than one draw."""
    if draws < 1:
        raise UserError(f"draws is {draws}: give a whole number >= 1, or None")


@dataclass(frozen=True, eq=False)
class PointBelief:
    """One value for every site of a declared model, of one client, of N stacked ones, or of the server.

    Its posterior predictive is the model's prediction at that value; there is no epistemic uncertainty.
    """

    model: DeclaredModel
    theta: Tensor  # all sites in unconstrained coordinates ``[P]``, or ``[N, P]``
    stacked: bool = False  # whether there is a leading client dimension
    # What a rule needs beside sites, such as examples; ``[N, ...]`` if stacked
    extras: Mapping[str, Tensor] | None = None
    rule: PredictionRule | None = None  # how classes are predicted; None for the model's own way

    @staticmethod
    def cat(parts: Sequence[PointBelief]) -> PointBelief:
        """Join stacks of clients."""
        extras = None
        if parts[0].extras is not None:
            extras = {
                k: torch.cat([(part.extras or {})[k] for part in parts]) for k in parts[0].extras
            }
        return replace(parts[0], theta=torch.cat([part.theta for part in parts]), extras=extras)

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
        check_client(self.clients, i)
        extras = None if self.extras is None else {k: v[i] for k, v in self.extras.items()}
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
        check_draws(draws)
        return {name: value.expand(draws, *value.shape) for name, value in values.items()}

    def kl(self, other: PointBelief) -> Tensor:
        """No information gain is defined between points."""
        raise UserError(
            "a point estimate has no information gain: KL divergence needs two densities"
        )
