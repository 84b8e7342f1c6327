"""Predictive traces over rounds (the paper's appendix B.2), and clients judged by their own uncertainty."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from pyro_pfedbayes.data.clients import FederatedData
from pyro_pfedbayes.data.corruptions import corrupt_clients
from pyro_pfedbayes.inference.algorithms.pfedbayes import PFedBayes
from pyro_pfedbayes.inference.diagnostics.data_quality import (
    client_quality,
    plot_trace,
    trace_predictions,
)
from pyro_pfedbayes.inference.federation.loop import Federation
from pyro_pfedbayes.inference.predictive.draws import posterior_predictive
from pyro_pfedbayes.models.bayesian import BayesianModel
from pyro_pfedbayes.models.builtin.regression import linear_regression
from pyro_pfedbayes.models.likelihoods import Categorical
from pyro_pfedbayes.models.networks import mlp
from pyro_pfedbayes.models.spec import DataSpec
from pyro_pfedbayes.randomness import seed_for
from tests.helpers import digits, message, toy_data


def federation_of(data: FederatedData, **options: object) -> Federation:
    """Small and quick to learn."""
    width = data.feature_shape
    model = BayesianModel(
        mlp([math.prod(width), 20, data.num_classes], seed=1),
        Categorical(data.num_classes),
        rho=-3.0,
    )
    settings = {"local_steps": 10, "batch_size": 30, "lr": 1e-2, "personal_rounds": 0}
    algorithm = PFedBayes(**{**settings, **options})
    return Federation(
        model, data, algorithm=algorithm, device="cpu", engine="traced", eval_every=0, chunk=10
    )


def test_a_trace_is_the_posterior_predictive_of_the_states_passed_through() -> None:
    federation = federation_of(toy_data((20, 30, 40, 20)))
    x, y = federation.data.examples(1, "test")
    trace = trace_predictions(federation, x, y, clients=[3, 1], rounds=[2, 0, 1], of=4, draws=7)
    assert trace.rounds == (0, 1, 2)
    assert trace.clients == (3, 1)
    state = federation.initial_state()
    seed = seed_for(federation.seed, "trace")
    for index in range(3):
        if index:
            state, _ = federation.advance(state, 4)
        stacked = [(n, b) for numbers, b in federation.personal_beliefs(state) for n in [numbers]]
        for row, client in enumerate(trace.clients):
            numbers, beliefs = next(pair for pair in stacked if client in pair[0])
            belief = beliefs.client(list(numbers).index(client))
            probs = posterior_predictive(federation.model, belief, x, draws=7, seed=seed).double()
            torch.testing.assert_close(trace.probs[index, row], probs, atol=1e-6, rtol=0)
            entropy = -(probs * probs.log()).sum(-1)
            torch.testing.assert_close(trace.entropy[index, row], entropy, atol=1e-5, rtol=0)
            truth = probs.gather(1, y[:, None])[:, 0]
            torch.testing.assert_close(trace.truth[index, row], truth, atol=1e-6, rtol=0)
    assert bool((trace.epistemic <= trace.entropy).all())
    # Before any training all clients believe the same.
    assert torch.equal(trace.probs[0, 0], trace.probs[0, 1])


def test_spread_is_the_standard_deviation_over_draws() -> None:
    federation = federation_of(toy_data((20, 30)))
    x, y = federation.data.examples(0, "test")
    two = trace_predictions(federation, x, y, clients=[0], rounds=[0], of=2, draws=2)
    one = trace_predictions(federation, x, y, clients=[0], rounds=[0], of=2, draws=1)
    assert bool((one.spread == 0).all())
    # Of two numbers a and b: |a - b| / 2, and a is the first draw's.
    torch.testing.assert_close(two.spread, (one.truth - two.truth).abs(), atol=1e-6, rtol=0)


def test_entropy_falls_to_the_true_class() -> None:
    """Knowl 9 on the digits, rounds 0, 1 and 10, for clients that hold the labels.

    How sure the untrained network is depends on its initial means, so the fall is from round 1 on.
    """
    data = digits(train_per_class=24, test_per_class=10)
    x = data.dataset.x
    data = FederatedData(replace(data.dataset, x=(x - x.mean()) / x.std()), data.partition)
    federation = federation_of(data, start="own")
    x, y = data.examples(0, "test")
    trace = trace_predictions(federation, x, y, clients=[0, 2, 4], of=20, draws=30)
    entropy, truth = trace.entropy.mean((1, 2)), trace.truth.mean((1, 2))
    assert float(entropy[2]) < float(entropy[1]) - 0.4
    assert truth.tolist() == sorted(truth.tolist())
    assert float(truth[0]) < 0.15
    assert bool((trace.truth[2].median(-1).values > 0.6).all())


def test_the_figure_shows_what_the_trace_holds() -> None:
    federation = federation_of(toy_data((20, 30, 40)))
    x, y = federation.data.examples(1, "test")
    trace = trace_predictions(federation, x, y, clients=[2, 0], rounds=[0, 1], of=2, draws=5)
    figure = plot_trace(trace, 4)
    assert len(figure.axes) == 4
    heights = [bar.get_height() for bar in figure.axes[3].patches]
    assert heights == pytest.approx(trace.probs[1, 1, 4].tolist())
    hatched = [bar.get_hatch() is not None for bar in figure.axes[0].patches]
    assert hatched.index(True) == int(y[4])
    assert sum(hatched) == 1
    assert figure.axes[0].get_title(loc="right") == f"entropy {float(trace.entropy[0, 0, 4]):.2f}"
    figure.canvas.draw()
    assert "no example 6" in message(plot_trace, trace, 6)


def test_shuffled_clients_come_first_and_every_measure_is_defined() -> None:
    data = corrupt_clients(digits(validation=0.4), [2, 7], "labels", 5)
    federation = federation_of(data)
    found = client_quality(federation, federation.run(10).state)
    assert {one.client for one in found[:2]} == {2, 7}
    assert [one.effect for one in found] == sorted(one.effect for one in found)
    worst, best = found[0], found[-1]
    assert worst.z < 2 < best.z
    assert worst.held_out_nll > best.held_out_nll
    assert worst.train_entropy > best.train_entropy
    for one in found:
        assert one.information_gain > 0
        assert one.gain_per_example == one.information_gain / one.examples


def test_measures_that_are_not_defined_are_nan_and_come_last() -> None:
    data = toy_data((20, 30, 40))
    few = tuple(
        index[:keep] for index, keep in zip(data.partition.validation, (4, 0, 1), strict=True)
    )
    data = FederatedData(data.dataset, replace(data.partition, validation=few))
    federation = federation_of(data)
    found = client_quality(federation, federation.initial_state(), draws=3)
    assert [one.client for one in found] == [0, 1, 2]
    assert all(math.isnan(one.effect) and math.isnan(one.z) for one in found)
    assert math.isnan(found[1].held_out_nll)
    assert math.isnan(found[1].held_out_entropy)
    assert found[0].held_out_nll > 0
    assert all(one.information_gain == pytest.approx(0, abs=1e-4) for one in found)


def numbers() -> Federation:
    data = toy_data((20, 20, 20))
    y = data.dataset.x[:, 0].clone()
    data = FederatedData(replace(data.dataset, y=y, classes=()), data.partition)
    return Federation(linear_regression(DataSpec((4,))), data, device="cpu", engine="eager")


def test_numbers_have_likelihoods_but_no_entropies() -> None:
    federation = numbers()
    found = client_quality(federation, federation.initial_state(), draws=3)
    assert all(math.isnan(one.train_entropy) for one in found)
    assert all(math.isfinite(one.held_out_nll) for one in found)
    x, y = federation.data.examples(0, "test")
    assert "predicts numbers" in message(trace_predictions, federation, x, y, clients=[0])


def test_bad_input_is_told_in_one_line() -> None:
    federation = federation_of(toy_data((20, 30, 40)))
    x, y = federation.data.examples(0, "test")
    assert "no client 3" in message(trace_predictions, federation, x, y, clients=[3])
    assert "one or more" in message(trace_predictions, federation, x[:0], y[:0], clients=[0])
    assert "one or more" in message(trace_predictions, federation, x[:2], y, clients=[0])
    assert "labels are 0 to 2" in message(trace_predictions, federation, x, y + 1, clients=[0])
    for wrong in ({"clients": []}, {"clients": [0], "rounds": [5], "of": 4}):
        assert "at least one of each" in message(trace_predictions, federation, x, y, **wrong)
