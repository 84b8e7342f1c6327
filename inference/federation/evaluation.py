"""Evaluating personal and global models by their posterior predictive on the clients' examples."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self, cast

import torch
from torch import Tensor

from pyro_pfedbayes.data.clients import FederatedData
from pyro_pfedbayes.inference.beliefs.sites import Belief
from pyro_pfedbayes.inference.predictive.accumulators import NumberSummary
from pyro_pfedbayes.inference.predictive.draws import (
    CHUNK,
    belief_seed,
    mean_predictive,
    number_predictive,
    posterior_predictive,
)
from pyro_pfedbayes.measures import scores
from pyro_pfedbayes.models.declared import DeclaredModel


class _Predictions:
    """Columns of predictions on one part of every client's data, laid end to end.

    ``y [n]`` are the outcomes, ``client [n]`` says whose example each is.
    """

    y: Tensor
    client: Tensor

    @property
    def known(self) -> Tensor:
        """Examples whose outcome is known, bool ``[n]``; the others are left out of every measure."""
        return ~self.y.isnan() if self.y.is_floating_point() else self.y >= 0

    def select(self, rows: Tensor) -> Self:
        """The predictions at ``rows``, a mask or an index."""
        columns = {name: getattr(self, name)[rows] for name in _columns(type(self))}
        return cast(Self, replace(cast(Any, self), **columns))

    def split(self) -> dict[int, Self]:
        """Those of each client that has examples."""
        return {int(i): self.select(self.client == i) for i in self.client.unique()}


@dataclass(frozen=True)
class Predictions(_Predictions):
    """Predictions of classes: probabilities ``[n, C]``; labels are -1 where unknown."""

    probs: Tensor
    y: Tensor
    client: Tensor


@dataclass(frozen=True)
class NumberPredictions(_Predictions):
    """Predictions of numbers in the model's units, ``[n]`` each; outcomes are NaN where missing."""

    y: Tensor  # outcomes
    client: Tensor  # whose example it is
    mean: Tensor  # predictive mean
    aleatoric: Tensor  # mean over draws of the conditional variance
    epistemic: Tensor  # variance over draws of the conditional mean
    log_density: Tensor
    """log of the mean over draws of p(y | x, weights), in nats; NaN where y is missing."""
    lower: Tensor  # lower end of the central 90 % interval
    upper: Tensor  # its upper end
    crps: Tensor  # continuous ranked probability score; NaN where y is missing
    scale: float = 1.0
    """One unit of the model in the data's own units: the scale by which outcomes were standardised."""


AnyPredictions = Predictions | NumberPredictions


def predict_personal(
    model: DeclaredModel,
    beliefs: Iterator[tuple[Sequence[int], Belief]],
    data: FederatedData,
    part: str,
    *,
    draws: int,
    seed: int,
    chunk: int = CHUNK,
) -> AnyPredictions:
    """Each client's posterior predictive under its own q^i, which come stacked, a chunk of clients at a time.

    ``chunk`` examples are predicted at once. It decides about memory; of the figures only those of drawn outcomes
    (intervals and CRPS of numbers) depend on it, within their Monte Carlo error.
    """
    sizes = [len(index) for index in data.partition.part(part)]
    parts: list[AnyPredictions] = [_nothing(model, data)]
    for clients, stacked in beliefs:
        for row, i in enumerate(clients):
            if sizes[i]:
                options = [i], draws, belief_seed(seed, i), chunk
                parts.append(_predicted(model, stacked.client(row), data, part, *options))
    columns: dict[str, Any] = {}
    for name in _columns(type(parts[0])):
        columns[name] = torch.cat([getattr(part, name) for part in parts])
    return replace(parts[0], **columns)


def predict_global(
    model: DeclaredModel,
    belief: Belief,
    data: FederatedData,
    part: str,
    *,
    draws: int,
    seed: int,
    chunk: int = CHUNK,
) -> AnyPredictions:
    """The posterior predictive under the server's w, as `predict_personal`; ``draws=0`` takes the mean weights."""
    if not any(map(len, data.partition.part(part))):
        return _nothing(model, data)
    everyone, key = range(data.num_clients), belief_seed(seed, None)
    return _predicted(model, belief, data, part, everyone, draws, key, chunk)


def measures(predictions: AnyPredictions) -> dict[str, Any]:
    """How good predictions are, pooled over all examples whose outcome is known; empty if there are none.

    Returns:
        Classes: ``accuracy``, ``nll`` (nats), ``ece`` and ``brier``. Numbers: ``rmse``, ``mae`` and ``crps`` in the
        data's own units, ``nll`` (nats, of the density in these units), and ``coverage90``, the share of outcomes
        within their central 90 % interval; infinite or NaN where the likelihood's mean is.

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
    y = predictions.y
    if isinstance(predictions, NumberPredictions):
        scale = predictions.scale
        density = float(predictions.log_density.double().mean())
        return {
            "rmse": float(scores.root_mean_squared_error(predictions.mean, y)) * scale,
            "mae": float(scores.mean_absolute_error(predictions.mean, y)) * scale,
            "nll": -density + math.log(scale),
            "crps": float(predictions.crps.double().mean()) * scale,
            "coverage90": float(scores.interval_coverage(predictions.lower, predictions.upper, y)),
        }
    probs = predictions.probs
    if not bool(probs.isfinite().all()):
        # A belief that has diverged is evaluated all the same: as not a number.
        return dict.fromkeys(("accuracy", "nll", "ece", "brier"), math.nan)
    return {
        "accuracy": float(scores.accuracy(probs, y)),
        "nll": float(scores.negative_log_likelihood(probs, y)),
        "ece": float(scores.expected_calibration_error(probs, y)),
        "brier": float(scores.brier_score(probs, y)),
    }


def _predicted(
    model: DeclaredModel,
    belief: Belief,
    data: FederatedData,
    part: str,
    clients: Sequence[int],
    draws: int,
    key: int,
    chunk: int,
) -> AnyPredictions:
    """The posterior predictive under one belief of some clients' examples; its mean weights if ``draws`` is 0.

    Only the predictions are as large as the data: inputs are looked up a chunk at a time.
    """
    dataset, lists = data.dataset, data.partition.part(part)
    index = torch.cat([lists[i] for i in clients]).to(dataset.y.device)
    sizes = torch.tensor([len(lists[i]) for i in clients])
    owner = torch.tensor(list(clients)).repeat_interleave(sizes).to(dataset.y.device)
    pieces = ((dataset.x[rows], dataset.y[rows]) for rows in index.split(chunk))
    y = dataset.y[index]
    if model.outcome == "number":
        found = list(number_predictive(model, belief, pieces, draws=draws, seed=key))
        columns = vars(NumberSummary.joined(found))
        return NumberPredictions(y=y, client=owner, **columns, scale=_scale(data))
    probs = [
        posterior_predictive(model, belief, x, draws=draws, seed=key)
        if draws
        else mean_predictive(model, belief, x)
        for x, _ in pieces
    ]
    return Predictions(torch.cat(probs), y, owner)


def _nothing(model: DeclaredModel, data: FederatedData) -> AnyPredictions:
    """Predictions of no example."""
    y = data.dataset.y[:0]
    client = y.new_empty(0, dtype=torch.int64)
    if model.outcome == "number":
        columns = dict.fromkeys(_columns(NumberPredictions), y) | {"client": client}
        return NumberPredictions(**columns, scale=_scale(data))
    return Predictions(y.new_empty((0, data.num_classes), dtype=torch.float32), y, client)


def _scale(data: FederatedData) -> float:
    scaling = data.dataset.target_scaling
    return 1.0 if scaling is None else scaling[1]


def _columns(kind: type[Any]) -> list[str]:
    return [field.name for field in fields(kind) if field.name != "scale"]
