"""Posterior predictive of a belief, one draw at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

import torch
from pyro import poutine
from torch import Tensor

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.inference.beliefs.points import PointBelief
from pyro_pfedbayes.inference.beliefs.sites import Belief
from pyro_pfedbayes.inference.predictive.accumulators import (
    NumberAccumulator,
    NumberSummary,
    samples_for,
)
from pyro_pfedbayes.models.declared import DeclaredModel
from pyro_pfedbayes.models.sites import seeded, site_trace
from pyro_pfedbayes.randomness import generator, seed_for

CHUNK = 8192
"""Examples that pass through the network at once; memory is a setting, not a function of the data."""


class PredictiveStreams(NamedTuple):
    """The random numbers of one posterior predictive: for draws of the sites, and for outcomes under each of them."""

    weights: torch.Generator
    outcomes: torch.Generator


def predictive_streams(
    seed: int, device: torch.device | str, key: str = "alone"
) -> PredictiveStreams:
    """The streams of a posterior predictive with this seed; ``key`` tells several beliefs apart.

    Evaluations, `posterior_predictive` and stored predictions for ArviZ all take theirs here, so that with equal seeds
    they use the same draws.
    """
    return PredictiveStreams(
        *(generator(seed, what, key, device=device) for what in ("predictive", "outcomes"))
    )


def belief_seed(seed: int, client: int | None) -> int:
    """The seed of one client's posterior predictive in an evaluation; of the global model's for None."""
    return seed_for(seed, "global") if client is None else seed_for(seed, "personal", client)


def predictive_draws(
    model: DeclaredModel,
    belief: Belief,
    x: Tensor,
    draws: int,
    stream: torch.Generator,
    *,
    chunk: int = CHUNK,
) -> Iterator[Tensor]:
    """The model's prediction for x ``[n, *features]`` under one draw of an unstacked belief's sites after another.

    Yields class probabilities ``[n, C]`` or predictive means ``[n]``, one tensor a draw; ``chunk`` examples at once.
    """
    for values in site_draws(model, belief, draws, stream):
        yield _predict(model, belief, values, x, chunk)


def number_predictive(
    model: DeclaredModel,
    belief: Belief,
    pieces: Iterable[tuple[Tensor, Tensor]],
    *,
    draws: int,
    seed: int,
) -> Iterator[NumberSummary]:
    """The posterior predictive of numbers, one piece (inputs, outcomes) of the examples after another.

    Every piece meets the same draws of the sites, which are drawn again for it, so that no more than one piece and
    its outcomes is in memory; 0 draws take the sites' means. Moments and densities do not depend on how examples are
    cut into pieces. Drawn outcomes do, and with them the ends of intervals and the CRPS, within their Monte Carlo
    error: distributions draw whole batches, so what is drawn for an example depends on those beside it.
    """
    outcomes = predictive_streams(seed, belief.device).outcomes
    for x, y in pieces:
        running = NumberAccumulator(y, outcomes, samples=samples_for(draws))
        weights = predictive_streams(seed, belief.device).weights
        for values in site_draws(model, belief, draws, weights) if draws else [belief.loc]:
            with torch.no_grad():
                observation = model.observation(values, x)
            running.add(observation)
        yield running.result()


def site_draws(
    model: DeclaredModel, belief: Belief, draws: int, stream: torch.Generator
) -> Iterator[dict[str, Tensor]]:
    """Draws of all of a model's sites: from the belief, or where it says nothing from the model's own priors."""
    if draws < 1:
        raise UserError(f"draws is {draws}; a posterior predictive needs at least 1")
    if belief.stacked:
        raise UserError("this takes one client's belief; select one with .client(i)")
    complete = set(model.declaration.shapes) <= set(belief.names)
    for _ in range(draws):
        values = belief.sample(generator=stream)
        yield values if complete else _completed(model, values, stream)


def mean_predictive(
    model: DeclaredModel, belief: Belief, x: Tensor, *, chunk: int = CHUNK
) -> Tensor:
    """Prediction at the belief's mean, ``[n, C]`` or ``[n]``: no Bayesian average, for comparison."""
    return _predict(model, belief, belief.loc, x, chunk)


def posterior_predictive(
    model: DeclaredModel,
    belief: Belief,
    x: Tensor,
    *,
    draws: int = 10,
    seed: int = 0,
    chunk: int = CHUNK,
) -> Tensor:
    """Prediction averaged over draws of the weights: p(y | x) = E_q p(y | x, theta).

    Draws are accumulated one at a time, so memory does not grow with their number.

    Args:
        model: Network and likelihood.
        belief: A client's q^i or the server's w; stacked for N clients, each with its own stream.
        x: Inputs ``[n, *features]``, or ``[N, n, *features]`` if stacked.
        draws: Number of draws.
        seed: Seed of the draws.
        chunk: Examples at once.

    Returns:
        ``[n, C]``, or ``[N, n, C]`` if stacked.

    Raises:
        UserError: ``draws`` below 1, or x whose rows do not match the clients.

    Example:
        >>> import pyro_pfedbayes as pfb
        >>> model = pfb.BayesianModel(pfb.mlp([4, 8, 3]), pfb.Categorical(3))
        >>> posterior_predictive(model, model.prior, torch.zeros(2, 4), draws=5).sum(-1)
        tensor([1., 1.])
    """

    def average(one: Belief, rows: Tensor, key: str) -> Tensor:
        stream = predictive_streams(seed, one.device, key).weights
        predictions = predictive_draws(model, one, rows, draws, stream, chunk=chunk)
        total = next(predictions)
        for prediction in predictions:
            total.add_(prediction)
        return total / draws

    if not belief.stacked:
        return average(belief, x, "alone")
    if belief.clients != len(x):
        raise UserError(f"x has {len(x)} rows of inputs for {belief.clients} clients")
    return torch.stack([average(belief.client(i), rows, f"client {i}") for i, rows in enumerate(x)])


def predictor(
    model: DeclaredModel, belief: Belief
) -> Callable[[Mapping[str, Tensor], Tensor], Tensor]:
    """How a belief's values predict inputs: as the model says, or by a rule of the belief's own."""
    if isinstance(belief, PointBelief) and belief.rule is not None:
        return partial(belief.rule, model)
    return model.predict


def _predict(
    model: DeclaredModel, belief: Belief, values: Mapping[str, Tensor], x: Tensor, chunk: int
) -> Tensor:
    predict = predictor(model, belief)
    with torch.no_grad():
        parts = [predict(values, part) for part in x.split(chunk)]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _completed(
    model: DeclaredModel, values: Mapping[str, Tensor], stream: torch.Generator
) -> dict[str, Tensor]:
    """Values of all sites: those not given are drawn from the model's own priors."""
    seed = int(torch.randint(2**62, (1,), generator=stream, device=stream.device))
    with seeded(seed), torch.no_grad():
        nodes = site_trace(poutine.condition(model.sites_program, data=dict(values)))
    return {name: nodes[name]["value"] for name in model.declaration.shapes}
