"""Whatever draws noise draws it from the tape, in order."""

from __future__ import annotations

from typing import Any

import pyro.distributions as dist
import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import _get_current_function_mode_stack

from pyro_pfedbayes.inference.objective.replayed_noise import ReplayedNoise

F64 = torch.float64


def noise(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed), dtype=F64)


def ndtr(z: torch.Tensor) -> torch.Tensor:
    return 0.5 * torch.erfc(-z / 2**0.5)


Z = noise(6)
CALLS = {
    "Normal": (lambda: dist.Normal(torch.ones(2, 3, dtype=F64), 2.0).rsample(), 1 + 2 * Z),
    "normal_": (lambda: torch.empty(2, 3, dtype=F64).normal_(), Z),
    "normal_(mean, std)": (lambda: torch.empty(6, dtype=F64).normal_(1.0, std=2.0), 1 + 2 * Z),
    "normal(tensor, tensor)": (
        lambda: torch.normal(torch.zeros(3, dtype=F64), torch.full((2, 3), 2.0, dtype=F64)),
        2 * Z,
    ),
    "normal(tensor, number)": (lambda: torch.normal(torch.ones(6, dtype=F64), 2.0), 1 + 2 * Z),
    "randn": (lambda: torch.randn(2, 3, dtype=F64), Z),
    "randn(size)": (lambda: torch.randn((6,)), Z),
    "randn_like": (lambda: torch.randn_like(torch.empty(3, 2)), Z),
    "rand": (lambda: torch.rand(6), ndtr(Z)),
    "rand(size)": (lambda: torch.rand(torch.Size([2, 3]), dtype=F64), ndtr(Z)),
    "rand_like": (lambda: torch.rand_like(torch.empty(6)), ndtr(Z)),
    "uniform_": (lambda: torch.empty(6).uniform_(), ndtr(Z)),
    "uniform_(from, to)": (lambda: torch.empty(6).uniform_(-1, 3), 4 * ndtr(Z) - 1),
    "Uniform": (lambda: dist.Uniform(torch.zeros(6, dtype=F64), 2.0).rsample(), 2 * ndtr(Z)),
    "LowRank": (
        lambda: dist.LowRankMultivariateNormal(
            torch.zeros(4, dtype=F64), torch.zeros(4, 2, dtype=F64), torch.ones(4, dtype=F64)
        ).rsample(),
        Z[2:],
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_all_that_draws_takes_the_next_numbers(name) -> None:
    call, expected = CALLS[name]
    with ReplayedNoise(torch.cat([Z, noise(2, seed=1)])) as tape:
        drawn = call()
        assert tape.used == 6
        # The order goes on.
        assert torch.equal(torch.randn(2), noise(2, seed=1))
    torch.testing.assert_close(drawn.flatten(), expected.flatten(), rtol=1e-12, atol=1e-12)


def test_laplace_draws_have_their_distribution() -> None:
    """Its uniform numbers lie between -1 and 1; quantiles of the noise are quantiles of the draws."""
    z = torch.tensor([-1.0, 0.5, 2.0], dtype=F64)
    with ReplayedNoise(z):
        drawn = dist.Laplace(torch.zeros(3, dtype=F64), 1.0).rsample()
    reference = dist.Laplace(torch.zeros(3, dtype=F64), 1.0).icdf(ndtr(z))
    torch.testing.assert_close(drawn, reference, rtol=1e-6, atol=1e-6)


def test_uniform_numbers_stay_below_one() -> None:
    for dtype in (torch.float32, F64):
        with ReplayedNoise(torch.tensor([30.0, -30.0], dtype=dtype)):
            u = torch.rand(2, dtype=dtype)
        assert u[0] < 1
        assert u[1] >= 0
        assert u[0] > 1 - 1e-6


def test_without_a_tape_zeros_are_served_and_counted() -> None:
    with ReplayedNoise(None) as tape:
        one = dist.Normal(torch.full((2, 3), 7.0, dtype=F64), 2.0).rsample()
        assert torch.equal(one, torch.full((2, 3), 7.0, dtype=F64))
        assert torch.randn(4, dtype=F64).dtype == F64
        assert torch.rand(()) == 0.5
    assert tape.used == 11


def test_a_generator_of_ones_own_is_left_alone() -> None:
    stream = torch.Generator().manual_seed(2)
    with ReplayedNoise(None) as tape:
        drawn = torch.randn(3, generator=stream), torch.empty(3).normal_(generator=stream)
    assert tape.used == 0
    stream.manual_seed(2)
    assert torch.equal(drawn[0], torch.randn(3, generator=stream))
    assert torch.equal(drawn[1], torch.empty(3).normal_(generator=stream))


def test_a_tape_that_is_too_short_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="exceeds"), ReplayedNoise(noise(2)):
        torch.randn(3)
    assert len(_get_current_function_mode_stack()) == 0


def _draw(family: Any, *args: Any) -> torch.Tensor:
    # Validation looks at values, which a recording has not.
    return family(*args, validate_args=False).rsample()


def test_it_is_a_function_of_the_tape_under_vmap_and_in_recordings() -> None:
    """A row of a matrix each, and differentiable where the draws are."""

    def draw(loc: torch.Tensor, tape: torch.Tensor) -> torch.Tensor:
        with ReplayedNoise(tape):
            return _draw(dist.Normal, loc, 2.0) + _draw(dist.Uniform, 0 * loc, 1.0)

    def gradient(loc: torch.Tensor, tapes: torch.Tensor) -> torch.Tensor:
        mapped = torch.func.vmap(draw, in_dims=(None, 0))
        return torch.func.grad(lambda at: mapped(at, tapes).square().sum())(loc)

    loc, tapes = noise(3, seed=2), noise(24, seed=3).reshape(4, 6)
    mapped = torch.func.vmap(draw, in_dims=(None, 0))(loc, tapes)
    by_hand = loc + 2 * tapes[:, :3] + ndtr(tapes[:, 3:])
    torch.testing.assert_close(mapped, by_hand, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradient(loc, tapes), 2 * by_hand.sum(0))
    recording = make_fx(gradient)(loc, tapes)
    torch.testing.assert_close(recording(loc, -tapes), gradient(loc, -tapes))
