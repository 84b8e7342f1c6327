import dataclasses
import math
from typing import Any

import pytest
import torch

from pyro_pfedbayes.data.clients import FederatedData
from pyro_pfedbayes.inference.algorithms.pfedbayes import PFedBayes
from pyro_pfedbayes.inference.federation.evaluation import (
    NumberPredictions,
    Predictions,
    measures,
    predict_global,
    predict_personal,
)
from pyro_pfedbayes.inference.federation.loop import Federation
from pyro_pfedbayes.inference.predictive.draws import posterior_predictive
from pyro_pfedbayes.measures.registry import SUMMARIZED
from pyro_pfedbayes.models.bayesian import BayesianModel
from pyro_pfedbayes.models.declared import DeclaredModel
from pyro_pfedbayes.models.likelihoods import Normal
from pyro_pfedbayes.models.networks import mlp
from pyro_pfedbayes.randomness import generator, seed_for
from tests.helpers import toy_data
from tests.inference.federation.test_loop import toy_federation


def test_personal_predictions_come_from_each_clients_own_belief() -> None:
    fed = toy_federation()
    state, _ = fed.advance(fed.initial_state(), 3)
    personal, _ = fed.predictions(state, "test", draws=4)
    beliefs = fed.run(1, state=state).personal
    seed = seed_for(fed.seed, "evaluation")
    for client, found in personal.split().items():
        x, labels = fed.data.examples(client, "test")
        own = posterior_predictive(
            fed.model, beliefs.client(client), x, draws=4, seed=seed_for(seed, "personal", client)
        )
        torch.testing.assert_close(found.probs, own)
        assert torch.equal(found.y, labels)


def test_measures_are_pooled_over_examples() -> None:
    fed = toy_federation()
    _, everyone = fed.predictions(fed.initial_state(), "test", draws=4)
    figures = measures(everyone)
    parts = everyone.split().values()
    right = sum(float((part.probs.argmax(-1) == part.y).sum()) for part in parts)
    assert figures["accuracy"] == pytest.approx(right / len(everyone.y))
    assert set(figures) == {"accuracy", "nll", "ece", "brier"}


def test_zero_draws_take_the_mean_weights() -> None:
    fed = toy_federation()
    w = fed.global_belief(fed.initial_state())
    at_mean = predict_global(fed.model, w, fed.data, "test", draws=0, seed=0)
    x = torch.cat([fed.data.examples(i, "test")[0] for i in range(5)])
    torch.testing.assert_close(at_mean.probs, fed.model.outputs(w.loc, x).softmax(-1))


def test_no_examples_no_figures() -> None:
    fed = toy_federation()
    _, everyone = fed.predictions(fed.initial_state(), "test", draws=1)
    empty = type(everyone)(everyone.probs[:0], everyone.y[:0], everyone.client[:0])
    assert measures(empty) == {}


def test_unknown_labels_are_left_out_of_every_measure() -> None:
    fed = toy_federation()
    _, everyone = fed.predictions(fed.initial_state(), "test", draws=4)
    hidden = torch.arange(len(everyone.y)) % 3 == 0
    partly = dataclasses.replace(everyone, y=everyone.y.masked_fill(hidden, -1))
    assert measures(partly) == measures(everyone.select(~hidden))
    assert measures(partly.select(hidden)) == {}


@pytest.mark.parametrize("draws", [0, 3])
@pytest.mark.parametrize("outcome", ["class", "number"])
def test_chunks_of_examples_do_not_matter(outcome: str, draws: int) -> None:
    """Nor is more than a chunk ever asked at once; drawn outcomes are others, within their error."""
    fed = toy_federation() if outcome == "class" else number_federation(missing=True)
    state, _ = fed.advance(fed.initial_state(), 2)
    watched = _Watched(fed.model)

    def ask(chunk: int) -> list[Predictions | NumberPredictions]:
        options = {"draws": draws, "seed": 3, "chunk": chunk}
        everyone = predict_global(watched, fed.global_belief(state), fed.data, "test", **options)
        if not draws:
            return [everyone]
        beliefs = fed.personal_beliefs(state)
        return [everyone, predict_personal(watched, beliefs, fed.data, "test", **options)]

    whole = ask(1000)
    assert max(watched.asked) == len(whole[0].y)
    watched.asked.clear()
    for one, other in zip(whole, ask(4), strict=True):
        for name, value in vars(one).items():
            if name not in ("lower", "upper", "crps"):
                found = getattr(other, name)
                torch.testing.assert_close(found, value, equal_nan=True, msg=name)
        if isinstance(one, NumberPredictions):
            assert isinstance(other, NumberPredictions)
            wide = (one.aleatoric + one.epistemic).sqrt()
            assert bool(((one.lower - other.lower).abs() < 1.5 * wide).all())
    assert max(watched.asked) == 4


class _Watched:
    """A model that remembers how many examples it was asked about at once."""

    def __init__(self, model: DeclaredModel) -> None:
        self._model, self.asked = model, list[int]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def observation(self, values: Any, x: torch.Tensor) -> Any:
        self.asked.append(len(x))
        return self._model.observation(values, x)

    def predict(self, values: Any, x: torch.Tensor) -> torch.Tensor:
        self.asked.append(len(x))
        return self._model.predict(values, x)


# -- numbers ----------------------------------------------------------------------------------------------


def numbers(**changes: object) -> NumberPredictions:
    y = torch.tensor([1.0, torch.nan, 3.0, -2.0])
    parts = {
        **{
            "y": y,
            "client": torch.tensor([0, 0, 2, 2]),
            "mean": torch.tensor([1.0, 9.0, 1.0, -1.0]),
        },
        **{"aleatoric": torch.ones(4), "epistemic": torch.ones(4)},
        "log_density": torch.tensor([-1.0, torch.nan, -2.0, -3.0]),
        **{"lower": torch.full((4,), -1.0), "upper": torch.full((4,), 3.0)},
        "crps": torch.tensor([0.5, torch.nan, 1.0, 0.0]),
        **changes,
    }
    return NumberPredictions(**parts)


def test_measures_of_numbers_in_their_own_units() -> None:
    found = measures(numbers())
    assert found["rmse"] == pytest.approx(math.sqrt((0 + 4 + 1) / 3))
    assert found["mae"] == pytest.approx(1.0)
    assert found["nll"] == pytest.approx(2.0)
    assert found["coverage90"] == pytest.approx(2 / 3)
    assert found["crps"] == pytest.approx(0.5)
    scaled = measures(numbers(scale=10.0))
    assert scaled["rmse"] == pytest.approx(10 * found["rmse"])
    assert scaled["mae"] == pytest.approx(10 * found["mae"])
    assert scaled["crps"] == pytest.approx(10 * found["crps"])
    # A density in tenths of a unit is a tenth as high.
    assert scaled["nll"] == pytest.approx(2.0 + math.log(10))
    assert scaled["coverage90"] == found["coverage90"]
    assert {k: names[0] for k, names in SUMMARIZED.items()} == {
        "class": "accuracy",
        "number": "rmse",
    }


def test_measures_of_numbers_pool_known_outcomes_and_split_by_client() -> None:
    found = numbers(scale=2.0)
    by_client = found.split()
    assert list(by_client) == [0, 2]
    assert measures(by_client[0])["rmse"] == 0.0
    assert measures(by_client[2])["rmse"] == pytest.approx(2 * math.sqrt(2.5))
    assert measures(found.select(~found.known)) == {}
    assert measures(found.select(torch.arange(0))) == {}
    infinite = measures(numbers(mean=torch.full((4,), torch.nan)))
    assert math.isnan(infinite["rmse"])
    assert math.isfinite(infinite["nll"])


def number_federation(missing: bool = False, **options: object) -> Federation:
    data = toy_data((20, 5, 30))
    y = data.dataset.x.sum(1)
    if missing:
        y = y.masked_fill(torch.arange(len(y)) % 4 == 0, torch.nan)
    dataset = dataclasses.replace(data.dataset, y=y, classes=(), target_scaling=(7.0, 3.0))
    model = BayesianModel(mlp([4, 6, 1], seed=2), Normal(0.5, missing="mask"))
    settings = {"device": "cpu", "engine": "eager", "eval_draws": 5, **options}
    return Federation(
        model,
        FederatedData(dataset, data.partition),
        algorithm=PFedBayes(local_steps=3, personal_rounds=0),
        **settings,
    )


def test_predictions_of_numbers_come_from_each_clients_own_belief() -> None:
    fed = number_federation()
    state, _ = fed.advance(fed.initial_state(), 3)
    personal, everyone = fed.predictions(state, "test", draws=4)
    assert isinstance(personal, NumberPredictions)
    assert personal.scale == 3.0
    beliefs = fed.run(1, state=state).personal
    seed = seed_for(fed.seed, "evaluation")
    for client, found in personal.split().items():
        x, y = fed.data.examples(client, "test")
        stream = generator(seed_for(seed, "personal", client), "predictive", "alone")
        # By hand: the network's outputs under the same draws of the weights.
        belief = beliefs.client(client)
        means = torch.stack(
            [fed.model.predict(belief.sample(generator=stream), x) for _ in range(4)]
        )
        torch.testing.assert_close(found.mean, means.mean(0))
        torch.testing.assert_close(
            found.epistemic, means.var(0, correction=0), rtol=1e-4, atol=1e-6
        )
        torch.testing.assert_close(found.aleatoric, torch.full_like(y, 0.25))
        density = torch.distributions.Normal(means, 0.5).log_prob(y).logsumexp(0) - math.log(4)
        torch.testing.assert_close(found.log_density, density)
        assert torch.equal(found.y, y)
    assert torch.equal(everyone.y, personal.y)
    assert not torch.equal(everyone.mean, personal.mean)


def test_the_same_numbers_at_every_evaluation() -> None:
    fed = number_federation()
    first, again = (fed.predictions(fed.initial_state(), "test")[0] for _ in range(2))
    for name in ("mean", "lower", "upper", "log_density"):
        assert torch.equal(getattr(first, name), getattr(again, name)), name


def test_mean_weights_of_numbers() -> None:
    fed = number_federation()
    w = fed.global_belief(fed.initial_state())
    at_mean = predict_global(fed.model, w, fed.data, "test", draws=0, seed=0)
    assert isinstance(at_mean, NumberPredictions)
    x = torch.cat([fed.data.examples(i, "test")[0] for i in range(3)])
    torch.testing.assert_close(at_mean.mean, fed.model.predict(w.loc, x))
    assert at_mean.epistemic.tolist() == [0.0] * len(x)


def test_a_run_on_numbers_is_recorded_and_summed_up() -> None:
    result = number_federation(missing=True).run(4)
    (record,) = result.history
    assert {"rmse", "mae", "nll", "coverage90", "validation_rmse"} <= set(record["personal"])
    assert "mean_weights_rmse" in record["global"]
    found = result.summary["personal"]
    assert set(found) == {"rmse", "mae", "nll", "coverage90", "crps"}
    assert found["rmse"]["last"] == found["rmse"]["selected"] == record["personal"]["rmse"]


def test_no_examples_of_numbers_no_figures() -> None:
    fed = number_federation()
    nothing = tuple(torch.arange(0) for _ in range(3))
    partition = dataclasses.replace(fed.data.partition, test=nothing)
    data = dataclasses.replace(fed.data, partition=partition)
    w = fed.global_belief(fed.initial_state())
    empty = predict_global(fed.model, w, data, "test", draws=3, seed=0)
    assert measures(empty) == {}
    assert measures(predict_personal(fed.model, iter([]), data, "test", draws=3, seed=0)) == {}
