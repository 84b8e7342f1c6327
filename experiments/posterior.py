"""What the clients' posteriors say about their test examples, draw by draw, as an ArviZ tree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pyro_pfedbayes.datatree import MAX_CELLS, to_datatree
from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.inference.federation import Federation
from pyro_pfedbayes.inference.predictive import predictive_draws
from pyro_pfedbayes.inference.state import FederationState
from pyro_pfedbayes.randomness import generator, seed_for

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["personal_draws", "posterior_datatree"]


def personal_draws(
    federation: Federation, state: FederationState, part: str, draws: int
) -> Iterator[Tensor]:
    """Predictions of every client's q^i on its own examples, one draw of the weights after another.

    Their mean over draws is what ``Federation.predictions`` gives for as many draws: the streams are the same.

    Args:
        federation: Clients and model.
        state: What they believe.
        part: ``"test"`` or ``"validation"``.
        draws: Number of draws K.

    Yields:
        Class probabilities ``[n, C]`` of all clients' examples, in order of the clients; K tensors.
    """
    seed = seed_for(federation.seed, "evaluation")
    streams: list[Iterator[Tensor]] = []
    for clients, stacked in federation.personal_beliefs(state):
        for row, client in enumerate(clients):
            x, y = federation.data.examples(client, part)
            if not len(y):
                continue
            belief = stacked.client(row)
            key = seed_for(seed, "personal", client)
            stream = generator(key, "predictive", "alone", device=belief.device)
            streams.append(predictive_draws(federation.model, belief, x, draws, stream))
    for parts in zip(*streams, strict=True):
        yield torch.cat(parts)


def posterior_datatree(
    federation: Federation,
    state: FederationState,
    *,
    draws: int = 20,
    part: str = "test",
    attrs: Mapping[str, str | int | float] | None = None,
) -> xr.DataTree:
    """The personal models' posterior predictive as an ArviZ tree; `to_datatree` says what it holds.

    Args:
        federation: Clients and model.
        state: What they believe.
        draws: Draws of the weights; fewer are made where they would not fit.
        part: ``"test"`` or ``"validation"``.
        attrs: What to remember of the run.

    Raises:
        UserError: No client has such an example.
    """
    lists = federation.data.partition.part(part)
    total = sum(len(index) for index in lists)
    if not total:
        raise UserError(f"no client has a {part} example")
    dataset = federation.data.dataset
    owner = torch.arange(len(lists)).repeat_interleave(torch.tensor([len(i) for i in lists]))
    index = torch.cat(lists)
    return to_datatree(
        personal_draws(federation, state, part, min(draws, max(1, MAX_CELLS // total))),
        dataset.y.cpu()[index],
        owner,
        classes=dataset.classes,
        names=federation.data.partition.names,
        index=index,
        attrs=attrs,
        seed=seed_for(federation.seed, "posterior", state.round),
    )
