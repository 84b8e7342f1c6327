import pytest
import torch
from pyro import poutine

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.gaussian import MeanFieldGaussian
from pyro_pfedbayes.inference.predictive import (
    mean_predictive,
    posterior_predictive,
    predictive_draws,
)
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
