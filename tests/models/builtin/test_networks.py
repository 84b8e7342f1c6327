"""Every built-in network, fitted federated, recovers the function that its clients' data were simulated with."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyro_pfedbayes.models.builtin.classifiers import (
    linear_classifier,
    logistic_regression,
    mlp_classifier,
    vgg_classifier,
)
from pyro_pfedbayes.models.builtin.regression import heteroscedastic_regression, robust_mlp
from pyro_pfedbayes.models.spec import DataSpec
from tests.models.recovery import by_client, likelihood_sd, run, simulate

CLIENTS = 4


def inputs(rows: int, *shape: int, seed: int = 0) -> Tensor:
    """Standard Normal inputs of 4 clients."""
    return torch.randn(CLIENTS, rows, *shape, generator=torch.Generator().manual_seed(seed))


def labels(probs: Tensor) -> Tensor:
    """A class for each row of probabilities."""
    flat = probs.reshape(-1, probs.shape[-1])
    drawn = torch.multinomial(flat, 1, generator=torch.Generator().manual_seed(1))
    return drawn.view(probs.shape[:-1])


def outputs(model: Any, belief: Any, x: Tensor, draws: int = 50) -> Tensor:
    """Outputs of the network ``[draws, n, k]`` under a belief."""
    stream = torch.Generator().manual_seed(2)
    with torch.no_grad():
        return torch.stack(
            [model.outputs(belief.sample(generator=stream), x) for _ in range(draws)]
        )


def rms(values: Tensor) -> float:
    return float(values.square().mean().sqrt())


def test_linear_classifier_recovers_log_odds() -> None:
    """It has a weight for every class; differences to class 0 are what the data speak of."""
    spec = DataSpec((3,), num_classes=3)
    intercept, slopes = torch.tensor([0.5, -0.5]), torch.tensor([[1.0, -0.5, 0.0], [0.0, 1.0, 1.0]])
    known = simulate(logistic_regression(spec), CLIENTS, 200, intercept=intercept, slopes=slopes)
    model = linear_classifier(spec)
    w = run(model, by_client(known.x, known.y, 3)).global_
    possible = likelihood_sd(known)
    for site, name, truth in (
        ("head.weight", "slopes", slopes),
        ("head.bias", "intercept", intercept),
    ):
        contrast = w.loc[site][1:] - w.loc[site][0]
        sd = (w.scale[site][1:].square() + w.scale[site][0].square()).sqrt()
        assert bool(((contrast - truth).abs() < 4 * possible[name]).all())
        assert bool((possible[name] < 0.15).all() & (sd < 0.25).all())


def test_mlp_classifier_recovers_probabilities_that_are_not_linear() -> None:
    """Class 1 inside a ring: no linear classifier tells more than the share of classes."""

    def probabilities(x: Tensor) -> Tensor:
        inside = torch.sigmoid(4 * (1.2 - x.norm(dim=-1)))
        return torch.stack([1 - inside, inside], -1)

    x, fresh = inputs(300, 2), inputs(100, 2, seed=9).flatten(0, 1)
    model = mlp_classifier(DataSpec((2,), num_classes=2), hidden=(20,))
    result = run(model, by_client(x, labels(probabilities(x)), 2), lr=0.03, rounds=20)
    found = outputs(model, result.global_, fresh).softmax(-1).mean(0)
    truth = probabilities(fresh)
    constant = rms(truth - truth.mean(0))
    assert constant > 0.3
    assert rms(found - truth) < 0.08


def test_vgg_classifier_recovers_probabilities() -> None:
    """Whether pixels vary up and down or left and right; the mean picture is the same."""
    size, rows = 8, 60

    def pictures(seed: int) -> tuple[Tensor, Tensor]:
        stream = torch.Generator().manual_seed(seed)
        contrast = torch.randn(CLIENTS, rows, 1, 1, 1, generator=stream)
        stripes = torch.tensor([1.0, -1.0]).repeat(size // 2).expand(size, size)
        noise = 0.3 * torch.randn(CLIENTS, rows, 1, size, size, generator=stream)
        sideways = torch.rand(CLIENTS, rows, 1, 1, 1, generator=stream) < 0.5
        return torch.where(sideways, stripes, stripes.T) * contrast + noise, contrast

    def probabilities(x: Tensor) -> Tensor:
        """By how much more neighbours differ along rows than along columns."""
        along = (
            x.diff(dim=-1).square().mean((-3, -2, -1)),
            x.diff(dim=-2).square().mean((-3, -2, -1)),
        )
        return torch.stack([torch.zeros_like(along[0]), along[0] - along[1]], -1).softmax(-1)

    x, fresh = pictures(0)[0], pictures(5)[0].flatten(0, 1)
    model = vgg_classifier(DataSpec((1, size, size), num_classes=2), config=(4, "M", 8, "M"))
    result = run(model, by_client(x, labels(probabilities(x)), 2), lr=0.03, rounds=12)
    found = outputs(model, result.global_, fresh).softmax(-1).mean(0)
    truth = probabilities(fresh)
    assert rms(truth - truth.mean(0)) > 0.3
    assert rms(found - truth) < 0.12


def bump(x: Tensor) -> Tensor:
    return 2 * torch.exp(-x[..., 0].square()) - 1


def test_robust_mlp_recovers_a_curve_through_outliers() -> None:
    x, fresh = inputs(200, 1), torch.linspace(-2, 2, 100)[:, None]
    torch.manual_seed(3)
    noise = torch.distributions.StudentT(torch.tensor(1.5)).sample((CLIENTS, 200))
    y = bump(x) + 0.2 * noise
    model = robust_mlp(DataSpec((1,)), hidden=(20,), df=1.5, scale=0.2)
    result = run(model, by_client(x, y, 0), lr=0.03, rounds=20)
    drawn = outputs(model, result.global_, fresh)[..., 0]
    away = drawn.mean(0) - bump(fresh)
    # The worst outliers lie further out than the whole curve is high.
    assert (0.2 * noise).abs().max() > 4
    assert rms(bump(fresh) - bump(fresh).mean()) > 0.6
    assert rms(away) < 0.15
    assert drawn.std(0).mean() < 0.2


def test_heteroscedastic_regression_recovers_mean_and_noise() -> None:
    """Without a hidden layer mean and noise are two lines, so there are parameters to recover."""
    model = heteroscedastic_regression(DataSpec((2,)), hidden=(), floor=0.1)
    truth = {
        "head.weight": torch.tensor([[1.0, -0.5], [0.0, 1.0]]),
        "head.bias": torch.tensor([0.5, -0.5]),
    }
    x = inputs(200, 2)
    torch.manual_seed(6)
    y = model.likelihood.distribution(model.outputs(truth, x.flatten(0, 1))).sample()
    w = run(model, by_client(x, y.view(CLIENTS, 200), 0)).global_

    def log_likelihood(flat: Tensor) -> Tensor:
        found = model.outputs(model.layout.unflatten(flat), x.flatten(0, 1))
        return model.likelihood.distribution(found).log_prob(y).sum()

    point = model.layout.flatten(truth)
    curvature = torch.func.jacrev(torch.func.jacrev(log_likelihood))(point)
    possible = (-curvature).inverse().diagonal().sqrt()
    away = (model.layout.flatten(w.loc) - point).abs()
    assert bool((away < 4 * possible).all()), f"{away / possible} sd away"
    assert bool((possible < 0.2).all() & (model.layout.flatten(w.scale) < 0.2).all())


def test_the_noise_of_a_heteroscedastic_network_begins_the_same_everywhere() -> None:
    model = heteroscedastic_regression(DataSpec((2,)), hidden=(20,), floor=0.1)
    found = model.likelihood.distribution(model.outputs(model.prior.loc, inputs(50, 2)[0]))
    torch.testing.assert_close(found.scale, torch.full((50,), 0.1).add(torch.tensor(2.0).log()))
    assert found.mean.std() > 0.1
