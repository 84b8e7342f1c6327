import pyro
import pytest
import torch
from torch.distributions import MultivariateNormal
from torch.nn.functional import softplus

from pyro_pfedbayes.families import (
    ClientFamily,
    FullRankNormal,
    LowRankNormal,
    MeanFieldNormal,
    divergence,
    inverse_softplus,
)
from tests.helpers import message
from tests.pyro_pfedbayes.families.helpers import CLIENTS, covariances, params_of

every = pytest.mark.parametrize("family", CLIENTS, ids=lambda family: family.name)


def linear_map(family: ClientFamily, params: dict[str, torch.Tensor], size: int) -> torch.Tensor:
    """A of draw = loc + A eps, ``[..., T, noise]``, read off the unit vectors."""
    noise = torch.eye(family.noise_size(size), dtype=torch.float64)
    columns = [family.draw(params, unit) - family.draw(params, 0 * unit) for unit in noise]
    return torch.stack(columns, -1)


@every
def test_draws_have_the_mean_and_covariance_of_the_distribution(family: ClientFamily) -> None:
    params = params_of(family)
    a = linear_map(family, params, 4)
    q = family.distribution(params)
    diagonal = family.name == "mean-field"
    torch.testing.assert_close(
        a @ a.mT, torch.diag_embed(q.variance) if diagonal else q.covariance_matrix
    )
    zero = torch.zeros(family.noise_size(4), dtype=torch.float64)
    torch.testing.assert_close(family.draw(params, zero), q.mean)
    # And the draw is affine, so these moments are all there is to it.
    eps = torch.randn(5, family.noise_size(4), dtype=torch.float64)
    expected = q.mean + (a @ eps.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(family.draw(params, eps), expected)


@every
def test_log_density_is_that_of_the_dense_gaussian(family: ClientFamily) -> None:
    params = params_of(family)
    dense = MultivariateNormal(family.mean(params), covariances(family.rows(params)))
    theta = torch.randn(5, 4, dtype=torch.float64)
    torch.testing.assert_close(family.distribution(params).log_prob(theta), dense.log_prob(theta))
    assert family.distribution(params).event_shape == (4,)


@every
def test_mean_and_std_are_the_marginal_ones(family: ClientFamily) -> None:
    params = params_of(family)
    rows = family.rows(params)
    torch.testing.assert_close(family.mean(params), rows.loc)
    torch.testing.assert_close(family.std(params), rows.std)
    std = covariances(rows).diagonal(dim1=-2, dim2=-1).sqrt()
    torch.testing.assert_close(family.std(params), std)


@every
def test_start_has_the_moments_asked_for_and_the_sizes_announced(family: ClientFamily) -> None:
    stream = torch.Generator().manual_seed(0)
    loc = torch.randn(3, 6, generator=stream)
    scale = torch.rand(3, 6, generator=stream) + 0.01
    params = family.start(loc, scale)
    assert {name: value.shape[1:].numel() for name, value in params.items()} == family.sizes(6)
    assert list(params) == list(family.sizes(6))
    assert torch.equal(family.mean(params), loc)
    torch.testing.assert_close(family.std(params), scale)
    one = family.start(loc[1], scale[1])
    for name, value in params.items():
        assert torch.equal(one[name], value[1])
        assert value.dtype == torch.float32


@every
def test_start_does_not_share_memory_with_its_arguments(family: ClientFamily) -> None:
    loc = torch.zeros(3)
    family.start(loc, torch.ones(3))["loc"] += 1.0
    assert torch.equal(loc, torch.zeros(3))


@every
def test_draws_run_under_vmap_as_in_a_loop(family: ClientFamily) -> None:
    params = params_of(family)
    eps = torch.randn(5, family.noise_size(4), dtype=torch.float64)
    stacked = torch.func.vmap(family.draw)(params, eps)
    with pyro.validation_enabled(False):
        log_q = torch.func.vmap(lambda p, theta: family.distribution(p).log_prob(theta))(
            params, stacked
        )
    for i in range(5):
        one = {name: value[i] for name, value in params.items()}
        theta = family.draw(one, eps[i])
        torch.testing.assert_close(stacked[i], theta)
        torch.testing.assert_close(log_q[i], family.distribution(one).log_prob(theta))


@every
def test_draws_are_differentiable_in_every_parameter(family: ClientFamily) -> None:
    params = {name: value[0].requires_grad_() for name, value in params_of(family).items()}
    eps = torch.randn(family.noise_size(4), dtype=torch.float64)
    inputs = tuple(params.values())
    assert torch.autograd.gradcheck(
        lambda *values: family.draw(dict(zip(params, values, strict=True)), eps), inputs
    )


def test_a_low_rank_factor_starts_where_it_can_learn() -> None:
    """Its gradient is not 0, and its columns learn different things: they reach a target of rank two."""
    family = LowRankNormal(2)
    params = family.start(torch.zeros(4, dtype=torch.float64), torch.ones(4, dtype=torch.float64))
    params = {name: value.requires_grad_() for name, value in params.items()}
    root = torch.tensor([[2.0, 0.0], [2.0, 0.0], [0.0, 2.0], [0.0, 2.0]], dtype=torch.float64)
    target = MultivariateNormal(torch.zeros(4).double(), root @ root.T + torch.eye(4).double())
    optimizer = torch.optim.LBFGS(params.values(), max_iter=500, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        value = divergence(family.distribution(params), target)
        value.backward()
        return value

    optimizer.step(closure)
    assert float(closure().detach()) < 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_inverse_softplus_holds_for_small_and_large_scales(dtype: torch.dtype) -> None:
    scale = torch.tensor([1e-6, 1e-2, 1.0, 30.0, 1e4], dtype=dtype)
    torch.testing.assert_close(softplus(inverse_softplus(scale)), scale)


def test_sizes_that_cannot_work_are_refused_with_numbers() -> None:
    assert "at least 1" in message(LowRankNormal, 0)
    assert "rank 4" in message(LowRankNormal(4).check, 4)
    LowRankNormal(3).check(4)
    FullRankNormal().check(3000)
    text = message(FullRankNormal().check, 30_000)
    assert "30,000" in text
    assert "3.4 GiB" in text
    MeanFieldNormal().check(10**8)
