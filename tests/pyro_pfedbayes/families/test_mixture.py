from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal

from pyro_pfedbayes.families import (
    ClientFamily,
    FullRankNormal,
    GaussianMixture,
    GaussianRows,
    MeanField,
    MeanFieldNormal,
    Mixture,
    divergence,
    mixture,
)
from tests.helpers import message
from tests.pyro_pfedbayes.families.helpers import CLIENTS, WEIGHTS, covariances, minimise, rows_of

every = pytest.mark.parametrize("family", CLIENTS, ids=lambda family: family.name)


def random_mixture(batch: tuple[int, ...] = ()) -> tuple[Tensor, Tensor, Tensor]:
    stream = torch.Generator().manual_seed(3)
    loc = torch.randn(*batch, 3, 2, generator=stream, dtype=torch.float64)
    return loc.sum(-1), loc, 0.3 + loc.abs()


def kinds(clients: int = 9, size: int = 200) -> tuple[list[int], GaussianRows]:
    """Clients of two kinds, in a mixed order, that differ by as much as their own scale in every weight."""
    stream = torch.Generator().manual_seed(0)
    truth = [0, 1, 1, 0, 0, 1, 0, 1, 1][:clients]
    centres = torch.randn(2, size, generator=stream)
    loc = centres[truth] + 0.3 * torch.randn(clients, size, generator=stream)
    return truth, GaussianRows(loc, torch.full((clients, size), 0.5))


def bound(
    rows: GaussianRows, weights: Tensor, logits: Tensor, loc: Tensor, scale: Tensor
) -> Tensor:
    """Σ p_i of Jensen's bound on KL(q_i‖w), written out for dense Gaussians."""
    q = torch.distributions.MultivariateNormal(rows.loc[:, None], covariances(rows)[:, None])
    w = torch.distributions.MultivariateNormal(loc, torch.diag_embed(scale.square()))
    each = torch.distributions.kl_divergence(q, w)  # [S, K]
    return -(weights / weights.sum()) @ (logits.log_softmax(0) - each).logsumexp(1)


@pytest.mark.parametrize("batch", [(), (4,)])
def test_distribution_agrees_with_torch(batch: tuple[int, ...]) -> None:
    logits, loc, scale = random_mixture(batch)
    ours = GaussianMixture(logits, loc, scale)
    theirs = MixtureSameFamily(Categorical(logits=logits), Independent(Normal(loc, scale), 1))
    theta = torch.randn(5, *batch, 2, dtype=torch.float64)
    torch.testing.assert_close(ours.log_prob(theta), theirs.log_prob(theta))
    torch.testing.assert_close(ours.mean, theirs.mean)
    torch.testing.assert_close(ours.variance, theirs.variance)
    assert (ours.batch_shape, ours.event_shape) == (batch, (2,))
    wider = ours.expand((3, *batch))
    assert wider.batch_shape == (3, *batch)
    torch.testing.assert_close(wider.log_prob(theta[0]), ours.log_prob(theta[0]).expand(3, *batch))


def test_samples_have_its_moments() -> None:
    torch.manual_seed(0)
    p = GaussianMixture(*random_mixture((2,)))
    draws = p.sample((40_000,))
    assert draws.shape == (40_000, 2, 2)
    error = (p.variance / 40_000).sqrt()
    assert bool(((draws.mean(0) - p.mean).abs() < 4 * error).all())
    square = (draws - p.mean).square()
    assert bool(((square.mean(0) - p.variance).abs() < 4 * square.std(0) / 200).all())
    assert p.sample().shape == (2, 2)


def test_it_validates_what_it_is_given() -> None:
    logits, loc, scale = random_mixture()
    with pytest.raises(ValueError, match="scale"):
        GaussianMixture(logits, loc, -scale, validate_args=True)


def test_start_is_that_gaussian() -> None:
    loc, scale = torch.randn(4), torch.rand(4) + 0.1
    p = Mixture(3).distribution(Mixture(3).start(loc, scale))
    theta = torch.randn(6, 4)
    torch.testing.assert_close(p.log_prob(theta), Normal(loc, scale).log_prob(theta).sum(-1))


def test_two_kinds_of_clients_are_found_from_a_start_without_kinds() -> None:
    truth, rows = kinds()
    family = Mixture(2)
    w = family.project(rows, torch.ones(9), family.start(torch.zeros(200), torch.ones(200)))
    for kind, first in ((0, 0), (1, 1)):
        members = [i for i, k in enumerate(truth) if k == kind]
        expected = MeanField().project(rows.select(members), torch.ones(len(members)), {})
        # Which component holds which kind is not said; client `first` tells.
        k = int((w["loc"] - rows.loc[first]).square().sum(1).argmin())
        torch.testing.assert_close(w["loc"][k], expected["loc"])
        torch.testing.assert_close(w["scale"][k], expected["scale"])
        share = float(w["logits"].softmax(0)[k])
        assert share == pytest.approx(len(members) / 9, abs=1e-5)


def test_one_component_is_the_mean_field() -> None:
    rows = rows_of(CLIENTS[1])
    w, expected = Mixture(1).project(rows, WEIGHTS, {}), MeanField().project(rows, WEIGHTS, {})
    torch.testing.assert_close(w["loc"][0], expected["loc"])
    torch.testing.assert_close(w["scale"][0], expected["scale"])


@every
def test_projection_is_a_numerical_minimiser_of_the_bound(family: ClientFamily) -> None:
    rows, weights = rows_of(family, num_weights=3, spread=0.8), WEIGHTS.double()
    w = Mixture(2).project(rows, weights, {})
    for _ in range(10):  # go on to convergence
        w = Mixture(2).project(rows, weights, w)

    def objective(logits: Tensor, loc: Tensor, log_scale: Tensor) -> Tensor:
        return bound(rows, weights, logits, loc, log_scale.exp())

    here = w["logits"], w["loc"], w["scale"].log()
    (_, loc, log_scale), least = minimise(objective, *here)
    assert float(objective(*here)) == pytest.approx(least, abs=1e-6)
    torch.testing.assert_close(w["loc"], loc, atol=1e-2, rtol=0)
    torch.testing.assert_close(w["scale"], log_scale.exp(), atol=1e-2, rtol=0)
    # From elsewhere: the best of a few random starts is no better, or hardly.
    stream = torch.Generator().manual_seed(0)
    others = []
    for _ in range(4):
        start = torch.randn(2, 3, generator=stream).double()
        others.append(minimise(objective, torch.zeros(2).double(), start, 0 * start)[1])
    assert float(objective(*here)) <= min(others) + 1e-6


def test_every_sweep_lowers_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """With kinds that overlap, so that it takes many."""
    rows, weights = rows_of(MeanFieldNormal(), num_weights=3, spread=0.8), WEIGHTS.double()
    values = []
    for sweeps in range(1, 12):
        monkeypatch.setattr(mixture, "_SWEEPS", sweeps)
        start = mixture._far_apart(rows, 2, 0)
        w, value = mixture._em(rows, weights / weights.sum(), start)
        values.append(float(bound(rows, weights, w["logits"], w["loc"], w["scale"])))
        assert value == pytest.approx(values[-1], abs=1e-9)
    assert all(later < earlier for earlier, later in pairwise(values))


def test_the_bound_is_the_one_that_clients_use() -> None:
    rows, weights = rows_of(MeanFieldNormal()), WEIGHTS.double()
    w = Mixture(2).project(rows, weights, {})
    q = Independent(Normal(rows.loc, rows.scale), 1)
    mean = (weights / weights.sum()) @ divergence(q, Mixture(2).distribution(w))
    assert float(mean) == pytest.approx(float(bound(rows, weights, *w.values())))


def test_components_keep_their_numbers_and_their_place_when_no_client_comes() -> None:
    truth, rows = kinds()
    family = Mixture(2)
    w = family.project(rows, torch.ones(9), {})
    swapped = {name: value.flip(0) for name, value in w.items()}
    again = family.project(rows, torch.ones(9), swapped)
    torch.testing.assert_close(again["loc"], swapped["loc"])
    # Only clients of the first kind take part: the other component stays as it was, and wins its clients back.
    some = [i for i, kind in enumerate(truth) if kind == 0]
    alone = family.project(rows.select(some), torch.ones(len(some)), w)
    other = int((w["loc"] - rows.loc[1]).square().sum(1).argmin())
    assert torch.equal(alone["loc"][other], w["loc"][other])
    assert torch.equal(alone["scale"][other], w["scale"][other])
    assert float(alone["logits"].softmax(0)[other]) == pytest.approx(1e-6, rel=1e-3)
    back = family.project(rows, torch.ones(9), alone)
    torch.testing.assert_close(back["loc"], w["loc"])
    torch.testing.assert_close(back["logits"].softmax(0), w["logits"].softmax(0), atol=1e-5, rtol=0)


def test_clients_without_weight_do_not_count() -> None:
    _, rows = kinds()
    weights = torch.tensor([1.0, 1.0, 1.0, 1.0, 0, 0, 0, 0, 0])
    w = Mixture(2).project(rows, weights, {})
    expected = Mixture(2).project(rows.select(range(4)), torch.ones(4), {})
    torch.testing.assert_close(w, expected)


def test_options_and_sizes_that_cannot_work_are_refused() -> None:
    assert "at least 1" in message(Mixture, 0)
    _, rows = kinds(3)
    assert "got 3 clients" in message(Mixture(4).project, rows, torch.ones(3), {})
    assert "got 1 clients" in message(Mixture(2).project, rows, torch.tensor([1.0, 0, 0]), {})
    assert "at most 3000" in message(Mixture(2).check, FullRankNormal(), 4000)
    Mixture(2).check(MeanFieldNormal(), 10**6)
