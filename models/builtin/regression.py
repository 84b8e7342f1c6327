"""Beliefs about real numbers: linear regression, robust to outliers, and networks with a noise of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_pfedbayes.models.bayesian import BayesianModel
from pyro_pfedbayes.models.builtin.parts import check, normal, observe
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

    Sites ``intercept``, ``slopes`` [p] and ``sigma`` are shared. Scales are in units of the outcome.

    Example:
        >>> linear_regression(DataSpec((4,))).declaration.shapes
        {'intercept': (), 'slopes': (4,), 'sigma': ()}
    """
    features = check(
        data, "number", "linear-regression", prior_scale=prior_scale, noise_scale=noise_scale
    )
    program = _line(features, prior_scale, noise_scale, dist.Normal)
    return ProgramModel(program, data, missing=missing)


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

    Sites ``intercept``, ``slopes`` [p] and ``sigma`` are shared. Scales are in units of the outcome; ``df`` is above 1,
    and the fewer degrees of freedom, the more an outlier is forgiven.

    Example:
        >>> student_t_regression(DataSpec((4,))).declaration.shapes
        {'intercept': (), 'slopes': (4,), 'sigma': ()}
    """
    check_positive("student-t", 1.0, df=df)
    features = check(data, "number", "student-t", prior_scale=prior_scale, noise_scale=noise_scale)

    def noise(line: Tensor, sigma: Tensor) -> dist.TorchDistribution:
        return dist.StudentT(line.new_full((), df), line, sigma)

    program = _line(features, prior_scale, noise_scale, noise)
    program.__name__ = "student_t"
    return ProgramModel(program, data, missing=missing)


def _line(
    features: int,
    prior_scale: float,
    noise_scale: float,
    noise: Callable[[Tensor, Tensor], dist.TorchDistribution],
) -> Callable[..., None]:
    """A program whose outcomes lie about a line, with a distribution of given location and scale."""

    def linear(x: Tensor, y: Tensor | None = None) -> None:
        intercept = normal("intercept", prior_scale)
        slopes = normal("slopes", prior_scale, features)
        sigma = pyro.sample("sigma", dist.HalfNormal(noise_scale))
        observe(noise(intercept + x.flatten(1) @ slopes, sigma), y)

    return linear


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

    ``θ ~ w,  y = mlp(x; θ) + scale · t,  t ~ Student-t(df)``. All weights are shared; ``scale`` is in units of the
    outcome, ``df`` above 1, and every weight's standard deviation is ``softplus(rho)`` in the beginning.

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

    ``θ ~ w,  (f, g) = mlp(x; θ),  y ~ Normal(f, (floor + softplus(g))²)``. All weights are shared, of standard
    deviation ``softplus(rho)`` in the beginning. g begins at 0, so outcomes should be of the order of 1.

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
