"""Telling examples that are unlike the training data from those that are like it, by a score.

Throughout a *higher score means more out-of-distribution*: entropy, mutual information, 1 - the largest probability.
Both measures are scikit-learn's, on the ranks of the scores: only their order matters, so infinite scores are welcome
and scores far from [0, 1] are not put through a sigmoid (as torchmetrics' ``BinaryAUROC`` would).
"""

from __future__ import annotations

import importlib
from typing import Any, Literal

import torch
from torch import Tensor

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.measures.validation import vector


def auroc(scores_in: Tensor, scores_out: Tensor) -> float:
    """Probability that an example from outside scores higher than one from inside, ties counting half.

    It is the area under the ROC curve, the Mann-Whitney statistic divided by the number of pairs; from
    ``sklearn.metrics.roc_auc_score``.

    Args:
        scores_in: Scores of in-distribution examples ``[n]``.
        scores_out: Scores of out-of-distribution examples ``[m]``; higher means more out-of-distribution.

    Returns:
        A number in [0, 1]: 0.5 tells nothing apart, 1 all. NaN if either side is empty.

    Raises:
        UserError: A score is NaN, or the shapes are not ``[n]`` and ``[m]``.

    Example:
        >>> auroc(torch.tensor([0.1, 0.4]), torch.tensor([0.4, 0.9]))
        0.875
    """
    ranks, outside = _ranked(scores_in, scores_out)
    if not _both(scores_in, scores_out):
        return float("nan")
    return float(_metrics().roc_auc_score(outside, ranks))


def fpr_at_tpr(
    scores_in: Tensor,
    scores_out: Tensor,
    tpr: float = 0.95,
    *,
    positive: Literal["in", "out"] = "in",
) -> float:
    """False-positive rate where the true-positive rate first reaches ``tpr``, from ``sklearn.metrics.roc_curve``.

    Two conventions are in use, so say which one a figure follows:

    * ``positive="in"`` (Liang et al. 2018; the default): the lowest threshold that accepts at least ``tpr`` of the
      in-distribution examples also accepts this share of the others. It can be set without examples from outside.
    * ``positive="out"``: the highest threshold that flags at least ``tpr`` of the out-of-distribution examples also
      flags this share of the examples from inside.

    Tied scores fall on the same side of a threshold.

    Args:
        scores_in: Scores of in-distribution examples ``[n]``.
        scores_out: Scores of out-of-distribution examples ``[m]``; higher means more out-of-distribution.
        tpr: True-positive rate to reach, in (0, 1].
        positive: Which side counts as positive.

    Returns:
        A number in [0, 1], the lower the better. NaN if either side is empty.

    Raises:
        UserError: A score is NaN, a shape is wrong, ``tpr`` lies outside (0, 1], or ``positive`` is unknown.

    Example:
        >>> fpr_at_tpr(torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([0.35, 0.6]), 0.75)
        0.0
        >>> fpr_at_tpr(torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([0.35, 0.6]))
        0.5
    """
    if not 0 < tpr <= 1:
        raise UserError(f"tpr is {tpr!r}: give a number above 0 and up to 1, such as 0.95")
    if positive not in ("in", "out"):
        raise UserError(f"positive is {positive!r}: give 'in' or 'out'")
    ranks, outside = _ranked(scores_in, scores_out)
    if not _both(scores_in, scores_out):
        return float("nan")
    if positive == "in":
        ranks, outside = -ranks, 1 - outside
    false, true, _ = _metrics().roc_curve(outside, ranks, drop_intermediate=False)
    # A rate is a count divided by a number of examples, so 0.95 may come out as 0.9499…
    return float(false[(true >= tpr - 1e-12).argmax()])


def _ranked(scores_in: Tensor, scores_out: Tensor) -> tuple[Any, Any]:
    """Dense ranks of all scores, and 1 where an example is from outside, as NumPy arrays."""
    inside, outside = vector(scores_in, "scores_in").cpu(), vector(scores_out, "scores_out").cpu()
    scores = torch.cat([inside, outside])
    ranks = torch.unique(scores, return_inverse=True)[1]
    truth = torch.cat([torch.zeros(len(inside)), torch.ones(len(outside))]).long()
    return ranks.numpy(), truth.numpy()


def _both(scores_in: Tensor, scores_out: Tensor) -> bool:
    return len(scores_in) > 0 and len(scores_out) > 0


def _metrics() -> Any:
    # On first use: it takes about a second.
    return importlib.import_module("sklearn.metrics")
