"""What cannot be trained is refused before a round; what vmap cannot do is done client by client."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoDelta, AutoIAFNormal, AutoLaplaceApproximation

from pyro_pfedbayes.data.clients import FederatedData
from pyro_pfedbayes.data.datasets import Dataset
from pyro_pfedbayes.families import Mixture
from pyro_pfedbayes.inference.algorithms.pfedbayes import PFedBayes
from pyro_pfedbayes.inference.federation.loop import Federation
from pyro_pfedbayes.models.likelihoods import ordinal_logits
from pyro_pfedbayes.models.program import ProgramModel
from pyro_pfedbayes.models.roles import Private
from pyro_pfedbayes.models.spec import DataSpec
from tests.helpers import message, tiny_model, toy_data

SIZES = (30, 7, 50)


def federation(model, data=None, engine="eager", **settings):
    options = {"lr": 0.05, "local_steps": 3, "batch_size": 10, **settings}
    return Federation(
        *(model, data or toy_data(SIZES)),
        algorithm=PFedBayes(**options),
        device="cpu",
        engine=engine,
        eval_every=0,
    )


def ordered(by_hand):
    def program(x, y=None):
        w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([4]).to_event(1))
        low = pyro.sample("low", dist.Normal(0.0, 1.0))
        gap = pyro.sample("gap", dist.LogNormal(0.0, 1.0))
        cuts = torch.stack([low, low + gap])
        with pyro.plate("data", len(x)):
            logits = ordinal_logits(x @ w, cuts)
            fn = dist.Categorical(logits=logits) if by_hand else dist.OrderedLogistic(x @ w, cuts)
            pyro.sample("y", fn, obs=y)

    return ProgramModel(program, DataSpec((4,), 3))


def test_programs_that_vmap_cannot_run_run_client_by_client() -> None:
    """Pyro's OrderedLogistic works in place; the same likelihood written otherwise stacks."""
    one_by_one, stacked = (federation(ordered(by_hand)).run(3) for by_hand in (False, True))
    for name, value in stacked.state.server.items():
        torch.testing.assert_close(one_by_one.state.server[name], value, rtol=1e-3, atol=1e-4)


def branching(x, y=None):
    w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([4]).to_event(1))
    factor = 1.0 if float(x.sum()) > 0 else 2.0
    with pyro.plate("data", len(x)):
        logits = (x @ w * factor)[:, None] * torch.tensor([0.0, 1.0, -1.0])
        pyro.sample("y", dist.Categorical(logits=logits), obs=y)


def test_programs_that_branch_on_values_run_as_they_are() -> None:
    model = ProgramModel(branching, DataSpec((4,), 3))
    eager, traced = (federation(model, engine=mode).run(2) for mode in ("eager", "traced"))
    for name, value in eager.state.server.items():
        assert torch.equal(value, traced.state.server[name])


def hierarchical():
    return dist.Normal(0.0, pyro.sample("tau", dist.HalfNormal(1.0)))


def test_a_first_prior_may_have_hyper_parameters_without_any_private_weight() -> None:
    result = federation(tiny_model(torch.float32, first_prior=hierarchical)).run(3)
    assert "tau" in result.personal.names
    assert result.personal.kl(result.global_).shape == (3,)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"first_prior": dist.Uniform(-1.0, 1.0)}, "'fc1.weight' lives on Interval"),
        ({"roles": {"head.*": Private(dist.Gamma(1.0, 1.0))}}, "'head.weight' lives on Greater"),
        ({"first_prior": lambda: 3.0}, "the function returns float; return a distribution"),
        (
            {"roles": {"head.*": "private"}, "private_guide": AutoLaplaceApproximation},
            "AutoLaplaceApproximation is a point until a second fit",
        ),
        (
            {"roles": {"head.*": "private"}, "private_guide": lambda m: AutoIAFNormal(m, 2)},
            "cannot guide head.weight, head.bias",
        ),
    ],
)
def test_what_cannot_be_trained_is_refused_when_the_federation_is_made(options, expected) -> None:
    assert expected in message(lambda: federation(tiny_model(torch.float32, **options)))


def negative(x, y=None):
    a = pyro.sample("a", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(a * x[:, 0], -1.0), obs=y)


def loud(x, y=None):
    a = pyro.sample("a", dist.Normal(0.0, 1.0)) + torch.randn(())
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(a * x[:, 0], 1.0), obs=y)


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (negative, "not finite where training begins: site 'y' has no finite log-density"),
        (loud, "the program draws random numbers of its own"),
    ],
)
def test_programs_that_cannot_be_learnt_from_are_refused(program, expected) -> None:
    examples = toy_data(SIZES)
    dataset = Dataset("numbers", examples.dataset.x, examples.dataset.x[:, 0], ())
    data = FederatedData(dataset, examples.partition)
    assert expected in message(lambda: federation(ProgramModel(program, DataSpec((4,))), data))


def test_more_kinds_than_clients_and_nothing_shared_are_refused() -> None:
    mixture = tiny_model(torch.float32, server=Mixture(5))
    assert "a mixture of 5 components, but only 3 clients" in message(lambda: federation(mixture))
    alone = tiny_model(torch.float32, roles={"*": "private"})
    assert "every site is private" in message(lambda: federation(alone))


def test_a_private_point_guide_is_allowed() -> None:
    model = tiny_model(torch.float32, roles={"head.*": "private"}, private_guide=AutoDelta)
    result = federation(model).run(3)
    drawn = result.personal.client(0).sample(3)["head.bias"]
    assert torch.equal(drawn[0], drawn[1])


def test_clients_that_carry_on_have_no_personal_rounds_unless_asked() -> None:
    phases = []
    model = tiny_model(torch.float32)
    for options in ({}, {"start": "own"}, {"start": "own", "personal_rounds": 1}):
        seen = []
        federation(model, **options).run(3, on_round=lambda r, seen=seen: seen.append(r.phase))
        phases.append(seen[-1])
    assert phases == ["personal", "shared", "personal"]
