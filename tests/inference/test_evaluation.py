import pytest
import torch

from pyro_pfedbayes.inference.evaluation import measures, predict_global
from pyro_pfedbayes.inference.predictive import posterior_predictive
from pyro_pfedbayes.randomness import seed_for
from tests.inference.test_federation import toy_federation


def test_personal_predictions_come_from_each_clients_own_belief() -> None:
    fed = toy_federation()
    state, _ = fed.advance(fed.initial_state(), 3)
    personal, _ = fed.predictions(state, "test", draws=4)
    beliefs = fed.run(1, state=state).personal
    seed = seed_for(fed.seed, "evaluation")
    for client, (probs, y) in personal.by_client().items():
        x, labels = fed.data.examples(client, "test")
        own = posterior_predictive(
            fed.model, beliefs.client(client), x, draws=4, seed=seed_for(seed, "personal", client)
        )
        torch.testing.assert_close(probs, own)
        assert torch.equal(y, labels)


def test_measures_are_pooled_over_examples() -> None:
    fed = toy_federation()
    _, everyone = fed.predictions(fed.initial_state(), "test", draws=4)
    figures = measures(everyone)
    right = sum(float((probs.argmax(-1) == y).sum()) for probs, y in everyone.by_client().values())
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
