"""NUTS against exact posteriors of conjugate models, and q^i against both."""

from __future__ import annotations

import math
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.ops.stats import effective_sample_size
from torch import Tensor, nn
from torch.nn.functional import softplus

from pyro_pfedbayes.families import FullCovariance, FullRankNormal
from pyro_pfedbayes.gaussians.mean_field import MeanFieldGaussian
from pyro_pfedbayes.inference.beliefs.points import PointBelief
from pyro_pfedbayes.inference.beliefs.sites import SiteBelief
from pyro_pfedbayes.inference.diagnostics.nuts import NutsWarning, client_posterior, nuts_draws
from pyro_pfedbayes.models.bayesian import BayesianModel
from pyro_pfedbayes.models.likelihoods import Normal
from pyro_pfedbayes.models.networks import mlp
from pyro_pfedbayes.models.program import ProgramModel
from pyro_pfedbayes.models.spec import DataSpec
from tests.helpers import message
from tests.models.recovery import by_client, run

NOISE = 0.5
PRIOR_SCALE = 2.0


def line(x: Tensor, y: Tensor | None = None) -> None:
    slopes = pyro.sample("slopes", dist.Normal(0.0, PRIOR_SCALE).expand([3]).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ slopes, NOISE), obs=y)


def sloped(x: Tensor, y: Tensor | None = None) -> None:
    """An intercept of a client's own beside the slopes, and a noise to be estimated as a point."""
    intercept = pyro.sample("intercept", dist.Normal(1.0, 0.5))
    slopes = pyro.sample("slopes", dist.Normal(0.0, PRIOR_SCALE).expand([3]).to_event(1))
    sigma = pyro.sample("sigma", dist.HalfNormal(1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(intercept + x @ slopes, sigma), obs=y)


def data(rows: int = 40) -> tuple[Tensor, Tensor]:
    """Two of three features correlated at 0.9."""
    stream = torch.Generator().manual_seed(0)
    correlation = torch.tensor([[1.0, 0.9, 0.0], [0.9, 1.0, 0.0], [0.0, 0.0, 1.0]])
    factor = torch.linalg.cholesky(correlation)
    x = torch.randn(rows, 3, generator=stream) @ factor.T
    noise = torch.randn(rows, generator=stream)
    return x, x @ torch.tensor([1.0, -0.5, 0.2]) + NOISE * noise


def exact(
    mean: Tensor, covariance: Tensor, x: Tensor, y: Tensor, *, zeta: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Mean and precision of w p(y|x, theta)^(1/zeta), w = N(mean, covariance), in float64.

    log q = -(theta - m)' C^-1 (theta - m) / 2 - |y - X theta|^2 / (2 zeta sigma^2) + const.
    """
    x, y, mean, covariance = x.double(), y.double(), mean.double(), covariance.double()
    precision = covariance.inverse() + x.T @ x / (zeta * NOISE**2)
    shift = covariance.inverse() @ mean + x.T @ y / (zeta * NOISE**2)
    return torch.linalg.solve(precision, shift), precision


def own_posterior(x: Tensor, y: Tensor, zeta: float = 1.0) -> tuple[Tensor, Tensor]:
    return exact(torch.zeros(3), PRIOR_SCALE**2 * torch.eye(3), x, y, zeta=zeta)


def assert_moments(draws: Tensor, mean: Tensor, precision: Tensor) -> None:
    """Means and covariances of draws ``[K, T]`` within 4 standard errors, from their effective number."""
    draws, covariance = draws.double(), precision.inverse()
    sd = covariance.diagonal().sqrt()
    count = effective_sample_size(draws[None])
    assert bool((count > 200).all()), count
    assert bool(((draws.mean(0) - mean).abs() < 4 * sd / count.sqrt()).all()), draws.mean(0) - mean
    # A product of two Gaussian coordinates has variance C_ii C_jj + C_ij^2; squares mix more slowly than draws.
    away = draws - mean
    least = effective_sample_size(away.square()[None]).min()
    error = ((torch.outer(sd, sd).square() + covariance.square()) / least).sqrt()
    found = away.T @ away / len(draws)
    assert bool(((found - covariance).abs() < 4 * error).all()), found / covariance


def assert_density(energy: Any, mean: Tensor, precision: Tensor) -> None:
    """The energy is that of N(mean, precision^-1) up to a constant, at a few points."""
    stream = torch.Generator().manual_seed(1)
    points = torch.randn(5, len(mean), generator=stream, dtype=torch.float64)
    away = points - mean
    wanted = 0.5 * torch.einsum("ki,ij,kj->k", away, precision, away)
    found = torch.stack([energy(point.float()) for point in points]).double()
    torch.testing.assert_close(found - found[0], wanted - wanted[0], rtol=1e-4, atol=1e-3)


def joint_server() -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """A server's w of full covariance over three slopes, and its moments."""
    mean = torch.tensor([0.5, 0.0, -0.5])
    tril = torch.tensor([[0.5, 0.0, 0.0], [0.3, 0.4, 0.0], [-0.2, 0.1, 0.3]])
    return {"loc": mean, "tril": tril}, mean, tril @ tril.T


# -- NUTS against the exact posterior -------------------------------------------------------------------


def test_draws_have_the_moments_of_the_exact_posterior() -> None:
    x, y = data()
    drawn = nuts_draws(ProgramModel(line, DataSpec((3,))), x, y, draws=600, warmup=200)
    assert set(drawn) == {"slopes"}
    assert drawn["slopes"].shape == (600, 3)
    assert_moments(drawn["slopes"], *own_posterior(x, y))


def test_under_the_servers_w_private_priors_and_zeta() -> None:
    """Slopes jointly under a full covariance, an intercept under its own prior, a fixed noise, zeta = 2.5."""
    x, y = data()
    model = ProgramModel(
        sloped,
        DataSpec((3,)),
        roles={"intercept": "private", "sigma": "point"},
        guide=FullRankNormal(),
        server=FullCovariance(),
    )
    w, mean, covariance = joint_server()
    server = SiteBelief(model, {**w, "point": torch.tensor([math.log(NOISE)])}, of_server=True)
    drawn = nuts_draws(model, x, y, prior=server, zeta=2.5, draws=600, warmup=200)

    assert list(drawn) == list(model.declaration.shapes)
    torch.testing.assert_close(drawn["sigma"], torch.full((600,), NOISE))
    joint = torch.cat([drawn["slopes"], drawn["intercept"][:, None]], 1)
    design = torch.cat([x, torch.ones(len(x), 1)], 1)
    prior_mean = torch.cat([mean, torch.ones(1)])
    prior_covariance = torch.block_diag(covariance, torch.tensor([[0.5**2]]))
    assert_moments(joint, *exact(prior_mean, prior_covariance, design, y, zeta=2.5))


@pytest.mark.parametrize("zeta", [1.0, 0.4])
def test_density_under_the_models_own_priors(zeta: float) -> None:
    x, y = data()
    found = client_posterior(ProgramModel(line, DataSpec((3,))), None, zeta, x)
    assert_density(lambda z: found.energy(z, x, y), *own_posterior(x, y, zeta))
    recorded = found.recorded(x, y)
    assert_density(lambda z: recorded({"z": z}), *own_posterior(x, y, zeta))


def test_density_of_a_network_under_a_gaussian_and_under_its_own_start() -> None:
    x, y = data()
    network = mlp([3, 1], seed=1)
    model = BayesianModel(network, Normal(NOISE), rho=-0.5)
    names = {"weight": "head.weight", "bias": "head.bias"}
    prior = MeanFieldGaussian(
        {
            names["weight"]: torch.tensor([[0.5, -1.0, 2.0]]),
            names["bias"]: torch.tensor([0.3]),
        },
        {names["weight"]: torch.tensor([[0.5, 1.0, 0.2]]), names["bias"]: torch.tensor([2.0])},
    )
    design = torch.cat([x, torch.ones(len(x), 1)], 1)
    for given in (prior, None):
        believed = model.prior if given is None else given
        flat = (model.layout.flatten(part) for part in (believed.loc, believed.scale))
        loc, scale = (model.layout.unflatten(part) for part in flat)
        mean, sd = (torch.cat([part[names[n]].flatten() for n in names]) for part in (loc, scale))
        assert list(model.weight_shapes) == list(names.values())
        found = client_posterior(model, given, 2.0, x)
        wanted = exact(mean, torch.diag(sd.square()), design, y, zeta=2.0)
        assert_density(lambda z, found=found: found.energy(z, x, y), *wanted)


@pytest.mark.parametrize("zeta", [1.0, 3.0])
def test_a_site_with_bounds_keeps_its_density(zeta: float) -> None:
    """Gamma precision of Gaussian outcomes: Gamma(a + n / (2 zeta), b + sum y^2 / (2 zeta))."""
    a, b = 2.0, 1.5

    def spread(x: Tensor, y: Tensor | None = None) -> None:
        tau = pyro.sample("tau", dist.Gamma(a, b))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(0.0, tau.rsqrt()), obs=y)

    x, y = data(20)
    model = ProgramModel(spread, DataSpec((3,)))
    shape, rate = a + len(y) / (2 * zeta), b + float(y.square().sum()) / (2 * zeta)
    found = client_posterior(model, None, zeta, x)
    u = torch.tensor([-1.0, 0.0, 0.7])
    energy = torch.stack([found.energy(point[None], x, y) for point in u])
    wanted = (
        rate * u.exp() - shape * u
    )  # of log tau: the change of variables adds one to the exponent
    torch.testing.assert_close(energy - energy[0], wanted - wanted[0], rtol=1e-4, atol=1e-4)
    if zeta == 1.0:
        return
    tau = nuts_draws(model, x, y, zeta=zeta, draws=400, warmup=150)["tau"]
    count = float(effective_sample_size(tau[None, :, None]))
    assert bool((tau > 0).all())
    assert abs(float(tau.mean()) - shape / rate) < 4 * math.sqrt(shape) / rate / math.sqrt(count)


# -- q^i against the exact posterior --------------------------------------------------------------------


def alone(x: Tensor, y: Tensor, zeta: float, **families: Any) -> Any:
    """The q^i of a single client in the first round. It begins at the truth: the optimum is tested, not the way."""
    model = ProgramModel(line, DataSpec((3,)), start={"slopes": [1.0, -0.5, 0.2]}, **families)
    settings: dict[str, Any] = {"local_steps": 800, "draws": 2, "lr": 0.02, "lr_schedule": "linear"}
    data = by_client(x[None], y[None], 0)
    return run(model, data, rounds=1, zeta=zeta, personal_rounds=0, **settings).personal.client(0)


@pytest.mark.parametrize("zeta", [1.0, 3.0])
def test_a_mean_field_belief_has_the_means_and_the_precisions_diagonal(zeta: float) -> None:
    """Of a Gaussian the nearest independent one in KL(q||p) has its means, and variances 1 / diag(precision)."""
    x, y = data()
    q = alone(x, y, zeta)
    mean, precision = own_posterior(x, y, zeta)
    loc, sd = q.loc["slopes"].double(), softplus(q.params["rho"]).double()
    wanted = precision.diagonal().rsqrt()
    assert bool(((loc - mean).abs() < 0.15 * wanted).all()), (loc - mean) / wanted
    torch.testing.assert_close(sd, wanted, rtol=0.04, atol=0)
    # Of the two correlated features it is far too sure: their marginals are twice as wide.
    marginal = precision.inverse().diagonal().sqrt()
    assert bool((sd[:2] < 0.8 * marginal[:2]).all()), sd / marginal


@pytest.mark.parametrize("zeta", [1.0, 3.0])
def test_a_full_rank_belief_is_the_exact_posterior(zeta: float) -> None:
    x, y = data()
    q = alone(x, y, zeta, guide=FullRankNormal(), server=FullCovariance())
    mean, precision = own_posterior(x, y, zeta)
    found = FullRankNormal().distribution(q.params).covariance_matrix.double()
    sd = precision.inverse().diagonal().sqrt()
    assert bool(((q.loc["slopes"] - mean).abs() < 0.15 * sd).all()), (q.loc["slopes"] - mean) / sd
    # In the coordinates in which the exact covariance is the identity: every direction relative to itself.
    root = torch.linalg.cholesky(precision)
    whitened = root.T @ found @ root
    torch.testing.assert_close(whitened, torch.eye(3).double(), rtol=0, atol=0.12)


# -- manners --------------------------------------------------------------------------------------------


def test_the_seed_decides_and_nothing_else_is_touched(capfd: pytest.CaptureFixture[str]) -> None:
    x, y = data()
    model = ProgramModel(line, DataSpec((3,)))
    before = torch.get_rng_state()
    first, again, other = (
        nuts_draws(model, x, y, draws=20, warmup=20, seed=seed)["slopes"] for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), before)
    assert len(pyro.get_param_store()) == 0
    assert capfd.readouterr() == ("", "")


def test_one_draw_will_do() -> None:
    x, y = data()
    drawn = nuts_draws(ProgramModel(line, DataSpec((3,))), x, y, draws=1, warmup=0)
    assert drawn["slopes"].shape == (1, 3)


def test_warns_of_a_cliff_that_the_chain_falls_from() -> None:
    def cliff(x: Tensor, y: Tensor | None = None) -> None:
        top = pyro.sample("top", dist.LogNormal(2.0, 1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Uniform(torch.zeros(()), top), obs=y)

    model = ProgramModel(cliff, DataSpec((3,)))
    x, y = torch.zeros(20, 3), torch.linspace(0.1, 1.0, 20)
    with pytest.warns(NutsWarning, match="diverged"):
        nuts_draws(model, x, y, draws=80, warmup=40)


def test_warns_of_a_chain_that_sits_in_one_mode_and_then_the_other() -> None:
    def two_roots(x: Tensor, y: Tensor | None = None) -> None:
        place = pyro.sample("place", dist.Normal(0.0, 10.0))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(0.005 * (place.square() - 9.0), 0.1), obs=y)

    x, y = torch.zeros(40, 3), torch.zeros(40)
    with pytest.warns(NutsWarning, match="has not mixed"):
        nuts_draws(ProgramModel(two_roots, DataSpec((3,))), x, y, draws=100, warmup=50, seed=5)


def test_refuses_nonsense_in_one_line() -> None:
    x, y = data()
    model = ProgramModel(line, DataSpec((3,)))
    said = message(nuts_draws, model, x, y, draws=0)
    assert "draws is 0" in said
    assert "warmup is -1" in message(nuts_draws, model, x, y, warmup=-1)
    assert "draws is 2.5" in message(nuts_draws, model, x, y, draws=2.5)
    assert "zeta is 0" in message(nuts_draws, model, x, y, zeta=0)
    assert "x is [40, 3] and y [39]" in message(nuts_draws, model, x, y[1:])
    assert "does not take inputs of shape [2]" in message(nuts_draws, model, x[:, :2], y)
    wide = BayesianModel(nn.Linear(2000, 1), Normal(1.0))
    assert "2,001 random weights" in message(nuts_draws, wide, torch.zeros(3, 2000), torch.zeros(3))
    far = 1e30 * torch.ones(40)
    assert "NUTS cannot begin" in message(nuts_draws, model, x, far)


def test_refuses_priors_that_do_not_fit() -> None:
    x, y = data()
    model = ProgramModel(line, DataSpec((3,)))
    client = SiteBelief(model, {"loc": torch.zeros(3), "rho": torch.zeros(3)})
    assert "client's belief" in message(nuts_draws, model, x, y, prior=client)
    other = ProgramModel(sloped, DataSpec((3,)))
    w = {"loc": torch.zeros(5), "scale": torch.ones(5)}
    foreign = SiteBelief(other, w, of_server=True)
    assert "sites intercept, slopes, sigma" in message(nuts_draws, model, x, y, prior=foreign)
    narrow = MeanFieldGaussian({"slopes": torch.zeros(2)}, {"slopes": torch.ones(2)})
    assert "(2,)" in message(nuts_draws, model, x, y, prior=narrow)
    rows = MeanFieldGaussian.stack(
        [MeanFieldGaussian({"slopes": torch.zeros(3)}, {"slopes": torch.ones(3)})] * 2
    )
    assert "stacked" in message(nuts_draws, model, x, y, prior=rows)
    pointed = ProgramModel(sloped, DataSpec((3,)), roles={"sigma": "point"})
    plain = MeanFieldGaussian(
        {"intercept": torch.zeros(()), "slopes": torch.zeros(3)},
        {"intercept": torch.ones(()), "slopes": torch.ones(3)},
    )
    assert "point estimate 'sigma'" in message(nuts_draws, pointed, x, y, prior=plain)
    point = PointBelief(model, torch.zeros(3))
    assert "has no density" in message(nuts_draws, model, x, y, prior=point)
