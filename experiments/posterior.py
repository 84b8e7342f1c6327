"""What the clients' posteriors say about their test examples, draw by draw, as an ArviZ tree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pyro_pfedbayes.datatree import MAX_CELLS, to_datatree
from pyro_pfedbayes.datatree_numbers import NumberDraw, to_datatree_numbers
from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.inference.accumulate import number_draw
from pyro_pfedbayes.inference.beliefs import Belief
from pyro_pfedbayes.inference.federation import Federation
from pyro_pfedbayes.inference.predictive import predictive_distributions, predictive_draws
from pyro_pfedbayes.inference.state import FederationState
from pyro_pfedbayes.randomness import generator, seed_for

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["personal_draws", "personal_number_draws", "posterior_datatree"]


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
    streams = [
        predictive_draws(federation.model, belief, x, draws, _stream(key, "predictive", belief))
        for belief, x, _, key in _held(federation, state, part)
    ]
    for parts in zip(*streams, strict=True):
        yield torch.cat(parts)


def personal_number_draws(
    federation: Federation, state: FederationState, part: str, draws: int
) -> Iterator[NumberDraw]:
    """What every client's q^i says about its own outcomes, if they are numbers, draw by draw of the weights.

    Arguments as in `personal_draws`; the draws of the weights are those of ``Federation.predictions``.

    Yields:
        Moments, log-density and a drawn outcome of all clients' examples, in order of the clients; K times.
    """
    model = federation.model

    def one(belief: Belief, x: Tensor, y: Tensor, key: int) -> Iterator[NumberDraw]:
        outcomes = _stream(key, "outcomes", belief)
        weights = _stream(key, "predictive", belief)
        for observation in predictive_distributions(model, belief, x, draws, weights):
            yield number_draw(observation, y, outcomes)

    streams = [one(*held) for held in _held(federation, state, part)]
    for parts in zip(*streams, strict=True):
        yield NumberDraw(
            torch.cat([each.mean for each in parts]),
            torch.cat([each.variance for each in parts]),
            torch.cat([each.log_density for each in parts]),
            torch.cat([each.outcomes for each in parts], 1),
        )


def _held(
    federation: Federation, state: FederationState, part: str
) -> Iterator[tuple[Belief, Tensor, Tensor, int]]:
    """Belief, examples and seed of each client that has examples."""
    seed = seed_for(federation.seed, "evaluation")
    for clients, stacked in federation.personal_beliefs(state):
        for row, client in enumerate(clients):
            x, y = federation.data.examples(client, part)
            if len(y):
                yield stacked.client(row), x, y, seed_for(seed, "personal", client)


def _stream(key: int, what: str, belief: Belief) -> torch.Generator:
    return generator(key, what, "alone", device=belief.device)


def posterior_datatree(
    federation: Federation,
    state: FederationState,
    *,
    draws: int = 20,
    part: str = "test",
    attrs: Mapping[str, str | int | float] | None = None,
) -> xr.DataTree:
    """The personal models' posterior predictive as an ArviZ tree.

    `to_datatree` says what it holds, and `to_datatree_numbers` what it holds of outcomes that are numbers.

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
    draws = min(draws, max(1, MAX_CELLS // total))
    names = federation.data.partition.names
    y = dataset.y.cpu()[index]
    if dataset.outcome == "number":
        return to_datatree_numbers(
            personal_number_draws(federation, state, part, draws),
            y,
            owner,
            target_scaling=dataset.target_scaling,
            names=names,
            index=index,
            attrs=attrs,
        )
    return to_datatree(
        personal_draws(federation, state, part, draws),
        y,
        owner,
        classes=dataset.classes,
        names=names,
        index=index,
        attrs=attrs,
        seed=seed_for(federation.seed, "posterior", state.round),
    )
