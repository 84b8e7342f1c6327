"""One of two classes, by one logit."""

from __future__ import annotations

from dataclasses import dataclass

import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_pfedbayes.models.likelihoods.base import ClassLikelihood


@dataclass(frozen=True)
class Bernoulli(ClassLikelihood):
    """Class 1 or class 0; the network's one output is the logit of class 1.

    ``p(y = 1 | f) = 1 / (1 + exp(-f))``

    Args:
        missing: ``"refuse"`` or ``"mask"`` labels of -1.

    Example:
        >>> Bernoulli().predict(torch.tensor([[0.0], [2.0]]))
        tensor([[0.5000, 0.5000],
                [0.1192, 0.8808]])
    """

    @property
    def classes(self) -> int:
        """Two."""
        return 2

    @property
    def num_classes(self) -> int:
        """Two."""
        return 2

    def distribution(
        self, outputs: Tensor, exposure: Tensor | None = None
    ) -> dist.TorchDistribution:
        """Distribution over classes 0 and 1 given ``outputs [..., n, 1]``, batch shape ``[..., n]``."""
        # As two logits, for labels are integers, which torch's Bernoulli does not take.
        return dist.Categorical(logits=_two_logits(outputs))

    def predict(self, outputs: Tensor, exposure: Tensor | None = None) -> Tensor:
        """Probabilities ``[..., n, 2]`` of class 0 and of class 1."""
        return _two_logits(outputs).softmax(-1)


def _two_logits(outputs: Tensor) -> Tensor:
    return torch.cat([torch.zeros_like(outputs), outputs], -1)
