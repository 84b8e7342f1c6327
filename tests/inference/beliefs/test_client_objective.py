"""The objective of one client of any declared model, against formulas written out."""

import pyro
import pyro.distributions as dist
import pytest
import torch
import torch.nn.functional as F
from torch.distributions import Laplace, Normal, kl_divergence

from pyro_pfedbayes.families import FullCovariance, FullRankNormal, StudentT
from pyro_pfedbayes.families import Laplace as LaplaceFamily
from pyro_pfedbayes.inference.beliefs.client_objective import ClientLoss
from pyro_pfedbayes.inference.beliefs.sites import fresh_private, parameter_names
from pyro_pfedbayes.inference.engine.client_step import GradientEngine
from pyro_pfedbayes.models.program import ProgramModel
from pyro_pfedbayes.models.roles import Private
from pyro_pfedbayes.models.settings import pyro_local
from pyro_pfedbayes.models.spec import DataSpec
from tests.helpers import random_batch, random_gaussian, tiny_model

S, B = 3, 6
ZETA, SCALES = torch.tensor(2.0).double(), torch.tensor([1.0, 3.0, 10.0]).double()


def line(x, y=None):
    slope = pyro.sample("slope", dist.Normal(x.new_zeros(2), 1.0).to_event(1))
    sigma = pyro.sample("sigma", dist.HalfNormal(x.new_ones(())))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ slope, sigma), obs=y)


def table(seed=0):
    stream = torch.Generator().manual_seed(seed)
    x = torch.randn(S, B, 2, generator=stream, dtype=torch.float64)
    return x, torch.randn(S, B, generator=stream, dtype=torch.float64)


def normals(*shape, seed=1):
    stream = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=stream, dtype=torch.float64)


def mapped(model, params, prior, eps, x, y, mask=None, **options):
    """Losses of a cohort under one draw."""
    objective = ClientLoss(model, **options)
    dims = (0, None, None, 0, 0, 0, 0, None if mask is None else 0)
    with pyro_local():
        return torch.func.vmap(objective, in_dims=dims)(
            params, prior, ZETA, SCALES, eps, x, y, mask
        )


def cross_entropy(model, weights, x, y):
    logits = torch.func.functional_call(model.network, weights, (x,))
    return F.cross_entropy(logits, y, reduction="none")


def test_in_the_papers_setting_it_is_the_stacked_program() -> None:
    model = tiny_model()
    layout = model.layout
    q, w = random_gaussian(model, clients=S), random_gaussian(model, seed=4)
    params = {"loc": layout.flatten(q.loc), "rho": layout.flatten(q.scale).expm1().log()}
    prior = {"loc": layout.flatten(w.loc), "scale": layout.flatten(w.scale)}
    x, y = random_batch(S, B, torch.float64)
    mask = torch.ones(S, B, dtype=torch.bool)
    mask[1, 4:] = False
    eps = normals(S, layout.size)
    ours = mapped(model, params, prior, eps, x, y, mask)
    stacked, _ = GradientEngine(model)(params, prior, ZETA, SCALES, eps[None], x, y, mask)
    torch.testing.assert_close(ours, stacked, rtol=1e-12, atol=1e-12)


def test_a_private_head_has_its_own_prior_and_a_point_none() -> None:
    own = dist.Normal(torch.tensor(0.3).double(), torch.tensor(0.5).double())
    model = tiny_model(roles={"head.*": Private(own), "fc1.bias": "point"})
    declared = model.declaration
    sizes = {"loc": declared.shared.size, "private.loc": declared.private.size}
    assert (parameter_names(model), list(fresh_private(model, 1))) == (
        ["loc", "rho", "point"],
        ["private.loc", "private.rho"],
    )
    params = {
        name: 0.5 * normals(S, size, seed=k)
        for k, (name, size) in enumerate(
            {
                "loc": sizes["loc"],
                "rho": sizes["loc"],
                "point": declared.point.size,
                "private.loc": sizes["private.loc"],
                "private.rho": sizes["private.loc"],
            }.items()
        )
    }
    prior = {"loc": normals(sizes["loc"], seed=9), "scale": normals(sizes["loc"], seed=8).exp()}
    x, y = random_batch(S, B, torch.float64)
    eps = normals(S, sizes["loc"] + sizes["private.loc"])
    ours = mapped(model, params, prior, eps, x, y)
    for i in range(S):
        q = Normal(params["loc"][i], F.softplus(params["rho"][i]))
        r = Normal(params["private.loc"][i], F.softplus(params["private.rho"][i]))
        theta = q.mean + q.stddev * eps[i, : sizes["loc"]]
        phi = r.mean + r.stddev * eps[i, sizes["loc"] :]
        weights = {
            **declared.shared.unflatten(theta),
            **declared.private.unflatten(phi),
            **declared.point.unflatten(params["point"][i]),
        }
        hand = ZETA * kl_divergence(q, Normal(prior["loc"], prior["scale"])).sum()
        hand = hand + ZETA * kl_divergence(r, Normal(own.loc, own.scale)).sum()
        hand = hand + SCALES[i] * cross_entropy(model, weights, x[i], y[i]).sum()
        torch.testing.assert_close(ours[i], hand, rtol=1e-10, atol=1e-10)


def flat_line(**options):
    model = ProgramModel(line, DataSpec((2,)), **options)
    params = {"loc": normals(S, 3, seed=2), "rho": normals(S, 3, seed=3)}
    return model, params


def hand_likelihood(free, x, y):
    return -Normal(x @ free[:2], free[2].exp()).log_prob(y).sum()


def test_a_program_is_learnt_in_unconstrained_coordinates() -> None:
    model, params = flat_line()
    prior = {"loc": normals(3, seed=5), "scale": normals(3, seed=6).exp()}
    (x, y), eps = table(), normals(S, 3)
    ours = mapped(model, params, prior, eps, x, y)
    for i in range(S):
        q = Normal(params["loc"][i], F.softplus(params["rho"][i]))
        free = q.mean + q.stddev * eps[i]
        hand = ZETA * kl_divergence(q, Normal(prior["loc"], prior["scale"])).sum()
        hand = hand + SCALES[i] * hand_likelihood(free, x[i], y[i])
        torch.testing.assert_close(ours[i], hand, rtol=1e-10, atol=1e-10)


def test_in_the_first_round_the_programs_priors_stand_with_the_jacobian() -> None:
    model, params = flat_line()
    (x, y), eps = table(), normals(S, 3)
    ours = mapped(model, params, {}, eps, x, y, own_prior=True)
    half_normal = torch.distributions.HalfNormal(torch.ones((), dtype=torch.float64))
    for i in range(S):
        q = Normal(params["loc"][i], F.softplus(params["rho"][i]))
        free = q.mean + q.stddev * eps[i]
        slopes = Normal(q.mean[:2], q.stddev[:2])
        # The slopes' divergence is closed, sigma's is estimated: log |d sigma / d u| = u.
        kl = kl_divergence(slopes, Normal(torch.zeros(2).double(), 1.0)).sum()
        kl = kl + q.log_prob(free)[2] - (half_normal.log_prob(free[2].exp()) + free[2])
        hand = ZETA * kl + SCALES[i] * hand_likelihood(free, x[i], y[i])
        torch.testing.assert_close(ours[i], hand, rtol=1e-10, atol=1e-10)


def test_a_full_rank_guide_under_the_programs_own_priors() -> None:
    model, _ = flat_line(guide=FullRankNormal(), server=FullCovariance())
    params = {"loc": normals(S, 3, seed=2), "tril": normals(S, 6, seed=3)}
    (x, y), eps = table(), normals(S, 3)
    ours = mapped(model, params, {}, eps, x, y, own_prior=True)
    half_normal = torch.distributions.HalfNormal(torch.ones((), dtype=torch.float64))
    for i in range(S):
        q = FullRankNormal().distribution({k: v[i] for k, v in params.items()})
        free = q.mean + q.scale_tril @ eps[i]
        prior = Normal(torch.zeros(2).double(), 1.0).log_prob(free[:2]).sum()
        prior = prior + half_normal.log_prob(free[2].exp()) + free[2]
        hand = ZETA * (q.log_prob(free) - prior) + SCALES[i] * hand_likelihood(free, x[i], y[i])
        torch.testing.assert_close(ours[i], hand, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("family", [LaplaceFamily(), StudentT(4.0)])
def test_other_families_of_the_server(family) -> None:
    """Closed against Laplace; one draw of log q - log w against Student's t."""
    model, params = flat_line(server=family)
    prior = {"loc": normals(3, seed=5), "scale": normals(3, seed=6).exp()}
    (x, y), eps = table(), normals(S, 3)
    ours = mapped(model, params, prior, eps, x, y)
    for i in range(S):
        q = Normal(params["loc"][i], F.softplus(params["rho"][i]))
        free = q.mean + q.stddev * eps[i]
        if isinstance(family, LaplaceFamily):
            kl = kl_divergence(q, Laplace(prior["loc"], prior["scale"])).sum()
        else:
            t = torch.distributions.StudentT(4.0, prior["loc"], prior["scale"])
            kl = (q.log_prob(free) - t.log_prob(free)).sum()
        hand = ZETA * kl + SCALES[i] * hand_likelihood(free, x[i], y[i])
        torch.testing.assert_close(ours[i], hand, rtol=1e-10, atol=1e-10)


def test_a_hierarchical_prior_is_conditioned_on_its_own_draw() -> None:
    def prior():
        return dist.Normal(0.0, pyro.sample("tau", dist.HalfNormal(torch.ones(()).double())))

    model = tiny_model(roles={"head.*": Private(prior)})
    declared = model.declaration
    shared, private = declared.shared.size, declared.private.size
    assert list(declared.shared.shapes)[-1] == "tau"
    params = {
        "loc": normals(S, shared, seed=2),
        "rho": normals(S, shared, seed=3),
        "private.loc": normals(S, private, seed=4),
        "private.rho": normals(S, private, seed=5),
    }
    w = {"loc": normals(shared, seed=6), "scale": normals(shared, seed=7).exp()}
    x, y = random_batch(S, B, torch.float64)
    eps = normals(S, shared + private)
    ours = mapped(model, params, w, eps, x, y)
    for i in range(S):
        q = Normal(params["loc"][i], F.softplus(params["rho"][i]))
        r = Normal(params["private.loc"][i], F.softplus(params["private.rho"][i]))
        theta = q.mean + q.stddev * eps[i, :shared]
        weights = declared.shared.unflatten(theta) | declared.private.unflatten(
            r.mean + r.stddev * eps[i, shared:]
        )
        tau = weights.pop("tau").exp()
        hand = ZETA * kl_divergence(q, Normal(w["loc"], w["scale"])).sum()
        hand = hand + ZETA * kl_divergence(r, Normal(0.0, tau)).sum()
        hand = hand + SCALES[i] * cross_entropy(model, weights, x[i], y[i]).sum()
        torch.testing.assert_close(ours[i], hand, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("mode", ["traced", "compiled"])
def test_recorded_and_compiled_steps_of_a_program_equal_the_eager_one(mode) -> None:
    model, params = flat_line()
    (x, y), eps = table(), normals(2, S, 3)
    mask = torch.ones(S, B, dtype=torch.bool)
    mask[0, 3:] = False
    eager, other = GradientEngine(model), GradientEngine(model, mode)
    for seed in (5, 15):
        prior = {"loc": normals(3, seed=seed), "scale": normals(3, seed=seed + 1).exp()}
        given = (params, prior, ZETA, SCALES, eps, x, y, mask)
        (losses, gradients), (other_losses, other_gradients) = eager(*given), other(*given)
        torch.testing.assert_close(other_losses, losses, rtol=1e-10, atol=1e-10)
        for name in params:
            torch.testing.assert_close(other_gradients[name], gradients[name], rtol=1e-9, atol=1e-9)
            if mode == "traced":
                assert torch.equal(other_gradients[name], gradients[name])


def test_gradients_of_a_program_are_those_of_the_formula() -> None:
    model, params = flat_line()
    prior = {"loc": normals(3, seed=5), "scale": normals(3, seed=6).exp()}
    (x, y), eps = table(), normals(2, S, 3)
    _, gradients = GradientEngine(model)(params, prior, ZETA, SCALES, eps, x, y)
    loc, rho = (params[k].clone().requires_grad_() for k in ("loc", "rho"))
    q = Normal(loc, F.softplus(rho))
    loss = ZETA * kl_divergence(q, Normal(prior["loc"], prior["scale"])).sum()
    for draw in eps:
        free = q.mean + q.stddev * draw
        for i in range(S):
            loss = loss + SCALES[i] * hand_likelihood(free[i], x[i], y[i]) / len(eps)
    for ours, hand in zip(gradients.values(), torch.autograd.grad(loss, (loc, rho)), strict=True):
        torch.testing.assert_close(ours, hand, rtol=1e-9, atol=1e-9)
