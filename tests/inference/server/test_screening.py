"""Screening: the permutation test is exact, bad clients go, honest minorities stay, and without it nothing changes."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from pyro_pfedbayes.data.clients import FederatedData
from pyro_pfedbayes.data.corruptions import corrupt_clients
from pyro_pfedbayes.data.datasets import load_dataset
from pyro_pfedbayes.data.partitions.schemes import partition_labels
from pyro_pfedbayes.inference.algorithm import Upload
from pyro_pfedbayes.inference.algorithms.pfedbayes import PFedBayes
from pyro_pfedbayes.inference.federation.loop import Federation, Result, RoundReport
from pyro_pfedbayes.inference.server.screening import (
    evidence,
    held_out_scores,
    information_gain,
    outcome_log_probs,
    passed_held_out,
    passed_information_gain,
    placed,
    screen,
    screened_clients,
    screened_rounds,
)
from pyro_pfedbayes.models.bayesian import BayesianModel
from pyro_pfedbayes.models.builtin.regression import linear_regression
from pyro_pfedbayes.models.likelihoods import Categorical
from pyro_pfedbayes.models.networks import mlp
from pyro_pfedbayes.models.spec import DataSpec
from tests.helpers import digits, message, random_gaussian, tiny_model, toy_data


def table(n: int, seed: int = 0) -> Tensor:
    return torch.randn(n, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# -- the test ----------------------------------------------------------------------------------------------


def test_evidence_has_the_mean_and_variance_of_all_permutations() -> None:
    logs = table(6)
    sums = torch.tensor(
        [
            sum(float(logs[j, k]) for j, k in enumerate(order))
            for order in itertools.permutations(range(6))
        ],
        dtype=torch.float64,
    )
    z, effect = evidence(logs)
    mean, deviation = sums.mean(), sums.std(correction=0)
    assert z == pytest.approx(float((logs.diagonal().sum() - mean) / deviation), rel=1e-9)
    assert effect == pytest.approx(z / math.sqrt(5), rel=1e-12)


def test_evidence_ignores_how_confident_and_how_biased_predictions_are() -> None:
    logs = table(9)
    biased = logs + table(9, 1)[:1] + table(9, 2)[:, :1]
    assert evidence(biased)[0] == pytest.approx(evidence(logs)[0], rel=1e-9)
    assert evidence(3 * logs)[0] == pytest.approx(evidence(logs)[0], rel=1e-9)


def test_shuffled_outcomes_give_standard_normal_evidence() -> None:
    logs = table(40)
    stream = torch.Generator().manual_seed(0)
    shuffles = [logs[:, torch.randperm(40, generator=stream)] for _ in range(2000)]
    found = torch.tensor([evidence(one)[0] for one in shuffles])
    # Standard errors 0.022 and 0.016.
    assert abs(float(found.mean())) < 0.08
    assert abs(float(found.std()) - 1) < 0.06


def test_evidence_is_nought_where_nothing_can_be_told() -> None:
    assert evidence(torch.full((7, 7), -0.1)) == (0.0, 0.0)  # always the same prediction
    assert evidence(torch.full((7, 7), -0.1) + table(7)[:1]) == (0.0, 0.0)
    assert evidence(torch.zeros(1, 1)) == (0.0, 0.0)
    assert evidence(torch.zeros(0, 0)) == (0.0, 0.0)


def test_log_probs_of_numbers_are_densities_of_the_mixture_over_draws() -> None:
    model = linear_regression(DataSpec((3,)))
    belief = Federation(model, number_data(), algorithm=PFedBayes(local_steps=1)).run(2).global_
    x, y = torch.randn(5, 3), torch.randn(5)
    found = outcome_log_probs(model, belief, x, y, draws=1, seed=3)
    for j in range(5):
        for k in range(5):
            one = outcome_log_probs(model, belief, x[[j]], y[[k]], draws=1, seed=3)
            assert float(found[j, k]) == pytest.approx(float(one), rel=1e-4)
    many = outcome_log_probs(model, belief, x, y, draws=50, seed=3)
    assert many.shape == (5, 5)
    assert bool((many.exp() > 0).all())


def number_data() -> FederatedData:
    data = toy_data((20, 20, 20, 20))
    dataset = data.dataset
    y = dataset.x[:, 0].clone()
    return FederatedData(replace(dataset, x=dataset.x[:, :3], y=y, classes=()), data.partition)


def test_clients_with_too_few_outcomes_are_not_judged() -> None:
    model = tiny_model(torch.float32)
    beliefs = random_gaussian(model, clients=3)
    x, y = torch.randn(20, 4), torch.arange(20) % 3
    unknown = torch.where(torch.arange(20) < 13, -1, y)
    held_out = [(x, y), (x[:7], y[:7]), (x, unknown)]
    scores = held_out_scores(model, beliefs, (0, 1, 2), held_out, seed=0, round=0)
    assert scores["screening.z"].isnan().tolist() == [False, True, True]
    assert scores["screening.effect"].isnan().tolist() == [False, True, True]
    alone = held_out_scores(model, random_one(beliefs), (0,), held_out[:1], seed=0, round=0)
    assert torch.equal(scores["screening.z"][:1], alone["screening.z"])


def random_one(beliefs: object) -> object:
    from pyro_pfedbayes.gaussians.mean_field import MeanFieldGaussian

    return MeanFieldGaussian.stack([beliefs.client(0)])


# -- the rules ---------------------------------------------------------------------------------------------


def test_held_out_rule_by_hand() -> None:
    nan = math.nan
    z = torch.tensor([10.0, 9.0, 8.0, 1.6, 2.0, nan, 1.7])
    effect = torch.tensor([1.0, 0.9, 0.8, 0.2, 0.05, nan, 0.2])
    assert bool(passed_held_out(z[3:], effect[3:]).all())  # the median client has no clear evidence
    z, effect = torch.cat([z, z[:3]]), torch.cat([effect, effect[:3]])
    kept = passed_held_out(z, effect)
    # No evidence; evidence of next to nothing; not judged; a little.
    assert kept.tolist() == [True] * 3 + [False] * 2 + [True] * 5
    assert bool(passed_held_out(z / 3, effect).all())  # a federation that knows nothing yet
    assert bool(passed_held_out(z[[0, 1, 3]], effect[[0, 1, 3]]).all())  # too few to say
    assert bool(passed_held_out(torch.full((5,), nan), torch.full((5,), nan)).all())


def test_information_gain_is_the_divergence_and_its_rule_compares_within_kinds() -> None:
    model = tiny_model()
    q, w = random_gaussian(model, clients=4), random_gaussian(model, seed=1)
    layout = model.layout
    flat = [layout.flatten(part) for part in (q.loc, q.scale, w.loc, w.scale)]
    torch.testing.assert_close(information_gain(*flat), q.kl(w))
    gain = torch.tensor([1.0, 1.1, 0.9, 1.0, 2.0, 50.0, 55.0])
    kinds = torch.tensor([0, 0, 0, 0, 0, 1, 1])
    assert passed_information_gain(gain, kinds).tolist() == [True] * 4 + [False, True, True]
    assert passed_information_gain(gain / 100, kinds).equal(passed_information_gain(gain, kinds))
    assert not passed_information_gain(gain, kinds * 0)[5:].any()
    # Three of a kind cannot say which of them is odd.
    assert bool(passed_information_gain(gain[[0, 1, 2, 4, 6]], kinds[[0, 0, 5, 5, 5]]).all())
    assert bool(passed_information_gain(torch.zeros(5), kinds[:5]).all())  # nothing was learned


def uploads(scores: list[float]) -> list[Upload]:
    """Clients 10, 11, ... in two chunks, with these scores."""
    count = len(scores)
    z = torch.tensor(scores)
    sent = {
        "loc": torch.arange(float(count))[:, None].expand(count, 2),
        "scale": torch.ones(count, 2),
        "screening.z": z,
        "screening.effect": z / 10,
    }
    parts, sizes = (slice(3), slice(3, count)), torch.arange(1.0, count + 1)
    numbers = tuple(range(10, 10 + count))
    return [Upload(numbers[p], {k: v[p] for k, v in sent.items()}, sizes[p]) for p in parts]


BAD = [9.0, 0.0, 8.0, 9.0, 9.0, 0.5]
GOOD = [9.0, 9.0, 8.0, 9.0, 9.0, 9.0]


def test_uploads_are_parted_over_chunks_and_without_their_scores() -> None:
    server = {"screening.failed": torch.tensor([0] * 11 + [2, 0, 0, 0, 2])}
    kept, out, _ = screen("held-out", server, uploads(BAD))
    assert [u.clients for u in kept] == [(10, 12), (13, 14)]
    assert [u.clients for u in out] == [(11,), (15,)]
    assert torch.cat([u.tensors["loc"][:, 0] for u in kept]).tolist() == [0, 2, 3, 4]
    assert torch.cat([u.sizes for u in out]).tolist() == [2, 6]
    assert all(set(u.tensors) == {"loc", "scale"} for u in [*kept, *out])


def test_a_client_is_left_out_once_it_has_failed_thrice_more_than_it_passed() -> None:
    server: dict[str, Tensor] = {}
    gone = []
    for scores in (BAD, BAD, GOOD, BAD, BAD, GOOD, BAD, *[BAD] * 4, *[GOOD] * 5):
        _, out, server = screen("held-out", server, uploads(scores))
        gone.append([i for upload in out for i in upload.clients])
        assert list(screened_clients(server)) == gone[-1]
    # Failures count 1 2 1 2 3 2 3 4 5 6 6 (at most), 5 4 3 2 1.
    assert gone == [[11, 15] if n in (4, 6, 7, 8, 9, 10, 11, 12, 13) else [] for n in range(16)]
    assert screened_rounds(server) == {11: 9, 15: 9}
    assert screened_rounds({}) is None
    assert screened_clients({}) == ()


def test_a_cohort_of_failures_only_is_kept() -> None:
    server = {"screening.failed": torch.full((16,), 6)}
    kept, out, memory = screen("held-out", server, uploads(BAD))
    assert len(kept) == 2
    assert not out
    assert screened_rounds(memory) == {}


def test_clients_left_out_join_the_nearest_kind() -> None:
    server = {
        "loc": torch.zeros(2),
        "kinds.of": torch.tensor([0, 1, 0]),
        "kinds.loc": torch.tensor([[0.0, 0.0], [5.0, 5.0]]),
        "kinds.scale": torch.ones(2, 2),
    }
    sent = {"loc": torch.tensor([[4.0, 6.0], [0.5, 0.0]]), "scale": torch.ones(2, 2)}
    found = placed(server, [Upload((4, 2), sent, torch.ones(2))])
    assert found["kinds.of"].tolist() == [0, 1, 0, 0, 1]
    assert placed(server, []) == server


# -- in a federation ---------------------------------------------------------------------------------------

LEARNS = {"local_steps": 10, "batch_size": 30, "lr": 5e-3, "personal_rounds": 0}


def federation_of(data: FederatedData, **settings: object) -> Federation:
    sizes = [math.prod(data.feature_shape), 30, data.num_classes]
    model = BayesianModel(mlp(sizes, seed=1), Categorical(data.num_classes), rho=-3.0)
    algorithm = PFedBayes(**{**LEARNS, **settings})
    options = {"device": "cpu", "engine": "traced", "eval_every": 0}
    return Federation(model, data, algorithm=algorithm, **options)


def run(data: FederatedData, rounds: int = 16, **settings: object) -> Result:
    return federation_of(data, **settings).run(rounds)


def accuracy(result: Result) -> float:
    return result.history[-1]["global"]["accuracy"]


def test_shuffled_clients_are_left_out_and_the_global_model_gains() -> None:
    """Four points on 750 test images; the two runs share their data and noise."""
    data = corrupt_clients(digits(train_per_class=24, test_per_class=10), [2, 5, 8], "labels", 5)
    plain, screened = run(data), run(data, screening="held-out")
    counts = screened.history[-1]["screened"]
    assert all(counts[client] >= 6 for client in "258")
    assert not counts.keys() - set("258")
    assert accuracy(screened) > accuracy(plain) + 0.02


def minority() -> FederatedData:
    """Eight clients with labels 0 to 4, two (1 and 6) with labels 5 to 9."""
    dataset = load_dataset("digits")
    dealt = partition_labels(dataset, 16, 5, 12, 8, validation=0.3, seed=0)
    keep = (0, 1, 2, 4, 6, 8, 3, 10, 12, 14)
    parts = {
        part: tuple(dealt.part(part)[i] for i in keep) for part in ("train", "validation", "test")
    }
    return FederatedData(dataset, replace(dealt, names=(), **parts))


@pytest.mark.parametrize("rule", ["held-out", "information-gain"])
@pytest.mark.parametrize("bad", [(), (0, 2, 4)])
def test_an_honest_minority_is_not_left_out(rule: str, bad: tuple[int, ...]) -> None:
    data = corrupt_clients(minority(), bad, "labels", 5)
    counts = run(data, screening=rule).history[-1]["screened"]
    assert counts.get("1", 0) == 0
    assert counts.get("6", 0) == 0
    if rule == "held-out":
        assert all(counts[str(client)] >= 6 for client in bad)


def test_without_screening_nothing_is_sent_or_remembered() -> None:
    state = run(toy_data((20,) * 5), 2).state
    assert not [name for name in state.server if name.startswith("screening")]
    assert "screened" not in state.history[-1]


def test_screening_nobody_gives_the_same_bits_as_none() -> None:
    """The median client has no evidence to show, so that everyone is kept."""
    data = toy_data((30,) * 5)
    train, validation = zip(*(index.split([20, 10]) for index in data.partition.train), strict=True)
    parts = replace(data.partition, train=train, validation=validation)
    data = corrupt_clients(FederatedData(data.dataset, parts), range(5), "labels", 5)
    plain, screened = run(data, 3).state, run(data, 3, screening="held-out").state
    assert screened.history[-1]["screened"] == {}
    for name, value in plain.server.items():
        assert torch.equal(value, screened.server[name]), name


def test_screening_works_through_kinds_and_personal_rounds_and_resumes_exactly() -> None:
    data = corrupt_clients(digits(train_per_class=24, test_per_class=10), [2, 5, 8], "labels", 5)
    settings = {"screening": "held-out", "kinds": 2, "kind_rounds": 4, "personal_rounds": 2}
    reports: list[RoundReport] = []
    federation = federation_of(data, **settings)
    result = federation.run(18, on_round=reports.append)
    # Those left out (2, 5 and 8) are put with the clients that have the same five labels.
    assert result.state.server["kinds.of"].tolist() == [0, 1] * 5
    # The rounds with kinds are 13 to 16.
    assert [set(r.screened) >= {2, 5, 8} for r in reports[11:]] == [True] * 5 + [False] * 2
    assert reports[-1].screened == ()
    again = federation.run(18, state=reports[13].state)
    for name, value in result.state.server.items():
        assert torch.equal(value, again.state.server[name]), name


def test_settings_that_cannot_work_are_refused() -> None:
    assert "did you mean 'held-out'" in message(PFedBayes, screening="heldout")
    assert "closed-form" in message(PFedBayes, screening="held-out", server_rule="gradient")
    bare = digits(validation=0.0)
    model = BayesianModel(mlp([64, 5, 10]), Categorical(10))
    text = message(Federation, model, bare, algorithm=PFedBayes(screening="held-out"))
    assert "data.validation" in text
    from pyro_pfedbayes.families import FullCovariance

    small = BayesianModel(mlp([4, 3]), Categorical(3), server=FullCovariance())
    assert "use 'held-out'" in message(PFedBayes(screening="information-gain").init, small)
