"""Judging personal and global models by their posterior predictive on the clients' examples."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from pyro_pfedbayes.clients import FederatedData
from pyro_pfedbayes.inference.accumulate import NumberAccumulator, samples_for
from pyro_pfedbayes.inference.beliefs import Belief
from pyro_pfedbayes.inference.predictive import (
    belief_seed,
    mean_predictive,
    posterior_predictive,
    predictive_distributions,
    predictive_streams,
)
from pyro_pfedbayes.models.declared import DeclaredModel
from pyro_pfedbayes.uncertainty import (
    accuracy,
    brier_score,
    expected_calibration_error,
    interval_coverage,
    mean_absolute_error,
    negative_log_likelihood,
    root_mean_squared_error,
)

__all__ = [
    "HEADLINE",
    "AnyPredictions",
    "NumberPredictions",
    "Predictions",
    "measures",
    "predict_global",
    "predict_personal",
]


HEADLINE: Mapping[str, str] = {"class": "accuracy", "number": "rmse"}
"""The first measure of each kind of outcome: an accuracy is the better the higher, an RMSE the lower."""


@dataclass(frozen=True)
class Predictions:
    """Predictions of classes on one part of every client's data, laid end to end.

    Attributes:
        probs: Class probabilities ``[n, C]``.
        y: Labels ``[n]``, -1 where unknown.
        client: Whose example it is, ``[n]``.
    """

    probs: Tensor
    y: Tensor
    client: Tensor

    @property
    def known(self) -> Tensor:
        """Examples whose label is known, bool ``[n]``; the others are left out of every measure."""
        return self.y >= 0

    def select(self, rows: Tensor) -> Predictions:
        """The predictions at ``rows``, a mask or an index."""
        return Predictions(self.probs[rows], self.y[rows], self.client[rows])

    def split(self) -> dict[int, Predictions]:
        """Those of each client that has examples."""
        return {int(i): self.select(self.client == i) for i in self.client.unique()}

    def by_client(self) -> dict[int, tuple[Tensor, Tensor]]:
        """Probabilities and labels of each client that has examples."""
        return {client: (part.probs, part.y) for client, part in self.split().items()}


@dataclass(frozen=True)
class NumberPredictions:
    """Predictions of numbers on one part of every client's data, laid end to end, in the model's units.

    Attributes:
        y: Outcomes ``[n]``, NaN where missing.
        client: Whose example it is, ``[n]``.
        mean: Predictive mean ``[n]``.
        aleatoric: Mean over draws of the conditional variance, ``[n]``.
        epistemic: Variance over draws of the conditional mean, ``[n]``.
        log_density: log of the mean over draws of p(y | x, weights), ``[n]`` in nats; NaN where y is missing.
        lower: Lower end of the central 90 % interval, ``[n]``.
        upper: Its upper end, ``[n]``.
        scale: One unit of the model in the data's own units: the scale by which outcomes were standardised.
    """

    y: Tensor
    client: Tensor
    mean: Tensor
    aleatoric: Tensor
    epistemic: Tensor
    log_density: Tensor
    lower: Tensor
    upper: Tensor
    scale: float = 1.0

    @property
    def known(self) -> Tensor:
        """Examples whose outcome is known, bool ``[n]``; the others are left out of every measure."""
        return ~self.y.isnan()

    def select(self, rows: Tensor) -> NumberPredictions:
        """The predictions at ``rows``, a mask or an index."""
        tensors = {f.name: getattr(self, f.name)[rows] for f in fields(self) if f.name != "scale"}
        return NumberPredictions(**tensors, scale=self.scale)

    def split(self) -> dict[int, NumberPredictions]:
        """Those of each client that has examples."""
        return {int(i): self.select(self.client == i) for i in self.client.unique()}


AnyPredictions = Predictions | NumberPredictions


def predict_personal(
    model: DeclaredModel,
    beliefs: Iterator[tuple[Sequence[int], Belief]],
    data: FederatedData,
    part: str,
    *,
    draws: int,
    seed: int,
) -> AnyPredictions:
    """Each client's posterior predictive under its own q^i.

    Args:
        model: The declared model.
        beliefs: Client numbers and their stacked q^i, a chunk at a time.
        data: The clients' examples.
        part: ``"test"`` or ``"validation"``.
        draws: Draws of the weights.
        seed: Seed of the draws.

    Returns:
        `NumberPredictions` if the model's outcome is a number, `Predictions` of classes otherwise.
    """
    held = _held(beliefs, data, part, seed)
    if model.outcome == "number":
        parts = [
            _numbers(model, belief, x, y, owner, data, draws, key)
            for belief, x, y, owner, key in held
        ]
        return _joined_numbers(parts, data)
    probs, labels, owners = [], [], []
    for belief, x, y, owner, key in held:
        probs.append(posterior_predictive(model, belief, x, draws=draws, seed=key))
        labels.append(y)
        owners.append(owner)
    return _joined(probs, labels, owners, data)


def _held(
    beliefs: Iterator[tuple[Sequence[int], Belief]], data: FederatedData, part: str, seed: int
) -> Iterator[tuple[Belief, Tensor, Tensor, Tensor, int]]:
    """Belief, examples, their owner and the seed of each client that has examples."""
    for clients, stacked in beliefs:
        for row, client in enumerate(clients):
            x, y = data.examples(client, part)
            if len(y):
                yield stacked.client(row), x, y, _owner(y, client), belief_seed(seed, client)


def predict_global(
    model: DeclaredModel,
    belief: Belief,
    data: FederatedData,
    part: str,
    *,
    draws: int,
    seed: int,
) -> AnyPredictions:
    """The posterior predictive under the server's w; ``draws=0`` takes the mean weights instead."""
    owners, labels, inputs = [], [], []
    for client in range(data.num_clients):
        x, y = data.examples(client, part)
        inputs.append(x)
        labels.append(y)
        owners.append(_owner(y, client))
    x = torch.cat(inputs)
    if model.outcome == "number":
        if len(x) == 0:
            return _joined_numbers([], data)
        y, owner = torch.cat(labels), torch.cat(owners)
        return _numbers(model, belief, x, y, owner, data, draws, belief_seed(seed, None))
    if len(x) == 0:
        return _joined([], labels, owners, data)
    if draws == 0:
        probs = mean_predictive(model, belief, x)
    else:
        probs = posterior_predictive(model, belief, x, draws=draws, seed=belief_seed(seed, None))
    return _joined([probs], labels, owners, data)


def measures(predictions: AnyPredictions) -> dict[str, Any]:
    """How good predictions are, pooled over all examples whose outcome is known; empty if there are none.

    Args:
        predictions: Of classes or of numbers.

    Returns:
        Classes: ``accuracy``, ``nll`` (nats), ``ece`` and ``brier``. Numbers: ``rmse`` and ``mae`` in the data's own
        units, ``nll`` (nats, of the density in these units), and ``coverage90``, the share of outcomes within their
        central 90 % interval; infinite or NaN where the likelihood's mean is.

    Example:
        >>> two = torch.tensor([[0.9, 0.1], [0.2, 0.8]])
        >>> found = measures(Predictions(two, torch.tensor([0, -1]), torch.tensor([0, 0])))
        >>> found["accuracy"], round(found["nll"], 3)
        (1.0, 0.105)
    """
    known = predictions.known
    if not bool(known.any()):
        return {}
    if not bool(known.all()):
        predictions = predictions.select(known)
    if isinstance(predictions, NumberPredictions):
        return _number_measures(predictions)
    probs, y = predictions.probs, predictions.y
    return {
        "accuracy": float(accuracy(probs, y)),
        "nll": float(negative_log_likelihood(probs, y)),
        "ece": float(expected_calibration_error(probs, y)),
        "brier": float(brier_score(probs, y)),
    }


def _number_measures(found: NumberPredictions) -> dict[str, Any]:
    return {
        "rmse": float(root_mean_squared_error(found.mean, found.y)) * found.scale,
        "mae": float(mean_absolute_error(found.mean, found.y)) * found.scale,
        "nll": -float(found.log_density.double().mean()) + math.log(found.scale),
        "coverage90": float(interval_coverage(found.lower, found.upper, found.y)),
    }


def _owner(y: Tensor, client: int) -> Tensor:
    return torch.full_like(y, client, dtype=torch.int64)


def _numbers(
    model: DeclaredModel,
    belief: Belief,
    x: Tensor,
    y: Tensor,
    owner: Tensor,
    data: FederatedData,
    draws: int,
    key: int,
) -> NumberPredictions:
    """The posterior predictive of numbers under one belief; its mean weights if ``draws`` is 0."""
    streams = predictive_streams(key, y.device)
    running = NumberAccumulator(y, streams.outcomes, samples=samples_for(draws))
    if draws == 0:
        with torch.no_grad():
            running.add(model.observation(belief.loc, x))
    else:
        for observation in predictive_distributions(model, belief, x, draws, streams.weights):
            running.add(observation)
    parts = vars(running.result())
    return NumberPredictions(y=y, client=owner, **parts, scale=_scale(data))


def _scale(data: FederatedData) -> float:
    scaling = data.dataset.target_scaling
    return 1.0 if scaling is None else scaling[1]


def _joined_numbers(parts: list[NumberPredictions], data: FederatedData) -> NumberPredictions:
    names = [f.name for f in fields(NumberPredictions) if f.name != "scale"]
    if not parts:
        none = torch.empty(0, device=data.dataset.y.device)
        empty = dict.fromkeys(names, none) | {"client": none.long()}
        return NumberPredictions(**empty, scale=_scale(data))
    tensors = {name: torch.cat([getattr(part, name) for part in parts]) for name in names}
    return NumberPredictions(**tensors, scale=_scale(data))


def _joined(
    probs: list[Tensor], labels: list[Tensor], owners: list[Tensor], data: FederatedData
) -> Predictions:
    like = data.dataset.y
    return Predictions(
        torch.cat(probs) if probs else like.new_empty((0, data.num_classes), dtype=torch.float32),
        torch.cat(labels) if labels else like.new_empty(0),
        torch.cat(owners) if owners else like.new_empty(0),
    )
