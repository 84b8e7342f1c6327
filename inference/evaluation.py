"""Judging personal and global models by their posterior predictive on the clients' examples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pyro_pfedbayes.clients import FederatedData
from pyro_pfedbayes.gaussian import MeanFieldGaussian
from pyro_pfedbayes.inference.predictive import mean_predictive, posterior_predictive
from pyro_pfedbayes.models.bayesian import BayesianModel
from pyro_pfedbayes.randomness import seed_for
from pyro_pfedbayes.uncertainty import (
    accuracy,
    brier_score,
    expected_calibration_error,
    negative_log_likelihood,
)

__all__ = ["Predictions", "measures", "predict_global", "predict_personal"]


@dataclass(frozen=True)
class Predictions:
    """Predictions on one part of every client's data, laid end to end.

    Attributes:
        probs: Class probabilities ``[n, C]``.
        y: Labels ``[n]``.
        client: Whose example it is, ``[n]``.
    """

    probs: Tensor
    y: Tensor
    client: Tensor

    def by_client(self) -> dict[int, tuple[Tensor, Tensor]]:
        """Probabilities and labels of each client that has examples."""
        return {
            int(i): (self.probs[self.client == i], self.y[self.client == i])
            for i in self.client.unique()
        }


def predict_personal(
    model: BayesianModel,
    beliefs: Iterator[tuple[Sequence[int], MeanFieldGaussian]],
    data: FederatedData,
    part: str,
    *,
    draws: int,
    seed: int,
) -> Predictions:
    """Each client's posterior predictive under its own q^i.

    Args:
        model: Network and likelihood.
        beliefs: Client numbers and their stacked q^i, a chunk at a time.
        data: The clients' examples.
        part: ``"test"`` or ``"validation"``.
        draws: Draws of the weights.
        seed: Seed of the draws.
    """
    probs, labels, owners = [], [], []
    for clients, stacked in beliefs:
        for row, client in enumerate(clients):
            x, y = data.examples(client, part)
            if len(y) == 0:
                continue
            belief, key = stacked.client(row), seed_for(seed, "personal", client)
            probs.append(posterior_predictive(model, belief, x, draws=draws, seed=key))
            labels.append(y)
            owners.append(torch.full_like(y, client))
    return _joined(probs, labels, owners, data)


def predict_global(
    model: BayesianModel,
    belief: MeanFieldGaussian,
    data: FederatedData,
    part: str,
    *,
    draws: int,
    seed: int,
) -> Predictions:
    """The posterior predictive under the server's w; ``draws=0`` takes the mean weights instead."""
    owners, labels, inputs = [], [], []
    for client in range(data.num_clients):
        x, y = data.examples(client, part)
        inputs.append(x)
        labels.append(y)
        owners.append(torch.full_like(y, client))
    x = torch.cat(inputs)
    if len(x) == 0:
        return _joined([], labels, owners, data)
    if draws == 0:
        probs = mean_predictive(model, belief, x)
    else:
        probs = posterior_predictive(model, belief, x, draws=draws, seed=seed_for(seed, "global"))
    return _joined([probs], labels, owners, data)


def measures(predictions: Predictions) -> dict[str, Any]:
    """Accuracy, NLL (nats), ECE and Brier score, pooled over all examples; empty if there are none."""
    if len(predictions.y) == 0:
        return {}
    probs, y = predictions.probs, predictions.y
    return {
        "accuracy": float(accuracy(probs, y)),
        "nll": float(negative_log_likelihood(probs, y)),
        "ece": float(expected_calibration_error(probs, y)),
        "brier": float(brier_score(probs, y)),
    }


def _joined(
    probs: list[Tensor], labels: list[Tensor], owners: list[Tensor], data: FederatedData
) -> Predictions:
    like = data.dataset.y
    return Predictions(
        torch.cat(probs) if probs else like.new_empty((0, data.num_classes), dtype=torch.float32),
        torch.cat(labels) if labels else like.new_empty(0),
        torch.cat(owners) if owners else like.new_empty(0),
    )
