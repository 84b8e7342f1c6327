"""What a builder of a model needs to know about the data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from pyro_pfedbayes.errors import UserError


@dataclass(frozen=True)
class DataSpec:
    """Shape of one example and kind of its outcome: all that a builder may know of the data.

    Args:
        feature_shape: Shape of one example, ``(1, 28, 28)`` for an image of MNIST and ``()`` for a single number.
        num_classes: Number of classes, or 0 where the outcome is a number.
        seed: Seed of whatever a builder draws, such as initial weights.

    Raises:
        UserError: A size below one, a negative number of classes, or one class.

    Example:
        >>> DataSpec((1, 28, 28), num_classes=10).num_features
        784
    """

    feature_shape: tuple[int, ...]
    num_classes: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if any(size < 1 for size in self.feature_shape):
            raise UserError(
                f"DataSpec: feature_shape is {self.feature_shape}; every size must be at least 1"
            )
        if self.num_classes < 0 or self.num_classes == 1:
            raise UserError(
                f"DataSpec: num_classes is {self.num_classes}; at least 2 are needed, "
                "or 0 where the outcome is a number"
            )

    @property
    def num_features(self) -> int:
        """Numbers in one example, the product of ``feature_shape``."""
        return math.prod(self.feature_shape)

    def expect(self, outcome: Literal["class", "number"], model: str) -> None:
        """Refuse data (UserError) that do not have the kind of outcome that the named model is about."""
        if outcome == "number" and self.num_classes:
            raise UserError(
                f"model {model} is about numbers, but the data have {self.num_classes} classes; "
                "choose a model of classes such as mlp, or read the outcomes as numbers"
            )
        if outcome == "class" and not self.num_classes:
            raise UserError(
                f"model {model} is about classes, but the data's outcomes are numbers; "
                "choose a model of numbers such as linear-regression"
            )
