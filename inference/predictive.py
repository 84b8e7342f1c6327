"""Posterior predictive of a belief, one draw at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.gaussian import MeanFieldGaussian
from pyro_pfedbayes.models.bayesian import BayesianModel
from pyro_pfedbayes.randomness import generator

__all__ = ["mean_predictive", "posterior_predictive", "predictive_draws"]

CHUNK = 8192
"""Examples that pass through the network at once; memory is a setting, not a function of the data."""


def predictive_draws(
    model: BayesianModel,
    belief: MeanFieldGaussian,
    x: Tensor,
    draws: int,
    stream: torch.Generator,
    *,
    chunk: int = CHUNK,
) -> Iterator[Tensor]:
    """The likelihood's prediction under one draw of the weights after another.

    Args:
        model: Network and likelihood.
        belief: An unstacked Gaussian over the weights.
        x: Inputs ``[n, *features]``.
        draws: Number of draws, at least 1.
        stream: Random numbers, on the belief's device.
        chunk: Examples at once.

    Yields:
        ``[n, C]`` for a categorical likelihood, one tensor a draw.

    Raises:
        UserError: ``draws`` below 1, or a stacked belief.
    """
    if draws < 1:
        raise UserError(f"draws is {draws}; a posterior predictive needs at least 1")
    if belief.stacked:
        raise UserError("predictive_draws takes one client's belief; select one with .client(i)")
    for _ in range(draws):
        yield _predict(model, belief.sample(generator=stream), x, chunk)


def mean_predictive(
    model: BayesianModel, belief: MeanFieldGaussian, x: Tensor, *, chunk: int = CHUNK
) -> Tensor:
    """Prediction at the belief's mean weights, ``[n, C]``: no Bayesian average, for comparison."""
    return _predict(model, belief.loc, x, chunk)


def posterior_predictive(
    model: BayesianModel,
    belief: MeanFieldGaussian,
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
        >>> from pyro_pfedbayes.models.likelihoods import Categorical
        >>> from pyro_pfedbayes.models.networks import mlp
        >>> model = BayesianModel(mlp([4, 8, 3]), Categorical(3))
        >>> posterior_predictive(model, model.prior, torch.zeros(2, 4), draws=5).sum(-1)
        tensor([1., 1.])
    """
    if belief.stacked:
        if belief.clients != len(x):
            raise UserError(f"x has {len(x)} rows of inputs for {belief.clients} clients")
        return torch.stack(
            [
                _average(model, belief.client(i), rows, draws, seed, f"client {i}", chunk)
                for i, rows in enumerate(x)
            ]
        )
    return _average(model, belief, x, draws, seed, "alone", chunk)


def _average(
    model: BayesianModel,
    belief: MeanFieldGaussian,
    x: Tensor,
    draws: int,
    seed: int,
    key: str,
    chunk: int,
) -> Tensor:
    stream = generator(seed, "predictive", key, device=belief.device)
    total: Tensor | None = None
    for prediction in predictive_draws(model, belief, x, draws, stream, chunk=chunk):
        total = prediction if total is None else total.add_(prediction)
    assert total is not None
    return total / draws


def _predict(model: BayesianModel, weights: Mapping[str, Tensor], x: Tensor, chunk: int) -> Tensor:
    with torch.no_grad():
        parts = [model.likelihood.predict(model.outputs(weights, part)) for part in x.split(chunk)]
    return parts[0] if len(parts) == 1 else torch.cat(parts)
