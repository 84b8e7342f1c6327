"""What every server family promises, whatever it is."""

import pyro
import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from pyro_pfedbayes.families import (
    ClientFamily,
    FullCovariance,
    Laplace,
    LowRank,
    MeanField,
    Mixture,
    ServerFamily,
    StudentT,
)
from tests.pyro_pfedbayes.families.helpers import CLIENTS, WEIGHTS, rows_of

SERVERS: tuple[ServerFamily, ...] = (
    MeanField(),
    FullCovariance(),
    LowRank(2),
    Laplace(),
    StudentT(5.0),
    Mixture(2),
)
DRAWS = 20_000
every_server = pytest.mark.parametrize("server", SERVERS, ids=lambda server: server.name)
every_client = pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)


def projected(
    server: ServerFamily, client: ClientFamily, dtype: torch.dtype = torch.float64
) -> dict[str, Tensor]:
    rows = rows_of(client, dtype=dtype)
    return server.project(rows, WEIGHTS, server.start(rows.loc[0], rows.scale[0] + 0.1))


def test_names_are_different() -> None:
    assert len({server.name for server in SERVERS}) == len(SERVERS)
    assert len({client.name for client in CLIENTS}) == len(CLIENTS)


@every_server
def test_start_has_the_moments_asked_for(server: ServerFamily) -> None:
    loc, scale = torch.randn(6), torch.rand(6) + 0.1
    w = server.start(loc, scale)
    torch.testing.assert_close(server.mean(w), loc)
    torch.testing.assert_close(server.std(w), scale)
    p = server.distribution(w)
    assert (p.batch_shape, p.event_shape) == ((), (6,))
    torch.testing.assert_close(p.mean, loc)
    torch.testing.assert_close(p.variance, scale.square())
    # Nothing is shared with what was given.
    kept = loc.clone()
    w["loc"] += 1.0
    assert torch.equal(loc, kept)


@every_server
@every_client
def test_projection_keeps_dtype_and_its_own_moments(
    server: ServerFamily, client: ClientFamily
) -> None:
    server.check(client, 4)
    for dtype in (torch.float32, torch.float64):
        w = projected(server, client, dtype)
        assert {value.dtype for value in w.values()} == {dtype}
        p = server.distribution(w)
        assert (p.batch_shape, p.event_shape) == ((), (4,))
        torch.testing.assert_close(server.mean(w), p.mean)
        torch.testing.assert_close(server.std(w), p.variance.sqrt())


@every_server
@every_client
def test_projection_is_a_function_of_its_arguments(
    server: ServerFamily, client: ClientFamily
) -> None:
    """The same twice, and the scale of the weights does not matter; nothing given is written to."""
    rows = rows_of(client)
    before = rows.loc.clone(), rows.scale.clone()
    first = server.project(rows, WEIGHTS, projected(server, client))
    assert torch.equal(rows.loc, before[0])
    assert torch.equal(rows.scale, before[1])
    second = server.project(rows, 2.0 * WEIGHTS, projected(server, client))
    assert all(torch.equal(first[name], second[name]) for name in first)


@every_server
@every_client
def test_samples_have_mean_and_std_and_come_from_the_generator(
    server: ServerFamily, client: ClientFamily
) -> None:
    w = projected(server, client)
    stream = torch.Generator().manual_seed(1)
    torch.manual_seed(0)
    state = torch.get_rng_state()
    draws = torch.stack([server.sample(w, stream) for _ in range(DRAWS)])
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(server.sample(w, torch.Generator().manual_seed(1)), draws[0])
    error = draws.std(0) / DRAWS**0.5
    assert bool(((draws.mean(0) - server.mean(w)).abs() < 4 * error).all())
    square = (draws - server.mean(w)).square()
    assert bool(
        ((square.mean(0) - server.std(w).square()).abs() < 4 * square.std(0) / DRAWS**0.5).all()
    )


@every_server
def test_samples_follow_the_density(server: ServerFamily) -> None:
    """E_w[log w] of `sample` and of the distribution's own sampler agree: not only the first two moments do."""
    w = projected(server, CLIENTS[1])
    p, stream = server.distribution(w), torch.Generator().manual_seed(2)
    torch.manual_seed(0)
    ours = p.log_prob(torch.stack([server.sample(w, stream) for _ in range(DRAWS)]))
    theirs = p.log_prob(p.sample((DRAWS,)))
    error = ((ours.var() + theirs.var()) / DRAWS).sqrt()
    assert abs(float(ours.mean() - theirs.mean())) < 4 * float(error)


@every_server
@every_client
def test_log_density_records_and_runs_under_vmap(
    server: ServerFamily, client: ClientFamily
) -> None:
    """As the engine does: w is an input of the recording, clients are mapped over, gradients are taken."""
    w = projected(server, client)
    theta = torch.randn(5, 4, dtype=torch.float64)

    def step(theta: Tensor, w: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        def log_density(theta: Tensor) -> Tensor:
            value: Tensor = server.distribution(w).log_prob(theta)
            return value

        return torch.func.vmap(torch.func.grad_and_value(log_density))(theta)

    with pyro.validation_enabled(False):
        recorded = make_fx(step)(torch.zeros_like(theta), {k: v * 0.9 + 0.01 for k, v in w.items()})
        gradient, value = recorded(theta, w)
    for i in range(5):
        one = theta[i].clone().requires_grad_()
        expected = server.distribution(w).log_prob(one)
        torch.testing.assert_close(value[i], expected.detach())
        torch.testing.assert_close(gradient[i], torch.autograd.grad(expected, one)[0])
