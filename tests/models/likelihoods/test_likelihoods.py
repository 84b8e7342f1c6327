"""What all likelihoods promise: the protocol, the checks, and the same numbers under vmap and in a recording."""

import doctest
import importlib
import pkgutil
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.models import likelihoods
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
    check_exposure,
)
from pyro_pfedbayes.models.settings import pyro_local

CLASSES: list[Any] = [
    Categorical(3),
    Categorical(3, class_weights=(0.5, 1.0, 4.0)),
    Bernoulli(),
    Ordinal(4),
    Ordinal(3, cutpoints=(-2.0, 0.5)),
]
REALS: list[Any] = [Normal(0.7), NormalMeanScale(), StudentT(4, 0.5)]
COUNTS: list[Any] = [
    Poisson(),
    Poisson(exposure="years"),
    NegativeBinomial(2.5),
    NegativeBinomial(2.5, exposure="years"),
]
ALL = CLASSES + REALS + COUNTS


def example(likelihood: Likelihood, *batch: int) -> tuple[Tensor, Tensor, Tensor | None]:
    """Outputs, observations and exposures of 6 examples that fit a likelihood."""
    stream = torch.Generator().manual_seed(3)
    outputs = torch.randn(*batch, 6, likelihood.num_outputs, generator=stream)
    y = torch.arange(6) % 2
    exposure = (
        None if likelihood.exposure is None else 0.5 + torch.rand(*batch, 6, generator=stream)
    )
    return outputs, (y if likelihood.outcome == "class" else y.float()).expand(*batch, 6), exposure


def log_prob(likelihood: Likelihood, outputs: Tensor, y: Tensor, *exposure: Tensor) -> Tensor:
    value: Tensor = likelihood.distribution(outputs, *exposure).log_prob(y)
    return value


@pytest.mark.parametrize("likelihood", ALL, ids=repr)
def test_shapes_are_those_of_the_protocol(likelihood: Likelihood) -> None:
    outputs, _, exposure = example(likelihood, 5)
    distribution = likelihood.distribution(outputs, exposure)
    assert (distribution.batch_shape, distribution.event_shape) == ((5, 6), ())
    prediction = likelihood.predict(outputs, exposure)
    assert prediction.shape[:2] == (5, 6)
    if likelihood.outcome == "class":
        assert likelihood.error_measure == "accuracy"
        torch.testing.assert_close(prediction.sum(-1), torch.ones(5, 6))
        # The predictive probabilities are those of the distribution (unweighted, if weights of classes are given).
        torch.testing.assert_close(prediction, distribution.probs)
        drawn = distribution.sample()
        assert drawn.dtype == torch.int64
    else:
        assert likelihood.error_measure == "rmse"
        torch.testing.assert_close(prediction, distribution.mean)
        drawn = distribution.sample()
        assert drawn.dtype == torch.float32
    assert bool(likelihood.support.check(drawn).all())
    likelihood.check(drawn)
    likelihood.check_outputs(outputs[0], 6)


@pytest.mark.parametrize("likelihood", ALL, ids=repr)
def test_under_vmap_every_client_gets_what_it_gets_alone(likelihood: Likelihood) -> None:
    outputs, y, exposure = example(likelihood, 3)
    rows = (outputs, y) if exposure is None else (outputs, y, exposure)

    def one(*row: Tensor) -> tuple[Tensor, Tensor]:
        out, y, *exposure = row
        return log_prob(likelihood, out, y, *exposure), likelihood.predict(out, *exposure)

    together = torch.func.vmap(one)(*rows)
    alone = [one(*(part[i] for part in rows)) for i in range(3)]
    for stacked, singles in zip(together, zip(*alone, strict=True), strict=True):
        torch.testing.assert_close(stacked, torch.stack(singles))


@pytest.mark.parametrize("likelihood", ALL, ids=repr)
def test_a_recording_follows_new_outputs(likelihood: Likelihood) -> None:
    outputs, y, exposure = example(likelihood, 2)
    rest = (y,) if exposure is None else (y, exposure)

    def value_and_gradient(outputs: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor]:
        leaf = outputs.detach().requires_grad_()
        value = log_prob(likelihood, leaf, *rest).sum()
        return value, torch.autograd.grad(value, leaf)[0]

    with pyro_local():  # as the engine records: checks of values cannot be recorded
        recorded = make_fx(value_and_gradient)(outputs, *rest)
        new = outputs.roll(1, 1) * 0.5
        for found, wanted in zip(recorded(new, *rest), value_and_gradient(new, *rest), strict=True):
            torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("likelihood", ALL, ids=repr)
def test_gradient_is_that_of_finite_differences(likelihood: Likelihood) -> None:
    outputs, y, exposure = example(likelihood)
    rest = () if exposure is None else (exposure.double(),)
    outputs = outputs.double().requires_grad_()
    assert torch.autograd.gradcheck(lambda out: log_prob(likelihood, out, y, *rest), (outputs,))


@pytest.mark.parametrize("likelihood", ALL, ids=repr)
def test_half_the_range_of_float32_gives_finite_log_probabilities(likelihood: Likelihood) -> None:
    """Outputs of ±40 are rates of 1e-17 and 1e17, and probabilities that round to 0 or 1."""
    outputs, y, exposure = example(likelihood, 2)
    extreme = 40 * torch.ones_like(outputs) * torch.tensor([1.0, -1.0])[:, None, None]
    extreme = extreme.requires_grad_()
    value = log_prob(likelihood, extreme, y, *(() if exposure is None else (exposure,)))
    value.sum().backward()
    assert extreme.grad is not None
    assert bool(value.isfinite().all() & extreme.grad.isfinite().all())


# -- unknown outcomes ---------------------------------------------------------------------------------------


def masking(likelihood: Any) -> Any:
    return replace(likelihood, missing="mask")


@pytest.mark.parametrize("likelihood", ALL, ids=repr)
def test_unknown_outcomes_are_refused_or_masked_as_declared(likelihood: Likelihood) -> None:
    _, y, _ = example(likelihood)
    y = y.clone()
    y[4] = -1 if likelihood.outcome == "class" else float("nan")
    assert likelihood.known(y).tolist() == [True, True, True, True, False, True]
    assert likelihood.missing == "refuse"
    with pytest.raises(UserError, match=r"y, row 4: .*declare missing='mask'"):
        likelihood.check(y)
    masking(likelihood).check(y)
    assert masking(likelihood).missing == "mask"


@pytest.mark.parametrize("likelihood", ALL, ids=repr)
def test_masking_lets_no_other_bad_outcome_pass(likelihood: Likelihood) -> None:
    _, y, _ = example(likelihood)
    y = y.clone()
    y[2] = -2 if likelihood.outcome == "class" else float("inf")
    with pytest.raises(UserError, match="y, row 2: "):
        masking(likelihood).check(y)


@pytest.mark.parametrize("likelihood", ALL, ids=repr)
def test_zero_is_harmless_in_the_place_of_an_unknown_outcome(likelihood: Likelihood) -> None:
    outputs, y, exposure = example(likelihood)
    value = likelihood.distribution(outputs, exposure).log_prob(torch.zeros_like(y))
    assert bool(value.isfinite().all())


# -- what is refused ----------------------------------------------------------------------------------------

WRONG = [
    (Categorical(10), torch.tensor([0, 10]), r"y, row 1: label 10 is out of range.*0 to 9"),
    (Categorical(10), torch.tensor([-1, 3]), "row 0: label -1 is out of range.*drop the row"),
    (Categorical(10), torch.tensor([-2, 3]), r"label -2 is out of range; .* 0 to 9$"),
    (Categorical(10), torch.tensor([0.5]), "class labels are integers 0 to 9"),
    (Categorical(3), torch.tensor([[0, 1], [2, 3]]), r"row \[1, 1\]: label 3"),
    (Bernoulli(), torch.tensor([0, 1, 2]), "row 2: label 2.*Bernoulli has classes 0 to 1"),
    (Ordinal(4), torch.tensor([4]), "Ordinal has classes 0 to 3"),
    (Normal(1.0), torch.tensor([0, 1]), "outcomes are torch.int64; Normal wants floating"),
    (Normal(1.0), torch.tensor([0.0, float("inf")]), "row 1: the outcome is inf; .*finite"),
    (StudentT(4, 1), torch.tensor([float("nan")]), r"row 0: the outcome is missing \(NaN\)"),
    (Poisson(), torch.tensor([1.0, -1.0]), "row 1: the outcome is -1; Poisson counts 0, 1, 2"),
    (Poisson(), torch.tensor([1.0, 2.5]), "row 1: the outcome is 2.5; Poisson counts"),
    (Poisson(), torch.tensor([1, 2]), "outcomes are torch.int64"),
    (NegativeBinomial(1), torch.tensor([-3.0]), "NegativeBinomial counts 0, 1, 2"),
    (
        Poisson(missing="mask"),
        torch.tensor([float("nan"), -4.0]),
        "row 1: the outcome is -4; Poisson",
    ),
]


@pytest.mark.parametrize(("likelihood", "y", "words"), WRONG)
def test_impossible_outcomes_are_refused(likelihood: Likelihood, y: Tensor, words: str) -> None:
    with pytest.raises(UserError, match=words):
        likelihood.check(y)


def test_the_place_is_named() -> None:
    with pytest.raises(UserError, match="data set 'iris', row 0: "):
        Categorical(2).check(torch.tensor([7]), "data set 'iris'")


@pytest.mark.parametrize(
    ("likelihood", "outputs", "words"),
    [
        (Categorical(10), torch.zeros(2, 12), r"gives \[2, 12\] for 2 examples.*shape \[2, 10\]"),
        (Categorical(10), torch.zeros(2, 1, 10), r"gives \[2, 1, 10\]"),
        (Categorical(10), {"logits": torch.zeros(2, 10)}, "gives dict for 2 examples"),
        (Bernoulli(), torch.zeros(2, 2), r"Bernoulli wants outputs of shape \[2, 1\]"),
        (Normal(1.0), torch.zeros(2), r"Normal wants outputs of shape \[2, 1\]"),
        (NormalMeanScale(), torch.zeros(2, 1), r"wants outputs of shape \[2, 2\]"),
    ],
)
def test_outputs_of_another_shape_are_refused(
    likelihood: Likelihood, outputs: object, words: str
) -> None:
    with pytest.raises(UserError, match=words):
        likelihood.check_outputs(outputs, 2)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Categorical(1), "num_classes is 1; at least 2"),
        (lambda: Categorical(3, class_weights=(1, 1)), "there are 2 class_weights; .* 3 classes"),
        (lambda: Categorical(2, class_weights=(1, 0)), r"class_weights\[1\] is 0; .* above 0"),
        (lambda: Categorical(2, missing="masked"), "did you mean 'mask'"),
        (lambda: Normal(0.0), "Normal: scale is 0.0; it must be a finite number above 0"),
        (lambda: Normal(scale="1"), "scale is '1'"),
        (lambda: NormalMeanScale(floor=-1.0), "floor is -1.0"),
        (lambda: StudentT(1.0, 1.0), "df is 1.0; it must be a finite number above 1"),
        (lambda: StudentT(3, float("nan")), "scale is nan"),
        (lambda: Normal(1.0, missing="drop"), "missing is 'drop'"),
        (lambda: Poisson(exposure=2), "exposure is 2; give the name of a column"),
        (lambda: NegativeBinomial(float("inf")), "dispersion is inf"),
        (lambda: Ordinal(1), "at least 2"),
        (lambda: Ordinal(3, cutpoints=(1.0, 1.0)), "3 classes want 2 finite, increasing"),
        (lambda: Ordinal(3, cutpoints=(1.0,)), "3 classes want 2 finite, increasing"),
        (lambda: Ordinal(3, spacing=0), "spacing is 0"),
    ],
)
def test_impossible_settings_are_refused(make: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        make()


def test_exposure_is_given_if_and_only_if_it_is_declared() -> None:
    outputs, exposure = torch.zeros(2, 1), torch.ones(2)
    with pytest.raises(
        UserError, match="declared with column 'years' as exposure, and is given none"
    ):
        Poisson(exposure="years").distribution(outputs)
    with pytest.raises(UserError, match="declared with no exposure, and is given one"):
        NegativeBinomial(1.0).predict(outputs, exposure)


@pytest.mark.parametrize("bad", [0.0, -1.0, float("inf"), float("nan")])
def test_exposures_are_positive(bad: float) -> None:
    check_exposure(torch.tensor([0.1, 7.0]))
    with pytest.raises(UserError, match=r"years, row 1: the exposure is .*positive and finite"):
        check_exposure(torch.tensor([1.0, bad]), "years")


@pytest.mark.parametrize("likelihood", ALL, ids=repr)
def test_a_likelihood_is_a_value(likelihood: Any) -> None:
    assert eval(repr(likelihood), vars(likelihoods)) == likelihood
    assert hash(eval(repr(likelihood), vars(likelihoods))) == hash(likelihood)


@pytest.mark.parametrize(
    "name", [i.name for i in pkgutil.iter_modules(likelihoods.__path__, likelihoods.__name__ + ".")]
)
def test_docstring_examples_run(name: str) -> None:
    module = importlib.import_module(name)
    assert doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE).failed == 0
