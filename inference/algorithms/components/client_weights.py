"""Servers that store what every client sent last, for methods that compare clients with each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_pfedbayes.inference.algorithm import Round, Tensors, Upload
from pyro_pfedbayes.inference.algorithms.components.point import PointMethod
from pyro_pfedbayes.inference.beliefs.points import THETA
from pyro_pfedbayes.models.declared import DeclaredModel

ROWS, CLIENTS = "held.theta", "held.client"


@dataclass(frozen=True)
class StoringMethod(PointMethod):
    """A method whose server stores the latest weights of each client, in the order of their numbers."""

    models = ("personal",)

    def parted(self, model: DeclaredModel, theta: Tensor) -> tuple[Tensors, Tensors]:
        """All weights stay, and are sent."""
        return {THETA: theta}, {THETA: theta}

    def server_update(
        self, model: DeclaredModel, server: Tensors, uploads: Iterable[Upload], at: Round
    ) -> Tensors:
        """The latest weights of each client that ever took part, and their mean."""
        stored: dict[int, Tensor] = {}
        if ROWS in server:
            stored = dict(zip(server[CLIENTS].tolist(), server[ROWS], strict=True))
        for upload in uploads:
            stored |= dict(zip(upload.clients, upload.tensors[THETA], strict=True))
        rows = torch.stack([stored[client] for client in sorted(stored)])
        clients = torch.tensor(sorted(stored), dtype=torch.int64, device=rows.device)
        return {THETA: rows.mean(0), ROWS: rows, CLIENTS: clients}


def stored_rows(server: Tensors, clients: Sequence[int]) -> tuple[Tensor, list[int], list[int]]:
    """Weights ``[M, P]`` that a server stores, the places of those among ``clients`` that it knows, and their rows."""
    row_of = {client: row for row, client in enumerate(server[CLIENTS].tolist())}
    places = [k for k, client in enumerate(clients) if client in row_of]
    return server[ROWS], places, [row_of[clients[k]] for k in places]
