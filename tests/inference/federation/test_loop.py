import dataclasses
import math

import pyro
import pytest
import torch

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.inference.algorithm import Round
from pyro_pfedbayes.inference.algorithms.fedavg import FedAvg
from pyro_pfedbayes.inference.algorithms.pfedbayes import PFedBayes
from pyro_pfedbayes.inference.federation.loop import DivergenceWarning, Federation, Result
from pyro_pfedbayes.inference.federation.state import FederationState
from pyro_pfedbayes.models.bayesian import BayesianModel
from pyro_pfedbayes.models.likelihoods import Categorical
from pyro_pfedbayes.models.networks import mlp
from tests.helpers import digits, toy_data

FAST = PFedBayes(local_steps=3, batch_size=8, personal_rounds=0)


def toy_federation(sizes=(20, 5, 30, 12, 9), algorithm=FAST, **options) -> Federation:
    model = BayesianModel(mlp([4, 6, 3], seed=2), Categorical(3))
    options = {"device": "cpu", "engine": "eager", "eval_every": 2, "eval_draws": 3, **options}
    return Federation(model, toy_data(sizes), algorithm=algorithm, **options)


def same(a: FederationState, b: FederationState) -> bool:
    """Equal to the last bit, seconds aside."""

    def plain(state):
        return [{k: v for k, v in record.items() if k != "seconds"} for record in state.history]

    return (
        a.round == b.round
        and a.gradient_steps == b.gradient_steps
        and a.bytes_uploaded == b.bytes_uploaded
        and plain(a) == plain(b)
        and a.server.keys() == b.server.keys()
        and all(torch.equal(a.server[k], b.server[k]) for k in a.server)
        and a.clients.keys() == b.clients.keys()
        and all(
            a.clients[i].keys() == b.clients[i].keys()
            and all(torch.equal(a.clients[i][k], b.clients[i][k]) for k in a.clients[i])
            for i in a.clients
        )
    )


def test_learns_digits_to_a_known_accuracy_with_both_models() -> None:
    """Bars two points under the worst of five seeds (personal 95.4 %, NLL 0.266; global 89.4 %)."""
    model = BayesianModel(mlp([64, 50, 10]), Categorical(10), rho=-3.0)
    data = digits(train_per_class=24, test_per_class=10, validation=0.0)
    result = Federation(model, data, device="cpu", eval_every=0, eval_draws=20).run(30)
    last = result.history[-1]
    assert last["personal"]["accuracy"] > 0.934
    assert last["global"]["accuracy"] > 0.874
    assert last["personal"]["nll"] < 0.30


def test_bytes_sent_are_those_of_the_uploads_and_none_in_the_personal_phase() -> None:
    """Means and scales of 4 x 6 + 6 + 6 x 3 + 3 weights, float32, from 2 clients in each of 3 rounds."""
    algorithm = dataclasses.replace(FAST, optimizer_state="reset", personal_rounds=1)
    state = toy_federation(algorithm=algorithm, participation=2).run(4).state
    assert state.bytes_uploaded == 4 * (2 * 51) * 2 * 3
    assert Result(toy_federation(), state).summary["bytes_uploaded"] == state.bytes_uploaded


def test_same_seed_same_run_and_another_seed_another() -> None:
    runs = [toy_federation(seed=seed).run(4).state for seed in (0, 0, 1)]
    assert same(runs[0], runs[1])
    assert not same(runs[0], runs[2])


def test_two_federations_in_one_process_do_not_touch_each_other() -> None:
    alone = toy_federation().run(4).state
    one, two = toy_federation(), toy_federation(seed=9)
    a, b = one.initial_state(), two.initial_state()
    for _ in range(4):
        a, _ = one.advance(a, 4)
        b, _ = two.advance(b, 4)
        torch.randn(3)
        pyro.set_rng_seed(1)
    assert same(a, alone)
    assert len(pyro.get_param_store()) == 0


@pytest.mark.parametrize("optimizer_state", ["shared", "kept", "reset"])
@pytest.mark.parametrize("participation", [None, 2])
def test_carrying_on_from_a_state_gives_the_same_bits(optimizer_state, participation) -> None:
    algorithm = dataclasses.replace(
        FAST, optimizer_state=optimizer_state, kinds=2, kind_rounds=3, personal_rounds=2
    )

    def federation() -> Federation:
        return toy_federation(algorithm=algorithm, participation=participation)

    whole = federation().run(8).state
    for stop in (1, 4, 7):
        fed, state = federation(), federation().initial_state()
        while state.round < stop:
            state, _ = fed.advance(state, 8)
        assert same(federation().run(8, state=state).state, whole)


def test_chunks_change_nothing_but_rounding() -> None:
    whole = toy_federation().run(3).state
    pieces = toy_federation(chunk=2).run(3).state
    torch.testing.assert_close(pieces.server["loc"], whole.server["loc"], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(pieces.server["scale"], whole.server["scale"], rtol=1e-4, atol=1e-5)


def test_participation_draws_by_seed_and_idle_clients_keep_their_q() -> None:
    fed = toy_federation(participation=2, algorithm=dataclasses.replace(FAST, start="own"))
    state = fed.initial_state()
    for index in range(6):
        drawn = fed.draw_cohort(Round(index, 6, 0))
        after, report = fed.advance(state, 6)
        assert len(set(drawn)) == 2
        for client, row in state.clients.items():
            unchanged = torch.equal(row["loc"], after.clients[client]["loc"])
            assert unchanged == (client not in drawn)
        assert set(after.clients) == set(state.clients) | set(drawn)
        state = after
    assert report.state.gradient_steps == 6 * 2 * FAST.local_steps
    # Every client's turn comes: 300 draws of 2 in 5 leave none out, and counts stay within five sigma.
    counts = torch.zeros(5)
    for index in range(300):
        counts[list(fed.draw_cohort(Round(index, 300, 0)))] += 1
    assert float((counts - 120).abs().max()) < 5 * math.sqrt(300 * 0.4 * 0.6)


@pytest.mark.parametrize(
    ("participation", "size"), [(None, 5), (3, 3), (0.4, 2), (0.01, 1), (5, 5), (1, 1), (1.0, 5)]
)
def test_participation_is_a_number_or_a_fraction(participation, size) -> None:
    assert toy_federation(participation=participation).cohort_size == size


def test_a_client_that_never_trained_believes_what_the_server_believes() -> None:
    fed = toy_federation(participation=1)
    state, _ = fed.advance(fed.initial_state(), 5)
    result = fed.run(1, state=state)
    idle = next(i for i in range(5) if i not in state.clients)
    for name in result.global_.names:
        torch.testing.assert_close(result.personal.loc[name][idle], result.global_.loc[name])
        torch.testing.assert_close(result.personal.scale[name][idle], result.global_.scale[name])


def test_everyone_works_in_the_personal_phase_and_w_stands_still() -> None:
    fed = toy_federation(participation=1, algorithm=dataclasses.replace(FAST, personal_rounds=2))
    state = fed.initial_state()
    servers = []
    for _ in range(5):
        state, report = fed.advance(state, 5)
        servers.append((report.phase, state.server["loc"]))
    assert [phase for phase, _ in servers] == ["shared"] * 3 + ["personal"] * 2
    assert torch.equal(servers[2][1], servers[4][1])
    assert set(state.clients) == set(range(5))


def poisoned(federation: Federation, client: int) -> Federation:
    """One client's inputs made so large that its loss overflows."""
    index = federation.data.partition.train[client]
    federation.data.dataset.x[index] = 1e38
    return federation


def test_a_diverging_client_is_named_and_left_out() -> None:
    fed = poisoned(toy_federation(), 2)
    with pytest.warns(DivergenceWarning, match="client 2 diverged in round 1") as record:
        state, report = fed.advance(fed.initial_state(), 3)
    assert len(record) == 1
    assert report.dropped == (2,)
    assert math.isfinite(report.loss)
    assert 2 not in state.clients
    assert all(bool(tensor.isfinite().all()) for tensor in state.server.values())
    # The average is that of the other four.
    loc = torch.stack([state.clients[i]["loc"] for i in (0, 1, 3, 4)]).mean(0)
    torch.testing.assert_close(state.server["loc"], loc)


def test_if_everyone_diverges_the_run_stops_with_advice() -> None:
    fed = poisoned(poisoned(toy_federation(sizes=(20, 5)), 0), 1)
    with pytest.raises(UserError, match=r"round 1: every client diverged.*lower learning rate"):
        fed.run(2)


def test_history_and_summary_agree() -> None:
    result = toy_federation(eval_every=1).run(4)
    assert [record["round"] for record in result.history] == [1, 2, 3, 4]
    for key in ("personal", "global"):
        rows = [record[key] for record in result.history]
        summary = result.summary[key]
        assert summary["accuracy"]["last"] == rows[-1]["accuracy"]
        assert summary["accuracy"]["best"] == max(row["accuracy"] for row in rows)
        best = max(row["validation_accuracy"] for row in rows)
        assert summary["accuracy"]["selected"] in [
            row["accuracy"] for row in rows if row["validation_accuracy"] == best
        ]
        assert summary["nll"] == rows[-1]["nll"]
    assert result.summary["gradient_steps"] == 4 * 5 * FAST.local_steps


def test_history_tells_the_information_gain_of_each_client_by_site() -> None:
    result = toy_federation(eval_every=1).run(2)
    told = result.history[-1]["information_gain"]
    assert list(told) == list(result.global_.names)
    by_hand = result.personal.kl(result.global_)
    torch.testing.assert_close(
        torch.tensor(list(told.values())).sum(0), by_hand, atol=1e-3, rtol=1e-4
    )
    assert "information_gain" not in toy_federation(algorithm=FedAvg(lr=0.1)).run(1).history[-1]


def test_evaluation_does_not_change_the_run() -> None:
    often, seldom = (toy_federation(eval_every=n).run(4).state for n in (1, 0))
    assert torch.equal(often.server["loc"], seldom.server["loc"])
    assert [record["round"] for record in seldom.history] == [4]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"participation": 6}, "participation is 6, but there are only 5 clients"),
        ({"participation": 0}, r"give a number of clients, or a fraction up to 1\.0"),
        ({"participation": float("nan")}, "participation is nan"),
        ({"algorithm": "pfedbayes"}, r"give its settings, such as PFedBayes\(\)"),
        ({"participation": 1.5}, "participation is 1.5"),
        ({"chunk": 0}, "chunk is 0; it must be at least 1"),
        ({"eval_draws": 0}, "eval_draws is 0"),
        ({"device": "gpu"}, "device is 'gpu'; give auto, cpu or cuda"),
        ({"engine": "compild"}, "did you mean 'compiled'"),
    ],
)
def test_impossible_federations_are_refused(options, words) -> None:
    with pytest.raises(UserError, match=words):
        toy_federation(**options).run(1)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_no_cuda_is_said_plainly() -> None:
    with pytest.raises(UserError, match="there is no CUDA device here; use cpu or auto"):
        toy_federation(device="cuda")


def test_a_network_that_does_not_fit_the_data_is_refused() -> None:
    model = BayesianModel(mlp([5, 3]), Categorical(3))
    with pytest.raises(UserError, match=r"does not take inputs of shape \[4\] from data set 'toy'"):
        Federation(model, toy_data((5, 5)), device="cpu")
    with pytest.raises(UserError, match="label 2 is out of range"):
        Federation(BayesianModel(mlp([4, 2]), Categorical(2)), toy_data((5, 5)), device="cpu")


def test_what_a_federation_cannot_work_with_is_named() -> None:
    model, data = BayesianModel(mlp([4, 3]), Categorical(3)), toy_data((5, 5))
    with pytest.raises(UserError, match="data is a Dataset; give a FederatedData"):
        Federation(model, data.dataset, device="cpu")
    with pytest.raises(UserError, match="model is a Sequential; give a BayesianModel"):
        Federation(mlp([4, 3]), data, device="cpu")
    with pytest.raises(UserError, match=r"weights are torch.float64.*use network.float\(\)"):
        Federation(BayesianModel(mlp([4, 3]).double(), Categorical(3)), data, device="cpu")
    with pytest.raises(UserError, match=r"the network gives \[2, 4\] for 2 examples"):
        Federation(BayesianModel(mlp([4, 4]), Categorical(3)), data, device="cpu")


def test_a_frozen_server_is_judged_by_the_same_draws() -> None:
    algorithm = dataclasses.replace(FAST, personal_rounds=3)
    history = toy_federation(algorithm=algorithm, eval_every=1).run(5).history
    assert (
        history[2]["global"] == history[3]["global"] == history[4]["global"] == history[1]["global"]
    )
    assert history[0]["global"] != history[1]["global"]


@pytest.mark.cuda
def test_a_cuda_run_reaches_what_a_cpu_run_reaches() -> None:
    accuracy = {}
    for device in ("cpu", "cuda"):
        model = BayesianModel(mlp([64, 50, 10]), Categorical(10), rho=-3.0)
        result = Federation(model, digits(), device=device, eval_every=0, eval_draws=20).run(20)
        assert result.global_.device.type == device
        accuracy[device] = result.history[-1]["personal"]["accuracy"]
    # Other random streams: 500 test examples at 95 % have a standard error of 1 point.
    assert abs(accuracy["cpu"] - accuracy["cuda"]) < 0.04
