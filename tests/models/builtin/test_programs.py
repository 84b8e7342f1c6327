"""Every built-in program, fitted federated, recovers the parameters that its clients' data were simulated with."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyro_pfedbayes.models.builtin.classifiers import logistic_regression
from pyro_pfedbayes.models.builtin.counts import negative_binomial_regression, poisson_regression
from pyro_pfedbayes.models.builtin.hierarchical import (
    client_noise,
    horseshoe_regression,
    random_intercept,
)
from pyro_pfedbayes.models.builtin.ordinal import ordinal_regression
from pyro_pfedbayes.models.builtin.regression import linear_regression, student_t_regression
from pyro_pfedbayes.models.spec import DataSpec
from tests.models.recovery import federated, recovers, simulate

TABLE = DataSpec((3,))
SLOPES = [1.0, -0.5, 0.0]


def normal_scores(count: int) -> Tensor:
    """So many numbers that are spread like a standard Normal, without chance."""
    return torch.distributions.Normal(0.0, 1.0).icdf((torch.arange(count) + 0.5) / count)


def test_linear_regression() -> None:
    known = simulate(linear_regression(TABLE), 4, 100, intercept=0.5, slopes=SLOPES, sigma=0.5)
    recovers(known, federated(known), sharp=0.15)


def test_student_t_regression() -> None:
    model = student_t_regression(TABLE, df=2.0)
    known = simulate(model, 4, 100, intercept=0.5, slopes=SLOPES, sigma=0.5)
    # The heavy tails are there: a Normal of that scale would not in 400 draws go 6 of it away.
    residual = known.y - known.truth["intercept"] - known.x @ known.truth["slopes"]
    assert residual.abs().max() > 6 * 0.5
    recovers(known, federated(known), sharp=0.15)


def test_logistic_regression() -> None:
    model = logistic_regression(DataSpec((3,), num_classes=3))
    slopes = [SLOPES, [0.0, 1.0, 1.0]]
    known = simulate(model, 4, 200, intercept=[0.5, -0.5], slopes=slopes)
    recovers(known, federated(known), sharp=0.2)


def test_ordinal_regression() -> None:
    model = ordinal_regression(DataSpec((3,), num_classes=4))
    known = simulate(model, 4, 200, slopes=SLOPES, first_cut=-1.0, gaps=[1.0, 2.0])
    recovers(known, federated(known), sharp=0.2)


def test_poisson_regression() -> None:
    model = poisson_regression(TABLE, exposure=True)
    known = simulate(model, 4, 100, intercept=0.5, slopes=SLOPES)
    recovers(known, federated(known), sharp=0.15)


def test_negative_binomial_regression() -> None:
    model = negative_binomial_regression(TABLE, exposure=True)
    known = simulate(model, 4, 200, intercept=0.5, slopes=SLOPES, dispersion=2.0)
    recovers(known, federated(known), sharp=0.15)


def test_client_noise() -> None:
    """12 clients; m = -0.8 and s = 0.3 are far from where they begin, at 0 and 0.67."""
    clients, rows, m, s = 12, 60, -0.8, 0.3
    log_sigma = m + s * normal_scores(clients)
    known = simulate(
        client_noise(TABLE),
        clients,
        rows,
        intercept=0.5,
        slopes=SLOPES,
        log_sigma_mean=m,
        log_sigma_spread=s,
        sigma=log_sigma.exp(),
    )
    result = federated(known)
    recovers(known, result, sharp=0.15)

    # n observations leave log sigma_i a standard deviation of 1 / sqrt(2 n).
    possible = 1 / math.sqrt(2 * rows)
    own = result.personal.sample(200, torch.Generator().manual_seed(0))["sigma"].log()
    assert bool((own.std(0) < 2 * possible).all())
    assert bool(((own.mean(0) - log_sigma).abs() < 4 * possible).all())
    population_recovered(result, "log_sigma_mean", "log_sigma_spread", m, s, clients)


def test_random_intercept() -> None:
    """12 clients; mu = 2 and tau = 0.4 are far from where they begin, at 0 and 0.67."""
    clients, rows, mu, tau, sigma = 12, 60, 2.0, 0.4, 0.5
    levels = mu + tau * normal_scores(clients)
    known = simulate(
        random_intercept(TABLE),
        clients,
        rows,
        level=mu,
        level_spread=tau,
        slopes=SLOPES,
        sigma=sigma,
        intercept=levels,
    )
    result = federated(known)
    recovers(known, result, sharp=0.2)

    possible = sigma / math.sqrt(rows)
    own = result.personal.sample(200, torch.Generator().manual_seed(0))["intercept"]
    assert bool((own.std(0) < 2 * possible).all())
    assert bool(((own.mean(0) - levels).abs() < 4 * possible).all())
    population_recovered(result, "level", "level_spread", mu, tau, clients)


def population_recovered(
    result: object, mean: str, spread: str, m: float, s: float, clients: int
) -> None:
    """What w says of the own number of a client not yet seen: its mean and its standard deviation.

    So many clients leave standard errors of s / sqrt(N) and, for the spread, at most 1 / sqrt(2 (N - 1)) of it;
    mean-field q^i add to the spread, so it is asked for within a factor.
    """
    stream = torch.Generator().manual_seed(0)
    w = result.global_.sample(2000, stream)  # type: ignore[attr-defined]
    new = w[mean] + w[spread] * torch.randn(2000, generator=stream)
    assert abs(float(new.mean()) - m) < 4 * s / math.sqrt(clients)
    assert s / 2 < float(new.std()) < 2 * s


def test_horseshoe_finds_the_slopes_that_matter_and_shrinks_the_others() -> None:
    """Clients agree that two of twelve features matter, and differ in how much; each has 50 examples."""
    features, clients, rows, matter = 12, 8, 50, [2, 7]
    slopes = torch.zeros(clients, features)
    slopes[:, 2], slopes[:, 7] = 1.0 + 0.3 * normal_scores(clients), -0.8
    model = horseshoe_regression(DataSpec((features,)))
    known = simulate(
        model,
        clients,
        rows,
        intercept=0.5,
        sigma=1.0,
        z=slopes,
        local=torch.ones(features),
        **{"global": 1.0},
    )
    result = federated(known, rounds=20)
    own = result.personal.sample(500, torch.Generator().manual_seed(0))
    drawn = own["global"][..., None] * own["local"] * own["z"]
    mean, sd = drawn.mean(0), drawn.std(0)

    # What a client could know by itself: least squares, and its standard errors.
    design = torch.cat([torch.ones(clients, rows, 1), known.x], -1)
    alone = torch.linalg.lstsq(design, known.y[..., None]).solution[:, 1:, 0]
    possible = (design.mT @ design).inverse().diagonal(dim1=1, dim2=2).sqrt()[:, 1:]
    assert bool(((mean - slopes).abs() < 4 * possible).all())
    assert bool((possible < 0.25).all() & (sd < 0.3).all())

    idle = torch.ones(features, dtype=torch.bool)
    idle[matter] = False
    assert mean[:, idle].norm() < 0.5 * alone[:, idle].norm()
    # What matters is kept: by the standard error of a mean over clients, those slopes are not drawn to 0.
    error = possible[:, matter].mean(0) / math.sqrt(clients)
    assert bool(((mean - slopes)[:, matter].mean(0).abs() < 4 * error).all())
    assert bool((4 * error < 0.5 * slopes[:, matter].mean(0).abs()).all())
