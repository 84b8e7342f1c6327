"""Log-probabilities and predictions of each likelihood against scipy.stats or the closed form."""

import numpy as np
import torch
from scipy import special, stats
from torch import Tensor

from pyro_pfedbayes.models.likelihoods import (
    Bernoulli,
    Categorical,
    Likelihood,
    NegativeBinomial,
    Normal,
    NormalMeanScale,
    Ordinal,
    Poisson,
    StudentT,
    WeightedCategorical,
    ordinal_logits,
)

STREAM = torch.Generator().manual_seed(0)
F = torch.randn(40, 1, generator=STREAM, dtype=torch.float64) * 2
YEARS = 0.1 + 5 * torch.rand(40, generator=STREAM, dtype=torch.float64)
REAL = torch.randn(40, generator=STREAM, dtype=torch.float64) * 3
COUNT = torch.randint(12, (40,), generator=STREAM).double()


def agrees(
    likelihood: Likelihood, outputs: Tensor, y: Tensor, wanted: object, *exposure: Tensor
) -> None:
    found = likelihood.distribution(outputs, *exposure).log_prob(y).numpy()
    np.testing.assert_allclose(found, wanted, rtol=1e-10)


def test_categorical_is_minus_cross_entropy() -> None:
    outputs = torch.randn(2, 5, 3, generator=STREAM)
    y = torch.randint(3, (2, 5), generator=STREAM)
    expected = -torch.nn.functional.cross_entropy(
        outputs.view(10, 3), y.view(10), reduction="none"
    ).view(2, 5)
    torch.testing.assert_close(Categorical(3).distribution(outputs).log_prob(y), expected)
    chosen = Categorical(3).predict(outputs).gather(-1, y[..., None])[..., 0]
    torch.testing.assert_close(chosen.log(), expected)


def test_weights_of_classes_multiply_the_log_probability_and_nothing_else() -> None:
    outputs = torch.randn(7, 3, generator=STREAM)
    y = torch.tensor([0, 1, 2, 2, 1, 0, 2])
    weighted = Categorical(3, class_weights=[0.5, 1.0, 4.0])
    plain = Categorical(3)
    torch.testing.assert_close(
        weighted.distribution(outputs).log_prob(y),
        plain.distribution(outputs).log_prob(y) * torch.tensor([0.5, 1.0, 4.0, 4.0, 1.0, 0.5, 4.0]),
    )
    torch.testing.assert_close(weighted.predict(outputs), plain.predict(outputs))
    # PyTorch's weighted cross-entropy is the same objective.
    cross = torch.nn.CrossEntropyLoss(torch.tensor([0.5, 1.0, 4.0]), reduction="sum")
    torch.testing.assert_close(-weighted.distribution(outputs).log_prob(y).sum(), cross(outputs, y))


def test_a_weighted_categorical_draws_and_expands_without_weights() -> None:
    torch.manual_seed(0)
    logits = torch.tensor([0.2, 0.3, 0.5]).log()
    weighted = WeightedCategorical(logits, torch.tensor([100.0, 1.0, 1.0]))
    assert weighted.expand(torch.Size(())) is weighted  # a plate calls expand on every site
    wide = weighted.expand([20_000])
    share = wide.sample().bincount() / 20_000
    # 4 standard errors of a share of one half are 0.014.
    torch.testing.assert_close(share, torch.tensor([0.2, 0.3, 0.5]), atol=0.014, rtol=0)
    torch.testing.assert_close(
        wide.log_prob(torch.zeros(20_000, dtype=torch.long))[0], 100 * torch.tensor(0.2).log()
    )
    assert weighted.enumerate_support().tolist() == [0, 1, 2]
    assert weighted.mask(torch.tensor(False)).log_prob(torch.tensor(1)) == 0


def test_bernoulli() -> None:
    y = torch.arange(40) % 2
    agrees(Bernoulli(), F, y, stats.bernoulli.logpmf(y, special.expit(F[:, 0].numpy())))
    np.testing.assert_allclose(Bernoulli().predict(F), special.expit(F.numpy() * [-1, 1]))


def test_normal() -> None:
    agrees(Normal(0.7), F, REAL, stats.norm.logpdf(REAL, F[:, 0], 0.7))
    np.testing.assert_array_equal(Normal(0.7).predict(F), F[:, 0])


def test_normal_mean_and_scale() -> None:
    outputs = torch.cat([F, F.flip(0)], -1)
    scale = 0.01 + np.log1p(np.exp(outputs[:, 1].numpy()))
    agrees(NormalMeanScale(0.01), outputs, REAL, stats.norm.logpdf(REAL, F[:, 0], scale))
    np.testing.assert_array_equal(NormalMeanScale().predict(outputs), F[:, 0])


def test_student_t() -> None:
    agrees(StudentT(3.5, 0.7), F, REAL, stats.t.logpdf(REAL, 3.5, F[:, 0], 0.7))
    np.testing.assert_array_equal(StudentT(3.5, 0.7).predict(F), F[:, 0])


def test_poisson() -> None:
    rate = np.exp(F[:, 0].numpy())
    agrees(Poisson(), F, COUNT, stats.poisson.logpmf(COUNT, rate))
    np.testing.assert_allclose(Poisson().predict(F), rate)


def test_poisson_with_exposure() -> None:
    rate = YEARS.numpy() * np.exp(F[:, 0].numpy())
    likelihood = Poisson(exposure="years")
    agrees(likelihood, F, COUNT, stats.poisson.logpmf(COUNT, rate), YEARS)
    np.testing.assert_allclose(likelihood.predict(F, YEARS), rate)


def test_negative_binomial_has_the_mean_and_variance_that_it_says() -> None:
    r, rate = 2.5, YEARS.numpy() * np.exp(F[:, 0].numpy())
    likelihood = NegativeBinomial(r, exposure="years")
    agrees(likelihood, F, COUNT, stats.nbinom.logpmf(COUNT, r, r / (r + rate)), YEARS)
    np.testing.assert_allclose(likelihood.predict(F, YEARS), rate)
    distribution = likelihood.distribution(F, YEARS)
    np.testing.assert_allclose(distribution.mean, rate)
    np.testing.assert_allclose(distribution.variance, rate + rate**2 / r)


def test_negative_binomial_nears_poisson_as_dispersion_grows() -> None:
    near = NegativeBinomial(1e8).distribution(F).log_prob(COUNT)
    torch.testing.assert_close(
        near, Poisson().distribution(F).log_prob(COUNT), rtol=1e-5, atol=1e-5
    )


def test_ordinal() -> None:
    cuts = np.array([-2.0, 0.5, 0.9])
    below = special.expit(cuts - F.numpy())  # P(y <= c), c = 0, 1, 2
    probs = np.diff(np.concatenate([0 * F.numpy(), below, 0 * F.numpy() + 1], -1), axis=-1)
    likelihood = Ordinal(4, cutpoints=cuts.tolist())
    np.testing.assert_allclose(likelihood.predict(F), probs, rtol=1e-10)
    y = torch.arange(40) % 4
    agrees(likelihood, F, y, np.log(probs[np.arange(40), y]))


def test_evenly_spaced_cutpoints_are_symmetric() -> None:
    assert Ordinal(5, spacing=2.0).cuts == (-3.0, -1.0, 1.0, 3.0)
    assert Ordinal(2).cuts == (0.0,)
    probs = Ordinal(5).predict(torch.zeros(1, 1))[0]
    torch.testing.assert_close(probs, probs.flip(0))


def test_two_ordered_classes_are_a_logistic_regression() -> None:
    torch.testing.assert_close(Ordinal(2).predict(F), Bernoulli().predict(F))


def test_ordinal_keeps_its_precision_far_from_the_cutpoints() -> None:
    """At f = 60 a difference of two values of the sigmoid is 0 in float32; the logarithm is known by expansion."""
    found = ordinal_logits(torch.tensor([60.0]), torch.tensor([-1.0, 1.0]))[0]
    # P(y = 1) = e^(1-60) - e^(-1-60) up to terms of e^-118.
    wanted = torch.tensor([-61.0, -60.0 + float(np.log(np.e - 1 / np.e)), 0.0])
    torch.testing.assert_close(found, wanted)


def test_cutpoints_broadcast_with_a_batch_of_scores() -> None:
    scores, cuts = torch.randn(3, 6), torch.tensor([[-1.0, 0.0], [0.0, 1.0], [2.0, 2.5]])
    together = ordinal_logits(scores, cuts)
    torch.testing.assert_close(
        together, torch.stack([ordinal_logits(s, c) for s, c in zip(scores, cuts, strict=True)])
    )
