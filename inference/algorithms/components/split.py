"""Methods whose clients keep some layers to themselves: which ones, and the server that averages the others."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pyro_pfedbayes.errors import UserError, nearest
from pyro_pfedbayes.inference.algorithm import Cohort, Judged, Round, Tensors
from pyro_pfedbayes.inference.algorithms.components.point import PERSONAL, PointMethod
from pyro_pfedbayes.inference.algorithms.components.settings import Count
from pyro_pfedbayes.inference.beliefs.points import THETA, point_layout
from pyro_pfedbayes.models.declared import DeclaredModel

OWN = "own"
"""Name of a client's private weights in its row."""


def head_sites(model: DeclaredModel, pattern: str) -> tuple[str, ...]:
    """The sites of a model's head.

    By a name pattern as for roles (``"head.*"``); empty for the sites declared private or, where none is, for the last
    layer of a network.
    """
    names = tuple(model.declaration.shapes)
    if pattern:
        found = tuple(name for name in names if fnmatch.fnmatchcase(name, pattern))
        if not found:
            known = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
            raise UserError(
                f"head is {pattern!r}, which matches no site{nearest(pattern, names)} (there are: {known})"
            )
    elif model.declaration.private.shapes:
        found = tuple(model.declaration.private.shapes)
    else:
        layer = names[-1].rpartition(".")[0]
        found = tuple(name for name in names if layer and name.startswith(f"{layer}."))
    if not found:
        raise UserError(
            "nothing tells which sites are the head: set head to a name pattern, or declare private sites"
        )
    if len(found) == len(names):
        raise UserError("the head is the whole model; leave something to the body")
    return found


def mask_of(model: DeclaredModel, sites: Iterable[str]) -> Tensor:
    """Where some sites lie in the flat weights, bool ``[P]``."""
    chosen, layout, device = set(sites), point_layout(model), model.start.device
    parts = {n: torch.full(s, n in chosen, device=device) for n, s in layout.shapes.items()}
    return layout.flatten(parts)


@dataclass(frozen=True)
class SplitMethod(PointMethod):
    """What such methods share."""

    head: str = ""
    """Name pattern of the head's sites; empty for those that the model declares private, or else its last layer."""

    models: ClassVar[tuple[Judged, ...]] = ("personal",)
    personal_steps = 1
    """A personal model is put together of averaged and own weights, without a step."""

    def private(self, model: DeclaredModel) -> Tensor:
        """Which weights stay with a client, bool ``[P]``: the head's."""
        return mask_of(model, head_sites(model, self.head))

    def averaged_places(self, model: DeclaredModel, at: Round) -> Tensor:
        """All others."""
        return ~self.private(model)

    def init(self, model: DeclaredModel) -> Tensors:
        """The server's weights; where private weights lie, those that every client begins with."""
        self.private(model)
        return super().init(model)

    def client_init(self, model: DeclaredModel, server: Tensors, count: int) -> Tensors:
        """Private weights as the server began."""
        theta = server[THETA].expand(count, -1).clone()
        return {OWN: theta[:, self.private(model)], PERSONAL: theta}

    def starting_weights(self, model: DeclaredModel, server: Tensors, cohort: Cohort) -> Tensor:
        """The server's weights with the clients' private ones in their places, ``[S, P]``."""
        theta = server[THETA].expand(len(cohort.clients), -1).clone()
        theta[:, self.private(model)] = cohort.state[OWN]
        return theta

    def parted(self, model: DeclaredModel, theta: Tensor) -> tuple[Tensors, Tensors]:
        """Private weights stay, the others are sent."""
        private = self.private(model)
        return {OWN: theta[:, private]}, {THETA: theta[:, ~private]}


@dataclass(frozen=True)
class AlternatingMethod(SplitMethod):
    """Such a method whose rounds train heads first, then bodies."""

    head_steps: Count | None = None
    """Minibatches for the head, below ``local_steps``; None for half of them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.heads < self.local_steps:
            raise UserError(
                f"head_steps is {self.heads} of local_steps {self.local_steps}; "
                "leave some minibatches to the head and to the body"
            )

    @property
    def heads(self) -> int:
        """How many of a round's minibatches are for the head."""
        return self.local_steps // 2 if self.head_steps is None else self.head_steps
