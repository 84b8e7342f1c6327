import pytest
import torch

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.models.likelihoods import Categorical


def test_log_probability_is_minus_cross_entropy() -> None:
    stream = torch.Generator().manual_seed(0)
    outputs = torch.randn(2, 5, 3, generator=stream)
    y = torch.randint(3, (2, 5), generator=stream)
    expected = -torch.nn.functional.cross_entropy(
        outputs.view(10, 3), y.view(10), reduction="none"
    ).view(2, 5)
    likelihood = Categorical(3)
    torch.testing.assert_close(likelihood.distribution(outputs).log_prob(y), expected)
    chosen = likelihood.predict(outputs).gather(-1, y[..., None])[..., 0]
    torch.testing.assert_close(chosen.log(), expected)


@pytest.mark.parametrize(
    ("y", "words"),
    [
        (torch.tensor([0, 10]), "label 10 is out of range.*0 to 9"),
        (torch.tensor([-1, 3]), "label -1 is out of range"),
        (torch.tensor([0.5]), "class labels are integers"),
    ],
)
def test_impossible_labels_are_refused(y, words) -> None:
    with pytest.raises(UserError, match=words):
        Categorical(10).check(y)


def test_one_class_is_refused() -> None:
    with pytest.raises(UserError, match="at least 2"):
        Categorical(1)


@pytest.mark.parametrize(
    ("outputs", "words"),
    [
        (torch.zeros(2, 12), r"gives \[2, 12\] for 2 examples.*shape \[2, 10\]"),
        (torch.zeros(2, 1, 10), r"gives \[2, 1, 10\]"),
        ({"logits": torch.zeros(2, 10)}, "gives dict for 2 examples"),
    ],
)
def test_outputs_that_are_not_logits_are_refused(outputs, words) -> None:
    with pytest.raises(UserError, match=words):
        Categorical(10).check_outputs(outputs, 2)
