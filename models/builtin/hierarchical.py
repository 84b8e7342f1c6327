"""Beliefs with levels: what clients have in common, what is each one's own, and slopes of which most are nothing."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
from torch import Tensor

from pyro_pfedbayes.models.builtin.parts import check, normal, observe
from pyro_pfedbayes.models.likelihoods.base import Missing
from pyro_pfedbayes.models.program import ProgramModel
from pyro_pfedbayes.models.spec import DataSpec

__all__ = ["client_noise", "horseshoe_regression", "random_intercept"]


def client_noise(
    data: DataSpec, *, prior_scale: float = 1.0, missing: Missing = "refuse"
) -> ProgramModel:
    """All clients see the same line, each with instruments of its own precision; precisions resemble each other.

    ``y ~ Normal(a + b · x, σ_i²),  log σ_i ~ Normal(m, s²),``
    ``a, b_j ~ Normal(0, prior_scale²),  m ~ Normal(0, 1),  s ~ HalfNormal(1)``

    Site ``sigma`` is private: σ_i never leaves client i, and LogNormal(m, s) remains its prior in all rounds. Sites
    ``intercept``, ``slopes`` [p], ``log_sigma_mean`` (m) and ``log_sigma_spread`` (s) are shared; ``prior_scale`` is in
    units of the outcome.

    One client's noise says little of m and s apart, and clients may differ in either; so read them together: σ of
    a client not yet seen is a draw of m and s from w, then of LogNormal(m, s).

    Example:
        >>> model = client_noise(DataSpec((4,)))
        >>> list(model.declaration.private.shapes), list(model.declaration.shared.shapes)
        (['sigma'], ['intercept', 'slopes', 'log_sigma_mean', 'log_sigma_spread'])
    """
    features = check(data, "number", "noise-scale", prior_scale=prior_scale)

    def noise_scale(x: Tensor, y: Tensor | None = None) -> None:
        intercept = normal("intercept", prior_scale)
        slopes = normal("slopes", prior_scale, features)
        m = normal("log_sigma_mean", 1.0)
        s = pyro.sample("log_sigma_spread", dist.HalfNormal(1.0))
        sigma = pyro.sample("sigma", dist.LogNormal(m, s))
        observe(dist.Normal(intercept + x.flatten(1) @ slopes, sigma), y)

    return ProgramModel(noise_scale, data, roles={"sigma": "private"}, missing=missing)


def random_intercept(
    data: DataSpec,
    *,
    prior_scale: float = 1.0,
    noise_scale: float = 1.0,
    missing: Missing = "refuse",
) -> ProgramModel:
    """Features work alike at all clients, but each client has a level of its own; levels scatter about a common mean.

    ``y ~ Normal(a_i + b · x, σ²),  a_i ~ Normal(μ, τ²),``
    ``μ, b_j ~ Normal(0, prior_scale²),  τ, σ ~ HalfNormal(noise_scale)``

    Site ``intercept`` is private: a_i never leaves client i, and Normal(μ, τ) remains its prior in all rounds. Sites
    ``level`` (μ), ``level_spread`` (τ), ``slopes`` [p] and ``sigma`` are shared. Scales are in units of the outcome.

    One client's level says little of μ and τ apart, and clients may differ in either; so read them together: the level
    of a client not yet seen is a draw of μ and τ from w, then of Normal(μ, τ).

    Example:
        >>> list(random_intercept(DataSpec((4,))).declaration.private.shapes)
        ['intercept']
    """
    features = check(
        data, "number", "random-intercept", prior_scale=prior_scale, noise_scale=noise_scale
    )

    def own_intercept(x: Tensor, y: Tensor | None = None) -> None:
        mu = normal("level", prior_scale)
        tau = pyro.sample("level_spread", dist.HalfNormal(noise_scale))
        slopes = normal("slopes", prior_scale, features)
        sigma = pyro.sample("sigma", dist.HalfNormal(noise_scale))
        intercept = pyro.sample("intercept", dist.Normal(mu, tau))
        observe(dist.Normal(intercept + x.flatten(1) @ slopes, sigma), y)

    return ProgramModel(own_intercept, data, roles={"intercept": "private"}, missing=missing)


def horseshoe_regression(
    data: DataSpec,
    *,
    global_scale: float = 0.1,
    prior_scale: float = 1.0,
    noise_scale: float = 1.0,
    missing: Missing = "refuse",
) -> ProgramModel:
    """Most features do nothing, a few do much; which do is the same everywhere, how much each client says for itself.

    ``y ~ Normal(a + b_i · x, σ²),  b_ij = τ λ_j z_ij,  z_ij ~ Normal(0, 1),  λ_j ~ HalfCauchy(1),``
    ``τ ~ HalfCauchy(global_scale),  a ~ Normal(0, prior_scale²),  σ ~ HalfNormal(noise_scale)``
    (Carvalho, Polson & Scott 2010; non-centred)

    Site ``z`` [p] is private: it never leaves the client, and Normal(0, 1) remains its prior in all rounds. That is
    what keeps shrinking: the priors of shared sites give way to the server's w after the first round. Sites ``global``
    (τ), ``local`` [p] (λ), ``intercept`` and ``sigma`` are shared. A slope is the product of three sites.

    Scales are in units of the outcome. ``global_scale`` is about (slopes expected to matter) / p; the smaller, the more
    shrinkage.

    Example:
        >>> model = horseshoe_regression(DataSpec((4,)))
        >>> list(model.declaration.private.shapes), list(model.declaration.shared.shapes)
        (['z'], ['global', 'local', 'intercept', 'sigma'])
    """
    scales = {"global_scale": global_scale, "prior_scale": prior_scale, "noise_scale": noise_scale}
    features = check(data, "number", "horseshoe", **scales)

    def horseshoe(x: Tensor, y: Tensor | None = None) -> None:
        shrink = pyro.sample("global", dist.HalfCauchy(global_scale))
        local = pyro.sample("local", dist.HalfCauchy(1.0).expand([features]).to_event(1))
        slopes = shrink * local * normal("z", 1.0, features)
        intercept = normal("intercept", prior_scale)
        sigma = pyro.sample("sigma", dist.HalfNormal(noise_scale))
        observe(dist.Normal(intercept + x.flatten(1) @ slopes, sigma), y)

    return ProgramModel(horseshoe, data, roles={"z": "private"}, missing=missing)
