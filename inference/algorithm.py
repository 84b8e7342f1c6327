"""What an algorithm is to the round loop: pure functions over mappings of flat tensors.

The engine keeps the books (who takes part, whose state waits where, what is saved); an algorithm only says how a
client's row changes and what the server makes of the uploads. Adding a method is one new file with these functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

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
    """Where in the run we are.

    Attributes:
        index: Rounds finished before this one.
        total: Rounds of the whole run, for schedules.
        seed: Seed of the run; every stream of random numbers is derived from it.
    """

    index: int
    total: int
    seed: int


def _unknown(client: int, part: str) -> tuple[Tensor, Tensor]:
    raise LookupError(f"this cohort was made without the {part} examples of client {client}")


@dataclass(frozen=True)
class Cohort:
    """Clients that take part in a round, stacked.

    Attributes:
        clients: Their S numbers.
        state: Their own rows, ``[S, ...]`` each, as the last `ClientUpdate` left them.
        plan: Their minibatches.
        examples: All examples of a client's ``"train"`` or ``"validation"`` part: x ``[n_i, *features]`` and y
            ``[n_i]``. No method sees test examples.
    """

    clients: tuple[int, ...]
    state: Tensors
    plan: BatchPlan
    examples: Callable[[int, Literal["train", "validation"]], tuple[Tensor, Tensor]] = _unknown

    @property
    def held_out(self) -> tuple[tuple[Tensor, Tensor], ...]:
        """Validation examples of each."""
        return tuple(self.examples(client, "validation") for client in self.clients)


@dataclass(frozen=True)
class ClientUpdate:
    """What a cohort's local work leaves behind.

    Attributes:
        state: The clients' new rows, ``[S, ...]`` each; they stay with the clients.
        upload: What leaves the clients for the server, ``[S, ...]`` each.
        loss: Objective per client averaged over local steps, ``[S]`` in nats.
    """

    state: Tensors
    upload: Tensors
    loss: Tensor


@dataclass(frozen=True)
class Upload:
    """What some clients sent.

    Attributes:
        clients: Their S numbers.
        tensors: What they sent, ``[S, ...]`` each.
        sizes: Their numbers of training examples n_i, ``[S]``.
    """

    clients: tuple[int, ...]
    tensors: Tensors
    sizes: Tensor


class Algorithm(Protocol):
    """A federated method (see the module's docstring); implementations are frozen dataclasses of settings."""

    @property
    def name(self) -> str:
        """Name on the command line."""
        ...

    @property
    def models(self) -> tuple[Judged, ...]:
        """Which models the method is about; the other is evaluated all the same, but is no result of the method."""
        ...

    @property
    def batch_size(self) -> int:
        """Examples b in a client's minibatch."""
        ...

    @property
    def local_steps(self) -> int:
        """Minibatches R that a client works through in a round."""
        ...

    @property
    def estimator(self) -> EstimatorKind:
        """How the noise of layers is drawn: ``"plain"``, ``"local"`` or ``"flipout"``."""
        ...

    def init(self, model: DeclaredModel) -> Tensors:
        """The server's state before any round of a declared model."""
        ...

    def client_init(self, model: DeclaredModel, server: Tensors, count: int) -> Tensors:
        """Rows of ``count`` clients that have never trained."""
        ...

    def check(self, rounds: int, clients: int) -> None:
        """Refuse settings that do not fit a run of so many rounds and clients (UserError)."""
        ...

    def phase(self, at: Round) -> str:
        """What the round is for, in one word; in one that is ``"personal"`` the clients send nothing."""
        ...

    def needs_everyone(self, at: Round) -> bool:
        """Whether all clients work in this round, whatever the participation."""
        ...

    def client_update(
        self, engine: GradientEngine, server: Tensors, cohort: Cohort, at: Round
    ) -> ClientUpdate:
        """A cohort's local work of one round."""
        ...

    def server_update(
        self, model: DeclaredModel, server: Tensors, uploads: Iterable[Upload], at: Round
    ) -> Tensors:
        """The next server state, from a stream of uploads that must be read to its end."""
        ...

    def personal_belief(self, model: DeclaredModel, clients: Tensors) -> Belief:
        """The stacked q^i of client rows."""
        ...

    def global_belief(self, model: DeclaredModel, server: Tensors) -> Belief:
        """The server's w."""
        ...

    def gradient_steps(self, at: Round) -> int:
        """Gradient evaluations that one client makes in this round."""
        ...


@runtime_checkable
class Personalizing(Protocol):
    """A method whose personal models are made from the server's by each client on its training examples.

    It happens before each evaluation, changes nothing that is trained or sent, and is not counted in gradient steps.
    """

    @property
    def personal_steps(self) -> int:
        """Minibatches that a client works through for it, at least 1."""
        ...

    def personalize(self, engine: GradientEngine, server: Tensors, cohort: Cohort) -> Tensors:
        """What to keep in the clients' rows ``[S, ...]`` beside what is there, for `Algorithm.personal_belief`."""
        ...
