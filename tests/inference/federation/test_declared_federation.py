"""Whole federations of declared models: families, roles, priors, and what a run may be taken up from."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoMultivariateNormal

from pyro_pfedbayes.families import (
    FullCovariance,
    Laplace,
    LowRank,
    LowRankNormal,
    Mixture,
    StudentT,
)
from pyro_pfedbayes.families.rows import GaussianRows
from pyro_pfedbayes.inference.algorithms.pfedbayes import PFedBayes
from pyro_pfedbayes.inference.beliefs.sites import SiteBelief
from pyro_pfedbayes.inference.federation.checkpoint import load_checkpoint, save_checkpoint
from pyro_pfedbayes.inference.federation.loop import Federation
from pyro_pfedbayes.inference.predictive.draws import posterior_predictive
from pyro_pfedbayes.models.bayesian import BayesianModel
from pyro_pfedbayes.models.likelihoods import Categorical
from pyro_pfedbayes.models.networks import mlp
from pyro_pfedbayes.models.roles import Private
from tests.helpers import digits, message, tiny_model, toy_data

ALGORITHM = PFedBayes(lr=5e-3, local_steps=10, batch_size=30, personal_rounds=0.15)


def blundell():
    """Scale mixture of two Gaussians (Blundell et al. 2015, section 3.3)."""
    scales = torch.tensor([0.5, 0.05])
    parts = dist.Normal(torch.zeros(2), scales)
    return dist.MixtureSameFamily(dist.Categorical(torch.tensor([0.5, 0.5])), parts)


def tau():
    return dist.Normal(0.0, pyro.sample("tau", dist.HalfNormal(1.0)))


def federation(rounds=20, data=None, algorithm=ALGORITHM, engine="traced", **options):
    model = BayesianModel(mlp([64, 16, 10]), Categorical(10), rho=-3.0, **options)
    settings = {"algorithm": algorithm, "seed": 0, "device": "cpu", "eval_every": 0}
    fed = Federation(model, data or digits(), engine=engine, **settings)
    return fed, fed.run(rounds)


# Chance is 20 % for the personal models, as each client has five of ten labels, and 10 % for the global one. In these
# 20 rounds the paper's families reach 76 / 59 %, and the ones here what stands beside them. A belief that does not
# learn, or a server that does not hear of it, is far below the bars.
@pytest.mark.parametrize(
    ("options", "personal", "global_"),
    [
        ({"server": FullCovariance()}, 0.65, 0.5),  # 72 / 57
        ({"server": LowRank(2), "guide": LowRankNormal(2)}, 0.65, 0.5),
        ({"server": Laplace()}, 0.65, 0.45),  # 73 / 53
        ({"first_prior": blundell()}, 0.65, 0.45),  # 71 / 51
        ({"roles": {"fc1.*": "point"}}, 0.8, 0.75),  # 87 / 84
        ({"roles": {"head.*": Private(tau)}}, 0.74, 0.0),  # 81 / 17
    ],
    ids=["full", "low-rank", "laplace", "blundell", "point-body", "private-head"],
)
def test_every_declaration_learns(options, personal, global_) -> None:
    _, result = federation(**options)
    summary = result.summary
    assert summary["personal"]["accuracy"]["last"] > personal
    assert summary["global"]["accuracy"]["last"] >= global_


def test_a_mixture_server_discovers_the_two_kinds_of_the_papers_partition() -> None:
    """Clients 0, 2, 4, … hold labels 0 to 4, the others 5 to 9 (scheme ``blocks``)."""
    fed, result = federation(
        8, algorithm=PFedBayes(lr=5e-3, local_steps=10, batch_size=30), server=Mixture(2)
    )
    w, q = result.state.server, result.personal
    assert isinstance(q, SiteBelief)
    rows = GaussianRows(q.params["loc"], torch.nn.functional.softplus(q.params["rho"]))
    distance = [
        (rows.variance + (rows.loc - w["loc"][k]).square()) / (2 * w["scale"][k].square())
        + w["scale"][k].log()
        for k in range(2)
    ]
    kind = torch.stack([d.sum(-1) for d in distance]).argmin(0)
    assert set(kind[::2].tolist()) | set(kind[1::2].tolist()) == {0, 1}
    assert len(set(kind[::2].tolist())) == len(set(kind[1::2].tolist())) == 1
    shares = w["logits"].softmax(0)
    torch.testing.assert_close(shares, torch.tensor([0.5, 0.5]), atol=1e-3, rtol=0)
    assert fed.data.num_clients == 10


def private_head(**options):
    return tiny_model(
        torch.float32,
        roles={"head.*": "private", "fc1.bias": "point"},
        private_guide=AutoMultivariateNormal,
        **options,
    )


def run(rounds, state=None, participation=None, model=None):
    algorithm = PFedBayes(lr=1e-2, local_steps=3, batch_size=10, personal_rounds=2)
    fed = Federation(
        *(model or private_head(), toy_data((30, 7, 50))),
        algorithm=algorithm,
        participation=participation,
        device="cpu",
        engine="eager",
        eval_every=0,
    )
    states = []
    result = fed.run(rounds, state=state, on_round=lambda report: states.append(report.state))
    return result, states


def test_a_run_is_taken_up_with_its_private_guides_and_private_moments(tmp_path) -> None:
    whole, states = run(6, participation=2)
    for at in (2, 4, 5):
        save_checkpoint(tmp_path / str(at), states[at - 1], {})
        state, _ = load_checkpoint(tmp_path / str(at))
        again, _ = run(6, state=state, participation=2)
        for name, value in whole.state.server.items():
            assert torch.equal(value, again.state.server[name]), name
        for client, row in whole.state.clients.items():
            assert row.keys() == again.state.clients[client].keys()
            assert all(torch.equal(v, again.state.clients[client][k]) for k, v in row.items())


def test_stacked_clients_are_as_they_would_be_alone() -> None:
    """In the first round every client starts alike, so its own part of the result cannot depend on the others."""
    together, _ = run(3)
    data = toy_data((30, 7, 50))
    algorithm = PFedBayes(lr=1e-2, local_steps=3, batch_size=10, personal_rounds=2)
    apart = Federation(
        private_head(),
        data,
        algorithm=algorithm,
        device="cpu",
        engine="eager",
        chunk=1,
        eval_every=0,
    ).run(3)
    for client, row in together.state.clients.items():
        for name, value in row.items():
            torch.testing.assert_close(
                # Adam divides small gradients by their own size, which makes much of rounding.
                *(value, apart.state.clients[client][name]),
                **{"rtol": 1e-3, "atol": 3e-3},
            )


def test_personal_predictions_average_over_private_and_shared_draws() -> None:
    result, _ = run(4)
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    belief, model = result.personal.client(2), result.federation.model
    ours = posterior_predictive(model, belief, x, draws=400, seed=1)
    drawn = belief.sample(400, torch.Generator().manual_seed(8))
    each = torch.stack([model.predict({k: v[i] for k, v in drawn.items()}, x) for i in range(400)])
    error = (ours - each.mean(0)).abs() / (each.std(0) * (2 / 400) ** 0.5)
    assert float(error.max()) < 4.5


def test_what_the_server_does_not_know_is_drawn_by_the_seed_alone() -> None:
    result, _ = run(3)
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    found = []
    for noise in (1, 2):
        torch.manual_seed(noise)
        found.append(posterior_predictive(result.federation.model, result.global_, x, draws=3))
    assert torch.equal(*found)
    other = posterior_predictive(result.federation.model, result.global_, x, draws=3, seed=1)
    assert not torch.equal(found[0], other)


def test_kinds_and_their_w_k_work_for_servers_of_independent_weights() -> None:
    """In the phase of kinds every client has a prior of its own kind, whatever the family."""
    for server in (Laplace(), StudentT(5.0)):
        algorithm = PFedBayes(
            lr=5e-3, local_steps=5, batch_size=30, kinds=2, kind_rounds=3, personal_rounds=1
        )
        _, result = federation(8, algorithm=algorithm, server=server)
        kinds = result.state.server["kinds.of"]
        assert kinds.tolist() == [0, 1] * 5
        assert result.state.server["kinds.loc"].shape == (2, 64 * 16 + 16 + 160 + 10)


def test_kinds_are_told_by_the_points_where_nothing_else_is_shared() -> None:
    algorithm = PFedBayes(
        lr=5e-3, local_steps=5, batch_size=30, kinds=2, kind_rounds=3, personal_rounds=1
    )
    _, result = federation(8, algorithm=algorithm, roles={"fc1.*": "point", "head.*": "private"})
    assert result.state.server["kinds.of"].tolist() == [0, 1] * 5
    assert result.summary["personal"]["accuracy"]["last"] > 0.5


def test_families_that_an_algorithm_cannot_serve_are_refused() -> None:
    model, data = tiny_model(torch.float32, server=FullCovariance()), toy_data((30, 7, 50))

    def start(**settings):
        Federation(model, data, algorithm=PFedBayes(**settings), device="cpu").run(4)

    wrong = message(start, kinds=2, kind_rounds=1)
    assert "kinds is 2, which needs families of independent weights" in wrong
    assert "not server 'full-covariance' and guide 'mean-field'; set kinds to 1" in wrong
    wrong = message(start, server_rule="gradient")
    assert "server_rule 'gradient' needs shared weights and mean-field Gaussians" in wrong
