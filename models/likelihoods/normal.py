"""Real outcomes: a known noise, a noise that depends on the input, and heavy tails."""

from __future__ import annotations

from dataclasses import dataclass

import pyro.distributions as dist
import torch.nn.functional as F
from torch import Tensor

from pyro_pfedbayes.models.likelihoods.base import NumberLikelihood, check_positive


@dataclass(frozen=True)
class Normal(NumberLikelihood):
    """A number with Gaussian noise of known scale; the network's one output is its mean.

    ``y ~ Normal(f, scale²)``

    Args:
        scale: Standard deviation of the noise, in the unit of the outcome.
        missing: ``"refuse"`` or ``"mask"`` outcomes that are NaN.

    Example:
        >>> import torch
        >>> Normal(0.5).distribution(torch.zeros(3, 1)).log_prob(torch.zeros(3))
        tensor([-0.2258, -0.2258, -0.2258])
    """

    scale: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("Normal", scale=self.scale)

    def distribution(
        self, outputs: Tensor, exposure: Tensor | None = None
    ) -> dist.TorchDistribution:
        """Normal given ``outputs [..., n, 1]``, batch shape ``[..., n]``."""
        return dist.Normal(outputs[..., 0], self.scale)


@dataclass(frozen=True)
class NormalMeanScale(NumberLikelihood):
    """A number whose noise depends on the input (heteroscedastic): two outputs, f for the mean, g for the scale.

    ``y ~ Normal(f, σ²),  σ = floor + softplus(g)``

    Args:
        floor: Least standard deviation, in the unit of the outcome. Without one a network that hits an outcome exactly
            gains without bound by letting σ go to 0.
        missing: ``"refuse"`` or ``"mask"`` outcomes that are NaN.

    Example:
        >>> import torch
        >>> NormalMeanScale().distribution(torch.tensor([[3.0, 0.0]])).scale
        tensor([0.6941])
    """

    floor: float = 1e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("NormalMeanScale", floor=self.floor)

    @property
    def num_outputs(self) -> int:
        """Two: mean and unconstrained scale."""
        return 2

    def distribution(
        self, outputs: Tensor, exposure: Tensor | None = None
    ) -> dist.TorchDistribution:
        """Normal given ``outputs [..., n, 2]``, batch shape ``[..., n]``."""
        return dist.Normal(outputs[..., 0], self.floor + F.softplus(outputs[..., 1]))


@dataclass(frozen=True)
class StudentT(NumberLikelihood):
    """A number with heavy-tailed noise, so that outliers pull less; the network's one output is its location.

    ``y = f + scale · t,  t ~ Student-t with df degrees of freedom``

    Args:
        df: Degrees of freedom, above 1 (otherwise there is no mean to predict). 4 is robust, 30 nearly normal.
        scale: In the unit of the outcome; the standard deviation is ``scale · sqrt(df / (df - 2))`` for df > 2.
        missing: ``"refuse"`` or ``"mask"`` outcomes that are NaN.

    Example:
        >>> import torch
        >>> at_0_and_5 = StudentT(df=4, scale=1).distribution(torch.zeros(2, 1))
        >>> at_0_and_5.log_prob(torch.tensor([0.0, 5.0]))
        tensor([-0.9808, -5.9333])
    """

    df: float
    scale: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("StudentT", 1.0, df=self.df)
        check_positive("StudentT", scale=self.scale)

    def distribution(
        self, outputs: Tensor, exposure: Tensor | None = None
    ) -> dist.TorchDistribution:
        """Student-t given ``outputs [..., n, 1]``, batch shape ``[..., n]``."""
        location = outputs[..., 0]
        # Tensors made from the outputs, so that they are on their device and in their dtype.
        return dist.StudentT(location.new_full((), self.df), location, self.scale)
