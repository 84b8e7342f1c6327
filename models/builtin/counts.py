"""Beliefs about counts, in which exposure (time, area, visits) may differ from row to row."""

from __future__ import annotations

from collections.abc import Callable

import pyro
import pyro.distributions as dist
from torch import Tensor

from pyro_pfedbayes.models.builtin.parts import check, normal, observe
from pyro_pfedbayes.models.likelihoods.base import Missing
from pyro_pfedbayes.models.program import ProgramModel
from pyro_pfedbayes.models.spec import DataSpec

__all__ = ["negative_binomial_regression", "poisson_regression"]


def poisson_regression(
    data: DataSpec, *, exposure: bool = False, prior_scale: float = 1.0, missing: Missing = "refuse"
) -> ProgramModel:
    """Events happen independently, at a rate that each feature multiplies by a fixed factor.

    ``y ~ Poisson(exposure · exp(a + b · x)),  a, b_j ~ Normal(0, prior_scale²)``

    Sites ``intercept`` and ``slopes`` [p] are shared; ``prior_scale`` is in log-rate. With ``exposure`` the data have a
    column of that name, positive, to which counts are proportional; otherwise it is 1.

    Example:
        >>> poisson_regression(DataSpec((4,)), exposure=True).covariates
        ('exposure',)
    """

    def counts(line: Tensor, exposure: Tensor) -> dist.TorchDistribution:
        return dist.Poisson(exposure * line.exp())

    return _count_regression(data, "poisson", counts, exposure, prior_scale, missing)


def negative_binomial_regression(
    data: DataSpec, *, exposure: bool = False, prior_scale: float = 1.0, missing: Missing = "refuse"
) -> ProgramModel:
    """As for Poisson counts, but they vary more than independent events would, by how much is learnt.

    ``y ~ NegativeBinomial`` with ``mean μ = exposure · exp(a + b · x)`` and ``variance μ + μ² / r``;
    ``a, b_j ~ Normal(0, prior_scale²),  log r ~ Normal(1, 1)``

    Sites ``intercept``, ``slopes`` [p] and ``dispersion`` (r; the smaller, the more overdispersed) are shared. Settings
    are those of `poisson_regression`.

    Example:
        >>> negative_binomial_regression(DataSpec((4,))).declaration.shapes
        {'intercept': (), 'slopes': (4,), 'dispersion': ()}
    """

    def counts(line: Tensor, exposure: Tensor) -> dist.TorchDistribution:
        r = pyro.sample("dispersion", dist.LogNormal(1.0, 1.0))
        # torch counts successes of odds exp(logits) before r failures: the mean is r·exp(logits).
        return dist.NegativeBinomial(r, logits=exposure.log() + line - r.log())

    return _count_regression(data, "negative-binomial", counts, exposure, prior_scale, missing)


def _count_regression(
    data: DataSpec,
    name: str,
    counts: Callable[[Tensor, Tensor], dist.TorchDistribution],
    exposure: bool,
    prior_scale: float,
    missing: Missing,
) -> ProgramModel:
    """Counts of a distribution given a line in the features (their log-rate) and exposures."""
    features = check(data, "number", name, prior_scale=prior_scale)

    def with_exposure(x: Tensor, y: Tensor | None = None, *, exposure: Tensor) -> None:
        intercept = normal("intercept", prior_scale)
        line = intercept + x.flatten(1) @ normal("slopes", prior_scale, features)
        observe(counts(line, exposure), y)

    def without(x: Tensor, y: Tensor | None = None) -> None:
        with_exposure(x, y, exposure=x.new_ones(len(x)))

    with_exposure.__name__ = without.__name__ = name
    return ProgramModel(with_exposure if exposure else without, data, missing=missing)
