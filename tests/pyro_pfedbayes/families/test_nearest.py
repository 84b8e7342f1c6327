"""Where a client begins: the mean-field Gaussian nearest to w, against numerical minimisation of KL(q‖w)."""

import pytest
import torch
from numpy.polynomial.hermite_e import hermegauss
from torch.distributions import Independent, LowRankMultivariateNormal, MultivariateNormal, Normal

from pyro_pfedbayes.families import FullCovariance, Laplace, LowRank, MeanField, StudentT
from pyro_pfedbayes.families.rows import GaussianRows

T = 4


def servers():
    stream = torch.Generator().manual_seed(3)
    loc, scale = torch.randn(T, generator=stream).double(), torch.rand(T, generator=stream).double()
    factor = torch.randn(T, 2, generator=stream).double()
    plain = {"loc": loc, "scale": 0.2 + scale}
    tril = torch.linalg.cholesky(factor @ factor.T + torch.diag(plain["scale"].square()))
    return {
        "mean-field": (MeanField(), plain),
        "laplace": (Laplace(), plain),
        "student-t": (StudentT(4.0), plain),
        "full": (FullCovariance(), {"loc": loc, "tril": tril}),
        "full, factored": (FullCovariance(), {**plain, "factor": factor}),
        "low-rank": (LowRank(2), {**plain, "factor": factor}),
    }


def divergence(loc, log_scale, p):
    """KL(q‖p) in closed form, or against Student's t by quadrature of each weight."""
    q = Independent(Normal(loc, log_scale.exp()), 1)
    if isinstance(p, LowRankMultivariateNormal | MultivariateNormal):
        full = MultivariateNormal(p.mean, p.covariance_matrix)
        own = MultivariateNormal(loc, torch.diag(log_scale.mul(2).exp()))
        return torch.distributions.kl_divergence(own, full)
    if isinstance(p.base_dist, torch.distributions.Laplace):
        return torch.distributions.kl_divergence(q.base_dist, p.base_dist).sum()
    nodes, weights = (torch.as_tensor(v) for v in hermegauss(180))
    points = loc + log_scale.exp() * nodes[:, None]
    cross = (weights / weights.sum())[:, None] * p.base_dist.log_prob(points)
    return -cross.sum() - q.entropy()


@pytest.mark.parametrize("name", list(servers()))
def test_it_minimises_the_divergence(name) -> None:
    family, w = servers()[name]
    p = family.distribution(w)
    loc = (w["loc"] + 0.1).clone().requires_grad_()
    log_scale = w["loc"].mul(0).clone().requires_grad_()
    solver = torch.optim.LBFGS(
        [loc, log_scale], max_iter=400, tolerance_grad=1e-9, line_search_fn="strong_wolfe"
    )

    def closure():
        solver.zero_grad()
        value = divergence(loc, log_scale, p)
        value.backward()
        return value

    solver.step(closure)
    nearest_loc, nearest_scale = family.nearest(w)
    torch.testing.assert_close(nearest_loc, loc.detach(), atol=1e-4, rtol=0)
    torch.testing.assert_close(nearest_scale, log_scale.detach().exp(), rtol=1e-4, atol=0)


@pytest.mark.parametrize("name", ["mean-field", "laplace", "student-t"])
def test_clients_that_stay_there_leave_w_as_it_is(name) -> None:
    """Round after round, or the width of w would drift without any data."""
    family, w = servers()[name]
    loc, scale = family.nearest(w)
    again = family.project(GaussianRows(loc.expand(3, T), scale.expand(3, T)), torch.ones(3), w)
    torch.testing.assert_close(again["loc"], w["loc"], rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(again["scale"], w["scale"], rtol=1e-3, atol=0)
