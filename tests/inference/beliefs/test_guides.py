import pytest
import torch
from pyro import poutine
from pyro.infer import Predictive

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.families.clients import inverse_softplus
from pyro_pfedbayes.inference.beliefs.guides import MeanFieldGuide
from pyro_pfedbayes.models.settings import pyro_local
from tests.helpers import random_batch, random_gaussian, tiny_model


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_inverse_softplus_survives_tiny_and_huge_scales(dtype) -> None:
    scale = torch.tensor([1e-6, 1e-3, 0.08, 1.0, 100.0, 1e4], dtype=dtype)
    torch.testing.assert_close(torch.nn.functional.softplus(inverse_softplus(scale)), scale)


def test_guide_holds_the_start_and_draws_a_normal_at_each_site() -> None:
    model = tiny_model()
    start = random_gaussian(model, clients=3)
    guide = MeanFieldGuide(model, start)
    held = guide.posterior()
    trace = poutine.trace(guide).get_trace()
    for name in model.weight_shapes:
        torch.testing.assert_close(held.scale[name], start.scale[name])
        base = trace.nodes[name]["fn"].base_dist
        assert type(base).__name__ == "Normal"
        torch.testing.assert_close(base.loc, start.loc[name])
    assert [n for n in trace.stochastic_nodes if n != "client"] == list(model.weight_shapes)


def test_guide_is_laid_out_like_autonormal() -> None:
    model = tiny_model()
    guide = MeanFieldGuide(model, random_gaussian(model, clients=2))
    assert guide.locs.fc1.weight.shape == (2, 5, 4)
    assert guide.scales.head.bias.shape == (2, 3)


def test_predictive_of_pyro_draws_from_model_and_guide() -> None:
    model = tiny_model()
    guide = MeanFieldGuide(model, random_gaussian(model, clients=2))
    x, _ = random_batch(2, 4)
    with pyro_local():
        draws = Predictive(model, guide=guide, num_samples=6)(x)
    assert draws["fc1.weight"].shape[0] == 6
    assert draws["y"].shape == (6, 2, 4)


def test_condition_and_replay_work_on_the_client_model() -> None:
    model = tiny_model()
    x, y = random_batch(2, 4)
    fixed = torch.ones(2, 5, dtype=torch.float64)
    conditioned = poutine.condition(model, {"fc1.bias": fixed})
    trace = poutine.trace(conditioned).get_trace(x, y)
    assert trace.nodes["fc1.bias"]["is_observed"]
    assert torch.equal(trace.nodes["fc1.bias"]["value"], fixed)


def test_start_must_be_stacked_and_over_the_models_weights() -> None:
    model = tiny_model()
    with pytest.raises(UserError, match="stacked Gaussian, one row a client"):
        MeanFieldGuide(model, random_gaussian(model))
    other = random_gaussian(model, clients=2)
    short = type(other)(
        {"fc1.weight": other.loc["fc1.weight"]}, {"fc1.weight": other.scale["fc1.weight"]}, True
    )
    with pytest.raises(UserError, match=r"lacks weight 'fc1.bias' of shape \(5,\)"):
        MeanFieldGuide(model, short)
