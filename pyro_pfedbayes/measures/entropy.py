"""How uncertain predicted classes are, and how much of it more data would remove; all in nats."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.measures.validation import probabilities

# Rounding may leave the mean entropy above the entropy of the mean by about this share of log C.


@dataclass(frozen=True)
class EntropySplit:
    """Predictive entropy and its two parts, float64 ``[n]`` in nats; ``total = aleatoric + epistemic``."""

    total: Tensor  # entropy of the averaged probabilities, in [0, log C]
    aleatoric: Tensor  # mean over draws of each draw's entropy, in [0, log C]: noise in the data
    epistemic: Tensor
    """Their difference, in [0, log C]: the mutual information of label and weights. Not above log K for K draws, so
    few draws cannot show much of it."""


def entropy(probs: Tensor) -> Tensor:
    """Entropy -Σ_c p_c log p_c of each row of ``[n, C]``, float64 ``[n]`` in nats.

    Example:
        >>> round(entropy(torch.tensor([[0.5, 0.5]])).item(), 4)
        0.6931
    """
    return _entropy(probabilities(probs))


def entropy_split(probs: Tensor) -> EntropySplit:
    """Split the predictive entropy by the draws' own probabilities (Depeweg et al. 2018, equation 1).

    With p̄ = mean_k p_k: total H(p̄), aleatoric mean_k H(p_k), epistemic H(p̄) - mean_k H(p_k). Draws are widened to
    float64 one at a time, so memory is that of ``probs`` and a few ``[n, C]``.

    Args:
        probs: Class probabilities of each draw of the weights, ``[K, n, C]``.

    Returns:
        The split. From one draw the epistemic part is 0: it needs at least two to show.

    Raises:
        UserError: No draws, another shape, or what are no probabilities.

    Example:
        >>> split = entropy_split(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]))
        >>> split.aleatoric.item(), round(split.epistemic.item(), 4)
        (0.0, 0.6931)
    """
    if probs.ndim != 3:
        raise UserError(f"probs must be [K, n, C], one block a draw, not {list(probs.shape)}")
    if not len(probs):
        raise UserError("there are no draws; an entropy needs at least 1")
    mean = torch.zeros(probs.shape[1:], dtype=torch.float64, device=probs.device)
    noise = mean.new_zeros(mean.shape[0])
    for number, draw in enumerate(probs):
        mean += probabilities(draw, f"probs of draw {number}").double()
        noise += _entropy(draw.detach())
    total = _entropy(mean / len(probs))
    # By Jensen's inequality the total is the larger one, but for rounding.
    aleatoric = torch.minimum(noise / len(probs), total)
    return EntropySplit(total, aleatoric, total - aleatoric)


def max_probability_uncertainty(probs: Tensor) -> Tensor:
    """1 - max_c p_c ``[n]``, the usual baseline of uncertainty (Hendrycks & Gimpel 2017): higher is less sure.

    Example:
        >>> max_probability_uncertainty(torch.tensor([[0.25, 0.75]]))
        tensor([0.2500], dtype=torch.float64)
    """
    return (1.0 - probabilities(probs).double().amax(-1)).clamp_min(0.0)


def _entropy(probs: Tensor) -> Tensor:
    wide = probs.double()
    # A probability a little above 1 gives a little below 0; adding 0 turns -0 into 0.
    return (-torch.xlogy(wide, wide).sum(-1)).clamp_min(0.0) + 0.0
