import pyro
import pyro.distributions as dist
import pytest
import torch
import torch.nn.functional as F
from pyro import poutine
from torch import nn

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.models.bayesian import BayesianModel
from pyro_pfedbayes.models.likelihoods import Categorical
from pyro_pfedbayes.models.networks import mlp, vgg
from tests.helpers import random_batch, random_gaussian, tiny_model


def test_log_joint_is_prior_times_zeta_plus_scaled_likelihood() -> None:
    base = tiny_model()
    prior = random_gaussian(base)
    data_scale = torch.tensor([2.0, 5.0], dtype=torch.float64)
    model = base.with_prior(prior, zeta=3.0, data_scale=data_scale)
    x, y = random_batch(2, 6)
    trace = poutine.trace(model).get_trace(x, y)
    expected = torch.zeros((), dtype=torch.float64)
    for name in model.weight_shapes:
        value = trace.nodes[name]["value"]
        expected += 3.0 * dist.Normal(prior.loc[name], prior.scale[name]).log_prob(value).sum()
    for i in range(2):
        weights = {name: trace.nodes[name]["value"][i] for name in model.weight_shapes}
        logits = torch.func.functional_call(model.network, weights, (x[i],))
        expected -= data_scale[i] * F.cross_entropy(logits, y[i], reduction="sum")
    torch.testing.assert_close(trace.log_prob_sum(), expected)


def test_masked_rows_do_not_count_whatever_they_hold() -> None:
    model = tiny_model()
    x, y = random_batch(2, 6)
    mask = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])

    def log_prob(x, y) -> torch.Tensor:
        pyro.set_rng_seed(0)
        trace = poutine.trace(model).get_trace(x, y, mask)
        trace.compute_log_prob()
        return trace.nodes["y"]["log_prob"]

    other_x, other_y = x.clone(), y.clone()
    other_x[1, 4:], other_y[1, 4:] = 100.0, 0
    assert torch.equal(log_prob(x, y), log_prob(other_x, other_y))


def test_prior_may_differ_by_client() -> None:
    model = tiny_model()
    stacked = random_gaussian(model, clients=2)
    trace = poutine.trace(model.with_prior(stacked)).get_trace(random_batch(2, 3)[0])
    assert torch.equal(trace.nodes["fc1.weight"]["fn"].base_dist.loc, stacked.loc["fc1.weight"])
    assert trace.nodes["y"]["value"].shape == (2, 3)


def test_prior_and_scales_are_buffers_not_parameters() -> None:
    model = tiny_model(dtype=torch.float32)
    assert list(model.parameters()) == []
    model.double()
    assert model.prior.dtype == model.zeta.dtype == model.data_scale.dtype == torch.float64


def test_constants_of_the_network_travel_with_the_model() -> None:
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 3)
            self.register_buffer("shift", torch.ones(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(x + self.shift)

    net = Shifted()
    model = BayesianModel(net, Categorical(3))
    x = torch.randn(2, 5, 4)
    stacked = {name: torch.stack([w, w]).detach() for name, w in net.named_parameters()}
    torch.testing.assert_close(model.outputs(stacked, x), torch.stack([net(x[0]), net(x[1])]))
    assert model.double().outputs(model.prior.loc, x[0].double()).dtype == torch.float64


def test_a_stack_of_vggs_equals_one_after_the_other() -> None:
    net = vgg([4, "M", 8, "M"], in_channels=1, image_size=8, num_classes=3).double()
    model = BayesianModel(net, Categorical(3))
    stacked = random_gaussian(model, clients=2)
    x = torch.randn(2, 5, 1, 8, 8, dtype=torch.float64)
    together = model.outputs(stacked.loc, x)
    for i in range(2):
        torch.testing.assert_close(together[i], model.outputs(stacked.client(i).loc, x[i]))


def test_frozen_parameters_stay_as_they_are() -> None:
    net = mlp([4, 5, 3], seed=1)
    net.fc1.requires_grad_(False)
    model = BayesianModel(net, Categorical(3))
    assert model.prior.names == ("head.weight", "head.bias")
    x = torch.randn(2, 6, 4)
    prior = {name: torch.stack([value, value]) for name, value in model.prior.loc.items()}
    torch.testing.assert_close(model.outputs(prior, x)[1], net(x[1]).detach())


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: tiny_model(zeta=0.0), "zeta is 0.0; it must be a positive number"),
        (lambda: tiny_model(zeta=float("nan")), "zeta is nan"),
        (lambda: tiny_model(rho=-1e4), "standard deviation of 0"),
        (lambda: tiny_model().with_prior(random_gaussian(_other())), "weight 'fc1.weight'.*shape"),
        (lambda: BayesianModel(nn.Flatten(), Categorical(3)), "no weights to learn"),
        (lambda: BayesianModel(nn.Sequential(nn.BatchNorm1d(4)), Categorical(4)), "layer '0' norm"),
        (
            lambda: BayesianModel(nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)), Categorical(3)),
            "layer '1' is dropout",
        ),
    ],
)
def test_impossible_models_are_refused(build, words) -> None:
    with pytest.raises(UserError, match=words):
        build()


def _other() -> BayesianModel:
    return BayesianModel(mlp([4, 6, 3]), Categorical(3))
