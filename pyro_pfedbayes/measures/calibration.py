"""Whether stated probabilities of classes come true, and mending them by a temperature.

`pyro_pfedbayes.measures.scores.expected_calibration_error` is the headline figure; here are the curve behind it, two
variants, and temperature scaling. torchmetrics 1.9 gives the error but not the curve, and scikit-learn's
``calibration_curve`` is for two classes and leaves empty bins out, so the curve is our own; tests hold it to both.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.measures.validation import labels, probabilities

_STEPS = 200  # of the root finder at most; it takes about 8, and bisection alone 60
_FAR = 2.0**40  # labels so nearly tied with the largest that no 1/T up to here tells them apart


@dataclass(frozen=True)
class ReliabilityCurve:
    """Confidence and accuracy by bins of confidence."""

    edges: Tensor  # ends of the bins, float64 ``[bins + 1]``, from 0 to 1; bin b is (edges[b], edges[b + 1]]
    confidence: Tensor  # mean of the largest probability in each bin, float64 ``[bins]``; NaN where it is empty
    accuracy: (
        Tensor  # share of right predictions in each bin, float64 ``[bins]``; NaN where it is empty
    )
    count: Tensor  # examples in each bin, int64 ``[bins]``

    @property
    def error(self) -> float:
        """Expected calibration error Σ_b (n_b / n) |accuracy_b - confidence_b|, in [0, 1]; NaN if n is 0."""
        gap = (self.accuracy - self.confidence).abs().nan_to_num(0.0)
        return float((self.count * gap).sum() / self.count.sum())

    @property
    def largest_gap(self) -> float:
        """Maximum calibration error max_b |accuracy_b - confidence_b|, in [0, 1]; NaN if n is 0."""
        gap = (self.accuracy - self.confidence).abs()[self.count > 0]
        return float(gap.max()) if len(gap) else float("nan")


def reliability_curve(
    probs: Tensor, y: Tensor, bins: int = 15, *, adaptive: bool = False
) -> ReliabilityCurve:
    """The curve of a reliability diagram: of the predicted class, by bins of its probability (Guo et al. 2017).

    Args:
        probs: Class probabilities ``[n, C]``.
        y: Labels ``[n]``.
        bins: Number of bins.
        adaptive: Bins that hold about equally many examples, rather than equally wide ones (Nguyen & O'Connor 2015).
            Equal confidences share a bin, that of their middle rank, whatever their order in the data.

    Returns:
        The curve. Its ``error`` is the ECE; all bins are empty if there are no examples.

    Raises:
        UserError: No probabilities, labels out of range, or fewer than one bin.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.3, 0.7], [0.8, 0.2], [0.6, 0.4]])
        >>> curve = reliability_curve(probs, torch.tensor([0, 1, 0, 1]), bins=2)
        >>> curve.count.tolist(), curve.accuracy.tolist()
        ([0, 4], [nan, 0.75])
        >>> reliability_curve(probs, torch.tensor([0, 1, 0, 1]), bins=2, adaptive=True).count.tolist()
        [2, 2]
    """
    probs = probabilities(probs)
    y = labels(y, probs)
    _check_bins(bins)
    confidence, choice = probs.max(-1)
    right = (choice == y).double()
    if adaptive:
        index, edges = _equal_mass(confidence.double(), bins)
    else:
        index = _equal_width(confidence, bins)
        edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64, device=probs.device)
    sums = torch.zeros(2, bins, dtype=torch.float64, device=probs.device)
    sums.index_add_(1, index, torch.stack([confidence.double(), right]))
    count = torch.bincount(index, minlength=bins)
    # 0 / 0 is NaN: an empty bin has no accuracy.
    return ReliabilityCurve(edges, sums[0] / count, sums[1] / count, count)


def adaptive_calibration_error(probs: Tensor, y: Tensor, bins: int = 15) -> float:
    """ECE over bins of equal mass: not left to the few bins near 1 where a good classifier's confidences crowd.

    Args:
        probs: Class probabilities ``[n, C]``.
        y: Labels ``[n]``.
        bins: Number of bins.

    Returns:
        A number in [0, 1]; NaN if there are no examples.

    Raises:
        UserError: As `reliability_curve`.

    Example:
        >>> round(adaptive_calibration_error(torch.tensor([[0.9, 0.1], [0.3, 0.7]]), torch.tensor([0, 0]), 2), 6)
        0.4
    """
    return reliability_curve(probs, y, bins, adaptive=True).error


def classwise_calibration_error(probs: Tensor, y: Tensor, bins: int = 15) -> float:
    """Mean over classes c of the ECE of p_c as the probability that the label is c (Kull et al. 2019).

    In [0, 1]; classes that never occur count too. NaN without examples.

    Example:
        >>> round(classwise_calibration_error(torch.tensor([[0.9, 0.1], [0.3, 0.7]]), torch.tensor([0, 1])), 6)
        0.2
    """
    probs = probabilities(probs)
    y = labels(y, probs)
    _check_bins(bins)
    if len(y) == 0:
        return float("nan")
    total = 0.0
    for c in range(probs.shape[1]):
        gap = torch.zeros(bins, dtype=torch.float64, device=probs.device)
        gap.index_add_(0, _equal_width(probs[:, c], bins), (y == c).double() - probs[:, c].double())
        total += float(gap.abs().sum())
    return total / (len(y) * probs.shape[1])


def fit_temperature(probs: Tensor, y: Tensor, *, log: bool = False) -> float:
    """The temperature T > 0 for which p^(1/T), renormalised, has the least negative log-likelihood.

    It acts on the *averaged* predictive probabilities (Guo et al. 2017 had one network's logits). The mean NLL is
    convex in 1/T, and the root of its derivative is found by bracketed Newton steps in float64, so that the answer is
    that of the data alone: no step size, no starting point that matters. Fit it on validation data. Probabilities
    below the smallest normal number of their format are taken as that number, as
    `pyro_pfedbayes.measures.scores.negative_log_likelihood` takes them.

    Args:
        probs: Class probabilities ``[n, C]``; with ``log``, log-probabilities or logits.
        y: Labels ``[n]``; one class only is no trouble.
        log: Whether ``probs`` holds logarithms.

    Returns:
        T: above 1 the model was too sure, below 1 not sure enough. NaN where no T is best: without examples; where
        every label has the largest probability (the NLL falls for ever as T goes to 0); where the labels are no
        likelier than the average class (it falls as T goes to infinity). Take a shared T, or 1, then.

    Raises:
        UserError: No probabilities or logits, NaN, or labels out of range.

    Example:
        >>> too_sure = torch.tensor([[0.9, 0.1]]).repeat(4, 1)
        >>> round(fit_temperature(too_sure, torch.tensor([0, 0, 0, 1])), 4)
        2.0
    """
    logs = _logs(probs, log)
    y = labels(y, logs)
    if len(y) == 0:
        return float("nan")
    chosen = logs.gather(1, y[:, None])[:, 0]

    def slope(sharpness: float) -> tuple[float, float]:
        """First and second derivative of the mean NLL by 1/T: it is convex, the second is a mean variance."""
        tilted = (logs * sharpness).softmax(-1)
        mean = (tilted * logs).sum(-1)
        spread = (tilted * (logs - mean[:, None]).square()).sum(-1)
        return float((mean - chosen).mean()), float(spread.mean())

    if bool((chosen == logs.amax(-1)).all()) or slope(0.0)[0] >= 0:
        return float("nan")
    return 1 / _root(slope)


def apply_temperature(probs: Tensor, temperature: float, *, log: bool = False) -> Tensor:
    """p^(1/T), renormalised: flatter for T > 1, sharper for T < 1; the most probable class stays.

    Args:
        probs: Class probabilities ``[n, C]``; with ``log``, log-probabilities or logits.
        temperature: T, a finite number > 0.
        log: Whether ``probs`` holds logarithms.

    Returns:
        Probabilities ``[n, C]``, of the type of ``probs``.

    Raises:
        UserError: No probabilities or logits, NaN, or a temperature that is not finite and positive.

    Example:
        >>> apply_temperature(torch.tensor([[0.9, 0.1]]), 2.0)
        tensor([[0.7500, 0.2500]])
    """
    if not 0 < temperature < float("inf"):
        raise UserError(
            f"temperature is {temperature}: give a finite number > 0 (1 changes nothing)"
        )
    return (_logs(probs, log) / temperature).softmax(-1).to(probs.dtype)


def _logs(probs: Tensor, log: bool) -> Tensor:
    """Log-probabilities in float64, none below that of the smallest normal number."""
    if not log:
        tiny = torch.finfo(probs.dtype).tiny if probs.is_floating_point() else 0.0
        return probabilities(probs).double().clamp_min(tiny).log()
    if probs.ndim != 2 or not probs.is_floating_point() or probs.shape[1] < 1:
        raise UserError(f"logits must be [n, C] with C >= 1, not {probs.dtype} {list(probs.shape)}")
    logs = probs.detach().double().log_softmax(-1)
    if bool(logs.isnan().any()):
        row = int(logs.isnan().any(-1).nonzero()[0, 0])
        raise UserError(f"logits at row {row} are NaN, or infinite and no log-probabilities")
    return logs.clamp_min(math.log(torch.finfo(torch.float64).tiny))


def _root(slope: Callable[[float], tuple[float, float]]) -> float:
    """Where an increasing function that is negative at 0 turns positive; NaN if that is beyond reach.

    Newton's method, with a bisection wherever it would leave the bracket; ``slope`` gives value and derivative.
    """
    low, high = 0.0, 1.0
    while slope(high)[0] < 0:
        low, high = high, 2 * high
        if high > _FAR:
            return float("nan")
    place = (low + high) / 2
    for _ in range(_STEPS):
        value, derivative = slope(place)
        low, high = (place, high) if value < 0 else (low, place)
        step = value / derivative if derivative > 0 else math.inf
        if abs(step) <= 1e-12 * place:
            return place - step
        place = place - step if low < place - step < high else (low + high) / 2
    return place


def _check_bins(bins: int) -> None:
    if isinstance(bins, bool) or not isinstance(bins, int) or bins < 1:
        raise UserError(f"bins is {bins!r}: give a whole number >= 1")


def _equal_width(confidence: Tensor, bins: int) -> Tensor:
    # In the probabilities' own format, as `expected_calibration_error`: the two must agree at the edges.
    return torch.clamp((confidence * bins).ceil().long() - 1, 0, bins - 1)


def _equal_mass(confidence: Tensor, bins: int) -> tuple[Tensor, Tensor]:
    """Bin of each example, and the bins' edges."""
    values, place, sizes = torch.unique(confidence, return_inverse=True, return_counts=True)
    # Twice the middle rank, counted from 0, of each distinct value: whole numbers, so no rounding.
    twice = 2 * sizes.cumsum(0) - sizes - 1
    bin_of_value = (twice * bins) // (2 * max(len(confidence), 1))
    edges = torch.zeros(bins + 1, dtype=torch.float64, device=confidence.device)
    edges.scatter_reduce_(0, bin_of_value + 1, values, "amax")
    edges = edges.cummax(0).values
    edges[-1] = 1.0
    return bin_of_value[place], edges
