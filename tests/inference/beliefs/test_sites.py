"""Beliefs over sites: what is sent, what is kept, and what is drawn."""

import struct
from dataclasses import replace
from typing import Literal

import pyro
import pyro.distributions as dist
import pytest
import torch
import torch.nn.functional as F
from pyro.infer.autoguide import AutoMultivariateNormal
from safetensors.torch import save

from pyro_pfedbayes.families import (
    FullCovariance,
    FullRankNormal,
    LowRankNormal,
    Mixture,
    StudentT,
)
from pyro_pfedbayes.inference.algorithm import Cohort, Round
from pyro_pfedbayes.inference.algorithms.pfedbayes import PFedBayes
from pyro_pfedbayes.inference.beliefs.sites import SiteBelief, restarted, server_start
from pyro_pfedbayes.inference.engine.client_step import GradientEngine
from pyro_pfedbayes.models.program import ProgramModel
from pyro_pfedbayes.models.spec import DataSpec
from tests.helpers import message, tiny_model, toy_data

SIZES = (30, 7, 50)


def line(x, y=None):
    slope = pyro.sample("slope", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    sigma = pyro.sample("sigma", dist.HalfNormal(1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ slope, sigma), obs=y)


def update(model, at=None, **options):
    """A round of three clients, and what it leaves."""
    settings = {"local_steps": 3, "batch_size": 10, "personal_rounds": 0, **options}
    algorithm = PFedBayes(**settings)
    at = at or Round(1, 10, seed=3)
    server = algorithm.init(model)
    plan = toy_data(SIZES).plan((0, 1, 2), algorithm.local_steps, 10, at.seed, at.index)
    cohort = Cohort((0, 1, 2), algorithm.client_init(model, server, 3), plan)
    return algorithm.client_update(GradientEngine(model), server, cohort, at), cohort


def numbers(content: bytes) -> set[bytes]:
    """The float32 numbers of a message, but zeros and what is no news."""
    found = {content[k : k + 4] for k in range(0, len(content) - 3, 4)}
    return found - {struct.pack("<f", value) for value in (0.0, 1.0, 3.0)}


@pytest.mark.parametrize("state", ["shared", "kept", "reset"])
@pytest.mark.parametrize("guide", [None, AutoMultivariateNormal])
def test_the_bytes_that_leave_a_client_hold_what_is_shared_and_nothing_else(state, guide) -> None:
    roles = {"head.*": "private", "fc1.bias": "point"}
    model = tiny_model(torch.float32, roles=roles, private_guide=guide)
    done, cohort = update(model, optimizer_state=state)
    shared, points = model.declaration.shared.size, model.declaration.point.size
    per_client = 2 * shared + points
    if state == "shared":
        per_client += (
            2 * (2 * shared + points) + 1
        )  # Adam's two averages of each, and its step count
    for client in range(3):
        sent = {name: value[client].clone() for name, value in done.upload.items()}
        message_bytes = save(sent)
        header = 8 + struct.unpack("<Q", message_bytes[:8])[0]
        body = message_bytes[header:]
        assert len(body) == 4 * per_client
        private = {k: v[client] for k, v in done.state.items() if k.startswith("private.")}
        assert sum(v.numel() for v in private.values()) >= 2 * model.declaration.private.size
        moments = {k: v[client] for k, v in done.state.items() if k.startswith("adam.exp")}
        valid = cohort.plan.mask[client]
        examples = {"x": cohort.plan.batch(0)[0][client][valid]}
        for name, value in {**private, **moments, **examples}.items():
            own = numbers(value.contiguous().numpy().tobytes())
            kept = own & numbers(body)
            if name.startswith("adam.") and state != "shared":
                continue  # nothing of Adam is sent, so these are compared by the length alone
            assert not kept, (client, name)


def test_private_moments_stay_with_the_client_and_shared_ones_do_not() -> None:
    model = tiny_model(torch.float32, roles={"head.*": "private"})
    done, _ = update(model)
    assert {k for k in done.upload if k.startswith("adam.")} == {
        "adam.step",
        *(f"adam.exp_avg{kind}.{index}" for kind in ("", "_sq") for index in (0, 1)),
    }
    assert {k for k in done.state if k.startswith("adam.")} == {
        f"adam.exp_avg{kind}.{index}" for kind in ("", "_sq") for index in (2, 3)
    }


def test_private_parameters_move_and_points_restart_from_the_server() -> None:
    model = tiny_model(torch.float32, roles={"head.*": "private", "fc1.bias": "point"})
    for start in ("own", "server"):
        done, cohort = update(model, start=start)
        for name in ("private.loc", "private.rho", "point", "loc", "rho"):
            assert not torch.equal(done.state[name], cohort.state[name]), name


@pytest.mark.parametrize(
    ("index", "personal_start", "start"),
    [(8, "server", "server"), (8, "own", "own"), (9, "server", "own")],
)
def test_points_too_are_the_clients_own_in_the_personal_phase(
    index: int, personal_start: Literal["server", "own"], start: str
) -> None:
    model = tiny_model(torch.float32, roles={"fc1.bias": "point"})
    # At a rate of almost nothing a client ends where it began.
    algorithm = PFedBayes(
        personal_rounds=2,
        local_steps=3,
        batch_size=10,
        personal_lr=1e-12,
        personal_start=personal_start,
    )
    server = algorithm.init(model)
    rows = dict(algorithm.client_init(model, server, 3))
    rows["point"] = rows["point"] + 1.0
    plan = toy_data(SIZES).plan((0, 1, 2), 3, 10, 3, index)

    def after(algorithm: PFedBayes) -> torch.Tensor:
        cohort = Cohort((0, 1, 2), rows, plan)
        at = Round(index, 10, 3)
        return algorithm.client_update(GradientEngine(model), server, cohort, at).state["point"]

    begun = server["point"].expand(3, -1) if start == "server" else rows["point"]
    assert torch.allclose(after(algorithm), begun)
    assert not torch.allclose(after(replace(algorithm, personal_lr=1e-2)), begun)


def stacked(model, seed=0):
    """A stack of two random beliefs over everything a model has."""
    algorithm = PFedBayes()
    server = algorithm.init(model)
    rows = algorithm.client_init(model, server, 2)
    stream = torch.Generator().manual_seed(seed)
    rows = {
        k: v + 0.1 * torch.randn(v.shape, generator=stream)
        for k, v in rows.items()
        if not k.startswith("adam.")
    }
    return algorithm.personal_belief(model, rows), algorithm.global_belief(model, server)


@pytest.mark.parametrize("guide", [None, FullRankNormal(), LowRankNormal(1)])
def test_draws_have_the_distribution_of_the_parameters(guide) -> None:
    server = None if guide is None else FullCovariance()
    personal, _ = stacked(ProgramModel(line, DataSpec((2,)), guide=guide, server=server))
    one = personal.client(1)
    family = one.model.declaration.guide
    n = 4000
    drawn = one.sample(n, torch.Generator().manual_seed(1))
    free = torch.cat([drawn["slope"], drawn["sigma"].log()[:, None]], 1)
    q = family.distribution(one.params)
    covariance = torch.diag(q.variance) if guide is None else q.covariance_matrix
    error = (free.mean(0) - q.mean).abs() / (q.variance / n).sqrt()
    assert float(error.max()) < 4
    # Covariances of a Gaussian have a standard error of about sqrt((s_ii s_jj + s_ij^2) / n).
    spread = (torch.outer(q.variance, q.variance) + covariance.square()).div(n).sqrt()
    assert float(((torch.cov(free.T) - covariance).abs() / spread).max()) < 4.5
    torch.testing.assert_close(one.loc["sigma"], family.mean(one.params)[2].exp())


def test_information_gain_is_the_families_divergence() -> None:
    personal, w = stacked(ProgramModel(line, DataSpec((2,))))
    assert isinstance(personal, SiteBelief)
    q = torch.distributions.Normal(personal.params["loc"], F.softplus(personal.params["rho"]))
    p = torch.distributions.Normal(w.params["loc"], w.params["scale"])
    hand = torch.distributions.kl_divergence(q, p).sum(-1)
    torch.testing.assert_close(personal.kl(w), hand)
    t_personal, t_w = stacked(ProgramModel(line, DataSpec((2,)), server=StudentT(4.0)))
    assert "no closed form from mean-field to student-t" in message(t_personal.kl, t_w)
    assert "there is no client 2: give 0 to 1" in message(personal.client, 2)


def test_the_server_says_nothing_about_private_sites() -> None:
    model = ProgramModel(line, DataSpec((2,)), roles={"sigma": "private"})
    personal, w = stacked(model)
    assert (personal.names, w.names) == (("slope", "sigma"), ("slope",))
    assert set(w.sample()) == {"slope"}
    assert set(personal.sample()) == set(w.loc) == {"slope", "sigma"}
    assert personal.sample(4)["slope"].shape == (4, 2, 2)


@pytest.mark.parametrize("guide", [None, AutoMultivariateNormal])
def test_private_sites_are_drawn_and_not_set_to_their_means(guide) -> None:
    model = ProgramModel(line, DataSpec((2,)), roles={"slope": "private"}, private_guide=guide)
    personal, _ = stacked(model)
    one, n = personal.client(0), 2000
    drawn = one.sample(n, torch.Generator().manual_seed(2))["slope"]
    if guide is None:
        sd = F.softplus(one.params["private.rho"])
        torch.testing.assert_close(one.loc["slope"], one.params["private.loc"])
        # The standard deviation of n draws has a relative standard error of 1 / sqrt(2 n).
        torch.testing.assert_close(drawn.std(0), sd, rtol=4 / (2 * n) ** 0.5, atol=0)
    error = (drawn.mean(0) - one.loc["slope"]).abs() / (drawn.std(0) / n**0.5)
    assert float(drawn.std(0).min()) > 0.02
    assert float(error.max()) < 4


def test_under_a_mixture_clients_restart_in_their_own_component() -> None:
    model = ProgramModel(line, DataSpec((2,)), server=Mixture(2))
    server = server_start(model)
    server["loc"] = torch.tensor([[0.0, 0.0, 0.0], [5.0, 5.0, 5.0]])
    own = model.declaration.guide.start(server["loc"].flip(0), torch.ones(2, 3))
    rows = restarted(model, server, 2, own)
    assert torch.equal(rows["loc"], server["loc"].flip(0))
    # One that has never trained begins in the middle.
    assert torch.equal(restarted(model, server, 1)["loc"], torch.full((1, 3), 2.5))
