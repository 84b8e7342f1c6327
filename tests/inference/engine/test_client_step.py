import pytest
import torch
import torch.nn.functional as F

from pyro_pfedbayes.inference.engine.client_step import GradientEngine
from pyro_pfedbayes.models.bayesian import BayesianModel
from pyro_pfedbayes.models.likelihoods import Categorical
from pyro_pfedbayes.models.networks import vgg
from tests.helpers import random_batch, random_gaussian, tiny_model

S, B, K = 3, 6, 2


def evaluated(engine: GradientEngine, given) -> tuple[torch.Tensor, ...]:
    """Losses, and the gradients in loc and rho."""
    losses, gradients = engine(**given)
    return losses, gradients["loc"], gradients["rho"]


def inputs(
    engine: GradientEngine, *, stacked_prior: bool = False, mask: bool = True, seed: int = 0
):
    model, layout = engine.model, engine.model.layout
    dtype = model.prior.dtype
    stream = torch.Generator().manual_seed(seed)
    q = random_gaussian(model, clients=S, seed=seed)
    w = random_gaussian(model, clients=S if stacked_prior else None, seed=seed + 1)
    x, y = random_batch(S, B, dtype, seed=seed)
    valid = torch.ones(S, B, dtype=torch.bool)
    valid[1, 4:] = False
    return {
        "params": {"loc": layout.flatten(q.loc), "rho": layout.flatten(q.scale).expm1().log()},
        "prior": {"loc": layout.flatten(w.loc), "scale": layout.flatten(w.scale)},
        "zeta": torch.tensor(2.0, dtype=dtype),
        "data_scale": torch.tensor([1.0, 3.0, 10.0], dtype=dtype),
        "eps": torch.randn(K, S, layout.size, generator=stream, dtype=dtype),
        "x": x,
        "y": y,
        "mask": valid if mask else None,
    }


def by_hand(engine: GradientEngine, given):
    """The client objective on flat vectors, straight from the formula, with autograd for the gradients."""
    loc, rho = (given["params"][k].clone().requires_grad_() for k in ("loc", "rho"))
    scale, w_loc, w_scale = F.softplus(rho), given["prior"]["loc"], given["prior"]["scale"]
    kl = 0.5 * (
        torch.log(w_scale**2 / scale**2) + (scale**2 + (loc - w_loc) ** 2) / w_scale**2 - 1
    ).sum(-1)
    losses = given["zeta"] * kl
    mask = given["mask"] if given["mask"] is not None else torch.ones(S, B, dtype=torch.bool)
    for draw in given["eps"]:
        theta = loc + scale * draw
        for i in range(S):
            weights = engine.model.layout.unflatten(theta[i])
            logits = torch.func.functional_call(engine.model.network, weights, (given["x"][i],))
            nll = (F.cross_entropy(logits, given["y"][i], reduction="none") * mask[i]).sum()
            losses = losses + F.one_hot(torch.tensor(i), S) * given["data_scale"][i] * nll / K
    return losses.detach(), *torch.autograd.grad(losses.sum(), (loc, rho))


@pytest.mark.parametrize("mode", ["eager", "traced"])
@pytest.mark.parametrize("stacked_prior", [False, True])
@pytest.mark.parametrize("mask", [False, True])
def test_losses_and_gradients_equal_the_formula(mode, stacked_prior, mask) -> None:
    engine = GradientEngine(tiny_model(), mode)
    given = inputs(engine, stacked_prior=stacked_prior, mask=mask)
    for ours, hand in zip(evaluated(engine, given), by_hand(engine, given), strict=True):
        torch.testing.assert_close(ours, hand, rtol=1e-10, atol=1e-10)


def test_traced_has_the_same_bits_as_eager() -> None:
    eager, traced = (GradientEngine(tiny_model(torch.float32), m) for m in ("eager", "traced"))
    given = inputs(eager)
    for a, b in zip(evaluated(eager, given), evaluated(traced, given), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("mode", ["traced", "compiled"])
def test_nothing_in_a_recording_goes_stale(mode) -> None:
    """Every tensor that a step depends on may change, in place or rebound, and is honoured."""
    engine, eager = GradientEngine(tiny_model(), mode), GradientEngine(tiny_model())
    given = inputs(engine)
    engine(**given)
    fresh = inputs(engine, seed=7)
    for name in ("prior", "zeta", "data_scale", "eps", "x", "y", "params"):
        changed = {**given, name: fresh[name] if name != "zeta" else given["zeta"] * 4}
        if name == "data_scale":
            changed[name] = given[name] + 1
        reference = evaluated(eager, changed)
        for ours, theirs in zip(evaluated(engine, changed), reference, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
    assert len(engine._steps) == 1


def test_a_step_leaves_its_inputs_alone() -> None:
    engine = GradientEngine(tiny_model())
    given = inputs(engine)
    flat = {**given["params"], **{f"w {k}": v for k, v in given["prior"].items()}, "x": given["x"]}
    before = {k: v.clone() for k, v in flat.items()}
    engine(**given)
    assert all(torch.equal(flat[k], v) and not flat[k].requires_grad for k, v in before.items())


@pytest.mark.slow
def test_compiled_vgg_equals_eager() -> None:
    net = vgg([4, "M", 8, "M"], in_channels=1, image_size=8, num_classes=3).double()
    model = BayesianModel(net, Categorical(3))
    given = inputs(GradientEngine(model))
    stream = torch.Generator().manual_seed(2)
    given["x"] = torch.randn(S, B, 1, 8, 8, generator=stream, dtype=torch.float64)
    reference = evaluated(GradientEngine(model), given)
    compiled = evaluated(GradientEngine(model, "compiled"), given)
    for ours, theirs in zip(compiled, reference, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
