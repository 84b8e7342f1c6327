"""Counts, with a log link and an optional exposure."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pyro.distributions as dist
from pyro.distributions import constraints
from torch import Tensor

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.models.likelihoods.base import NumberLikelihood, check_positive


@dataclass(frozen=True)
class _Count(NumberLikelihood):
    """A count has a log link: its mean is ``exposure · exp(f)``."""

    exposure: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.exposure is not None and not (isinstance(self.exposure, str) and self.exposure):
            raise UserError(
                f"{type(self).__name__}: exposure is {self.exposure!r}; give the name of a column of the data, or None"
            )

    @property
    def support(self) -> constraints.Constraint:
        """The counts 0, 1, 2, and so on."""
        return constraints.nonnegative_integer

    def predict(self, outputs: Tensor, exposure: Tensor | None = None) -> Tensor:
        """Expected count ``[..., n]``."""
        return self.log_mean(outputs, exposure).exp()

    def log_mean(self, outputs: Tensor, exposure: Tensor | None) -> Tensor:
        """``f + log exposure``, shape ``[..., n]``."""
        if (exposure is None) != (self.exposure is None):
            wanted = (
                "no exposure" if self.exposure is None else f"column {self.exposure!r} as exposure"
            )
            raise UserError(
                f"{type(self).__name__} was declared with {wanted}, and is given "
                f"{'none' if exposure is None else 'one'}"
            )
        return outputs[..., 0] if exposure is None else outputs[..., 0] + exposure.log()


@dataclass(frozen=True)
class Poisson(_Count):
    """A count of independent events; the network's one output is the log of their rate.

    ``y ~ Poisson(exposure · exp(f))``: mean and variance are equal.

    Args:
        exposure: Name of the data column with exposures (time, area, visits; positive, in any unit), or None for 1.
        missing: ``"refuse"`` or ``"mask"`` outcomes that are NaN.

    Example:
        >>> import torch
        >>> yearly = Poisson(exposure="years")
        >>> yearly.predict(torch.zeros(2, 1), torch.tensor([1.0, 10.0]))
        tensor([ 1., 10.])
    """

    def distribution(
        self, outputs: Tensor, exposure: Tensor | None = None
    ) -> dist.TorchDistribution:
        """Poisson given ``outputs [..., n, 1]`` and exposures ``[..., n]``, batch shape ``[..., n]``."""
        return dist.Poisson(self.log_mean(outputs, exposure).exp())


@dataclass(frozen=True)
class NegativeBinomial(_Count):
    """A count that varies more than a Poisson count; the network's one output is the log of its mean rate.

    With ``μ = exposure · exp(f)`` and r = ``dispersion``:

    ``p(y) = Γ(y + r) / (Γ(r) y!) · (r / (r + μ))^r · (μ / (r + μ))^y``, with mean μ and variance ``μ + μ² / r``

    The smaller r, the more overdispersed; as r grows it becomes Poisson. It is a Poisson count whose rate is ``μ·g``,
    ``g ~ Gamma(r, r)``.

    Args:
        dispersion: r > 0.
        exposure: Name of the data column with exposures (positive, in any unit), or None for 1.
        missing: ``"refuse"`` or ``"mask"`` outcomes that are NaN.

    Example:
        >>> import torch
        >>> count = NegativeBinomial(dispersion=2.0).distribution(torch.zeros(1, 1))
        >>> count.mean, count.variance
        (tensor([1.]), tensor([1.5000]))
    """

    dispersion: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("NegativeBinomial", dispersion=self.dispersion)

    def distribution(
        self, outputs: Tensor, exposure: Tensor | None = None
    ) -> dist.TorchDistribution:
        """Negative binomial given ``outputs [..., n, 1]`` and exposures ``[..., n]``, batch shape ``[..., n]``."""
        log_mean = self.log_mean(outputs, exposure)
        r = log_mean.new_full((), self.dispersion)
        # torch counts successes of odds exp(logits) before r failures: the mean is r·exp(logits).
        return dist.NegativeBinomial(r, logits=log_mean - math.log(self.dispersion))
