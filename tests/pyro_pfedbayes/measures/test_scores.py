import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, log_loss
from torchmetrics.functional.classification import multiclass_calibration_error

from pyro_pfedbayes.measures.scores import (
    accuracy,
    brier_score,
    expected_calibration_error,
    negative_log_likelihood,
)


@pytest.fixture
def predictions():
    stream = torch.Generator().manual_seed(0)
    probs = (2 * torch.randn(500, 4, generator=stream, dtype=torch.float64)).softmax(-1)
    return probs, torch.randint(4, (500,), generator=stream)


def test_against_scikit_learn_and_torchmetrics(predictions) -> None:
    probs, y = predictions
    assert accuracy(probs, y).item() == pytest.approx(accuracy_score(y, probs.argmax(-1)))
    assert negative_log_likelihood(probs, y).item() == pytest.approx(log_loss(y, probs.numpy()))
    indicator = np.eye(4)[y.numpy()]
    assert brier_score(probs, y).item() == pytest.approx(
        ((probs.numpy() - indicator) ** 2).sum(1).mean()
    )
    theirs = multiclass_calibration_error(probs, y, num_classes=4, n_bins=15, norm="l1")
    assert expected_calibration_error(probs, y).item() == pytest.approx(theirs.item(), abs=1e-6)


def test_certain_and_wrong_is_large_but_finite() -> None:
    probs, y = torch.tensor([[1.0, 0.0]]), torch.tensor([1])
    assert 80 < negative_log_likelihood(probs, y).item() < 90
    assert brier_score(probs, y).item() == 2.0
    assert expected_calibration_error(probs, y).item() == 1.0


def test_perfect_predictions_score_perfectly() -> None:
    probs, y = torch.eye(3), torch.arange(3)
    assert accuracy(probs, y) == 1.0
    assert negative_log_likelihood(probs, y) == 0.0
    assert expected_calibration_error(probs, y) == 0.0


def test_no_examples_are_not_a_zero() -> None:
    probs, y = torch.zeros(0, 3), torch.zeros(0, dtype=torch.long)
    assert all(
        bool(f(probs, y).isnan()) for f in (accuracy, brier_score, expected_calibration_error)
    )
