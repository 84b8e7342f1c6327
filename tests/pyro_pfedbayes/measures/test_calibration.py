"""Calibration against torchmetrics, scikit-learn and loops; temperatures against scipy's minimiser."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from sklearn.calibration import calibration_curve
from torch import Tensor
from torchmetrics.functional.classification import multiclass_calibration_error

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.measures.calibration import (
    adaptive_calibration_error,
    apply_temperature,
    classwise_calibration_error,
    fit_temperature,
    reliability_curve,
)
from pyro_pfedbayes.measures.scores import expected_calibration_error, negative_log_likelihood

PROPERTY = settings(max_examples=50, deadline=None, derandomize=True)


def examples(
    n: int = 400, c: int = 4, seed: int = 0, dtype: torch.dtype = torch.float64, width: float = 2.0
) -> tuple[Tensor, Tensor]:
    """Predictions, and labels drawn from their square roots: the predictions are too sure, by T = 2."""
    stream = torch.Generator().manual_seed(seed)
    probs = (width * torch.randn(n, c, generator=stream, dtype=torch.float64)).softmax(-1)
    y = torch.multinomial(probs.sqrt(), 1, generator=stream)[:, 0] if n else torch.zeros(0).long()
    return probs.to(dtype), y


# --- The curve


@pytest.mark.parametrize("bins", [1, 7, 15, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_curves_error_is_the_ece_of_the_ground_and_of_torchmetrics(
    bins: int, dtype: torch.dtype
) -> None:
    probs, y = examples(dtype=dtype)
    curve = reliability_curve(probs, y, bins)
    assert curve.error == pytest.approx(expected_calibration_error(probs, y, bins).item(), abs=1e-6)
    for norm, found in (("l1", curve.error), ("max", curve.largest_gap)):
        theirs = multiclass_calibration_error(probs, y, num_classes=4, n_bins=bins, norm=norm)
        assert found == pytest.approx(theirs.item(), abs=1e-6)
    assert int(curve.count.sum()) == len(y)


def test_the_curve_is_that_of_scikit_learn_where_bins_hold_something() -> None:
    probs, y = examples(n=60)
    curve = reliability_curve(probs, y, 20)
    assert bool((curve.count == 0).any())
    assert bool(curve.accuracy.isnan().equal(curve.count == 0))
    right = (probs.argmax(1) == y).numpy()
    share, confidence = calibration_curve(right, probs.max(1).values.numpy(), n_bins=20)
    assert curve.accuracy[curve.count > 0].numpy() == pytest.approx(share)
    assert curve.confidence[curve.count > 0].numpy() == pytest.approx(confidence)
    assert curve.edges.tolist() == pytest.approx(np.linspace(0, 1, 21).tolist())


def test_a_confidence_on_an_edge_belongs_to_the_bin_below() -> None:
    probs = torch.tensor([[0.5, 0.5], [0.75, 0.25], [1.0, 0.0]], dtype=torch.float64)
    y = torch.zeros(3, dtype=torch.long)
    assert reliability_curve(probs, y, 4).count.tolist() == [0, 1, 1, 1]


# --- Bins of equal mass


def test_equal_mass_against_numpys_splits() -> None:
    """60 examples in 12 bins of 5, by hand."""
    probs, y = examples(n=60)
    order = probs.max(1).values.argsort().numpy()
    right = (probs.argmax(1) == y).double().numpy()[order]
    confidence = probs.max(1).values.numpy()[order]
    gaps = [
        abs(r.sum() - c.sum())
        for r, c in zip(np.array_split(right, 12), np.array_split(confidence, 12), strict=True)
    ]
    assert adaptive_calibration_error(probs, y, 12) == pytest.approx(sum(gaps) / 60)
    curve = reliability_curve(probs, y, 12, adaptive=True)
    assert curve.count.tolist() == [5] * 12
    assert curve.edges[1:-1].tolist() == pytest.approx(confidence[4:-1:5].tolist())
    assert (curve.edges[0].item(), curve.edges[-1].item()) == (0.0, 1.0)


@given(n=st.integers(0, 40), bins=st.integers(1, 20), seed=st.integers(0, 1000))
@PROPERTY
def test_equal_mass_does_not_depend_on_the_order_and_its_edges_hold_its_counts(
    n: int, bins: int, seed: int
) -> None:
    stream = torch.Generator().manual_seed(seed)
    top = torch.tensor([0.5, 0.6, 0.75, 0.9, 1.0], dtype=torch.float64)
    confidence = top[torch.randint(5, (n,), generator=stream)]
    probs = torch.stack([confidence, 1 - confidence], 1)
    y = torch.randint(2, (n,), generator=stream)
    curve = reliability_curve(probs, y, bins, adaptive=True)
    turn = torch.randperm(n, generator=stream)
    other = reliability_curve(probs[turn], y[turn], bins, adaptive=True)
    torch.testing.assert_close(curve.accuracy, other.accuracy, equal_nan=True)
    assert curve.count.tolist() == other.count.tolist()
    inside = [
        int(((a < confidence) & (confidence <= b)).sum())
        for a, b in zip(curve.edges[:-1], curve.edges[1:], strict=True)
    ]
    assert curve.count.tolist() == inside
    assert 0 <= curve.error <= 1 or (n == 0 and math.isnan(curve.error))


def test_tied_confidences_share_the_bin_of_their_middle_rank() -> None:
    top = torch.tensor([0.6, 1.0, 0.6, 0.6])
    curve = reliability_curve(
        torch.stack([top, 1 - top], 1), torch.zeros(4).long(), 2, adaptive=True
    )
    assert curve.count.tolist() == [3, 1]


# --- Classwise


def test_classwise_is_the_mean_of_binary_errors() -> None:
    probs, y = examples(n=300, c=3)
    total = 0.0
    for c in range(3):
        p, hit = probs[:, c].numpy(), (y == c).numpy()
        place = np.clip(np.ceil(p * 10).astype(int) - 1, 0, 9)
        total += sum(
            abs(hit[place == b].mean() - p[place == b].mean()) * (place == b).mean()
            for b in range(10)
            if (place == b).any()
        )
    assert classwise_calibration_error(probs, y, 10) == pytest.approx(total / 3)


def test_true_probabilities_are_calibrated_by_every_measure() -> None:
    stream = torch.Generator().manual_seed(0)
    probs = torch.randn(200_000, 3, generator=stream).double().softmax(-1)
    y = torch.multinomial(probs, 1, generator=stream)[:, 0]
    # A bin of 13 000 examples has a standard error of at most 0.0044; the mean of 15 absolute ones is below it.
    for measure in (adaptive_calibration_error, classwise_calibration_error):
        assert measure(probs, y) < 0.005
        assert measure(apply_temperature(probs, 0.5), y) > 0.05


# --- Temperature


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_temperature_is_scipys_minimum_of_the_nll(seed: int, dtype: torch.dtype) -> None:
    probs, y = examples(n=80, seed=seed, dtype=dtype)
    found = fit_temperature(probs, y)

    def loss(log_t: float) -> float:
        return float(negative_log_likelihood(apply_temperature(probs.double(), math.exp(log_t)), y))

    theirs = minimize_scalar(loss, bounds=(-3, 3), method="bounded", options={"xatol": 1e-10})
    assert math.log(found) == pytest.approx(theirs.x, abs=1e-6)
    assert loss(math.log(found)) <= theirs.fun + 1e-14


def test_two_classes_in_closed_form() -> None:
    """A stated share 0.9 that is right 3 times of 4: 9^(1/T) = 3, so T = 2."""
    probs = torch.tensor([[0.9, 0.1]], dtype=torch.float64).repeat(8, 1)
    y = torch.tensor([0, 0, 0, 0, 0, 0, 1, 1])
    assert fit_temperature(probs, y) == pytest.approx(2.0, rel=1e-12)
    assert apply_temperature(probs, 2.0)[0].tolist() == pytest.approx([0.75, 0.25])
    assert fit_temperature(apply_temperature(probs, 2.0), y) == pytest.approx(1.0, rel=1e-12)


@given(factor=st.floats(0.1, 10.0), seed=st.integers(0, 100))
@PROPERTY
def test_a_temperature_on_top_multiplies(factor: float, seed: int) -> None:
    probs, y = examples(n=200, seed=seed, width=1.0)
    first = fit_temperature(probs, y)
    second = fit_temperature(apply_temperature(probs, factor), y)
    assert first == pytest.approx(factor * second, rel=1e-6)


def test_a_known_temperature_is_found() -> None:
    """Labels are drawn at T = 2. The standard error of 1/T is 1 / sqrt(n · mean variance of log p)."""
    probs, y = examples(n=20_000)
    logs, flat = probs.log(), apply_temperature(probs, 2.0)
    mean = (flat * logs).sum(1, keepdim=True)
    information = float((flat * (logs - mean).square()).sum())
    assert 1 / fit_temperature(probs, y) == pytest.approx(0.5, abs=4 / math.sqrt(information))


def test_logits_give_the_same_as_probabilities() -> None:
    probs, y = examples()
    logits = probs.log() + 7.0
    assert fit_temperature(logits, y, log=True) == pytest.approx(
        fit_temperature(probs, y), rel=1e-9
    )
    torch.testing.assert_close(
        apply_temperature(logits, 1.7, log=True), apply_temperature(probs, 1.7)
    )
    # Far beyond what float32 probabilities can tell from 1.
    far = torch.tensor([[200.0, 0.0]]).repeat(4, 1)
    found = fit_temperature(far, torch.tensor([0, 0, 0, 1]), log=True)
    assert found == pytest.approx(200 / math.log(3))


def test_probabilities_of_exactly_0_and_1_have_a_temperature() -> None:
    probs = torch.eye(2).repeat(4, 1)
    y = torch.tensor([0, 1, 0, 1, 0, 1, 0, 0])  # the last is wrong, with probability 0
    found = fit_temperature(probs, y)
    assert found == pytest.approx(-math.log(torch.finfo(torch.float32).tiny) / math.log(7))
    assert apply_temperature(probs, found)[7].tolist() == pytest.approx([1 / 8, 7 / 8])


def test_where_no_temperature_is_best() -> None:
    probs, y = examples()
    best, worst = probs.argmax(1), probs.argmin(1)
    assert math.isnan(fit_temperature(probs, best))  # all right
    assert math.isnan(fit_temperature(probs, worst))  # worse than guessing
    assert math.isnan(fit_temperature(*examples(n=0)))
    assert math.isnan(fit_temperature(torch.full((3, 2), 0.5), torch.tensor([0, 1, 0])))
    one_class = torch.zeros_like(y)
    assert math.isfinite(fit_temperature(probs[y == 0], one_class[y == 0]))
    assert math.isnan(fit_temperature(torch.ones(3, 1), torch.zeros(3).long()))
    nearly = torch.tensor([[0.5 + 1e-16, 0.5 - 1e-16]], dtype=torch.float64)
    assert math.isnan(fit_temperature(nearly, torch.tensor([1])))


@given(temperature=st.floats(0.05, 20.0), seed=st.integers(0, 100))
@PROPERTY
def test_the_most_probable_class_stays(temperature: float, seed: int) -> None:
    probs, _ = examples(n=20, seed=seed, dtype=torch.float32)
    changed = apply_temperature(probs, temperature)
    assert changed.dtype == torch.float32
    torch.testing.assert_close(changed.sum(1), torch.ones(20))
    chosen = changed.gather(1, probs.argmax(1, keepdim=True))[:, 0]
    assert bool((chosen == changed.amax(1)).all())


# --- Edges and refusals


def test_none_and_one_example() -> None:
    probs, y = examples(n=0)
    curve = reliability_curve(probs, y)
    assert math.isnan(curve.error)
    assert math.isnan(curve.largest_gap)
    assert curve.count.sum() == 0
    assert math.isnan(adaptive_calibration_error(probs, y))
    assert math.isnan(classwise_calibration_error(probs, y))
    one = (torch.tensor([[0.25, 0.75]]), torch.tensor([0]))
    assert adaptive_calibration_error(*one) == reliability_curve(*one).error == 0.75
    assert classwise_calibration_error(*one) == 0.75
    certain = (torch.eye(3), torch.arange(3))
    assert adaptive_calibration_error(*certain) == classwise_calibration_error(*certain) == 0.0


def test_what_is_refused() -> None:
    probs, y = examples(n=5)
    broken = probs.clone()
    broken[3, 0] = float("nan")
    for measure in (
        adaptive_calibration_error,
        classwise_calibration_error,
        fit_temperature,
        reliability_curve,
    ):
        with pytest.raises(UserError, match="NaN at row 3"):
            measure(broken, y)
        with pytest.raises(UserError, match="labels go from 0 to 3"):
            measure(probs, y + 10)
    for bins in (0, -1, 2.5, True):
        with pytest.raises(UserError, match="bins"):
            reliability_curve(probs, y, bins)  # type: ignore[arg-type]
    for temperature in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(UserError, match="temperature is"):
            apply_temperature(probs, temperature)
    with pytest.raises(UserError, match="logits at row 0"):
        apply_temperature(torch.tensor([[float("inf"), 0.0]]), 1.0, log=True)
    with pytest.raises(UserError, match="logits must be"):
        fit_temperature(torch.zeros(3), y, log=True)


@pytest.mark.cuda
def test_on_a_gpu() -> None:
    probs, y = examples()
    assert fit_temperature(probs.cuda(), y.cuda()) == pytest.approx(fit_temperature(probs, y))
    here, there = reliability_curve(probs, y), reliability_curve(probs.cuda(), y.cuda())
    assert there.error == pytest.approx(here.error)
    assert adaptive_calibration_error(probs.cuda(), y.cuda()) == pytest.approx(
        adaptive_calibration_error(probs, y)
    )
