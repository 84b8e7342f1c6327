import pytest
import torch
from torch import nn

from pyro_pfedbayes.data.clients import FederatedData
from pyro_pfedbayes.inference.algorithm import Cohort
from pyro_pfedbayes.inference.algorithms.components.feature_memory import (
    EMPTY,
    balanced_examples,
    filled_memory,
    labelled_features,
)
from pyro_pfedbayes.inference.algorithms.components.features import (
    class_count,
    feature_size,
    features,
    features_at,
    last_layer,
)
from pyro_pfedbayes.inference.beliefs.points import point_layout, point_start
from pyro_pfedbayes.models.bayesian import BayesianModel
from pyro_pfedbayes.models.builtin.classifiers import logistic_regression
from pyro_pfedbayes.models.likelihoods import Categorical, Normal
from pyro_pfedbayes.models.networks import mlp, vgg
from pyro_pfedbayes.models.spec import DataSpec
from tests.helpers import message, tiny_model, toy_data


def test_features_are_what_the_last_layer_is_given() -> None:
    model = tiny_model()
    values = model.constrain(model.start.loc)
    x = torch.randn(7, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    z = features(model, values, x)
    by_hand = (x @ values["fc1.weight"].T + values["fc1.bias"]).relu()
    torch.testing.assert_close(z, by_hand)
    head = z @ values["head.weight"].T + values["head.bias"]
    torch.testing.assert_close(head, model.outputs(values, x))
    assert last_layer(model, "m") == ("head.weight", "head.bias")
    assert (feature_size(model, "m"), class_count(model, "m")) == (5, 3)


def test_features_at_flat_weights_are_the_same() -> None:
    model = tiny_model()
    x, theta = torch.ones(3, 4, dtype=torch.float64), 2 * point_start(model)
    values = point_layout(model).unflatten(theta)
    torch.testing.assert_close(features_at(model, theta, x), features(model, values, x))


def test_features_of_convolutions_and_of_no_body_at_all() -> None:
    conv = BayesianModel(vgg((4, "M"), in_channels=1, num_classes=3, image_size=4), Categorical(3))
    values = conv.constrain(conv.start.loc)
    assert features(conv, values, torch.zeros(2, 1, 4, 4)).shape == (2, feature_size(conv, "m"))
    linear = BayesianModel(mlp([4, 3]), Categorical(3))
    x = torch.arange(8.0).view(2, 2, 2)
    torch.testing.assert_close(features(linear, linear.start.loc, x), x.flatten(1))


class Other(nn.Sequential):
    def forward(self, x):
        return super().forward(x) + 1


@pytest.mark.parametrize(
    ("model", "part"),
    [
        (logistic_regression(DataSpec((4,), num_classes=3)), "an nn.Sequential of layers"),
        (BayesianModel(Other(nn.Linear(4, 3)), Categorical(3)), "not a Other"),
        (BayesianModel(nn.Linear(4, 3), Categorical(3)), "not a Linear"),
        (BayesianModel(mlp([4, 2, 1]), Normal(1.0)), "likelihood must be one of classes"),
    ],
)
def test_other_models_are_refused(model, part: str) -> None:
    text = message(feature_size, model, "fedtgp")
    assert text.startswith("fedtgp")
    assert part in text


def test_the_last_layer_must_be_linear() -> None:
    network = nn.Sequential(nn.Conv2d(1, 3, 2), nn.Flatten())
    text = message(feature_size, BayesianModel(network, Categorical(3)), "knn-per")
    assert "last layer is an nn.Linear" in text


def test_kept_examples_are_of_every_class_by_its_share() -> None:
    y = torch.tensor([0] * 90 + [1] * 9 + [2] + [-1] * 5)
    place = balanced_examples(y, 20)
    assert torch.bincount(y[place]).tolist() == [17, 2, 1]
    assert torch.equal(place, place.sort().values)
    assert balanced_examples(y, 1000).tolist() == list(range(100))


def test_stored_rows_have_one_size() -> None:
    data: FederatedData = toy_data((20, 5))
    model = BayesianModel(mlp([4, 6, 3], seed=2), Categorical(3))
    cohort = Cohort((1,), {}, data.plan([1], 1, 5, 0, 0), data.examples)
    theta = point_start(model)
    z, y = labelled_features(model, theta, cohort, 0, "train", 8)
    x, labels = data.examples(1, "train")
    assert torch.equal(y, labels)
    torch.testing.assert_close(z, features(model, model.start.loc, x))
    memory, stored = filled_memory(z, y, 8).values()
    assert memory.shape == (8, 6)
    assert stored.tolist() == [*labels.tolist(), EMPTY, EMPTY, EMPTY]
