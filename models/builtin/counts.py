"""Beliefs about counts, in which exposure (time, area, visits) may differ from row to row."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
from torch import Tensor

from pyro_pfedbayes.models.likelihoods.base import Missing, check_positive
from pyro_pfedbayes.models.program import ProgramModel
from pyro_pfedbayes.models.spec import DataSpec

__all__ = ["negative_binomial_regression", "poisson_regression"]


def poisson_regression(
    data: DataSpec, *, exposure: bool = False, prior_scale: float = 1.0, missing: Missing = "refuse"
) -> ProgramModel:
    """Events happen independently, at a rate that each feature multiplies by a fixed factor.

    ``y ~ Poisson(exposure · exp(a + b · x)),  a, b_j ~ Normal(0, prior_scale²)``

    Sites ``intercept`` and ``slopes`` [p] are shared.

    Args:
        data: Any shape of features (a table, if there is an exposure); they are flattened to p numbers.
        exposure: Whether the data have a column ``exposure``, positive, to which counts are proportional; otherwise 1.
        prior_scale: Standard deviation of the first round's prior, in log-rate.
        missing: ``"mask"`` leaves out examples whose outcome is not known; ``"refuse"`` takes no such data.

    Example:
        >>> poisson_regression(DataSpec((4,)), exposure=True).covariates
        ('exposure',)
    """
    data.expect("number", "poisson")
    check_positive("poisson", prior_scale=prior_scale)
    features = data.num_features

    def poisson_with(x: Tensor, y: Tensor | None = None, *, exposure: Tensor) -> None:
        intercept = pyro.sample("intercept", dist.Normal(0.0, prior_scale))
        slopes = pyro.sample("slopes", dist.Normal(0.0, prior_scale).expand([features]).to_event(1))
        with pyro.plate("data", len(x)):
            rate = exposure * (intercept + x.flatten(1) @ slopes).exp()
            pyro.sample("y", dist.Poisson(rate), obs=y)

    def poisson(x: Tensor, y: Tensor | None = None) -> None:
        poisson_with(x, y, exposure=x.new_ones(len(x)))

    return ProgramModel(poisson_with if exposure else poisson, data, missing=missing)


def negative_binomial_regression(
    data: DataSpec, *, exposure: bool = False, prior_scale: float = 1.0, missing: Missing = "refuse"
) -> ProgramModel:
    """As for Poisson counts, but they vary more than independent events would, by how much is learnt.

    ``y ~ NegativeBinomial`` with ``mean μ = exposure · exp(a + b · x)`` and ``variance μ + μ² / r``;
    ``a, b_j ~ Normal(0, prior_scale²),  log r ~ Normal(1, 1)``

    Sites ``intercept``, ``slopes`` [p] and ``dispersion`` (r; the smaller, the more overdispersed) are shared.

    Args:
        data: Any shape of features (a table, if there is an exposure); they are flattened to p numbers.
        exposure: Whether the data have a column ``exposure``, positive, to which counts are proportional; otherwise 1.
        prior_scale: Standard deviation of the first round's prior of intercept and slopes, in log-rate.
        missing: ``"mask"`` leaves out examples whose outcome is not known; ``"refuse"`` takes no such data.

    Example:
        >>> negative_binomial_regression(DataSpec((4,))).declaration.shapes
        {'intercept': (), 'slopes': (4,), 'dispersion': ()}
    """
    data.expect("number", "negative-binomial")
    check_positive("negative-binomial", prior_scale=prior_scale)
    features = data.num_features

    def negative_binomial_with(x: Tensor, y: Tensor | None = None, *, exposure: Tensor) -> None:
        intercept = pyro.sample("intercept", dist.Normal(0.0, prior_scale))
        slopes = pyro.sample("slopes", dist.Normal(0.0, prior_scale).expand([features]).to_event(1))
        r = pyro.sample("dispersion", dist.LogNormal(1.0, 1.0))
        with pyro.plate("data", len(x)):
            log_mean = exposure.log() + intercept + x.flatten(1) @ slopes
            # torch counts successes of odds exp(logits) before r failures: the mean is r·exp(logits).
            counts = dist.NegativeBinomial(r, logits=log_mean - r.log())
            pyro.sample("y", counts, obs=y)

    def negative_binomial(x: Tensor, y: Tensor | None = None) -> None:
        negative_binomial_with(x, y, exposure=x.new_ones(len(x)))

    return ProgramModel(
        negative_binomial_with if exposure else negative_binomial, data, missing=missing
    )
