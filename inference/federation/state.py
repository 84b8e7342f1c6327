"""The state of a federation: everything a run needs to carry on, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pyro_pfedbayes.inference.algorithm import Algorithm, Tensors
from pyro_pfedbayes.models.declared import DeclaredModel

Rows = Mapping[int, Tensors]


@dataclass(frozen=True, repr=False)
class FederationState:
    """What a run is at the end of a round."""

    round: int  # rounds finished
    server: Tensors
    clients: Rows = field(default_factory=dict)
    """Rows of the clients that have trained, by number; the others believe what the server believes."""
    history: tuple[dict[str, Any], ...] = ()
    """One record an evaluated round, as in ``metrics.jsonl``."""
    gradient_steps: int = 0  # gradient evaluations so far, summed over clients
    seconds: Mapping[str, float] = field(default_factory=lambda: {"train": 0.0, "evaluate": 0.0})
    bytes_uploaded: int = 0  # by all clients so far, four bytes a number

    def __repr__(self) -> str:
        """Where it stands, without its tensors."""
        return f"FederationState(round={self.round}, {len(self.clients)} clients trained)"


def gather_rows(
    algorithm: Algorithm, model: DeclaredModel, state: FederationState, clients: Sequence[int]
) -> dict[str, Tensor]:
    """Stack the rows of some clients, ``[S, ...]`` each, on the model's device, as fresh tensors.

    What a client has not got (it never trained, or not under this name) is as `Algorithm.client_init` says.
    """
    known = [state.clients.get(i, {}) for i in clients]
    names = dict.fromkeys(name for row in known for name in row)
    complete = names and all(len(row) == len(names) for row in known)
    fresh = {} if complete else algorithm.client_init(model, state.server, 1)
    names |= dict.fromkeys(fresh)
    rows = [moved(row, model.start.device) for row in known]
    return {n: torch.stack([row[n] if n in row else fresh[n][0] for row in rows]) for n in names}


def moved(tensors: Tensors, device: torch.device) -> dict[str, Tensor]:
    """The same tensors on a device."""
    return {name: tensor.to(device) for name, tensor in tensors.items()}


def row_copies(
    stacked: Tensors, clients: Sequence[int], keep: Sequence[bool], device: torch.device
) -> dict[int, dict[str, Tensor]]:
    """Cut a stack into rows by client, copied to ``device``; rows that are not kept are left out.

    Copies, because a view of one row would keep the whole stack alive.
    """
    return {
        client: {name: tensor[k].to(device, copy=True) for name, tensor in stacked.items()}
        for k, client in enumerate(clients)
        if keep[k]
    }
