"""Beliefs about real numbers: linear regression, robust to outliers, and networks with a noise of their own."""

from __future__ import annotations

from collections.abc import Sequence

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_pfedbayes.models.bayesian import BayesianModel
from pyro_pfedbayes.models.likelihoods import NormalMeanScale, StudentT
from pyro_pfedbayes.models.likelihoods.base import Missing, check_positive
from pyro_pfedbayes.models.networks import mlp
from pyro_pfedbayes.models.program import ProgramModel
from pyro_pfedbayes.models.spec import DataSpec
from pyro_pfedbayes.models.weights import PAPER_RHO

__all__ = [
    "heteroscedastic_regression",
    "linear_regression",
    "robust_mlp",
    "student_t_regression",
]


def linear_regression(
    data: DataSpec,
    *,
    prior_scale: float = 1.0,
    noise_scale: float = 1.0,
    missing: Missing = "refuse",
) -> ProgramModel:
    """Each feature adds its share to the outcome, up to Gaussian noise whose size is not known.

    ``y ~ Normal(a + b · x, σ²),  a, b_j ~ Normal(0, prior_scale²),  σ ~ HalfNormal(noise_scale)``

    Sites ``intercept``, ``slopes`` [p] and ``sigma`` are shared.

    Args:
        data: Any shape of features; they are flattened to p numbers.
        prior_scale: Standard deviation of the first round's prior of intercept and slopes, in units of the outcome.
        noise_scale: Scale of that of the noise, in units of the outcome.
        missing: ``"mask"`` leaves out examples whose outcome is not known; ``"refuse"`` takes no such data.

    Example:
        >>> linear_regression(DataSpec((4,))).declaration.shapes
        {'intercept': (), 'slopes': (4,), 'sigma': ()}
    """
    data.expect("number", "linear-regression")
    check_positive("linear-regression", prior_scale=prior_scale, noise_scale=noise_scale)
    features = data.num_features

    def linear(x: Tensor, y: Tensor | None = None) -> None:
        intercept = pyro.sample("intercept", dist.Normal(0.0, prior_scale))
        slopes = pyro.sample("slopes", dist.Normal(0.0, prior_scale).expand([features]).to_event(1))
        sigma = pyro.sample("sigma", dist.HalfNormal(noise_scale))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(intercept + x.flatten(1) @ slopes, sigma), obs=y)

    return ProgramModel(linear, data, missing=missing)


def student_t_regression(
    data: DataSpec,
    *,
    df: float = 4.0,
    prior_scale: float = 1.0,
    noise_scale: float = 1.0,
    missing: Missing = "refuse",
) -> ProgramModel:
    """Each feature adds its share to the outcome; now and then an outcome lies far off, which should pull little.

    ``y = a + b · x + σ t,  t ~ Student-t(df),  a, b_j ~ Normal(0, prior_scale²),  σ ~ HalfNormal(noise_scale)``

    Sites ``intercept``, ``slopes`` [p] and ``sigma`` are shared.

    Args:
        data: Any shape of features; they are flattened to p numbers.
        df: Degrees of freedom, above 1; the fewer, the more an outlier is forgiven.
        prior_scale: Standard deviation of the first round's prior of intercept and slopes, in units of the outcome.
        noise_scale: Scale of that of σ, in units of the outcome.
        missing: ``"mask"`` leaves out examples whose outcome is not known; ``"refuse"`` takes no such data.

    Example:
        >>> student_t_regression(DataSpec((4,))).declaration.shapes
        {'intercept': (), 'slopes': (4,), 'sigma': ()}
    """
    data.expect("number", "student-t")
    check_positive("student-t", 1.0, df=df)
    check_positive("student-t", prior_scale=prior_scale, noise_scale=noise_scale)
    features = data.num_features

    def student_t(x: Tensor, y: Tensor | None = None) -> None:
        intercept = pyro.sample("intercept", dist.Normal(0.0, prior_scale))
        slopes = pyro.sample("slopes", dist.Normal(0.0, prior_scale).expand([features]).to_event(1))
        sigma = pyro.sample("sigma", dist.HalfNormal(noise_scale))
        with pyro.plate("data", len(x)):
            line = intercept + x.flatten(1) @ slopes
            pyro.sample("y", dist.StudentT(line.new_full((), df), line, sigma), obs=y)

    return ProgramModel(student_t, data, missing=missing)


def robust_mlp(
    data: DataSpec,
    *,
    hidden: Sequence[int] = (50,),
    df: float = 4.0,
    scale: float = 1.0,
    rho: float = PAPER_RHO,
    missing: Missing = "refuse",
) -> BayesianModel:
    """An outcome depends on the features through a network, up to heavy-tailed noise of known scale.

    ``θ ~ w,  y = mlp(x; θ) + scale · t,  t ~ Student-t(df)``. All weights are shared.

    Args:
        data: Any shape of features; they are flattened.
        hidden: Units of each hidden layer.
        df: Degrees of freedom, above 1.
        scale: In units of the outcome.
        rho: Every weight's standard deviation is ``softplus(rho)`` in the beginning.
        missing: ``"mask"`` leaves out examples whose outcome is not known; ``"refuse"`` takes no such data.

    Example:
        >>> robust_mlp(DataSpec((4,)), hidden=(8,)).prior.num_weights
        49
    """
    data.expect("number", "robust-mlp")
    network = mlp([data.num_features, *hidden, 1], seed=data.seed)
    return BayesianModel(network, StudentT(df, scale, missing=missing), rho=rho)


def heteroscedastic_regression(
    data: DataSpec,
    *,
    hidden: Sequence[int] = (50,),
    floor: float = 1e-3,
    rho: float = PAPER_RHO,
    missing: Missing = "refuse",
) -> BayesianModel:
    """Both the outcome's mean and the size of its noise depend on the features, through one network.

    ``θ ~ w,  (f, g) = mlp(x; θ),  y ~ Normal(f, (floor + softplus(g))²)``. All weights are shared. g begins at 0, so
    outcomes should be of the order of 1: standardise them.

    Args:
        data: Any shape of features; they are flattened.
        hidden: Units of each hidden layer.
        floor: Least standard deviation of the noise, in units of the outcome.
        rho: Every weight's standard deviation is ``softplus(rho)`` in the beginning.
        missing: ``"mask"`` leaves out examples whose outcome is not known; ``"refuse"`` takes no such data.

    Example:
        >>> heteroscedastic_regression(DataSpec((4,)), hidden=(8,)).weight_shapes["head.bias"]
        (2,)
    """
    data.expect("number", "heteroscedastic")
    network = mlp([data.num_features, *hidden, 2], seed=data.seed)
    # Begin with one noise for all, log 2: where a random g makes it tiny, the first gradients are enormous.
    with torch.no_grad():
        network.get_parameter("head.weight")[1] = 0.0
    return BayesianModel(network, NormalMeanScale(floor, missing=missing), rho=rho)
