from collections.abc import Callable

import pyro
import pytest
import torch
from pyro import poutine
from torch import Tensor

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.gaussians.mean_field import MeanFieldGaussian
from pyro_pfedbayes.inference.algorithms.pfedbayes import PFedBayes
from pyro_pfedbayes.inference.predictive.accumulators import NumberSummary
from pyro_pfedbayes.inference.predictive.draws import (
    mean_predictive,
    number_predictive,
    posterior_predictive,
    predictive_draws,
    predictive_streams,
    site_draws,
)
from pyro_pfedbayes.models.bayesian import BayesianModel
from pyro_pfedbayes.models.builtin.ordinal import ordinal_regression
from pyro_pfedbayes.models.builtin.regression import linear_regression
from pyro_pfedbayes.models.declared import DeclaredModel
from pyro_pfedbayes.models.likelihoods import (
    Bernoulli,
    Categorical,
    NegativeBinomial,
    Normal,
    Ordinal,
    Poisson,
)
from pyro_pfedbayes.models.networks import mlp
from pyro_pfedbayes.models.spec import DataSpec
from tests.helpers import random_batch, random_gaussian, tiny_model


def test_average_of_pyros_own_outputs_over_the_same_draws() -> None:
    """Pyro's model, run on each draw by ``condition``, gives the same average."""
    model = tiny_model()
    belief = random_gaussian(model)
    x = random_batch(1, 7)[0]
    total = 0.0
    for k, ours in enumerate(
        predictive_draws(model, belief, x[0], 4, torch.Generator().manual_seed(3))
    ):
        stream = torch.Generator().manual_seed(3)
        draws = [belief.sample(generator=stream) for _ in range(k + 1)]
        fixed = {name: value[None] for name, value in draws[-1].items()}
        logits = poutine.condition(model, fixed)(x)
        torch.testing.assert_close(ours, logits[0].softmax(-1))
        total = total + ours
    assert total.shape == (7, 3)


MODELS: dict[str, Callable[[], DeclaredModel]] = {
    "classes": lambda: BayesianModel(mlp([4, 5, 3], seed=1), Categorical(3)),
    "binary": lambda: BayesianModel(mlp([4, 5, 1], seed=1), Bernoulli()),
    "ordinal": lambda: BayesianModel(mlp([4, 5, 1], seed=1), Ordinal(4)),
    "ordinal with learnt cutpoints": lambda: ordinal_regression(DataSpec((4,), num_classes=4)),
    "number": lambda: BayesianModel(mlp([4, 5, 1], seed=1), Normal(0.5)),
    "number with learnt noise": lambda: linear_regression(DataSpec((4,))),
    "count": lambda: BayesianModel(mlp([4, 5, 1], seed=1), Poisson()),
    "overdispersed count": lambda: BayesianModel(mlp([4, 5, 1], seed=1), NegativeBinomial(2.0)),
}


@pytest.mark.parametrize("name", MODELS)
def test_equal_to_pyros_predictive(name: str) -> None:
    """`pyro.infer.Predictive` over the same draws of the sites: the same outcomes, and the average that they have."""
    model, seed, draws = MODELS[name](), 5, 6
    algorithm = PFedBayes()
    belief = algorithm.global_belief(model, algorithm.init(model))
    x = torch.randn(7, 4, generator=torch.Generator().manual_seed(1))
    stream = predictive_streams(seed, "cpu").weights
    sites = list(site_draws(model, belief, draws, stream))
    samples = {site: torch.stack([one[site] for one in sites]) for site in sites[0]}

    def program(x: Tensor) -> object:
        with poutine.seed(rng_seed=seed):
            return model.client_program(x)

    theirs = pyro.infer.Predictive(program, posterior_samples=samples, return_sites=("y",))(x)["y"]
    means, ours = [], []
    for values in sites:
        observation = model.observation(values, x)
        torch.manual_seed(seed)
        ours.append(observation.sample())
        # What averages are taken of, from Pyro's own trace and not from `predict`.
        traced = poutine.trace(poutine.condition(model.client_program, values)).get_trace(x)
        fn = traced.nodes["y"]["fn"]
        by_class = model.outcome == "class"
        means.append(fn.log_prob(fn.enumerate_support()).exp().T if by_class else fn.mean)
    torch.testing.assert_close(theirs, torch.stack(ours))
    found = posterior_predictive(model, belief, x, draws=draws, seed=seed)
    torch.testing.assert_close(found, torch.stack(means).mean(0))
    if model.outcome == "number":
        pieces = [(x[:4], torch.zeros(4)), (x[4:], torch.zeros(3))]
        parts = list(number_predictive(model, belief, pieces, draws=draws, seed=seed))
        torch.testing.assert_close(NumberSummary.joined(parts).mean, found)


def test_stack_equals_clients_alone_and_chunks_do_not_matter() -> None:
    model = tiny_model()
    belief = random_gaussian(model, clients=2)
    x = random_batch(2, 7)[0]
    whole = posterior_predictive(model, belief, x, draws=3, seed=1)
    torch.testing.assert_close(
        whole, posterior_predictive(model, belief, x, draws=3, seed=1, chunk=2)
    )
    # A client's stream is its own: the other client's belief does not matter.
    other = random_gaussian(model, clients=2, seed=8)
    mixed = MeanFieldGaussian.stack([belief.client(0), other.client(1)])
    again = posterior_predictive(model, mixed, x, draws=3, seed=1)
    assert torch.equal(again[0], whole[0])
    assert not torch.equal(again[1], whole[1])


def test_converges_to_the_integral() -> None:
    """Two independent streams of 4,000 draws agree within four standard errors."""
    model = tiny_model()
    belief = random_gaussian(model)
    x = random_batch(1, 3)[0][0]
    draws = torch.stack(
        list(predictive_draws(model, belief, x, 4000, torch.Generator().manual_seed(0)))
    )
    error = draws.std(0) / 4000**0.5
    reference = torch.stack(
        list(predictive_draws(model, belief, x, 4000, torch.Generator().manual_seed(1)))
    ).mean(0)
    average = posterior_predictive(model, belief, x, draws=4000, seed=5)
    assert bool(((average - reference).abs() < 4 * 2**0.5 * error).all())
    torch.testing.assert_close(average.sum(-1), torch.ones(3, dtype=torch.float64))


def test_mean_weights_are_the_limit_of_small_scales() -> None:
    model = tiny_model()
    belief = random_gaussian(model)
    x = random_batch(1, 5)[0][0]
    narrow = MeanFieldGaussian(belief.loc, {k: v * 1e-9 for k, v in belief.scale.items()})
    torch.testing.assert_close(
        posterior_predictive(model, narrow, x, draws=2), mean_predictive(model, belief, x)
    )


def test_bad_arguments_are_refused() -> None:
    model = tiny_model()
    x = random_batch(3, 5)[0]
    with pytest.raises(UserError, match="draws is 0"):
        posterior_predictive(model, random_gaussian(model), x[0], draws=0)
    with pytest.raises(UserError, match="3 rows of inputs for 2 clients"):
        posterior_predictive(model, random_gaussian(model, clients=2), x)
