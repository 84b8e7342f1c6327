"""Mean-field Gaussians against torch.distributions, at the ends of float32; what they refuse."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import FrozenInstanceError
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import Normal
from torch.distributions import kl_divergence as torch_kl

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.gaussians.mean_field import MeanFieldGaussian, kl_divergence
from pyro_pfedbayes.randomness import generator

PROPERTY = settings(max_examples=50, deadline=None, derandomize=True)
SHAPES = {"weight": (3, 2), "bias": (3,), "tau": ()}


def make(
    seed: int,
    clients: int | None = None,
    scale: float = 1.0,
    dtype: torch.dtype = torch.float64,
) -> MeanFieldGaussian:
    """Make a Gaussian with random loc ~ N(0, 1) and scale ~ scale x [0.5, 1.5]."""
    rng = generator(seed, "gaussian")
    lead = () if clients is None else (clients,)
    loc = {n: torch.randn(lead + s, generator=rng, dtype=dtype) for n, s in SHAPES.items()}
    scales = {
        n: scale * (0.5 + torch.rand(lead + s, generator=rng, dtype=dtype))
        for n, s in SHAPES.items()
    }
    return MeanFieldGaussian(loc, scales, stacked=clients is not None)


def normal(gaussian: MeanFieldGaussian, name: str) -> Normal:
    return Normal(gaussian.loc[name], gaussian.scale[name])


def log_prob(gaussian: MeanFieldGaussian, name: str, value: Tensor) -> Tensor:
    result: Tensor = normal(gaussian, name).log_prob(value)  # type: ignore[no-untyped-call]
    return result


def entropy(gaussian: MeanFieldGaussian, name: str) -> Tensor:
    result: Tensor = normal(gaussian, name).entropy()  # type: ignore[no-untyped-call]
    return result


def turned(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the same values in the opposite order."""
    return {name: values[name] for name in reversed(list(values))}


def summed(values: dict[str, Tensor], keep: int) -> Tensor:
    """Sum reference values over all names and over all dimensions but the first ``keep``."""
    return torch.stack([v.reshape(*v.shape[:keep], -1).sum(-1) for v in values.values()]).sum(0)


def one(loc: float, scale: float, dtype: torch.dtype = torch.float32) -> MeanFieldGaussian:
    return MeanFieldGaussian(
        {"w": torch.tensor([loc], dtype=dtype)}, {"w": torch.tensor([scale], dtype=dtype)}
    )


# --- Shape and structure


def test_properties_of_an_unstacked_gaussian() -> None:
    gaussian = make(0)
    assert gaussian.names == ("weight", "bias", "tau")
    assert gaussian.clients is None
    assert gaussian.num_weights == 10
    assert gaussian.event_shape("weight") == (3, 2)
    assert (gaussian.dtype, gaussian.device) == (torch.float64, torch.device("cpu"))


def test_properties_of_a_stacked_gaussian_leave_the_client_dimension_out() -> None:
    gaussian = make(0, clients=4)
    assert (gaussian.clients, gaussian.num_weights) == (4, 10)
    assert gaussian.event_shape("tau") == ()
    assert "clients=4, num_weights=10, float64, cpu" in repr(gaussian)


def test_repr_stays_short_for_a_large_network() -> None:
    values = {f"layer{i}": torch.ones(100, 100) for i in range(50)}
    assert len(repr(MeanFieldGaussian(values, values))) < 200


def test_mappings_are_copied_and_read_only() -> None:
    loc, scale = {"w": torch.zeros(2)}, {"w": torch.ones(2)}
    for gaussian in (MeanFieldGaussian(loc, scale), MeanFieldGaussian.unchecked(loc, scale)):
        loc["extra"] = torch.zeros(1)
        assert gaussian.names == ("w",)
        del loc["extra"]
        with pytest.raises(TypeError):
            gaussian.loc["w"] = torch.ones(2)  # type: ignore[index]
        with pytest.raises(TypeError):
            gaussian.scale["w"] = torch.ones(2)  # type: ignore[index]
        with pytest.raises(FrozenInstanceError):
            gaussian.stacked = True  # type: ignore[misc]


def test_scale_follows_the_order_of_loc() -> None:
    gaussian = MeanFieldGaussian(
        {"b": torch.zeros(2), "a": torch.zeros(3)}, {"a": torch.ones(3), "b": torch.ones(2)}
    )
    assert gaussian.names == tuple(gaussian.scale) == ("b", "a")


def test_stack_and_client_are_inverse() -> None:
    parts = [make(seed) for seed in range(3)]
    stacked = MeanFieldGaussian.stack(parts)
    assert (stacked.stacked, stacked.clients) == (True, 3)
    for i, part in enumerate(parts):
        back = stacked.client(i)
        assert not back.stacked
        for name in part.names:
            assert torch.equal(back.loc[name], part.loc[name])
            assert torch.equal(back.scale[name], part.scale[name])


def test_stack_matches_by_name_whatever_the_order() -> None:
    a = MeanFieldGaussian(
        {"x": torch.zeros(2), "y": torch.ones(2)}, {"x": torch.ones(2), "y": torch.ones(2)}
    )
    b = MeanFieldGaussian(turned(a.loc), turned(a.scale))
    assert torch.equal(MeanFieldGaussian.stack([a, b]).loc["y"], torch.ones(2, 2))


@pytest.mark.parametrize("index", [[2, 0, 2], torch.tensor([2, 0, 2]), (2, 0, 2)])
def test_select_takes_clients_in_the_order_asked_for(index: Any) -> None:
    gaussian = make(0, clients=3)
    chosen = gaussian.select(index)
    assert chosen.clients == 3
    for name in gaussian.names:
        assert torch.equal(chosen.loc[name], gaussian.loc[name][[2, 0, 2]])
        assert torch.equal(chosen.scale[name], gaussian.scale[name][[2, 0, 2]])


def test_to_changes_dtype_and_is_checked_again() -> None:
    gaussian = make(0, clients=2).to(dtype=torch.float32)
    assert (gaussian.dtype, gaussian.stacked) == (torch.float32, True)
    assert {v.dtype for v in gaussian.scale.values()} == {torch.float32}
    assert gaussian.to("cpu").dtype == torch.float32
    with pytest.raises(UserError, match="scale of 'w' is not finite and > 0"):
        one(0.0, 1e-60, torch.float64).to(dtype=torch.float32)
    with pytest.raises(UserError, match=r"loc of 'w' is torch\.int64: give a tensor of a floating"):
        one(0.0, 1.0).to(dtype=torch.int64)


def test_deepcopy_gives_an_independent_equal_gaussian() -> None:
    gaussian = make(0, clients=2)
    other = copy.deepcopy(gaussian)
    assert (other.names, other.stacked) == (gaussian.names, True)
    other.loc["tau"].zero_()
    assert float(gaussian.loc["tau"].abs().min()) > 0


# --- Sampling


def test_sample_shapes() -> None:
    rng = generator(0)
    assert make(0).sample(generator=rng)["weight"].shape == (3, 2)
    assert make(0).sample(draws=5, generator=rng)["tau"].shape == (5,)
    assert make(0, clients=4).sample(generator=rng)["bias"].shape == (4, 3)
    assert make(0, clients=4).sample(draws=1, generator=rng)["weight"].shape == (1, 4, 3, 2)


def test_sample_is_loc_plus_scale_times_one_draw_for_each_name_in_order() -> None:
    gaussian, rng = make(0, clients=4), generator(1, "noise")
    drawn = gaussian.sample(draws=2, generator=generator(1, "noise"))
    for name in gaussian.names:
        noise = torch.randn((2, *gaussian.loc[name].shape), generator=rng, dtype=torch.float64)
        assert torch.equal(drawn[name], gaussian.loc[name] + gaussian.scale[name] * noise)


def test_samples_have_the_moments_of_the_gaussian_and_clients_are_independent() -> None:
    # 40 000 draws, seed 0: every statistic within 5 standard errors.
    n, gaussian = 40_000, make(0, clients=2)
    for name, drawn in gaussian.sample(draws=n, generator=generator(0, "noise")).items():
        z = (drawn - gaussian.loc[name]) / gaussian.scale[name]
        assert float(z.mean(0).abs().max()) < 5 / n**0.5
        assert float((z.var(0) - 1).abs().max()) < 5 * (2 / n) ** 0.5
        assert float((z[:, 0] * z[:, 1]).mean(0).abs().max()) < 5 / n**0.5


def test_gradients_flow_through_samples() -> None:
    loc, scale = torch.zeros(3, requires_grad=True), torch.ones(3, requires_grad=True)
    drawn = MeanFieldGaussian({"w": loc}, {"w": scale}).sample(generator=generator(0))["w"]
    to_loc, to_scale = torch.autograd.grad(drawn.sum(), (loc, scale))
    assert torch.equal(to_loc, torch.ones(3))
    assert torch.equal(to_scale, drawn.detach())


@pytest.mark.parametrize("draws", [0, -1])
def test_sample_refuses_fewer_than_one_draw(draws: int) -> None:
    with pytest.raises(UserError, match=f"draws is {draws}: give a whole number >= 1"):
        make(0).sample(draws=draws)


def test_sample_refuses_a_generator_of_another_device() -> None:
    values = {"w": torch.ones(2, device="meta")}
    with pytest.raises(UserError, match="the generator is on cpu: make it with device='meta'"):
        MeanFieldGaussian.unchecked(values, values).sample(generator=generator(0))


# --- Log-density and entropy


@pytest.mark.parametrize("clients", [None, 1, 4])
@pytest.mark.parametrize("draws", [None, 1, 5])
def test_log_prob_is_that_of_independent_normals(clients: int | None, draws: int | None) -> None:
    gaussian = make(0, clients)
    weights = make(1, clients, scale=3.0).sample(draws, generator=generator(0))
    keep = (draws is not None) + (clients is not None)
    expected = summed({n: log_prob(gaussian, n, weights[n]) for n in weights}, keep)
    actual = gaussian.log_prob(weights)
    assert actual.shape == (*([draws] if draws else []), *([clients] if clients else []))
    torch.testing.assert_close(actual, expected)


def test_log_prob_takes_several_batch_dimensions() -> None:
    gaussian = make(0, clients=2)
    drawn = gaussian.sample(draws=6, generator=generator(0))
    folded = {name: value.reshape(3, 2, *value.shape[1:]) for name, value in drawn.items()}
    torch.testing.assert_close(gaussian.log_prob(folded), gaussian.log_prob(drawn).reshape(3, 2, 2))


@pytest.mark.parametrize("clients", [None, 4])
def test_entropy_is_that_of_independent_normals(clients: int | None) -> None:
    gaussian = make(0, clients)
    expected = summed({n: entropy(gaussian, n) for n in SHAPES}, int(clients is not None))
    assert gaussian.entropy().shape == (() if clients is None else (clients,))
    torch.testing.assert_close(gaussian.entropy(), expected)


def test_entropy_and_kl_are_expectations_of_log_densities() -> None:
    # 40 000 draws, seed 0: within 5 standard errors of the Monte Carlo mean.
    q, w, n = make(0), make(1), 40_000
    drawn = q.sample(draws=n, generator=generator(0, "noise"))
    for exact, values in (
        (q.entropy(), -q.log_prob(drawn)),
        (q.kl(w), q.log_prob(drawn) - w.log_prob(drawn)),
    ):
        assert abs(float(values.mean() - exact)) < 5 * float(values.std()) / n**0.5


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"w": torch.zeros(2)}, "weight 'b' of the Gaussian is missing from the given weights"),
        (
            {"w": torch.zeros(2), "b": torch.zeros(1), "c": torch.zeros(1)},
            "weight 'c' of the given weights is missing from the Gaussian",
        ),
        ({"w": torch.zeros(3), "b": torch.zeros(1)}, r"weight 'w' has shape \[3\]: give \[2\]"),
        ({"w": torch.zeros(()), "b": torch.zeros(1)}, r"weight 'w' has shape \[\]: give \[2\]"),
        ({"w": torch.zeros(5, 2), "b": torch.zeros(1)}, r"weight 'b' has shape \[1\]: give \[1\]"),
        ({"w": torch.zeros(2), "b": torch.zeros(5, 1)}, r"weight 'b' has shape \[5, 1\]"),
    ],
)
def test_log_prob_refuses_weights_that_do_not_fit(weights: Any, message: str) -> None:
    values = {"w": torch.ones(2), "b": torch.ones(1)}
    with pytest.raises(UserError, match=message):
        MeanFieldGaussian(values, values).log_prob(weights)


# --- Closed-form KL


@PROPERTY
@given(
    seeds=st.tuples(st.integers(0, 2**32), st.integers(0, 2**32)),
    clients=st.sampled_from([(None, None), (3, None), (None, 3), (3, 3), (1, 1)]),
    log_scale=st.floats(-3, 3),
)
def test_kl_is_that_of_torch_distributions(
    seeds: tuple[int, int], clients: tuple[int | None, int | None], log_scale: float
) -> None:
    q, w = make(seeds[0], clients[0]), make(seeds[1], clients[1], scale=10.0**log_scale)
    stacked = clients != (None, None)
    pieces = {name: torch_kl(normal(q, name), normal(w, name)) for name in SHAPES}
    torch.testing.assert_close(q.kl(w), summed(pieces, int(stacked)), rtol=1e-10, atol=1e-10)
    assert torch.equal(kl_divergence(q, w), q.kl(w))
    for name, value in q.kl_by_name(w).items():
        expected = summed({name: pieces[name]}, int(stacked))
        torch.testing.assert_close(value, expected, rtol=1e-10, atol=1e-10)


@PROPERTY
@given(
    seed=st.integers(0, 2**32),
    log_scale=st.floats(-30, 30),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_kl_of_equal_gaussians_is_exactly_zero(
    seed: int, log_scale: float, dtype: torch.dtype
) -> None:
    q = make(seed, clients=3, scale=10.0**log_scale, dtype=dtype)
    assert torch.equal(q.kl(q), torch.zeros(3, dtype=dtype))
    assert torch.equal(q.kl(copy.deepcopy(q)), torch.zeros(3, dtype=dtype))


@PROPERTY
@given(scale=st.floats(1e-4, 1e4), log_change=st.floats(-7, -0.5), sign=st.sampled_from([-1, 1]))
def test_kl_of_nearly_equal_gaussians_keeps_its_digits_in_float32(
    scale: float, log_change: float, sign: int
) -> None:
    q, w = one(0.0, scale), one(0.0, scale * (1 + sign * 10**log_change))
    value = float(q.kl(w))
    # log(t/s) + (r² - 1)/2 in float32 errs by about 1e-7, more than the whole of this divergence.
    r = float(q.scale["w"].double() / w.scale["w"].double())
    exact = (r - 1) ** 2 / 2 + ((r - 1) - math.log1p(r - 1))
    assert value >= 0
    assert value == pytest.approx(exact, rel=1e-2 if log_change > -4 else 0.2, abs=1e-14)


@pytest.mark.parametrize(
    ("s", "t"), [(1e-30, 1e10), (1e-38, 1e38), (1.0, 1e38), (1e-37, 1.0), (1e10, 1e-8)]
)
def test_kl_does_not_overflow_at_the_ends_of_float32(s: float, t: float) -> None:
    q, w = one(0.0, s), one(0.0, t)
    expected = float(q.to(dtype=torch.float64).kl(w.to(dtype=torch.float64)))
    assert math.isfinite(expected)
    assert float(q.kl(w)) == pytest.approx(expected, rel=1e-5)


def test_kl_measures_large_means_by_their_difference() -> None:
    # 1e4 and 1e4 + 2^-10 (exact in float32), scale 1e-3: ((μ - m)/t)²/2, no square of 1e4.
    gap = 2.0**-10
    assert float(one(1e4 + gap, 1e-3).kl(one(1e4, 1e-3))) == pytest.approx(
        (gap / 1e-3) ** 2 / 2, rel=1e-5
    )


def test_kl_has_the_right_gradients_near_and_far() -> None:
    def kl(*values: Tensor) -> Tensor:
        return MeanFieldGaussian({"w": values[0]}, {"w": values[1]}).kl(
            MeanFieldGaussian({"w": values[2]}, {"w": values[3]})
        )

    loc, other = torch.tensor([0.0, 1.0, -2.0]), torch.tensor([0.3, 1.0, 5.0])
    scale, other_scale = torch.tensor([1.0, 0.1, 3.0]), torch.tensor([1.1, 2.0, 0.2])
    values = [v.double().requires_grad_() for v in (loc, scale, other, other_scale)]
    assert torch.autograd.gradcheck(kl, values)
    equal = [v.detach().clone().requires_grad_() for v in (loc, scale, loc, scale)]
    assert all(not bool(slope.any()) for slope in torch.autograd.grad(kl(*equal), equal))
    far = [torch.tensor([v]).requires_grad_() for v in (0.0, 1e-20, 0.0, 1.0)]
    slopes = [float(slope) for slope in torch.autograd.grad(kl(*far), far)]
    assert slopes == pytest.approx([0.0, -1e20, 0.0, 1.0], rel=1e-5)


def test_kl_matches_by_name_whatever_the_order() -> None:
    q, w = make(0), make(1)
    torch.testing.assert_close(q.kl(MeanFieldGaussian(turned(w.loc), turned(w.scale))), q.kl(w))


def test_kl_of_stacked_gaussians_goes_client_by_client() -> None:
    q, w = make(0, clients=3), make(1, clients=3)
    expected = torch.stack([q.client(i).kl(w.client(i)) for i in range(3)])
    torch.testing.assert_close(q.kl(w), expected)


# --- What is refused, in one line that names the weight

T = torch.tensor


@pytest.mark.parametrize(
    ("loc", "scale", "stacked", "message"),
    [
        ({}, {}, False, "loc names no weights"),
        ({"w": T([0.0])}, {}, False, "weight 'w' of loc is missing from scale"),
        ({"w": T([0.0])}, {"w": T([1.0]), "v": T([1.0])}, False, "weight 'v' of scale is missing"),
        ({"w": T([0.0])}, {"w": T([1.0, 1.0])}, False, r"scale of 'w' has shape \[2\].* \[1\]"),
        ({"w": T([math.nan])}, {"w": T([1.0])}, False, "loc of 'w' is not finite"),
        ({"w": T([math.inf])}, {"w": T([1.0])}, False, "loc of 'w' is not finite"),
        ({"w": T([0.0])}, {"w": T([0.0])}, False, "scale of 'w' is not finite and > 0"),
        ({"w": T([0.0])}, {"w": T([-1.0])}, False, "scale of 'w' is not finite and > 0"),
        ({"w": T([0.0])}, {"w": T([math.nan])}, False, "scale of 'w' is not finite and > 0"),
        ({"w": T([0.0])}, {"w": T([math.inf])}, False, "scale of 'w' is not finite and > 0"),
        ({"w": T([0])}, {"w": T([1.0])}, False, r"loc of 'w' is torch\.int64"),
        ({"w": [0.0]}, {"w": T([1.0])}, False, "loc of 'w' is list"),
        ({"w": T([0.0])}, {"w": T([1.0]).double()}, False, r"scale of 'w' is torch\.float64 on"),
        ({"w": T(0.0)}, {"w": T(1.0)}, True, r"loc of 'w' has shape \[\]: give \[N, \*event\]"),
        ({"w": torch.ones(0, 2)}, {"w": torch.ones(0, 2)}, True, r"loc of 'w' has shape \[0, 2\]"),
        (
            {"w": torch.ones(3), "b": torch.ones(2)},
            {"w": torch.ones(3), "b": torch.ones(2)},
            True,
            r"loc of 'b' has shape \[2\]: give \[N, \*event\] with one N >= 1",
        ),
    ],
)
def test_wrong_tensors_are_refused(loc: Any, scale: Any, stacked: bool, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        MeanFieldGaussian(loc, scale, stacked)
    assert "\n" not in str(caught.value)
    MeanFieldGaussian.unchecked(loc, scale, stacked)  # the way round the checks


def test_gaussians_over_other_weights_are_refused() -> None:
    q = MeanFieldGaussian({"w": torch.zeros(2)}, {"w": torch.ones(2)})
    renamed = MeanFieldGaussian({"v": torch.zeros(2)}, {"v": torch.ones(2)})
    reshaped = MeanFieldGaussian({"w": torch.zeros(1)}, {"w": torch.ones(1)})
    elsewhere = MeanFieldGaussian.unchecked(
        {"w": torch.zeros(2, device="meta")}, {"w": torch.ones(2, device="meta")}
    )
    with pytest.raises(UserError, match="'w' of this Gaussian is missing from the other Gaussian"):
        q.kl(renamed)
    with pytest.raises(UserError, match=r"'w' of the other Gaussian has shape \[1\]: give \[2\]"):
        q.kl(reshaped)
    with pytest.raises(UserError, match="the other Gaussian is on meta: bring it to cpu"):
        q.kl(elsewhere)
    with pytest.raises(UserError, match="'w' of this Gaussian is missing from Gaussian 1"):
        MeanFieldGaussian.stack([q, renamed])
    with pytest.raises(UserError, match="the other Gaussian has 2 clients: give 3"):
        make(0, clients=3).kl(make(1, clients=2))


def test_stack_refuses_nothing_and_stacked_gaussians() -> None:
    with pytest.raises(UserError, match="nothing to stack"):
        MeanFieldGaussian.stack([])
    with pytest.raises(UserError, match="Gaussian 1 is stacked already"):
        MeanFieldGaussian.stack([make(0), make(0, clients=2)])


def test_clients_out_of_range_are_refused() -> None:
    stacked = make(0, clients=3)
    for i in (3, -1):
        with pytest.raises(UserError, match=f"there is no client {i}: give 0 to 2"):
            stacked.client(i)
        with pytest.raises(UserError, match=f"there is no client {i}: give 0 to 2"):
            stacked.select([0, i])
    with pytest.raises(UserError, match="only a stacked one has clients"):
        make(0).client(0)
    with pytest.raises(UserError, match="only a stacked one has clients"):
        make(0).select([0])
    for index in ([], [0.0], [True, False, True], torch.zeros(1, 1, dtype=torch.int64)):
        with pytest.raises(UserError, match="select needs a flat list"):
            stacked.select(index)  # type: ignore[arg-type]


def test_an_unknown_weight_gets_a_hint() -> None:
    with pytest.raises(UserError, match=r"there is no weight 'wieght'; did you mean 'weight'\?"):
        make(0).event_shape("wieght")


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_gives_the_divergences_of_the_cpu() -> None:
    q, w = make(0, clients=3, dtype=torch.float32), make(1, dtype=torch.float32)
    there = q.to("cuda")
    assert there.device.type == "cuda"
    torch.testing.assert_close(there.kl(w.to("cuda")).cpu(), q.kl(w))
    assert torch.equal(there.kl(there).cpu(), torch.zeros(3))
    drawn = there.sample(draws=2, generator=generator(0, device="cuda"))
    assert there.log_prob(drawn).shape == (2, 3)
    assert there.select([2, 0]).device.type == "cuda"
    with pytest.raises(UserError, match="bring it to"):
        q.kl(w.to("cuda"))
    with pytest.raises(UserError, match="make it with device='cuda'"):
        there.sample(generator=generator(0))
