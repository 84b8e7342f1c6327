"""Federations of conjugate linear regressions, whose every round is known in closed form.

With known noise sigma a client's posterior under w = N(m, C) is Gaussian. The objective
``-E_q log p(y|theta) + zeta KL(q || w)`` is least at ``q ∝ w p(y|theta)^(1/zeta)``, of precision and mean ::

    L_i = C^-1 + X_i' X_i / (zeta sigma^2),    m_i = L_i^-1 (C^-1 m + X_i' y_i / (zeta sigma^2))

if q may be any Gaussian; among independent ones at means m_i and variances ``1 / diag(L_i)``. The server matches
moments: ``m' = mean m_i``, ``C' = mean [Cov_i + (m_i - m')(m_i - m')']``; a mean-field one keeps the diagonal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pyro_pfedbayes.families import FullCovariance, FullRankNormal
from pyro_pfedbayes.inference.algorithms.pfedbayes import PFedBayes
from pyro_pfedbayes.inference.federation.loop import Federation
from pyro_pfedbayes.models.program import ProgramModel
from pyro_pfedbayes.models.spec import DataSpec
from tests.models.recovery import by_client

NOISE, PRIOR_SCALE, FEATURES = 1.0, 2.0, 3
CLIENTS, ROWS = 4, 24
SIGNS = [[1.0, -1.0, 1.0], [-1.0, 1.0, 1.0], [1.0, 1.0, -1.0], [-1.0, -1.0, -1.0]]


def line(x: Tensor, y: Tensor | None = None) -> None:
    slopes = pyro.sample("slopes", dist.Normal(0.0, PRIOR_SCALE).expand([FEATURES]).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ slopes, NOISE), obs=y)


def clients() -> tuple[Tensor, Tensor]:
    """Slopes that differ between clients by 1, about three times what their data leave open; two features correlated.

    So the prior tells, and yet w does not narrow to nothing, round after round, as it does where clients hardly differ.

    Returns:
        x ``[N, n, 3]`` and y ``[N, n]``.
    """
    stream = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=stream)

    x = normal(CLIENTS, ROWS, FEATURES)
    x[..., 1] = 0.7 * x[..., 0] + 0.51**0.5 * x[..., 1]
    slopes = torch.tensor([1.0, -0.5, 0.2]) + torch.tensor(SIGNS)
    return x, (x @ slopes[..., None])[..., 0] + NOISE * normal(CLIENTS, ROWS)


@dataclass(frozen=True)
class Exact:
    """What theory says of a round, in float64.

    Attributes:
        mean: The server's ``[3]``.
        covariance: The server's ``[3, 3]``.
        means: The clients' ``[N, 3]``.
        covariances: The clients' ``[N, 3, 3]``.
    """

    mean: Tensor
    covariance: Tensor
    means: Tensor
    covariances: Tensor

    @property
    def sds(self) -> Tensor:
        """The clients' posterior standard deviations ``[N, 3]``."""
        return self.covariances.diagonal(dim1=-2, dim2=-1).sqrt()


def exact_round(mean: Tensor, covariance: Tensor, *, zeta: float, mean_field: bool) -> Exact:
    """One round from w = N(mean, covariance), by the formulas above."""
    x, y = (part.double() for part in clients())
    prior = covariance.inverse()
    precisions = prior + x.mT @ x / (zeta * NOISE**2)
    shifts = prior @ mean + (x.mT @ y[..., None])[..., 0] / (zeta * NOISE**2)
    means = torch.linalg.solve(precisions, shifts)
    independent = torch.diag_embed(1.0 / precisions.diagonal(dim1=-2, dim2=-1))
    covariances = independent if mean_field else precisions.inverse()
    average = means.mean(0)
    away = means - average
    matched = covariances.mean(0) + away.T @ away / CLIENTS
    if mean_field:
        matched = torch.diag(matched.diagonal())
    return Exact(average, matched, means, covariances)


def first_round(*, zeta: float, mean_field: bool) -> Exact:
    zero = torch.zeros(FEATURES, dtype=torch.float64)
    prior = PRIOR_SCALE**2 * torch.eye(FEATURES, dtype=torch.float64)
    return exact_round(zero, prior, zeta=zeta, mean_field=mean_field)


def federation(*, joint: bool, **options: Any) -> Federation:
    families: dict[str, Any] = {"guide": FullRankNormal(), "server": FullCovariance()}
    model = ProgramModel(line, DataSpec((FEATURES,)), **(families if joint else {}))
    x, y = clients()
    settings = {"optimizer_state": "reset", "lr_schedule": "linear", "personal_rounds": 0}
    algorithm = PFedBayes(**{**settings, "batch_size": ROWS, **options})
    data = by_client(x, y, 0)
    return Federation(model, data, algorithm=algorithm, device="cpu", engine="traced", eval_every=0)


def server_moments(server: Any) -> tuple[Tensor, Tensor]:
    """Mean and covariance of w, whatever its family."""
    if "tril" in server:
        return server["loc"].double(), (server["tril"] @ server["tril"].T).double()
    return server["loc"].double(), torch.diag(server["scale"].double().square())


def client_moments(result: Any) -> tuple[Tensor, Tensor]:
    """Means and covariances of the q^i."""
    params = result.personal.params
    if "tril" in params:
        covariances = FullRankNormal().distribution(params).covariance_matrix
    else:
        covariances = torch.diag_embed(F.softplus(params["rho"]).square())
    return params["loc"].double(), covariances.double()


def assert_matches(result: Any, wanted: Exact) -> None:
    """As near as stochastic gradients come; the server's averages are nearer than any one client.

    Means in posterior standard deviations: each client's 0.3, the server's 0.12. Covariances, where the wanted one
    is the identity, so in every direction relative to itself: each client's 25 %, the server's 10 %.
    """
    means, covariances = client_moments(result)
    mean, covariance = server_moments(result.state.server)
    assert ((means - wanted.means) / wanted.sds).abs().max() < 0.3
    assert ((mean - wanted.mean) / wanted.sds.mean(0)).abs().max() < 0.12
    for found, exact in zip(covariances, wanted.covariances, strict=True):
        assert whitened(found, exact) < 0.25
    assert whitened(covariance, wanted.covariance) < 0.1


def whitened(found: Tensor, wanted: Tensor) -> Tensor:
    """Largest entry of R^-1 found R^-T - 1, wanted = R R'."""
    root = torch.linalg.cholesky(wanted)
    one = torch.linalg.solve_triangular(root, found, upper=False)
    one = torch.linalg.solve_triangular(root, one.T, upper=False)
    return (one - torch.eye(len(wanted))).abs().max()


@pytest.mark.parametrize(("zeta", "rounds"), [(1.0, 3), (2.5, 2)])
def test_every_round_of_a_full_covariance_federation_is_the_exact_one(
    zeta: float, rounds: int
) -> None:
    """Own prior in the first round, then w. A run is taken up anew each round, so that each ends at a rate of 0."""
    fed = federation(joint=True, zeta=zeta, local_steps=800, draws=2, lr=0.1)
    state, wanted = None, first_round(zeta=zeta, mean_field=False)
    for done in range(1, rounds + 1):
        result = fed.run(done, state=state)
        assert_matches(result, wanted)
        state = result.state
        wanted = exact_round(wanted.mean, wanted.covariance, zeta=zeta, mean_field=False)


@pytest.mark.parametrize("zeta", [1.0, 0.5])
def test_a_mean_field_federation_settles_at_its_exact_fixed_point(zeta: float) -> None:
    """An ordinary run in minibatches: rounds with a falling rate, then personal ones against the frozen w."""
    wanted = first_round(zeta=zeta, mean_field=True)
    for _ in range(200):
        before = wanted
        wanted = exact_round(before.mean, before.covariance, zeta=zeta, mean_field=True)
    torch.testing.assert_close(before.covariance, wanted.covariance, rtol=1e-9, atol=0)
    fed = federation(
        joint=False,
        zeta=zeta,
        local_steps=100,
        draws=2,
        batch_size=8,
        lr=0.05,
        lr_schedule="cosine",
        # From w itself a client would not come down to its own belief once the rate has fallen.
        start="own",
        optimizer_state="kept",
        personal_rounds=6,
        personal_lr=0.02,
        personal_start="own",
    )
    assert_matches(fed.run(16), wanted)
