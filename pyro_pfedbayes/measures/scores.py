"""Measures of how good and how sure predictions are: of classes, and of numbers."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_pfedbayes.measures.validation import labels, probabilities


def accuracy(probs: Tensor, y: Tensor) -> Tensor:
    """Share of examples whose most probable class is right; NaN if there are none.

    Example:
        >>> accuracy(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]))
        tensor(0.5000)
    """
    probs, y = _checked(probs, y)
    return (probs.argmax(-1) == y).float().mean()


def negative_log_likelihood(probs: Tensor, y: Tensor) -> Tensor:
    """Mean of -log p(y) in nats; probabilities are taken as at least the smallest normal number.

    Args:
        probs: Class probabilities ``[n, C]``.
        y: Labels ``[n]``.
    """
    probs, y = _checked(probs, y)
    chosen = probs.gather(-1, y.unsqueeze(-1)).squeeze(-1)
    return -chosen.clamp_min(torch.finfo(probs.dtype).tiny).log().mean()


def brier_score(probs: Tensor, y: Tensor) -> Tensor:
    """Mean squared distance of the probabilities from the label's indicator (Brier 1950), in [0, 2].

    Args:
        probs: Class probabilities ``[n, C]``.
        y: Labels ``[n]``.
    """
    probs, y = _checked(probs, y)
    truth = torch.nn.functional.one_hot(y, probs.shape[-1]).to(probs.dtype)
    return (probs - truth).square().sum(-1).mean()


def expected_calibration_error(probs: Tensor, y: Tensor, bins: int = 15) -> Tensor:
    """Mean gap between confidence and accuracy over equal bins of confidence (Guo et al. 2017).

    Args:
        probs: Class probabilities ``[n, C]``.
        y: Labels ``[n]``.
        bins: Number of equal bins of [0, 1].

    Returns:
        A scalar in [0, 1]; NaN if there are no examples.
    """
    probs, y = _checked(probs, y)
    confidence, choice = probs.max(-1)
    right = (choice == y).double()
    index = torch.clamp((confidence * bins).ceil().long() - 1, 0, bins - 1)
    gap = torch.zeros(bins, dtype=torch.float64, device=probs.device)
    gap.index_add_(0, index, right - confidence.double())
    return (gap.abs().sum() / len(y)).to(probs.dtype)


def _checked(probs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    probs = probabilities(probs)
    return probs, labels(y, probs)


def root_mean_squared_error(mean: Tensor, y: Tensor) -> Tensor:
    """Root of the mean squared error of predicted numbers ``[n]``, in their units.

    Example:
        >>> root_mean_squared_error(torch.tensor([0.0, 0.0]), torch.tensor([1.0, -7.0]))
        tensor(5., dtype=torch.float64)
    """
    return (mean.double() - y.double()).square().mean().sqrt()


def mean_absolute_error(mean: Tensor, y: Tensor) -> Tensor:
    """Mean absolute error of predicted numbers ``[n]``, in their units."""
    return (mean.double() - y.double()).abs().mean()


def interval_coverage(lower: Tensor, upper: Tensor, y: Tensor) -> Tensor:
    """Share of outcomes ``[n]`` within their intervals, ends included; NaN if there are none."""
    return ((lower <= y) & (y <= upper)).double().mean()
