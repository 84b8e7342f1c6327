"""Judging personal and global models by their posterior predictive on the clients' examples."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

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
from pyro_pfedbayes.measures.scores import (
    accuracy,
    brier_score,
    expected_calibration_error,
    interval_coverage,
    mean_absolute_error,
    negative_log_likelihood,
    root_mean_squared_error,
)
from pyro_pfedbayes.models.declared import DeclaredModel


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
        crps: Continuous ranked probability score ``[n]``; NaN where y is missing.
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
    crps: Tensor
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
    chunk: int = CHUNK,
) -> AnyPredictions:
    """Each client's posterior predictive under its own q^i.

    Args:
        model: The declared model.
        beliefs: Client numbers and their stacked q^i, a chunk at a time.
        data: The clients' examples.
        part: ``"test"`` or ``"validation"``.
        draws: Draws of the weights.
        seed: Seed of the draws.
        chunk: Examples at once. It decides about memory; of the figures only those of drawn outcomes (intervals and
            CRPS of numbers) depend on it, within their Monte Carlo error.

    Returns:
        `NumberPredictions` if the model's outcome is a number, `Predictions` of classes otherwise.
    """
    sizes = [len(index) for index in data.partition.part(part)]
    found = [
        _asked(model, stacked.client(row), data, part, [i], draws, belief_seed(seed, i), chunk)
        for clients, stacked in beliefs
        for row, i in enumerate(clients)
        if sizes[i]
    ]
    return _joined(model, found, data)


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
    """The posterior predictive under the server's w; ``draws=0`` takes the mean weights instead.

    Args, returns:
        As `predict_personal`, of one belief.
    """
    if not any(map(len, data.partition.part(part))):
        return _joined(model, [], data)
    everyone, key = range(data.num_clients), belief_seed(seed, None)
    return _asked(model, belief, data, part, everyone, draws, key, chunk)


def measures(predictions: AnyPredictions) -> dict[str, Any]:
    """How good predictions are, pooled over all examples whose outcome is known; empty if there are none.

    Args:
        predictions: Of classes or of numbers.

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
    if isinstance(predictions, NumberPredictions):
        return _number_measures(predictions)
    probs, y = predictions.probs, predictions.y
    if not bool(probs.isfinite().all()):
        # A belief that has diverged is judged all the same: as not a number.
        return dict.fromkeys(("accuracy", "nll", "ece", "brier"), math.nan)
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
        "crps": float(found.crps.double().mean()) * found.scale,
        "coverage90": float(interval_coverage(found.lower, found.upper, found.y)),
    }


def _asked(
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

    Only the answers are as large as the data: inputs are looked up a chunk at a time.
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


def _scale(data: FederatedData) -> float:
    scaling = data.dataset.target_scaling
    return 1.0 if scaling is None else scaling[1]


def _joined(
    model: DeclaredModel, parts: Sequence[AnyPredictions], data: FederatedData
) -> AnyPredictions:
    """Predictions end to end; of no examples if there are none."""
    y = data.dataset.y
    nobody = torch.empty(0, dtype=torch.int64, device=y.device)
    if model.outcome == "number":
        numbers = [part for part in parts if isinstance(part, NumberPredictions)]
        columns = [f.name for f in fields(NumberPredictions) if f.name != "scale"]
        empty = dict.fromkeys(columns, y[:0]) | {"client": nobody}
        joined = {c: torch.cat([getattr(p, c) for p in numbers]) for c in columns if numbers}
        return NumberPredictions(**(joined or empty), scale=_scale(data))
    classes = [part for part in parts if isinstance(part, Predictions)]
    if not classes:
        return Predictions(y.new_empty((0, data.num_classes), dtype=torch.float32), y[:0], nobody)
    return Predictions(
        *(torch.cat([getattr(p, f.name) for p in classes]) for f in fields(Predictions))
    )
