"""Selective prediction: how the error falls when a model may abstain where it is least certain.

Examples are accepted from the most certain on. Tied uncertainties are accepted in random order, and every figure is
the *expectation* over that order, so that none depends on how the data happen to be sorted. scikit-learn and
torchmetrics 1.9 have none of these measures.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.measures.validation import same_length, vector


@dataclass(frozen=True)
class RiskCoverage:
    """The risk-coverage curve, float64 ``[n]``; empty if there are no examples."""

    coverage: Tensor  # share of examples accepted: 1/n, 2/n, …, 1
    risk: Tensor  # expected mean error of those accepted, in the unit of the error


def risk_coverage(uncertainty: Tensor, error: Tensor) -> RiskCoverage:
    """Mean error of the k most certain examples, for k = 1 … n (El-Yaniv & Wiener 2010).

    Args:
        uncertainty: Higher is less sure, ``[n]``; infinities are welcome.
        error: What each example costs, ``[n]``: 1 - right for classes, a squared or absolute error for numbers.

    Returns:
        The curve, on the uncertainty's device.

    Raises:
        UserError: A NaN, an infinite error, or lengths that differ.

    Example:
        >>> curve = risk_coverage(torch.tensor([0.1, 0.9, 0.5, 0.5]), torch.tensor([0.0, 1.0, 1.0, 0.0]))
        >>> curve.coverage.tolist()
        [0.25, 0.5, 0.75, 1.0]
        >>> curve.risk.tolist()
        [0.0, 0.25, 0.3333333333333333, 0.5]
    """
    doubt, cost = vector(uncertainty, "uncertainty"), vector(error, "error", finite=True)
    same_length(len(doubt), error=cost)
    accepted = torch.arange(1, len(doubt) + 1, dtype=torch.float64, device=doubt.device)
    _, place, sizes = torch.unique(doubt, return_inverse=True, return_counts=True)
    sums = torch.zeros(len(sizes), dtype=torch.float64, device=doubt.device)
    sums.index_add_(0, place, cost)
    # Within a tie each example has the tie's mean error, in expectation over the order.
    expected = (sums / sizes).repeat_interleave(sizes)
    return RiskCoverage(accepted / len(doubt), expected.cumsum(0) / accepted)


def aurc(uncertainty: Tensor, error: Tensor) -> float:
    """Area under the risk-coverage curve, its mean over coverages 1/n … 1 (Geifman & El-Yaniv 2017).

    Other tools integrate the same curve by trapezoids, which differs by about 1/n of it.

    Args:
        uncertainty: Higher is less sure, ``[n]``.
        error: What each example costs, ``[n]``.

    Returns:
        A number in the unit of the error, the lower the better; for 0/1 errors in [0, 1]. NaN if n is 0.

    Raises:
        UserError: As `risk_coverage`.

    Example:
        >>> aurc(torch.tensor([0.1, 0.2]), torch.tensor([0.0, 1.0]))
        0.25
    """
    return float(risk_coverage(uncertainty, error).risk.mean())


def excess_aurc(uncertainty: Tensor, error: Tensor) -> float:
    """AURC beyond that of the best possible order, the errors' own (Geifman, Uziel & El-Yaniv 2019).

    It judges the uncertainty alone, where AURC also holds how often the model errs. It is 0 where all errors are equal:
    every order is the best one then, and the measure tells nothing of the uncertainty. NaN without examples.

    Example:
        >>> excess_aurc(torch.tensor([0.1, 0.2]), torch.tensor([0.0, 1.0]))
        0.0
        >>> excess_aurc(torch.tensor([0.2, 0.1]), torch.tensor([0.0, 1.0]))
        0.5
    """
    excess = aurc(uncertainty, error) - aurc(error, error)
    return excess if math.isnan(excess) else max(excess, 0.0)


def accuracy_at_coverage(
    uncertainty: Tensor, right: Tensor, coverages: Sequence[float] = (0.8, 0.9, 0.95)
) -> Tensor:
    """Expected share of right predictions among the ⌈c n⌉ most certain ones.

    Args:
        uncertainty: Higher is less sure, ``[n]``.
        right: Whether each prediction is right, ``[n]``.
        coverages: Shares c of the examples to answer, each in (0, 1].

    Returns:
        One accuracy a coverage, float64, in [0, 1]; NaN if n is 0.

    Raises:
        UserError: A NaN, lengths that differ, something other than right or wrong, or a coverage outside (0, 1].

    Example:
        >>> accuracy_at_coverage(torch.tensor([0.1, 0.9, 0.5, 0.4]), torch.tensor([1, 0, 1, 1]), (0.75, 1.0))
        tensor([1.0000, 0.7500], dtype=torch.float64)
    """
    for share in coverages:
        if not 0 < share <= 1:
            raise UserError(f"coverage is {share!r}: give a number above 0 and up to 1")
    good = vector(right, "right")
    wrong = (good != 0) & (good != 1)
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0, 0])
        raise UserError(
            f"right is {float(good[row]):.4g} at row {row}; give truth values, or 0 and 1"
        )
    risk, n = risk_coverage(uncertainty, 1.0 - good).risk, len(good)
    if n == 0:
        return risk.new_full((len(coverages),), float("nan"))
    # 0.9 · 10 is a little more than 9 for some shares: that must not take a tenth example.
    places = [max(math.ceil(share * n - 1e-9), 1) - 1 for share in coverages]
    return 1.0 - risk[torch.tensor(places, dtype=torch.long, device=risk.device)]
