import dataclasses

import pytest
import torch
import torch.nn.functional as F

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.families.clients import inverse_softplus
from pyro_pfedbayes.inference.algorithm import Cohort, Round, Upload
from pyro_pfedbayes.inference.algorithms.pfedbayes import PFedBayes
from pyro_pfedbayes.inference.engine.client_step import GradientEngine
from pyro_pfedbayes.inference.engine.noise import NoiseStreams
from pyro_pfedbayes.inference.engine.optimizer import RowAdam
from tests.helpers import tiny_model, toy_data

SIZES = (30, 7, 50)
SETTINGS = {"local_steps": 4, "batch_size": 10, "lr": 0.01, "lr_schedule": "constant"}


def setting(clients=(0, 1, 2), at=None, **options):
    """An algorithm with everything that its client update needs."""
    algorithm = PFedBayes(**{**SETTINGS, "personal_rounds": 0, **options})
    engine = GradientEngine(tiny_model(torch.float32))
    at = at or Round(0, 10, seed=3)
    server = algorithm.init(engine.model)
    plan = toy_data(SIZES).plan(
        clients, algorithm.local_steps, algorithm.batch_size, at.seed, at.index
    )
    cohort = Cohort(tuple(clients), algorithm.client_init(engine.model, server, len(clients)), plan)
    return algorithm, engine, server, cohort, at


def by_hand(algorithm, engine, server, cohort, at):
    """R steps of Adam on Omega^i for each client alone, from the formula (full draws, no stacking)."""
    rows = []
    for k, client in enumerate(cohort.clients):
        loc = server["loc"].clone().requires_grad_()
        rho = inverse_softplus(server["scale"]).requires_grad_()
        adam = torch.optim.Adam([loc, rho], lr=algorithm.lr)
        noise = NoiseStreams(at.seed, at.index, [client], algorithm.draws, width=len(loc), like=loc)
        valid = cohort.plan.mask[k]
        for step in range(algorithm.local_steps):
            x, y = (part[k][valid] for part in cohort.plan.batch(step))
            scale = F.softplus(rho)
            w = torch.distributions.Normal(server["loc"], server["scale"])
            kl = torch.distributions.kl_divergence(torch.distributions.Normal(loc, scale), w).sum()
            loss = algorithm.zeta * kl
            for eps in noise.draw()[:, 0]:
                weights = engine.model.layout.unflatten(loc + scale * eps)
                logits = torch.func.functional_call(engine.model.network, weights, (x,))
                nll = F.cross_entropy(logits, y, reduction="sum")
                loss = loss + cohort.plan.sizes[k] / len(y) * nll / algorithm.draws
            adam.zero_grad()
            loss.backward()
            adam.step()
        rows.append((loc.detach(), F.softplus(rho.detach())))
    return rows


@pytest.mark.parametrize("draws", [1, 3])
def test_stacked_cohort_equals_separate_clients_by_hand(draws) -> None:
    """Unequal n_i, one of them below b; K draws; same noise and batches."""
    given = setting(draws=draws, zeta=2.0)
    algorithm, engine, server, cohort, at = given
    update = algorithm.client_update(engine, server, cohort, at)
    for k, (loc, scale) in enumerate(by_hand(*given)):
        torch.testing.assert_close(update.upload["loc"][k], loc, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(update.upload["scale"][k], scale, rtol=1e-5, atol=1e-6)


def test_a_clients_update_does_not_depend_on_its_cohort() -> None:
    together = setting()
    alone = setting(clients=(1,))
    one, all_ = (s[0].client_update(*s[1:]) for s in (alone, together))
    torch.testing.assert_close(one.upload["loc"][0], all_.upload["loc"][1], rtol=1e-6, atol=1e-7)


def test_the_servers_tensors_are_unchanged_by_clients() -> None:
    algorithm, engine, server, cohort, at = setting()
    before = {name: tensor.clone() for name, tensor in server.items()}
    algorithm.client_update(engine, server, cohort, at)
    assert all(torch.equal(server[name], tensor) for name, tensor in before.items())


def test_closed_form_server_matches_moments() -> None:
    algorithm, engine, server, cohort, at = setting()
    update = algorithm.client_update(engine, server, cohort, at)
    w = algorithm.server_update(
        engine.model, server, [Upload((0, 1, 2), update.upload, cohort.plan.sizes)], at
    )
    loc, scale = update.upload["loc"], update.upload["scale"]
    torch.testing.assert_close(w["loc"], loc.mean(0))
    torch.testing.assert_close(w["scale"], (scale**2 + (loc - loc.mean(0)) ** 2).mean(0).sqrt())


def test_weighting_by_examples() -> None:
    algorithm, engine, server, cohort, at = setting(weighting="examples")
    update = algorithm.client_update(engine, server, cohort, at)
    w = algorithm.server_update(
        engine.model, server, [Upload((0, 1, 2), update.upload, cohort.plan.sizes)], at
    )
    share = torch.tensor(SIZES) / sum(SIZES)
    torch.testing.assert_close(w["loc"], share @ update.upload["loc"])


def test_gradient_rule_follows_q_and_averages_with_momentum() -> None:
    """Algorithm 1 by hand: w_i starts at w and descends KL(q_i || w_i) by Adam after each step of q_i."""
    options = {"server_rule": "gradient", "server_lr": 0.02, "beta": 0.5, "start": "own"}
    algorithm, engine, server, cohort, at = setting(**options)
    update = algorithm.client_update(engine, server, cohort, at)
    closed = setting(start="own", optimizer_state=algorithm.optimizer_state)[0]
    loc, rho = (
        t.clone().requires_grad_() for t in (server["loc"], inverse_softplus(server["scale"]))
    )
    adam = torch.optim.Adam([loc, rho], lr=0.02)
    for steps in range(1, 5):
        # q after `steps` steps, from the closed-form variant whose q does not depend on the server's rule.
        short = dataclasses.replace(closed, local_steps=steps)
        q = short.client_update(engine, server, cohort, at).upload
        w = torch.distributions.Normal(loc, F.softplus(rho))
        kl = torch.distributions.kl_divergence(
            torch.distributions.Normal(q["loc"][0], q["scale"][0]), w
        )
        adam.zero_grad()
        kl.sum().backward()
        adam.step()
    torch.testing.assert_close(update.upload["loc"][0], loc.detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(update.upload["rho"][0], rho.detach(), rtol=1e-5, atol=1e-6)
    w = algorithm.server_update(
        engine.model, server, [Upload((0, 1, 2), update.upload, cohort.plan.sizes)], at
    )
    v = 0.5 * server["loc"] + 0.5 * update.upload["loc"].mean(0)
    torch.testing.assert_close(w["loc"], v)
    rho_w = 0.5 * inverse_softplus(server["scale"]) + 0.5 * update.upload["rho"].mean(0)
    torch.testing.assert_close(w["scale"], F.softplus(rho_w))


def test_unofficial_objective_by_hand() -> None:
    """One batch: noise times 0.001, no n/b, KL / R, and five Adam steps on it."""
    options = {"objective": "unofficial", "local_steps": 1, "zeta": 10.0}
    algorithm, engine, server, cohort, at = setting(clients=(0,), **options)
    update = algorithm.client_update(engine, server, cohort, at)
    loc, rho = (
        t.clone().requires_grad_() for t in (server["loc"], inverse_softplus(server["scale"]))
    )
    adam = torch.optim.Adam([loc, rho], lr=algorithm.lr)
    noise = NoiseStreams(at.seed, at.index, [0], 1, width=len(loc), like=loc)
    x, y = (part[0] for part in cohort.plan.batch(0))
    for _ in range(5):
        scale = F.softplus(rho)
        weights = engine.model.layout.unflatten(loc + scale * 1e-3 * noise.draw()[0, 0])
        nll = F.cross_entropy(
            torch.func.functional_call(engine.model.network, weights, (x,)), y, reduction="sum"
        )
        w = torch.distributions.Normal(server["loc"], server["scale"])
        kl = torch.distributions.kl_divergence(torch.distributions.Normal(loc, scale), w).sum()
        adam.zero_grad()
        (nll + 10.0 / algorithm.local_steps * kl).backward()
        adam.step()
    torch.testing.assert_close(update.upload["loc"][0], loc.detach(), rtol=1e-5, atol=1e-6)
    assert algorithm.gradient_steps(at) == 5


def test_shared_adam_starts_everyone_at_the_servers_averages() -> None:
    algorithm, engine, server, cohort, at = setting(optimizer_state="shared")
    update = algorithm.client_update(engine, server, cohort, at)
    server = algorithm.server_update(
        engine.model, server, [Upload((0, 1, 2), update.upload, cohort.plan.sizes)], at
    )
    average = update.upload["adam.exp_avg_sq.0"].mean(0)
    torch.testing.assert_close(server["adam.exp_avg_sq.0"], average)
    assert server["adam.step"].item() == 4
    second = Round(1, 10, seed=3)
    again = algorithm.client_update(engine, server, cohort, second)
    assert again.upload["adam.step"].tolist() == [8.0, 8.0, 8.0]
    assert not any(name.startswith("adam.") for name in again.state)


@pytest.mark.parametrize("optimizer_state", ["kept", "reset"])
def test_own_adam_stays_with_the_client(optimizer_state) -> None:
    algorithm, engine, server, cohort, at = setting(optimizer_state=optimizer_state)
    update = algorithm.client_update(engine, server, cohort, at)
    assert set(update.upload) == {"loc", "scale"}
    assert ("adam.step" in update.state) == (optimizer_state == "kept")
    second = Round(1, 10, seed=3)
    kept = Cohort(cohort.clients, {**cohort.state, **update.state}, cohort.plan)
    fresh = Cohort(cohort.clients, {**kept.state, **_fresh(update)}, cohort.plan)
    results = [
        algorithm.client_update(engine, server, c, second).upload["loc"] for c in (kept, fresh)
    ]
    assert torch.equal(*results) == (optimizer_state == "reset")


def _fresh(update) -> dict[str, torch.Tensor]:
    rows = [update.state["loc"], update.state["rho"]]
    return {f"adam.{k}": v for k, v in RowAdam.fresh_state(rows).items()}


def test_restarting_and_carrying_on() -> None:
    for start in ("server", "own"):
        algorithm, engine, server, cohort, at = setting(start=start)
        moved = {**cohort.state, "loc": cohort.state["loc"] + 1.0}
        result = algorithm.client_update(
            engine, server, Cohort(cohort.clients, moved, cohort.plan), at
        )
        # Four steps of 0.01 move a weight by about 0.04 at the most: near where it began.
        distance = (result.upload["loc"] - server["loc"]).abs().median()
        assert (distance < 0.1) == (start == "server")


def test_phases_follow_each_other_with_their_own_schedules() -> None:
    algorithm = PFedBayes(kinds=2, kind_rounds=3, personal_rounds=0.2, lr=1.0, personal_lr=0.5)
    names = [algorithm.phase(Round(t, 10, 0)) for t in range(10)]
    assert names == ["shared"] * 5 + ["kinds"] * 3 + ["personal"] * 2
    rates = [algorithm._phase(Round(t, 10, 0)).rate(0, 20, 0.0) for t in range(10)]
    assert rates[0] == rates[5] == 1.0
    assert rates[8] == 0.5
    assert rates[9] == pytest.approx(0.25)
    everyone = [algorithm.needs_everyone(Round(t, 10, 0)) for t in range(10)]
    assert everyone == [False] * 5 + [True, False, False] + [True] * 2


def test_kinds_get_their_own_prior_and_barycentre() -> None:
    options = {"kinds": 2, "kind_rounds": 5, "clients": (0, 1, 2)}
    algorithm, engine, server, cohort, at = setting(at=Round(5, 10, 3), **options)
    update = algorithm.client_update(engine, server, cohort, at)
    far = update.upload["loc"].clone()
    far[1] += 5.0
    upload = Upload((0, 1, 2), {**update.upload, "loc": far}, cohort.plan.sizes)
    after = algorithm.server_update(engine.model, server, [upload], at)
    assert after["kinds.of"].tolist() == [0, 1, 0]
    assert torch.equal(after["loc"], server["loc"])
    torch.testing.assert_close(after["kinds.loc"][0], far[[0, 2]].mean(0))
    torch.testing.assert_close(after["kinds.loc"][1], far[1])
    torch.testing.assert_close(after["kinds.scale"][1], update.upload["scale"][1])
    second = algorithm.client_update(engine, after, cohort, Round(6, 10, 3))
    torch.testing.assert_close(second.upload["loc"][1], far[1], rtol=0, atol=0.1)
    # A kind without uploads in a round keeps its Gaussian.
    only = Upload(
        (0, 2), {k: v[[0, 2]] for k, v in second.upload.items()}, cohort.plan.sizes[[0, 2]]
    )
    last = algorithm.server_update(engine.model, after, [only], Round(6, 10, 3))
    assert torch.equal(last["kinds.loc"][1], after["kinds.loc"][1])
    assert not torch.equal(last["kinds.loc"][0], after["kinds.loc"][0])


def test_personal_rounds_leave_the_server_alone() -> None:
    algorithm, engine, server, cohort, at = setting(personal_rounds=5, at=Round(5, 10, 3))
    update = algorithm.client_update(engine, server, cohort, at)
    uploads = iter([Upload((0, 1, 2), update.upload, cohort.plan.sizes)])
    assert algorithm.server_update(engine.model, server, uploads, at) is server
    assert list(uploads) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"zeta": 0.0}, "zeta is 0.0; it must be a positive number"),
        ({"zeta": float("inf")}, "zeta is inf"),
        ({"lr": -1.0}, "lr is -1.0"),
        ({"draws": 0}, "draws is 0; it must be at least 1"),
        ({"local_steps": 1.5}, "local_steps is 1.5; it must be a whole number"),
        ({"beta": 0.0}, r"beta is 0.0; it must lie in \(0, 1\]"),
        ({"kinds": 2}, "kinds is 2, but kind_rounds is 0"),
        (
            {"kinds": 2, "kind_rounds": 3, "server_rule": "gradient"},
            "needs server_rule 'closed-form'",
        ),
        ({"start": "server "}, "start is 'server '; did you mean 'server'"),
        ({"objective": "papr"}, "did you mean 'paper'"),
    ],
)
def test_impossible_settings_are_refused(options, words) -> None:
    with pytest.raises(UserError, match=words):
        PFedBayes(**options)


def test_settings_must_fit_the_run() -> None:
    with pytest.raises(UserError, match="leave at least one shared round"):
        PFedBayes(personal_rounds=5).check(5, 10)
    with pytest.raises(UserError, match="kinds is 3, but there are only 2 clients"):
        PFedBayes(kinds=3, kind_rounds=1).check(5, 2)
