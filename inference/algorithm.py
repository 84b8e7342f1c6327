"""What an algorithm is to the round loop: pure functions over mappings of flat tensors.

The engine keeps the books (who takes part, whose state waits where, what is saved); an algorithm only says how a
client's row changes and what the server makes of the uploads. Adding a method is one new file with these functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from pyro_pfedbayes.data.clients import BatchPlan
from pyro_pfedbayes.inference.beliefs.sites import Belief
from pyro_pfedbayes.inference.engine.client_step import GradientEngine
from pyro_pfedbayes.inference.objective.estimators import EstimatorKind
from pyro_pfedbayes.models.declared import DeclaredModel

Tensors = Mapping[str, Tensor]
Values = dict[str, Tensor]
"""Tensors of one client, as an objective takes them."""
Judged = Literal["personal", "global"]


@dataclass(frozen=True)
class Round:
    """Where in the run we are."""

    index: int  # rounds finished before this one
    total: int  # rounds of the whole run, for schedules
    seed: int  # of the run; every stream of random numbers is derived from it


def _unknown(client: int, part: str) -> tuple[Tensor, Tensor]:
    raise LookupError(f"this cohort was made without the {part} examples of client {client}")


@dataclass(frozen=True)
class Cohort:
    """Clients that take part in a round, stacked."""

    clients: tuple[int, ...]  # their S numbers
    state: Tensors  # their own rows, [S, ...] each, as the last `ClientUpdate` left them
    plan: BatchPlan  # their minibatches
    examples: Callable[[int, Literal["train", "validation"]], tuple[Tensor, Tensor]] = _unknown
    """All examples of one part of a client, x ``[n_i, *features]`` and y ``[n_i]``. No method sees test examples."""


@dataclass(frozen=True)
class ClientUpdate:
    """What a cohort's local work leaves behind."""

    state: Tensors  # the clients' new rows, [S, ...] each; they stay with the clients
    upload: Tensors  # what leaves the clients for the server, [S, ...] each
    loss: Tensor  # objective per client averaged over local steps, [S] in nats


@dataclass(frozen=True)
class Upload:
    """What some clients sent."""

    clients: tuple[int, ...]  # their S numbers
    tensors: Tensors  # [S, ...] each
    sizes: Tensor  # their numbers of training examples n_i, [S]

    def select(self, rows: Tensor) -> Upload:
        """What the clients at ``rows``, bool ``[S]``, sent."""
        clients = tuple(i for i, chosen in zip(self.clients, rows.tolist(), strict=True) if chosen)
        places = rows.to(self.sizes.device)
        tensors = {name: tensor[places] for name, tensor in self.tensors.items()}
        return Upload(clients, tensors, self.sizes[places])

    @staticmethod
    def cat(parts: Sequence[Upload]) -> Upload:
        """Uploads one after the other."""
        clients = tuple(client for part in parts for client in part.clients)
        tensors = {n: torch.cat([part.tensors[n] for part in parts]) for n in parts[0].tensors}
        return Upload(clients, tensors, torch.cat([part.sizes for part in parts]))


class Algorithm(Protocol):
    """A federated method (see the module's docstring); implementations are frozen dataclasses of settings."""

    @property
    def name(self) -> str:
        """Name on the command line."""

    @property
    def models(self) -> tuple[Judged, ...]:
        """Which models the method is about; the other is evaluated all the same, but is no result of the method."""

    @property
    def batch_size(self) -> int:
        """Examples b in a client's minibatch."""

    @property
    def local_steps(self) -> int:
        """Minibatches R that a client works through in a round."""

    @property
    def estimator(self) -> EstimatorKind:
        """How the noise of layers is drawn: ``"plain"``, ``"local"`` or ``"flipout"``."""

    def init(self, model: DeclaredModel) -> Tensors:
        """The server's state before any round of a declared model."""

    def client_init(self, model: DeclaredModel, server: Tensors, count: int) -> Tensors:
        """Rows of ``count`` clients that have never trained."""

    def check(self, rounds: int, clients: int) -> None:
        """Refuse settings that do not fit a run of so many rounds and clients (UserError)."""

    def phase(self, at: Round) -> str:
        """What the round is for, in one word; in one that is ``"personal"`` the clients send nothing."""

    def needs_everyone(self, at: Round) -> bool:
        """Whether all clients work in this round, whatever the participation."""

    def client_update(
        self, engine: GradientEngine, server: Tensors, cohort: Cohort, at: Round
    ) -> ClientUpdate:
        """A cohort's local work of one round."""

    def server_update(
        self, model: DeclaredModel, server: Tensors, uploads: Iterable[Upload], at: Round
    ) -> Tensors:
        """The next server state, from a stream of uploads that must be read to its end."""

    def personal_belief(self, model: DeclaredModel, clients: Tensors) -> Belief:
        """The stacked q^i of client rows."""

    def global_belief(self, model: DeclaredModel, server: Tensors) -> Belief:
        """The server's w."""

    def gradient_steps(self, at: Round) -> int:
        """Gradient evaluations that one client makes in this round."""


@runtime_checkable
class Personalizing(Protocol):
    """A method whose personal models are made from the server's by each client on its training examples.

    It happens before each evaluation, changes nothing that is trained or sent, and is not counted in gradient steps.
    """

    @property
    def personal_steps(self) -> int:
        """Minibatches that a client works through for it, at least 1."""

    def personalize(self, engine: GradientEngine, server: Tensors, cohort: Cohort) -> Tensors:
        """What to keep in the clients' rows ``[S, ...]`` beside what is there, for `Algorithm.personal_belief`."""
