"""Every built-in program's joint density is the formula of its docstring, and its options are checked."""

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from pyro import poutine
from scipy import special, stats
from torch import Tensor

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.models.bayesian import BayesianModel
from pyro_pfedbayes.models.builtin.classifiers import (
    linear_classifier,
    logistic_regression,
    mlp_classifier,
    vgg_classifier,
)
from pyro_pfedbayes.models.builtin.counts import negative_binomial_regression, poisson_regression
from pyro_pfedbayes.models.builtin.hierarchical import (
    client_noise,
    horseshoe_regression,
    random_intercept,
)
from pyro_pfedbayes.models.builtin.ordinal import ordinal_regression
from pyro_pfedbayes.models.builtin.regression import (
    heteroscedastic_regression,
    linear_regression,
    robust_mlp,
    student_t_regression,
)
from pyro_pfedbayes.models.likelihoods import Categorical, NormalMeanScale, StudentT
from pyro_pfedbayes.models.networks import mlp, vgg
from pyro_pfedbayes.models.program import ProgramModel
from pyro_pfedbayes.models.spec import DataSpec

P, N, C = 3, 8, 4
STREAM = np.random.default_rng(0)
X = STREAM.normal(size=(N, P))
REAL = STREAM.normal(size=N)
COUNT = STREAM.poisson(2.0, size=N).astype(float)
CLASS = STREAM.integers(0, C, size=N)
YEARS = STREAM.uniform(0.5, 3.0, size=N)
SLOPES = np.array([0.5, -1.0, 0.2])


def joint(model: ProgramModel, y: Any, sites: dict[str, Any], **columns: Any) -> float:
    """The program's log joint density in float64."""
    values = {name: torch.as_tensor(value, dtype=torch.float64) for name, value in sites.items()}
    assert set(values) == set(model.sites)
    rows = {name: torch.as_tensor(column) for name, column in columns.items()}
    conditioned = poutine.condition(model.program, data=values)
    trace = poutine.trace(conditioned).get_trace(torch.as_tensor(X), torch.as_tensor(y), **rows)
    return float(trace.log_prob_sum())


def normal(value: Any, scale: float = 1.0, loc: float = 0.0) -> float:
    return float(stats.norm.logpdf(value, loc, scale).sum())


def test_linear_regression() -> None:
    model = linear_regression(DataSpec((P,)), prior_scale=2.0, noise_scale=0.5)
    found = joint(model, REAL, {"intercept": 0.3, "slopes": SLOPES, "sigma": 0.8})
    wanted = normal(0.3, 2.0) + normal(SLOPES, 2.0) + stats.halfnorm.logpdf(0.8, scale=0.5)
    assert found == pytest.approx(wanted + normal(REAL - 0.3 - X @ SLOPES, 0.8))


def test_student_t_regression() -> None:
    model = student_t_regression(DataSpec((P,)), df=3.0, prior_scale=2.0, noise_scale=0.5)
    found = joint(model, REAL, {"intercept": 0.3, "slopes": SLOPES, "sigma": 0.8})
    wanted = normal(0.3, 2.0) + normal(SLOPES, 2.0) + stats.halfnorm.logpdf(0.8, scale=0.5)
    wanted += stats.t.logpdf(REAL, 3.0, 0.3 + X @ SLOPES, 0.8).sum()
    assert found == pytest.approx(wanted)


def test_logistic_regression() -> None:
    model = logistic_regression(DataSpec((P,), num_classes=C), prior_scale=1.5)
    intercept, slopes = STREAM.normal(size=C - 1), STREAM.normal(size=(C - 1, P))
    found = joint(model, CLASS, {"intercept": intercept, "slopes": slopes})
    logits = np.concatenate([np.zeros((N, 1)), intercept + X @ slopes.T], -1)
    likelihood = special.log_softmax(logits, -1)[np.arange(N), CLASS].sum()
    assert found == pytest.approx(normal(intercept, 1.5) + normal(slopes, 1.5) + likelihood)


def test_poisson_regression() -> None:
    model = poisson_regression(DataSpec((P,)), prior_scale=2.0)
    found = joint(model, COUNT, {"intercept": 0.3, "slopes": SLOPES})
    prior = normal(0.3, 2.0) + normal(SLOPES, 2.0)
    likelihood = stats.poisson.logpmf(COUNT, np.exp(0.3 + X @ SLOPES)).sum()
    assert found == pytest.approx(prior + likelihood)


def test_poisson_regression_with_exposure() -> None:
    model = poisson_regression(DataSpec((P,)), exposure=True)
    found = joint(model, COUNT, {"intercept": 0.3, "slopes": SLOPES}, exposure=YEARS)
    likelihood = stats.poisson.logpmf(COUNT, YEARS * np.exp(0.3 + X @ SLOPES)).sum()
    assert found == pytest.approx(normal(0.3) + normal(SLOPES) + likelihood)


@pytest.mark.parametrize("exposed", [False, True])
def test_negative_binomial_regression(exposed: bool) -> None:
    model = negative_binomial_regression(DataSpec((P,)), exposure=exposed)
    columns = {"exposure": YEARS} if exposed else {}
    sites = {"intercept": 0.3, "slopes": SLOPES, "dispersion": 1.7}
    mean = (YEARS if exposed else 1.0) * np.exp(0.3 + X @ SLOPES)
    wanted = normal(0.3) + normal(SLOPES) + stats.lognorm.logpdf(1.7, 1.0, scale=np.e)
    wanted += stats.nbinom.logpmf(COUNT, 1.7, 1.7 / (1.7 + mean)).sum()
    assert joint(model, COUNT, sites, **columns) == pytest.approx(wanted)


def test_ordinal_regression() -> None:
    model = ordinal_regression(DataSpec((P,), num_classes=C), cut_scale=3.0)
    gaps = np.array([0.5, 2.0])
    found = joint(model, CLASS, {"slopes": SLOPES, "first_cut": -1.0, "gaps": gaps})
    below = special.expit(np.array([-1.0, -0.5, 1.5]) - (X @ SLOPES)[:, None])
    probs = np.diff(np.concatenate([np.zeros((N, 1)), below, np.ones((N, 1))], -1), axis=-1)
    prior = normal(SLOPES) + normal(-1.0, 3.0) + stats.lognorm.logpdf(gaps, 1.0).sum()
    assert found == pytest.approx(prior + np.log(probs[np.arange(N), CLASS]).sum())


def test_two_ordered_classes_have_no_gaps() -> None:
    model = ordinal_regression(DataSpec((P,), num_classes=2))
    y = CLASS % 2
    found = joint(model, y, {"slopes": SLOPES, "first_cut": -1.0})
    likelihood = stats.bernoulli.logpmf(y, special.expit(X @ SLOPES + 1.0)).sum()
    assert found == pytest.approx(normal(SLOPES) + normal(-1.0, 2.0) + likelihood)


def test_client_noise() -> None:
    model = client_noise(DataSpec((P,)), prior_scale=2.0)
    sites = {
        "intercept": 0.3,
        "slopes": SLOPES,
        "log_sigma_mean": -0.5,
        "log_sigma_spread": 0.7,
        "sigma": 0.8,
    }
    wanted = normal(0.3, 2.0) + normal(SLOPES, 2.0) + normal(-0.5)
    wanted += stats.halfnorm.logpdf(0.7) + stats.lognorm.logpdf(0.8, 0.7, scale=np.exp(-0.5))
    wanted += normal(REAL - 0.3 - X @ SLOPES, 0.8)
    assert joint(model, REAL, sites) == pytest.approx(wanted)


def test_random_intercept() -> None:
    model = random_intercept(DataSpec((P,)), prior_scale=2.0, noise_scale=1.5)
    sites = {
        "level": -0.5,
        "level_spread": 0.7,
        "slopes": SLOPES,
        "sigma": 0.8,
        "intercept": 0.3,
    }
    wanted = normal(-0.5, 2.0) + normal(SLOPES, 2.0) + normal(0.3, 0.7, -0.5)
    wanted += stats.halfnorm.logpdf([0.7, 0.8], scale=1.5).sum()
    wanted += normal(REAL - 0.3 - X @ SLOPES, 0.8)
    assert joint(model, REAL, sites) == pytest.approx(wanted)


def test_horseshoe_regression() -> None:
    model = horseshoe_regression(DataSpec((P,)), global_scale=0.2)
    local, z = np.array([0.5, 3.0, 1.0]), np.array([-1.0, 0.5, 0.1])
    sites = {"global": 0.4, "local": local, "z": z, "intercept": 0.3, "sigma": 0.8}
    wanted = stats.halfcauchy.logpdf(0.4, scale=0.2) + stats.halfcauchy.logpdf(local).sum()
    wanted += normal(z) + normal(0.3) + stats.halfnorm.logpdf(0.8)
    wanted += normal(REAL - 0.3 - X @ (0.4 * local * z), 0.8)
    assert joint(model, REAL, sites) == pytest.approx(wanted)


# -- networks -----------------------------------------------------------------------------------------------


def same_start(model: BayesianModel, network: torch.nn.Module) -> None:
    found: dict[str, Tensor] = dict(model.network.named_parameters())
    wanted = dict(network.named_parameters())
    assert list(found) == list(wanted)
    for name in wanted:
        torch.testing.assert_close(found[name], wanted[name], rtol=0, atol=0)


def test_networks_begin_at_the_weights_that_the_seed_of_the_data_gives() -> None:
    image = DataSpec((1, 4, 4), num_classes=3, seed=5)
    number = DataSpec((2, 3), seed=5)
    same_start(mlp_classifier(image, hidden=(7, 5)), mlp([16, 7, 5, 3], seed=5))
    same_start(mlp_classifier(image), mlp([16, 100, 3], seed=5))
    same_start(linear_classifier(image), mlp([16, 3], seed=5))
    plan = (4, "M")
    same_start(
        vgg_classifier(image, config=plan),
        vgg(plan, in_channels=1, num_classes=3, image_size=4, seed=5),
    )
    same_start(robust_mlp(number, hidden=(4,)), mlp([6, 4, 1], seed=5))
    two = mlp([6, 4, 2], seed=5)
    with torch.no_grad():
        two.get_parameter("head.weight")[1] = 0.0
    same_start(heteroscedastic_regression(number, hidden=(4,)), two)


def test_networks_carry_the_declared_likelihood_and_scale() -> None:
    image, number = DataSpec((1, 4, 4), num_classes=3), DataSpec((6,))
    classifier = mlp_classifier(image, rho=-3.0)
    assert classifier.likelihood == Categorical(3)
    scale = torch.nn.functional.softplus(torch.tensor(-3.0))
    assert bool((classifier.prior.scale["head.bias"] == scale).all())
    assert linear_classifier(image).likelihood == Categorical(3)
    assert robust_mlp(number, df=3, scale=0.5).likelihood == StudentT(3, 0.5)
    assert heteroscedastic_regression(number, floor=0.1).likelihood == NormalMeanScale(0.1)


def test_networks_take_roles_by_name() -> None:
    image = DataSpec((1, 4, 4), num_classes=3)
    roles: dict[str, Any] = {"fc*": "point", "head.*": "private"}
    model = mlp_classifier(image, hidden=(5,), roles=roles)
    kinds = {name: role.kind for name, role in model.declaration.roles.items()}
    assert {kinds["head.weight"], kinds["head.bias"]} == {"private"}
    assert {kinds["fc1.weight"], kinds["fc1.bias"]} == {"point"}
    body: dict[str, Any] = {"conv*": "point"}
    convolutional = vgg_classifier(image, config=(4, "M"), roles=body)
    assert convolutional.declaration.roles["conv1.weight"].kind == "point"
    assert convolutional.declaration.roles["head.weight"].kind == "shared"
    with pytest.raises(UserError, match="pattern 'fd\\*' matches no site"):
        mlp_classifier(image, roles={"fd*": "point"})


# -- data and options that do not fit -----------------------------------------------------------------------

ABOUT_NUMBERS = [
    linear_regression,
    student_t_regression,
    robust_mlp,
    heteroscedastic_regression,
    poisson_regression,
    negative_binomial_regression,
    client_noise,
    random_intercept,
    horseshoe_regression,
]
ABOUT_CLASSES = [
    mlp_classifier,
    linear_classifier,
    vgg_classifier,
    logistic_regression,
    ordinal_regression,
]


@pytest.mark.parametrize("build", ABOUT_NUMBERS)
def test_models_of_numbers_refuse_classes(build: Callable[..., Any]) -> None:
    with pytest.raises(UserError, match=r"model .+ is about numbers, but the data have 3 classes"):
        build(DataSpec((4,), num_classes=3))
    assert build(DataSpec((4,))) is not None


@pytest.mark.parametrize("build", ABOUT_CLASSES)
def test_models_of_classes_refuse_numbers(build: Callable[..., Any]) -> None:
    with pytest.raises(UserError, match=r"model .+ is about classes, but the data's outcomes are"):
        build(DataSpec((3, 32, 32)))
    assert build(DataSpec((3, 32, 32), num_classes=3)) is not None


@pytest.mark.parametrize("build", ABOUT_NUMBERS + ABOUT_CLASSES)
def test_scales_must_be_positive(build: Callable[..., Any]) -> None:
    classes = 3 if build in ABOUT_CLASSES else 0
    options = [name for name in (build.__kwdefaults__ or {}) if name.endswith("scale")]
    for name in options:
        with pytest.raises(UserError, match=rf"{name} is -1; it must be a finite number above 0"):
            build(DataSpec((3, 32, 32), num_classes=classes), **{name: -1})


def test_degrees_of_freedom_must_exceed_one() -> None:
    with pytest.raises(UserError, match=r"student-t: df is 1.0; it must be .* above 1"):
        student_t_regression(DataSpec((4,)), df=1.0)


def test_vgg_wants_square_images() -> None:
    with pytest.raises(UserError, match=r"square images; the inputs have shape \[3, 8, 4\]"):
        vgg_classifier(DataSpec((3, 8, 4), num_classes=2))


@pytest.mark.parametrize("classes", [-1, 1])
def test_impossible_numbers_of_classes(classes: int) -> None:
    with pytest.raises(
        UserError, match="at least 2 are needed, or 0 where the outcome is a number"
    ):
        DataSpec((4,), num_classes=classes)
    with pytest.raises(UserError, match="every size must be at least 1"):
        DataSpec((4, 0))


@pytest.mark.parametrize("name", ["classifiers", "regression", "counts", "ordinal", "hierarchical"])
def test_all_public_names_are_builders(name: str) -> None:
    module = importlib.import_module(f"pyro_pfedbayes.models.builtin.{name}")
    for builder in module.__all__:
        assert getattr(module, builder) in ABOUT_NUMBERS + ABOUT_CLASSES
