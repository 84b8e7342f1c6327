import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal, kl_divergence

from pyro_pfedbayes.families import (
    ClientFamily,
    FullCovariance,
    FullRankNormal,
    Laplace,
    LowRank,
    LowRankNormal,
    MeanField,
    MeanFieldNormal,
    Mixture,
    ServerFamily,
    StudentT,
    divergence,
)
from tests.helpers import message
from tests.pyro_pfedbayes.families.helpers import CLIENTS, WEIGHTS, params_of, rows_of

DRAWS = 20_000


def servers() -> dict[str, tuple[ServerFamily, dict[str, Tensor]]]:
    """Every family with a closed form, at a projection of other clients; full covariance in both its forms."""
    found: dict[str, tuple[ServerFamily, dict[str, Tensor]]] = {}
    rows, dense = rows_of(LowRankNormal(1), clients=3), rows_of(FullRankNormal(), clients=3)
    for family in (MeanField(), FullCovariance(), LowRank(1), Laplace(), Mixture(2)):
        found[family.name] = family, family.project(rows, torch.ones(3), {})
    found["full-covariance, dense"] = (
        FullCovariance(),
        FullCovariance().project(dense, torch.ones(3), {}),
    )
    return found


SERVERS = servers()
every_client = pytest.mark.parametrize("family", CLIENTS, ids=lambda family: family.name)
every_server = pytest.mark.parametrize("name", SERVERS)


def monte_carlo(q: dist.TorchDistribution, p: dist.TorchDistribution) -> tuple[Tensor, Tensor]:
    """KL(q‖p) and its standard error, by draws."""
    torch.manual_seed(0)
    theta = q.sample((DRAWS,))
    ratio = q.log_prob(theta) - p.log_prob(theta)
    return ratio.mean(0), ratio.std(0) / DRAWS**0.5


@every_client
@every_server
def test_closed_form_agrees_with_draws(family: ClientFamily, name: str) -> None:
    server, w = SERVERS[name]
    q, p = family.distribution(params_of(family)), server.distribution(w)
    closed = divergence(q, p)
    estimate, error = monte_carlo(q, p)
    assert closed.shape == (5,)
    if name == "mixture":
        assert bool((closed >= estimate - 4 * error).all())
    else:
        assert bool(((closed - estimate).abs() <= 4 * error).all())


def dense(distribution: dist.TorchDistribution) -> MultivariateNormal:
    if isinstance(distribution, torch.distributions.Independent):
        covariance = torch.diag_embed(distribution.variance)
    else:
        covariance = distribution.covariance_matrix
    return MultivariateNormal(distribution.mean, covariance)


@every_client
@pytest.mark.parametrize("name", [n for n in SERVERS if n not in ("laplace", "mixture")])
def test_gaussians_agree_with_the_dense_formula(family: ClientFamily, name: str) -> None:
    server, w = SERVERS[name]
    q, p = family.distribution(params_of(family)), server.distribution(w)
    torch.testing.assert_close(divergence(q, p), kl_divergence(dense(q), dense(p)))


@every_client
@every_server
def test_vmap_equals_a_loop_with_gradients(family: ClientFamily, name: str) -> None:
    server, w = SERVERS[name]
    params = params_of(family)

    def value(params: dict[str, Tensor], w: dict[str, Tensor]) -> Tensor:
        return divergence(family.distribution(params), server.distribution(w))

    with pyro.validation_enabled(False):
        step = torch.func.grad_and_value(value)
        gradients, values = torch.func.vmap(step, in_dims=(0, None))(params, w)
    for i in range(5):
        one = {key: tensor[i].clone().requires_grad_() for key, tensor in params.items()}
        expected = value(one, w)
        torch.testing.assert_close(values[i], expected.detach())
        for key, gradient in zip(
            one, torch.autograd.grad(expected, list(one.values())), strict=True
        ):
            torch.testing.assert_close(gradients[key][i], gradient)


def test_mixture_bound_is_exact_for_equal_components_and_at_a_far_one() -> None:
    q = MeanFieldNormal().distribution(params_of(MeanFieldNormal()))
    w = Mixture(3).start(torch.zeros(4).double(), torch.ones(4).double())
    gaussian = dist.Normal(w["loc"][0], w["scale"][0]).to_event(1)
    bound = divergence(q, Mixture(3).distribution(w))
    torch.testing.assert_close(bound, divergence(q, gaussian))
    # One component 100 away: q lies within the other, whose share is a half.
    w["loc"] = w["loc"][:2] + torch.tensor([[0.0], [100.0]])
    far = Mixture(2).distribution(
        {"logits": torch.zeros(2), "loc": w["loc"], "scale": w["scale"][:2]}
    )
    torch.testing.assert_close(divergence(q, far), divergence(q, gaussian) + math.log(2.0))


def test_a_client_at_the_server_is_at_no_distance() -> None:
    for family in CLIENTS:
        params = {name: value[0] for name, value in params_of(family).items()}
        rows = family.rows({name: value[None] for name, value in params.items()})
        w = FullCovariance().project(rows, torch.ones(1), {})
        value = divergence(family.distribution(params), FullCovariance().distribution(w))
        assert float(value) == pytest.approx(0.0, abs=1e-12)


def test_what_torch_knows_is_closed_under_any_nesting() -> None:
    rate = torch.rand(2, 3) + 0.5
    q = dist.Gamma(rate + 1, rate).to_event(1).to_event(1)
    p = dist.Gamma(torch.ones(2, 3), torch.ones(2, 3)).to_event(2)
    expected = kl_divergence(
        dist.Gamma(rate + 1, rate), dist.Gamma(torch.ones(2, 3), torch.ones(2, 3))
    )
    torch.testing.assert_close(divergence(q, p), expected.sum())
    normal = dist.Normal(rate, rate).to_event(1).to_event(1)
    standard = dist.Normal(0.0, 1.0).expand([2, 3]).to_event(2)
    each = kl_divergence(dist.Normal(rate, rate), dist.Normal(0.0, 1.0))
    torch.testing.assert_close(divergence(normal, standard), each.sum())
    # Part of the batch stays a batch, and no event at all will do.
    assert divergence(
        dist.Normal(rate, rate).to_event(1), dist.Normal(0.0, 1.0).expand([3]).to_event(1)
    ).shape == (2,)
    torch.testing.assert_close(divergence(dist.Normal(rate, rate), dist.Normal(0.0, 1.0)), each)


@every_client
def test_without_a_closed_form_it_says_so(family: ClientFamily) -> None:
    q = family.distribution(params_of(family))
    student = StudentT(4.0)
    p = student.distribution(student.start(torch.zeros(4).double(), torch.ones(4).double()))
    with pytest.raises(NotImplementedError):
        divergence(q, p)
    with pytest.raises(NotImplementedError):
        divergence(p, Mixture(2).distribution(Mixture(2).project(rows_of(family), WEIGHTS, {})))


def test_other_event_shapes_are_refused() -> None:
    q = MeanFieldNormal().distribution(params_of(MeanFieldNormal()))
    p = dist.Normal(torch.zeros(3), torch.ones(3)).to_event(1)
    assert "[4] and [3]" in message(divergence, q, p)
