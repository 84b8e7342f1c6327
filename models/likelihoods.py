"""Likelihoods: how a network's outputs become the distribution of an observation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import pyro.distributions as dist
from torch import Tensor

from pyro_pfedbayes.errors import UserError

__all__ = ["Categorical", "Likelihood"]


class Likelihood(Protocol):
    """What the model and the predictive need to know about an observation."""

    def distribution(self, outputs: Tensor) -> dist.TorchDistribution:
        """Distribution of the observations ``[..., n]`` given network outputs ``[..., n, k]``."""
        ...

    def predict(self, outputs: Tensor) -> Tensor:
        """Predictive quantity that is averaged over draws; for classes, probabilities ``[..., n, C]``."""
        ...

    def check(self, y: Tensor, where: str = "y") -> None:
        """Refuse observations that have no probability under this likelihood (UserError)."""
        ...

    def check_outputs(self, outputs: object, examples: int) -> None:
        """Refuse what a network returned for so many examples if it is of the wrong kind or shape (UserError)."""
        ...


@dataclass(frozen=True)
class Categorical:
    """One of ``num_classes`` classes; the network's outputs are its logits.

    Example:
        >>> import torch
        >>> Categorical(3).predict(torch.zeros(1, 3))
        tensor([[0.3333, 0.3333, 0.3333]])
    """

    num_classes: int

    def __post_init__(self) -> None:
        if self.num_classes < 2:
            raise UserError(
                f"Categorical: num_classes is {self.num_classes}; at least 2 are needed"
            )

    def distribution(self, outputs: Tensor) -> dist.TorchDistribution:
        """Categorical with logits ``outputs [..., n, C]``, batch shape ``[..., n]``."""
        return dist.Categorical(logits=outputs)

    def predict(self, outputs: Tensor) -> Tensor:
        """Class probabilities, the softmax of ``outputs [..., n, C]``."""
        return outputs.softmax(-1)

    def check(self, y: Tensor, where: str = "y") -> None:
        """Check that labels are integers in ``0 … num_classes - 1``.

        Raises:
            UserError: Another dtype, or a label out of range (which one, and where).
        """
        if y.is_floating_point() or y.is_complex():
            raise UserError(f"{where}: labels are {y.dtype}; class labels are integers")
        if y.numel() and (int(y.min()) < 0 or int(y.max()) >= self.num_classes):
            wrong = y[(y < 0) | (y >= self.num_classes)][0]
            raise UserError(
                f"{where}: label {int(wrong)} is out of range; this likelihood has classes "
                f"0 to {self.num_classes - 1}"
            )

    def check_outputs(self, outputs: object, examples: int) -> None:
        """Check that a network gives one logit a class.

        Raises:
            UserError: Anything but a tensor ``[examples, num_classes]``.
        """
        wanted = [examples, self.num_classes]
        found = list(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        if found != wanted:
            raise UserError(
                f"the network gives {found} for {examples} examples; a Categorical likelihood of "
                f"{self.num_classes} classes wants logits of shape {wanted}"
            )
