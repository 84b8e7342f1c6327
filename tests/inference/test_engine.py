import pytest
import torch
import torch.nn.functional as F

from pyro_pfedbayes.inference.engine import GradientEngine
from pyro_pfedbayes.models.bayesian import BayesianModel
from pyro_pfedbayes.models.likelihoods import Categorical
from pyro_pfedbayes.models.networks import vgg
from tests.helpers import random_batch, random_gaussian, tiny_model

S, B, K = 3, 6, 2


def inputs(
    engine: GradientEngine, *, stacked_prior: bool = False, mask: bool = True, seed: int = 0
):
    model, layout = engine.model, engine.layout
    dtype = model.prior.dtype
    stream = torch.Generator().manual_seed(seed)
    q = random_gaussian(model, clients=S, seed=seed)
    w = random_gaussian(model, clients=S if stacked_prior else None, seed=seed + 1)
    x, y = random_batch(S, B, dtype, seed=seed)
    valid = torch.ones(S, B, dtype=torch.bool)
    valid[1, 4:] = False
    return {
        "loc": layout.flatten(q.loc),
        "rho": layout.flatten(q.scale).expm1().log(),
        "prior_loc": layout.flatten(w.loc),
        "prior_scale": layout.flatten(w.scale),
        "zeta": torch.tensor(2.0, dtype=dtype),
        "data_scale": torch.tensor([1.0, 3.0, 10.0], dtype=dtype),
        "eps": torch.randn(K, S, layout.size, generator=stream, dtype=dtype),
        "x": x,
        "y": y,
        "mask": valid if mask else None,
    }


def by_hand(engine: GradientEngine, given):
    """The client objective on flat vectors, straight from the formula, with autograd for the gradients."""
    loc = given["loc"].clone().requires_grad_()
    rho = given["rho"].clone().requires_grad_()
    scale, w_scale = F.softplus(rho), given["prior_scale"]
    kl = 0.5 * (
        torch.log(w_scale**2 / scale**2)
        + (scale**2 + (loc - given["prior_loc"]) ** 2) / w_scale**2
        - 1
    ).sum(-1)
    losses = given["zeta"] * kl
    mask = given["mask"] if given["mask"] is not None else torch.ones(S, B, dtype=torch.bool)
    for draw in given["eps"]:
        theta = loc + scale * draw
        for i in range(S):
            weights = engine.layout.unflatten(theta[i])
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
    for ours, hand in zip(engine(**given), by_hand(engine, given), strict=True):
        torch.testing.assert_close(ours, hand, rtol=1e-10, atol=1e-10)


def test_traced_has_the_same_bits_as_eager() -> None:
    eager, traced = (GradientEngine(tiny_model(torch.float32), m) for m in ("eager", "traced"))
    given = inputs(eager)
    for a, b in zip(eager(**given), traced(**given), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("mode", ["traced", "compiled"])
def test_nothing_in_a_recording_goes_stale(mode) -> None:
    """Every tensor that a step depends on may change, in place or rebound, and is honoured."""
    engine, eager = GradientEngine(tiny_model(), mode), GradientEngine(tiny_model())
    given = inputs(engine)
    engine(**given)
    fresh = inputs(engine, seed=7)
    for name in ("prior_loc", "prior_scale", "zeta", "data_scale", "eps", "x", "y", "loc", "rho"):
        changed = {**given, name: fresh[name] if name != "zeta" else given["zeta"] * 4}
        if name == "data_scale":
            changed[name] = given[name] + 1
        reference = eager(**changed)
        for ours, theirs in zip(engine(**changed), reference, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
    assert len(engine._steps) == 1


def test_a_step_leaves_its_inputs_alone() -> None:
    engine = GradientEngine(tiny_model())
    given = inputs(engine)
    before = {k: v.clone() for k, v in given.items() if v is not None}
    engine(**given)
    assert all(torch.equal(given[k], v) and not given[k].requires_grad for k, v in before.items())


@pytest.mark.slow
def test_compiled_vgg_equals_eager() -> None:
    net = vgg([4, "M", 8, "M"], in_channels=1, image_size=8, num_classes=3).double()
    model = BayesianModel(net, Categorical(3))
    given = inputs(GradientEngine(model))
    stream = torch.Generator().manual_seed(2)
    given["x"] = torch.randn(S, B, 1, 8, 8, generator=stream, dtype=torch.float64)
    reference = GradientEngine(model)(**given)
    for ours, theirs in zip(GradientEngine(model, "compiled")(**given), reference, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
