"""The barycentre is the minimiser, keeps its digits, and its moments merge in any order."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.gaussians import barycentre as module
from pyro_pfedbayes.gaussians.barycentre import MomentAccumulator, barycentre
from pyro_pfedbayes.gaussians.mean_field import MeanFieldGaussian
from pyro_pfedbayes.randomness import generator

PROPERTY = settings(max_examples=40, deadline=None, derandomize=True)
SHAPES = {"weight": (3, 2), "bias": (3,), "tau": ()}


def make(
    seed: int,
    clients: int = 4,
    dtype: torch.dtype = torch.float64,
    centre: float = 0.0,
    spread: float = 1.0,
    scale: float = 1.0,
) -> MeanFieldGaussian:
    """Make a stacked Gaussian, loc ~ N(centre, spread²) and scale ~ scale x [0.5, 1.5]."""
    rng = generator(seed, "moments")
    loc = {}
    scales = {}
    for name, shape in SHAPES.items():
        noise = torch.randn((clients, *shape), generator=rng, dtype=torch.float64)
        loc[name] = (centre + spread * noise).to(dtype)
        uniform = torch.rand((clients, *shape), generator=rng, dtype=torch.float64)
        scales[name] = (scale * (0.5 + uniform)).to(dtype)
    return MeanFieldGaussian(loc, scales, stacked=True)


@st.composite
def cohorts(draw: st.DrawFn, dtype: torch.dtype = torch.float64) -> MeanFieldGaussian:
    """Cohorts of 1 to 6 clients, of small and large means, spreads and scales."""
    return make(
        draw(st.integers(0, 2**32)),
        clients=draw(st.integers(1, 6)),
        dtype=dtype,
        centre=draw(st.sampled_from([0.0, 1.0, -1e4])),
        spread=10.0 ** draw(st.integers(-3, 1)),
        scale=10.0 ** draw(st.integers(-3, 1)),
    )


def importance(clients: int, seed: int) -> Tensor:
    return torch.rand(clients, generator=generator(seed, "a"), dtype=torch.float64) + 0.01


def rows(stacked: MeanFieldGaussian) -> list[MeanFieldGaussian]:
    return [stacked.client(i) for i in range(stacked.clients or 0)]


def exact(values: Tensor, scales: Tensor, weights: Tensor) -> tuple[float, float]:
    """Compute Knowl 5 for one scalar weight in rational arithmetic: (loc, scale)."""
    m = [Fraction(float(v)) for v in values]
    s = [Fraction(float(v)) for v in scales]
    a = [Fraction(float(v)) for v in weights]
    mean = sum(ai * mi for ai, mi in zip(a, m, strict=True)) / sum(a)
    variance = sum(
        ai * (si * si + (mi - mean) ** 2) for ai, mi, si in zip(a, m, s, strict=True)
    ) / sum(a)
    return float(mean), math.sqrt(variance)


def assert_close(
    actual: MeanFieldGaussian, expected: MeanFieldGaussian, rtol: float = 1e-9, atol: float = 1e-9
) -> None:
    """Compare; the scale to rtol, the loc to atol scales (what matters to a divergence)."""
    assert actual.names == expected.names
    assert actual.stacked is expected.stacked is False
    for name in expected.names:
        torch.testing.assert_close(actual.scale[name], expected.scale[name], rtol=rtol, atol=0.0)
        gap = (actual.loc[name] - expected.loc[name]).abs() / expected.scale[name]
        assert float(gap.max()) <= atol


def assert_equal(actual: MeanFieldGaussian, expected: MeanFieldGaussian) -> None:
    assert actual.names == expected.names
    for name in expected.names:
        assert torch.equal(actual.loc[name], expected.loc[name])
        assert torch.equal(actual.scale[name], expected.scale[name])


# --- The closed form


@PROPERTY
@given(q=cohorts(), seed=st.integers(0, 2**32), weighted=st.booleans())
def test_barycentre_is_knowl_5_in_rational_arithmetic(
    q: MeanFieldGaussian, seed: int, weighted: bool
) -> None:
    a = importance(q.clients or 0, seed)
    w = barycentre(q, a if weighted else None)
    for name in q.names:
        flat = [v[name].reshape(q.clients or 0, -1) for v in (q.loc, q.scale)]
        for j in range(flat[0].shape[1]):
            weights = a if weighted else torch.ones_like(a)
            loc, scale = exact(flat[0][:, j], flat[1][:, j], weights)
            assert float(w.loc[name].reshape(-1)[j]) == pytest.approx(loc, rel=1e-13, abs=1e-13)
            assert float(w.scale[name].reshape(-1)[j]) == pytest.approx(scale, rel=1e-9)


@PROPERTY
@given(
    q=cohorts(),
    seed=st.integers(0, 2**32),
    size=st.sampled_from([0.3, 0.03, 0.003]),
    weighted=st.booleans(),
)
def test_no_perturbation_has_a_smaller_mean_kl(
    q: MeanFieldGaussian, seed: int, size: float, weighted: bool
) -> None:
    a = importance(q.clients or 0, seed) if weighted else torch.ones(q.clients or 0).double()
    w, rng = barycentre(q, a), generator(seed, "perturbation")
    shift, stretch = (
        {n: torch.randn(s, generator=rng).double() for n, s in SHAPES.items()} for _ in "ab"
    )
    best = float((a * q.kl(w)).sum())
    for sign_loc, sign_scale in ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, -1)):
        near = MeanFieldGaussian(
            {n: v + sign_loc * size * shift[n] * w.scale[n] for n, v in w.loc.items()},
            {n: v * (sign_scale * size * stretch[n]).exp() for n, v in w.scale.items()},
        )
        assert float((a * q.kl(near)).sum()) > best


@pytest.mark.parametrize("weighted", [False, True])
def test_gradient_descent_on_the_mean_kl_arrives_at_the_closed_form(weighted: bool) -> None:
    q = make(7, clients=5, spread=2.0)
    a = importance(5, 7) if weighted else torch.ones(5, dtype=torch.float64)
    loc = {n: torch.zeros(s, dtype=torch.float64, requires_grad=True) for n, s in SHAPES.items()}
    log_scale = {
        n: torch.zeros(s, dtype=torch.float64, requires_grad=True) for n, s in SHAPES.items()
    }

    def current() -> MeanFieldGaussian:
        return MeanFieldGaussian.unchecked(loc, {n: v.exp() for n, v in log_scale.items()})

    optimiser = torch.optim.LBFGS(
        [*loc.values(), *log_scale.values()],
        max_iter=500,
        tolerance_grad=1e-10,
        tolerance_change=1e-14,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = (a * q.kl(current())).sum() / a.sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimiser.step(closure)  # type: ignore[no-untyped-call]
    found = current().to(dtype=torch.float64)
    detached = MeanFieldGaussian(
        {n: v.detach() for n, v in found.loc.items()},
        {n: v.detach() for n, v in found.scale.items()},
    )
    assert_close(detached, barycentre(q, a), rtol=1e-5, atol=1e-5)


# --- Its invariances


@PROPERTY
@given(
    seed=st.integers(0, 2**32),
    clients=st.integers(1, 9),
    centre=st.sampled_from([0.0, 1e-3, -1e4, 1e8]),
    log_scale=st.integers(-6, 4),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    weighted=st.booleans(),
)
def test_equal_beliefs_give_back_that_belief(
    seed: int, clients: int, centre: float, log_scale: int, dtype: torch.dtype, weighted: bool
) -> None:
    q = make(seed, 1, dtype, centre, abs(centre) or 1.0, 10.0**log_scale).client(0)
    a = importance(clients, seed) if weighted else None
    for w in (barycentre([q] * clients, a), barycentre(MeanFieldGaussian.stack([q] * clients), a)):
        assert w.dtype == dtype
        for name in q.names:
            assert torch.equal(w.loc[name], q.loc[name])
            # The square root of a mean of squares is exact in float32, and within 2 ulp in float64.
            rtol = 0.0 if dtype == torch.float32 else 2 * torch.finfo(dtype).eps * 2
            torch.testing.assert_close(w.scale[name], q.scale[name], rtol=rtol, atol=0.0)


@PROPERTY
@given(q=cohorts(), seed=st.integers(0, 2**32))
def test_variance_is_never_below_the_mean_variance(q: MeanFieldGaussian, seed: int) -> None:
    a = importance(q.clients or 0, seed)
    w = barycentre(q, a)
    for name, scale in q.scale.items():
        within = torch.tensordot(a / a.sum(), scale.square(), dims=1)
        assert bool((w.scale[name].square() >= within * (1 - 1e-12)).all())


def test_variance_is_within_plus_between() -> None:
    # Two beliefs N(-2, 1) and N(2, 9): mean 0, variance (1 + 9)/2 + 4 = 9.
    q = MeanFieldGaussian({"w": torch.tensor([-2.0, 2.0])}, {"w": torch.tensor([1.0, 3.0])}, True)
    w = barycentre(q)
    assert (float(w.loc["w"]), float(w.scale["w"])) == (0.0, 3.0)
    # With weights 3 : 1 the mean is -1, and the variance (3·1 + 9)/4 + (3·1 + 9)/4 = 6.
    v = barycentre(q, [3, 1])
    assert float(v.loc["w"]) == -1.0
    assert float(v.scale["w"]) == pytest.approx(6**0.5)


@PROPERTY
@given(q=cohorts(), seed=st.integers(0, 2**32))
def test_order_of_clients_and_size_of_weights_do_not_matter(
    q: MeanFieldGaussian, seed: int
) -> None:
    n = q.clients or 0
    a, order = importance(n, seed), torch.randperm(n, generator=generator(seed))
    w = barycentre(q, a)
    assert_close(barycentre(q.select(order), a[order]), w)
    assert_close(barycentre(q, a * 1e-9), w)
    assert_close(barycentre(rows(q), (a * 1e9).tolist()), w)
    assert_close(barycentre(q, [2.5] * n), barycentre(q))


@PROPERTY
@given(q=cohorts(), seed=st.integers(0, 2**32))
def test_whole_weights_count_repetitions(q: MeanFieldGaussian, seed: int) -> None:
    n = q.clients or 0
    counts = torch.randint(0, 4, (n,), generator=generator(seed))
    counts[0] += 1
    repeated = q.select(torch.arange(n).repeat_interleave(counts))
    assert_close(barycentre(q, counts), barycentre(repeated))
    assert_close(barycentre(rows(q), counts.tolist()), barycentre(repeated))


def test_a_client_of_weight_zero_might_as_well_be_absent() -> None:
    q = make(0, clients=3)
    far = make(1, clients=3, centre=1e6)
    both = MeanFieldGaussian.stack([*rows(far), *rows(q)])
    assert_equal(barycentre(rows(both), [0, 0, 0, 1, 1, 1]), barycentre(rows(q)))
    assert_close(barycentre(both, [0, 0, 0, 1, 1, 1]), barycentre(q))


@PROPERTY
@given(q=cohorts(), shift=st.floats(-10, 10), stretch=st.floats(0.1, 10))
def test_barycentre_follows_a_change_of_units(
    q: MeanFieldGaussian, shift: float, stretch: float
) -> None:
    def change(g: MeanFieldGaussian) -> MeanFieldGaussian:
        return MeanFieldGaussian(
            {n: stretch * v + shift for n, v in g.loc.items()},
            {n: stretch * v for n, v in g.scale.items()},
            g.stacked,
        )

    assert_close(barycentre(change(q)), change(barycentre(q)), rtol=1e-6, atol=1e-6)


# --- Streaming


@pytest.mark.parametrize("how", ["stacked", "streamed", "merged", "blocks"])
@pytest.mark.parametrize("spread", [0.0, 1e-3])
def test_means_of_1e4_and_scales_of_1e_3_keep_their_digits_in_float32(
    how: str, spread: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    q = make(3, clients=200, dtype=torch.float32, centre=1e4, spread=spread, scale=1e-3)
    if how == "blocks":
        monkeypatch.setattr(module, "_BLOCK", 40)
    if how in ("stacked", "blocks"):
        w = barycentre(q)
    elif how == "streamed":
        w = barycentre(rows(q))
    else:
        total = MomentAccumulator()
        for start in range(0, 200, 25):
            part = MomentAccumulator()
            part.add(q.select(range(start, start + 25)))
            total = part.merge(total)
        w = total.result()
    ones = torch.ones(200)
    for name in q.names:
        flat = [v[name].reshape(200, -1) for v in (q.loc, q.scale)]
        for j in range(flat[0].shape[1]):
            loc, scale = exact(flat[0][:, j], flat[1][:, j], ones)
            assert float(w.loc[name].reshape(-1)[j]) == float(torch.tensor(loc).float())
            assert float(w.scale[name].reshape(-1)[j]) == pytest.approx(scale, rel=1e-6)


@PROPERTY
@given(q=cohorts(), seed=st.integers(0, 2**32), data=st.data())
def test_merging_in_any_order_gives_the_same(
    q: MeanFieldGaussian, seed: int, data: st.DataObject
) -> None:
    n = q.clients or 0
    a = importance(n, seed)
    parts = []
    for i in range(n):
        part = MomentAccumulator()
        part.add(q.client(i), a[i])
        parts.append(part)
    while len(parts) > 1:  # a random binary tree over a random order
        left = parts.pop(data.draw(st.integers(0, len(parts) - 1)))
        right = parts.pop(data.draw(st.integers(0, len(parts) - 1)))
        parts.append(left.merge(right))
    assert_close(parts[0].result(), barycentre(q, a))
    assert parts[0].total_weight == pytest.approx(float(a.sum()), rel=1e-14)


def test_merge_is_pure() -> None:
    left, right = MomentAccumulator(), MomentAccumulator()
    left.add(make(0))
    right.add(make(1), [1, 2, 3, 4])
    before = left.state_dict(), right.state_dict()
    merged = left.merge(right)
    merged.add(make(2))
    for moments, old in ((left, before[0]), (right, before[1])):
        assert all(torch.equal(value, old[key]) for key, value in moments.state_dict().items())


def test_an_empty_accumulator_is_the_unit_of_merge() -> None:
    filled = MomentAccumulator()
    filled.add(make(0, dtype=torch.float32))
    for merged in (filled.merge(MomentAccumulator()), MomentAccumulator().merge(filled)):
        assert_equal(merged.result(), filled.result())
        assert merged.total_weight == 4
        merged.add(make(1, dtype=torch.float32))  # and shares nothing
    assert_equal(filled.result(), barycentre(make(0, dtype=torch.float32)))
    nothing = MomentAccumulator().merge(MomentAccumulator())
    assert (nothing.total_weight, nothing.names) == (0, ())


def test_stacked_streamed_and_mixed_adding_agree() -> None:
    q = make(0, clients=6)
    mixed = MomentAccumulator()
    mixed.add(q.select([0, 1, 2]), [1, 2, 3])
    mixed.add(q.client(3), 4)
    mixed.add(q.select([4, 5]), torch.tensor([5, 6]))
    assert mixed.total_weight == 21
    assert mixed.names == q.names
    assert_close(mixed.result(), barycentre(q, [1, 2, 3, 4, 5, 6]))


def test_a_lone_weight_is_the_total_weight() -> None:
    moments = MomentAccumulator()
    moments.add(make(0).client(0), 0.25)
    assert moments.total_weight == 0.25
    assert_close(moments.result(), make(0).client(0))


def test_state_does_not_grow_with_the_number_of_clients() -> None:
    def size(moments: MomentAccumulator) -> int:
        return sum(value.numel() * value.element_size() for value in moments.state_dict().values())

    few, many = MomentAccumulator(), MomentAccumulator()
    few.add(make(0, clients=1))
    many.add(make(0, clients=1000))
    assert size(few) == size(many) == 2 * 10 * 8 + 8 + 3 * 8


def test_working_memory_does_not_grow_with_the_number_of_clients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    widened: list[int] = []
    original = module._block_moments

    def spy(loc: Tensor, scale: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
        widened.append(loc.numel())
        return original(loc, scale, share)

    q, a = make(0, clients=50), importance(50, 0)
    a[10:30] = 0.0  # whole blocks of weight zero
    expected = barycentre(q, a)
    monkeypatch.setattr(module, "_block_moments", spy)
    monkeypatch.setattr(module, "_BLOCK", 40)
    assert_close(barycentre(q, a), expected)
    assert max(widened) <= 40
    assert len(widened) > 3


def test_an_iterable_is_read_one_belief_at_a_time() -> None:
    alive: weakref.WeakSet[MeanFieldGaussian] = weakref.WeakSet()
    most = 0

    def arriving() -> Iterator[MeanFieldGaussian]:
        nonlocal most
        for seed in range(20):
            belief = make(seed, clients=1).client(0)
            alive.add(belief)
            most = max(most, len(alive))
            yield belief
            del belief

    gc.collect()
    barycentre(arriving(), [1.0] * 20)
    assert most <= 2


# --- dtype, gradients, state


def test_result_has_the_dtype_of_what_was_added_and_the_widest_of_several() -> None:
    assert barycentre(make(0, dtype=torch.float32)).dtype == torch.float32
    assert barycentre(make(0, dtype=torch.bfloat16)).dtype == torch.bfloat16
    mixed = MomentAccumulator()
    mixed.add(make(0, dtype=torch.float32))
    mixed.add(make(0, dtype=torch.bfloat16))
    assert mixed.result().dtype == torch.float32
    other = MomentAccumulator()
    other.add(make(0, dtype=torch.float64))
    assert mixed.merge(other).result().dtype == torch.float64


def test_gradients_are_not_tracked_and_results_share_nothing() -> None:
    loc = torch.ones(2, 3, dtype=torch.float64, requires_grad=True)
    moments = MomentAccumulator()
    moments.add(MeanFieldGaussian({"w": loc}, {"w": loc}, stacked=True))
    result = moments.result()
    assert not result.loc["w"].requires_grad
    result.loc["w"].zero_()
    moments.state_dict()["mean.w"].zero_()
    assert torch.equal(moments.result().loc["w"], torch.ones(3, dtype=torch.float64))


def test_adding_does_not_change_what_is_added() -> None:
    belief = make(0).client(0)
    moments = MomentAccumulator()
    moments.add(belief)
    moments.add(make(1))
    assert_equal(belief, make(0).client(0))


def test_state_travels_through_safetensors() -> None:
    q = make(0, clients=3, dtype=torch.float32)
    names = ("zeta", "mean.alpha", "beta")  # neither sorted, nor free of the prefix
    loc = dict(zip(names, q.loc.values(), strict=True))
    scale = dict(zip(names, q.scale.values(), strict=True))
    sent = MomentAccumulator()
    sent.add(MeanFieldGaussian(loc, scale, stacked=True), [1, 2, 3])
    received = MomentAccumulator.from_state_dict(
        safetensors.torch.load(safetensors.torch.save(sent.state_dict()))
    )
    assert (received.names, received.total_weight) == (names, 6)
    assert_equal(received.result(), sent.result())
    assert received.result().dtype == torch.float32
    received.add(MeanFieldGaussian(loc, scale, stacked=True))
    assert (sent.total_weight, received.total_weight) == (6, 9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_state_remembers_the_dtype_of_the_result(dtype: torch.dtype) -> None:
    sent = MomentAccumulator()
    sent.add(make(0, dtype=dtype))
    received = MomentAccumulator.from_state_dict(sent.state_dict())
    assert received.result().dtype == dtype
    assert_equal(received.result(), sent.result())


def test_an_empty_state_travels_too() -> None:
    empty = MomentAccumulator.from_state_dict(MomentAccumulator().state_dict())
    assert empty.total_weight == 0
    empty.add(make(0))
    assert_equal(empty.result(), barycentre(make(0)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"order": None}, "the moments lack 'order'"),
        ({"variance_sum.bias": None}, "variance_sum of 'bias' is missing"),
        ({"variance_sum.bias": torch.ones(4)}, "variance_sum of 'bias' is missing, or not shaped"),
        ({"variance_sum.bias": torch.zeros(3)}, "variance_sum of 'bias' is not finite, or not pos"),
        ({"mean.bias": torch.full((3,), math.nan)}, "mean or variance_sum of 'bias' is not finite"),
        ({"mean.tau": None}, r"order is \[2, 0, 1\]: it must rank 2 names"),
        ({"total_weight": torch.tensor(0.0)}, r"total weight is 0\.0: it must be > 0"),
        ({"total_weight": torch.tensor(math.nan)}, "total weight is nan"),
    ],
)
def test_a_broken_state_is_refused(change: dict[str, Tensor | None], message: str) -> None:
    moments = MomentAccumulator()
    moments.add(make(0))
    state = {k: v for k, v in {**moments.state_dict(), **change}.items() if v is not None}
    with pytest.raises(UserError, match=message):
        MomentAccumulator.from_state_dict(state)


# --- What is refused


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1, 2, 3], "give one|weights have shape|there are 3 weights"),
        ([1, 2, 3, 4, 5], "give one|weights have shape|there are 5 weights"),
        ([1, 1, 1, -1], "weights must be finite and >= 0"),
        ([1, 1, 1, math.nan], "weights must be finite and >= 0"),
        ([1, 1, 1, math.inf], "weights must be finite and >= 0"),
        ([0, 0, 0, 0], "weights must not be all zero"),
        ([1e308] * 4, "nor sum to infinity"),
        (torch.ones(4, 1), r"weights have shape \[4, 1\]"),
    ],
)
def test_wrong_weights_are_refused(weights: Any, message: str) -> None:
    q = make(0)
    for gaussians in (q, rows(q), iter(rows(q))):
        with pytest.raises(UserError, match=message):
            barycentre(gaussians, weights)
    moments = MomentAccumulator()
    with pytest.raises(UserError, match=message):
        moments.add(q, weights)
    assert moments.total_weight == 0


def test_weights_that_only_together_overflow_are_refused_before_anything_changes() -> None:
    moments = MomentAccumulator()
    moments.add(make(0, scale=0.1).client(0), 1e308)
    before = moments.result()
    with pytest.raises(UserError, match="the weights sum to infinity"):
        moments.add(make(1, scale=0.1).client(0), 1e308)
    assert_equal(moments.result(), before)


def test_nothing_has_no_barycentre() -> None:
    with pytest.raises(UserError, match="nothing to average"):
        barycentre([])
    with pytest.raises(UserError, match="there are no moments yet"):
        MomentAccumulator().result()


def test_stacked_and_unstacked_are_not_confused() -> None:
    with pytest.raises(UserError, match="one unstacked Gaussian: give a stacked one, or a list"):
        barycentre(make(0).client(0))
    with pytest.raises(UserError, match="Gaussian 1 is stacked"):
        barycentre([make(0).client(0), make(0)])


def test_other_weights_are_refused_by_name() -> None:
    def named(name: str, shape: tuple[int, ...], device: str = "cpu") -> MeanFieldGaussian:
        values = {name: torch.ones(shape, device=device)}
        return MeanFieldGaussian.unchecked(values, values)

    moments, others = MomentAccumulator(), MomentAccumulator()
    moments.add(named("w", (2,)))
    others.add(named("w", (3,)))
    with pytest.raises(UserError, match="weight 'w' is missing from the Gaussian to add"):
        moments.add(named("v", (2,)))
    two = {"w": torch.ones(2), "v": torch.ones(2)}
    with pytest.raises(UserError, match="weight 'v' is missing from what was added before"):
        moments.add(MeanFieldGaussian(two, two))
    with pytest.raises(UserError, match=r"'w' of the Gaussian to add has shape \[3\]: give \[2\]"):
        moments.add(named("w", (3,)))
    with pytest.raises(UserError, match=r"'w' of the moments to merge has shape \[3\]: give \[2\]"):
        moments.merge(others)
    with pytest.raises(UserError, match=r"'w' of Gaussian 1 has shape \[3\]: give \[2\]"):
        barycentre([named("w", (2,)), named("w", (3,))])
    with pytest.raises(UserError, match="the Gaussian to add is on meta: bring it to cpu"):
        moments.add(named("w", (2,), "meta"))
    assert moments.total_weight == 1


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_gives_the_barycentre_of_the_cpu() -> None:
    q = make(0, clients=50, dtype=torch.float32, centre=1e4, spread=1e-3, scale=1e-3)
    a = importance(50, 0)
    there = barycentre(q.to("cuda"), a.to("cuda"))
    assert there.device.type == "cuda"
    assert_close(there.to("cpu"), barycentre(q, a), rtol=1e-6, atol=1e-6)
