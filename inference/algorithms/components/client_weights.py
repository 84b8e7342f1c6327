"""Servers that remember what every client sent last, for methods that compare clients with each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from pyro_pfedbayes.inference.algorithm import Tensors, Upload
from pyro_pfedbayes.inference.beliefs.points import THETA

ROWS, HOLDERS = "held.theta", "held.client"


def hold(server: Tensors, uploads: Iterable[Upload]) -> dict[str, Tensor]:
    """The server's next state: the latest weights of each client that ever took part, and their mean.

    Args:
        server: Its present state.
        uploads: What clients sent, ``theta [S, P]``.
    """
    rows = server.get(ROWS)
    held = {} if rows is None else dict(zip(server[HOLDERS].tolist(), rows, strict=True))
    for upload in uploads:
        held |= dict(zip(upload.clients, upload.tensors[THETA], strict=True))
    clients = sorted(held)
    rows = torch.stack([held[client] for client in clients])
    holders = torch.tensor(clients, dtype=torch.int64, device=rows.device)
    return {THETA: rows.mean(0), ROWS: rows, HOLDERS: holders}


def held_rows(server: Tensors, clients: Sequence[int]) -> tuple[Tensor | None, dict[int, int]]:
    """What the server remembers.

    Returns:
        Weights ``[M, P]`` of the M clients it has heard of, None if there are none; and by the place of a client among
        ``clients`` its row, for those among them.
    """
    if ROWS not in server:
        return None, {}
    row_of = {client: row for row, client in enumerate(server[HOLDERS].tolist())}
    return server[ROWS], {k: row_of[client] for k, client in enumerate(clients) if client in row_of}
