"""The client side of one round, streamed to the server a chunk of clients at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pyro_pfedbayes.data.clients import FederatedData
from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.inference.algorithm import (
    Algorithm,
    ClientUpdate,
    Cohort,
    Personalizing,
    Round,
    Tensors,
    Upload,
)
from pyro_pfedbayes.inference.engine.client_step import GradientEngine
from pyro_pfedbayes.inference.federation.state import FederationState, gather_rows, row_copies
from pyro_pfedbayes.randomness import seed_for

NUMBER_BYTES = 4
"""A number on its way to the server is a float32."""
PERSONAL = "personal"
"""Phase in which nothing is sent: what looks like an upload there only shows whether a client diverged."""


@dataclass
class CohortWork:
    """What a round's clients do; `uploads` does it, as fast as the server reads."""

    algorithm: Algorithm
    engine: GradientEngine
    data: FederatedData
    state: FederationState  # that the round begins with
    at: Round
    chunk: int  # clients stacked at once
    store: torch.device  # where rows wait between rounds
    rows: dict[int, Tensors] = field(init=False)  # of the clients, after the uploads read so far
    dropped: list[int] = field(default_factory=list, init=False)  # clients that diverged
    bytes_uploaded: int = field(default=0, init=False)  # so far, by those that diverged too
    _losses: list[Tensor] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.rows = dict(self.state.clients)

    @property
    def mean_loss(self) -> float:
        """Objective averaged over the clients that did not diverge, in nats."""
        return float(torch.cat(self._losses).mean()) if self._losses else float("nan")

    def uploads(self, cohort: Sequence[int]) -> Iterator[Upload]:
        """Train the clients of ``cohort``; yield what those with finite numbers send."""
        for clients in in_chunks(cohort, self.chunk):
            chunk = self._chunk(clients, self.algorithm.local_steps, self.at.seed)
            update = self.algorithm.client_update(self.engine, self.state.server, chunk, self.at)
            finite = _finite_clients(update)
            good = finite.tolist()
            self.rows |= row_copies(update.state, clients, good, self.store)
            self.dropped += [i for i, ok in zip(clients, good, strict=True) if not ok]
            self._losses.append(update.loss[finite])
            if self.algorithm.phase(self.at) != PERSONAL:
                self.bytes_uploaded += NUMBER_BYTES * sum(t.numel() for t in update.upload.values())
            upload = Upload(chunk.clients, update.upload, chunk.plan.sizes)
            if any(good):
                yield upload if all(good) else upload.select(finite)
        if len(self.dropped) == len(cohort):
            raise UserError(
                f"round {self.at.index + 1}: every client diverged (numbers are not finite); "
                "try a lower learning rate (lr, server_lr), or look at the range of inputs and outcomes"
            )

    def _chunk(self, clients: Sequence[int], steps: int, seed: int) -> Cohort:
        rows = gather_rows(self.algorithm, self.engine.model, self.state, clients)
        plan = self.data.plan(clients, steps, self.algorithm.batch_size, seed, self.at.index)
        return Cohort(tuple(clients), rows, plan, self.data.examples)

    def personalized(self, algorithm: Personalizing) -> dict[int, Tensors]:
        """Rows of all clients with their personal models made anew from the state; nothing is sent."""
        rows = dict(self.state.clients)
        for clients in in_chunks(range(self.data.num_clients), self.chunk):
            # A stream of its own, so that training is the same whether or not a round is evaluated.
            seed = seed_for(self.at.seed, "personalize")
            cohort = self._chunk(clients, algorithm.personal_steps, seed)
            made = algorithm.personalize(self.engine, self.state.server, cohort)
            copies = row_copies(made, clients, [True] * len(clients), self.store)
            rows |= {i: {**rows.get(i, {}), **own} for i, own in copies.items()}
        return rows


def in_chunks(clients: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    """Cut a sequence of clients into pieces of at most ``size``."""
    for start in range(0, len(clients), size):
        yield clients[start : start + size]


def _finite_clients(update: ClientUpdate) -> Tensor:
    """True for the clients ``[S]`` whose loss and upload are finite."""
    finite = update.loss.isfinite()
    for tensor in update.upload.values():
        if tensor.dim() > 1:
            # A sum is not finite if one of its terms is not, and cheaper to look at than all of them.
            finite = finite & tensor.flatten(1).sum(1).isfinite()
    return finite
