"""Each method with point estimates against arithmetic that can be done by hand."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from pyro_pfedbayes.inference.algorithm import Cohort, Round
from pyro_pfedbayes.inference.algorithms.components.point import PERSONAL
from pyro_pfedbayes.inference.algorithms.components.split import OWN, head_sites
from pyro_pfedbayes.inference.algorithms.ditto import Ditto
from pyro_pfedbayes.inference.algorithms.fedavg import FedAvg
from pyro_pfedbayes.inference.algorithms.fedavg_ft import FedAvgFineTuned
from pyro_pfedbayes.inference.algorithms.fedper import FedPer
from pyro_pfedbayes.inference.algorithms.fedprox import FedProx
from pyro_pfedbayes.inference.algorithms.fedrep import FedRep
from pyro_pfedbayes.inference.algorithms.heurfedamp import HeurFedAMP, attention
from pyro_pfedbayes.inference.algorithms.lg_fedavg import LGFedAvg
from pyro_pfedbayes.inference.algorithms.local import Local
from pyro_pfedbayes.inference.algorithms.local_bayes import LocalBayes, MixtureBound
from pyro_pfedbayes.inference.algorithms.mocha import Mocha, coupling
from pyro_pfedbayes.inference.algorithms.oracle_cluster import OracleCluster
from pyro_pfedbayes.inference.algorithms.per_fedavg import PerFedAvg
from pyro_pfedbayes.inference.algorithms.pfedme import PFedMe
from pyro_pfedbayes.inference.algorithms.pfedvem import PFedVEM, head_bound, head_variance
from pyro_pfedbayes.inference.beliefs.points import THETA, point_start
from pyro_pfedbayes.inference.engine.client_step import GradientEngine
from pyro_pfedbayes.inference.engine.point_descent import nll
from pyro_pfedbayes.inference.federation.loop import Federation
from tests.helpers import message, random_batch, tiny_model, toy_data
from tests.point_problem import BODY, HEAD, SIZES, TARGETS, cohort_of, data, first_round, model

LR, STEPS = 0.1, 3
COMMON: dict[str, Any] = {"lr": LR, "local_steps": STEPS, "batch_size": 8}
A = torch.tensor(TARGETS)


def descended(start: Tensor, target: Tensor, curvature: float = 1.0, steps: int = STEPS) -> Tensor:
    """Where gradient descent on a parabola of that curvature ends."""
    return target + (1 - LR * curvature) ** steps * (start - target)


def body(theta: Tensor) -> Tensor:
    return theta[..., 0]


def test_fedavg_descends_each_parabola_and_averages_by_examples() -> None:
    update, after, _ = first_round(FedAvg(**COMMON), data())
    expected = descended(torch.tensor(BODY), A)
    torch.testing.assert_close(body(update.upload[THETA]), expected)
    n = torch.tensor(SIZES, dtype=torch.float32)
    torch.testing.assert_close(body(after[THETA]), (n * expected).sum() / n.sum())
    assert update.state == {}
    uniform = first_round(FedAvg(weighting="uniform", **COMMON), data())[1]
    torch.testing.assert_close(body(uniform[THETA]), expected.mean())


def test_loss_is_the_mean_over_steps_of_the_negative_log_likelihood() -> None:
    update, *_ = first_round(FedAvg(**COMMON), data())
    path = torch.stack([descended(torch.tensor(BODY), A, steps=k) for k in range(STEPS)])
    expected = 0.5 * (path - A).square().mean(0) + 0.5 * torch.log(torch.tensor(2 * torch.pi))
    torch.testing.assert_close(update.loss, expected)


def test_momentum_and_weight_decay_by_hand() -> None:
    update, *_ = first_round(FedAvg(momentum=0.5, weight_decay=0.2, **COMMON), data())
    w, v = torch.full((2,), BODY), torch.zeros(2)
    for _ in range(STEPS):
        v = 0.5 * v + (w - A) + 0.2 * w
        w = w - LR * v
    torch.testing.assert_close(body(update.upload[THETA]), w)


def test_schedule_runs_over_the_whole_run() -> None:
    settings = FedAvg(lr_schedule="linear", lr=1.0, local_steps=2, batch_size=8)
    rates = [settings.descent(Round(k, 2, 0)).rate(step) for k in (0, 1) for step in (0, 1)]
    assert rates == [1.0, 0.75, 0.5, 0.25]


def test_fedprox_follows_the_proximal_parabola_and_without_it_is_fedavg() -> None:
    mu = 2.0
    update, *_ = first_round(FedProx(mu=mu, **COMMON), data())
    minimum = (A + mu * BODY) / (1 + mu)
    expected = descended(torch.tensor(BODY), minimum, curvature=1 + mu)
    torch.testing.assert_close(body(update.upload[THETA]), expected)
    free, plain = (first_round(m, data())[1] for m in (FedProx(mu=0.0, **COMMON), FedAvg(**COMMON)))
    assert torch.equal(free[THETA], plain[THETA])


@pytest.mark.parametrize(("variant", "batches"), [("first-order", 2), ("hessian-free", 3)])
def test_per_fedavg_direction_against_autograd(variant: Any, batches: int) -> None:
    net = tiny_model()
    engine = GradientEngine(net)
    alpha = 0.3
    theta = point_start(net).expand(2, -1).clone()
    drawn = [random_batch(2, 6, seed=k) for k in range(batches)]
    settings = PerFedAvg(alpha=alpha, variant=variant, delta=1e-4)
    found = settings._meta_gradient(engine, theta, [{"x": x, "y": y} for x, y in drawn])[1]

    def loss(weights: Tensor, k: int, row: int) -> Tensor:
        x, y = drawn[k]
        return nll(net, {THETA: weights}, {"x": x[row], "y": y[row]}, {})

    for row in range(2):
        w = theta[row].clone().requires_grad_()
        inner = torch.autograd.grad(loss(w, 0, row), w)[0]
        u = (w - alpha * inner).detach().requires_grad_()
        v = torch.autograd.grad(loss(u, 1, row), u)[0]
        expected = v
        if variant == "hessian-free":
            slope = torch.autograd.grad(loss(w, 2, row), w, create_graph=True)[0]
            expected = v - alpha * torch.autograd.grad(slope @ v, w)[0]
        torch.testing.assert_close(found[row], expected, rtol=1e-5, atol=1e-6)


def test_per_fedavg_meta_gradient_of_a_parabola() -> None:
    alpha = 0.4
    update, *_ = first_round(
        PerFedAvg(alpha=alpha, variant="hessian-free", lr=LR, local_steps=3, batch_size=8), data()
    )
    # F(w - alpha F'(w)) has curvature (1 - alpha)^2; three minibatches are one outer step.
    expected = BODY - LR * (1 - alpha) ** 2 * (BODY - A)
    torch.testing.assert_close(body(update.upload[THETA]), expected, rtol=1e-4, atol=1e-5)


def test_per_fedavg_personal_model_is_one_inner_step_from_the_server() -> None:
    algorithm = PerFedAvg(alpha=0.4, **COMMON)
    engine = GradientEngine(model())
    server = algorithm.init(engine.model)
    made = algorithm.personalize(engine, server, cohort_of(algorithm, data(), server, steps=1))
    torch.testing.assert_close(body(made[PERSONAL]), BODY - 0.4 * (BODY - A))


def test_pfedme_reaches_the_moreau_envelopes_minimiser() -> None:
    lam = 4.0
    settings = PFedMe(lam=lam, inner_steps=200, inner_lr=0.1, lr=0.01, local_steps=1, batch_size=8)
    update, after, _ = first_round(settings, data())
    theta = (A + lam * BODY) / (1 + lam)
    torch.testing.assert_close(body(update.state[THETA]), theta)
    copies = BODY - 0.01 * lam * (BODY - theta)
    torch.testing.assert_close(body(update.upload[THETA]), copies)
    torch.testing.assert_close(body(after[THETA]), copies.mean())
    step = first_round(dataclasses.replace(settings, beta=2.0), data())[1]
    torch.testing.assert_close(body(step[THETA]), 2 * copies.mean() - BODY)


def test_pfedme_personal_model_is_theta_and_not_the_copy_that_is_sent() -> None:
    update, *_ = first_round(PFedMe(lr=0.01, local_steps=2, batch_size=8), data())
    assert not torch.allclose(update.state[THETA], update.upload[THETA])


def test_ditto_limits_and_its_parabola() -> None:
    lam = 2.0
    update, after, _ = first_round(Ditto(lam=lam, **COMMON), data())
    expected = descended(torch.tensor(BODY), (A + lam * BODY) / (1 + lam), curvature=1 + lam)
    torch.testing.assert_close(body(update.state[THETA]), expected)
    plain = first_round(FedAvg(weighting="uniform", **COMMON), data())[1]
    assert torch.equal(after[THETA], plain[THETA])
    alone = first_round(Local(**COMMON), data())[0]
    free = first_round(Ditto(lam=0.0, **COMMON), data())[0]
    assert torch.equal(free.state[THETA], alone.state[THETA])
    held = first_round(Ditto(lam=1e6, personal_lr=1e-6, **COMMON), data())[0]
    torch.testing.assert_close(body(held.state[THETA]), torch.full((2,), BODY), atol=1e-5, rtol=0)


def test_dittos_personal_model_carries_on_while_the_common_one_restarts() -> None:
    settings = Ditto(lam=0.5, **COMMON)
    first, server, engine = first_round(settings, data())
    own = first.state[THETA]
    cohort = dataclasses.replace(cohort_of(settings, data(), server), state={THETA: own})
    second = settings.client_update(engine, server, cohort, Round(1, 10, 0))
    w = body(server[THETA])
    expected = descended(body(own), (A + 0.5 * w) / 1.5, curvature=1.5)
    torch.testing.assert_close(body(second.state[THETA]), expected)
    torch.testing.assert_close(body(second.upload[THETA]), descended(w, A))


def test_attention_by_hand_and_its_rows_sum_to_one() -> None:
    theta = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 2.0]])
    found = attention(theta, sigma=2.0, own=0.25)
    root = 0.5**0.5
    scores = torch.tensor([[0.0, root, 0.0], [root, 0.0, root], [0.0, root, 0.0]])
    weights = (2.0 * scores).exp() * (1 - torch.eye(3))
    expected = 0.75 * weights / weights.sum(1, keepdim=True) + 0.25 * torch.eye(3)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(found.sum(1), torch.ones(3))


def test_heurfedamp_begins_at_the_cloud_and_is_pulled_to_it() -> None:
    settings = HeurFedAMP(sigma=1.0, self_weight=0.3, lam=1.0, alpha=0.5, **COMMON)
    first, server, engine = first_round(settings, data())
    sent = first.upload[THETA]
    torch.testing.assert_close(server[THETA], sent.mean(0))
    cohort = cohort_of(settings, data(), server)
    second = settings.client_update(engine, server, cohort, Round(1, 10, 0))
    cloud = 0.3 * body(sent) + 0.7 * body(sent).flip(0)
    expected = descended(cloud, (A + 2.0 * cloud) / 3.0, curvature=3.0)
    torch.testing.assert_close(body(second.state[THETA]), expected)


def test_server_remembers_clients_that_sit_out() -> None:
    settings = HeurFedAMP(**COMMON)
    _, server, engine = first_round(settings, data())
    cohort = cohort_of(settings, data(), server)
    one = Cohort(
        (1,), {k: v[1:] for k, v in cohort.state.items()}, data().plan([1], STEPS, 8, 0, 1)
    )
    update = settings.client_update(engine, server, one, Round(1, 10, 0))
    from pyro_pfedbayes.inference.algorithm import Upload

    after = settings.server_update(
        engine.model, server, [Upload((1,), update.upload, torch.ones(1))], Round(1, 10, 0)
    )
    assert after["held.client"].tolist() == [0, 1]
    assert torch.equal(after["held.theta"][0], server["held.theta"][0])
    assert torch.equal(after["held.theta"][1], update.upload[THETA][0])


def test_fedper_keeps_the_head_and_trains_both() -> None:
    settings = FedPer(head="head", **COMMON)
    update, after, engine = first_round(settings, data(slope=1.0))
    # Body and head have the same gradient, so their sum falls twice as fast.
    sum_ = descended(torch.tensor(BODY + HEAD), A, curvature=2.0)
    moved = (sum_ - BODY - HEAD) / 2
    torch.testing.assert_close(update.state[OWN].squeeze(1), HEAD + moved)
    assert update.upload[THETA].shape == (2, 1)
    torch.testing.assert_close(update.upload[THETA].squeeze(1), BODY + moved)
    n = torch.tensor(SIZES, dtype=torch.float32)
    torch.testing.assert_close(
        after[THETA], torch.stack([(n * (BODY + moved)).sum() / 8, torch.tensor(HEAD)])
    )
    rows = {OWN: update.state[OWN]}
    cohort = dataclasses.replace(cohort_of(settings, data(slope=1.0), after), state=rows)
    personal = settings.personalize(engine, after, cohort)[PERSONAL]
    torch.testing.assert_close(personal[:, 0], after[THETA][0].expand(2))
    torch.testing.assert_close(personal[:, 1], update.state[OWN].squeeze(1))


def test_lg_fedavg_keeps_what_fedper_sends() -> None:
    lg = first_round(LGFedAvg(head="head", **COMMON), data(slope=1.0))[0]
    per = first_round(FedPer(head="head", **COMMON), data(slope=1.0))[0]
    assert torch.equal(lg.state[OWN], per.upload[THETA])
    assert torch.equal(lg.upload[THETA], per.state[OWN])


def test_fedrep_trains_heads_before_bodies() -> None:
    settings = FedRep(head="head", head_steps=2, personal_steps=1, **COMMON)
    update, *_ = first_round(settings, data(slope=1.0))
    # Two steps of the head under the old body, then one of the body under the new head.
    head = descended(torch.tensor(HEAD), A - BODY, steps=2)
    torch.testing.assert_close(update.state[OWN].squeeze(1), head)
    torch.testing.assert_close(
        update.upload[THETA].squeeze(1), descended(torch.tensor(BODY), A - head, steps=1)
    )


def test_head_is_the_last_layer_the_private_sites_or_a_pattern() -> None:
    net = tiny_model()
    assert head_sites(net, "") == ("head.weight", "head.bias")
    assert head_sites(net, "fc1.*") == ("fc1.weight", "fc1.bias")
    private = tiny_model(roles={"fc1.bias": "private"})
    assert head_sites(private, "") == ("fc1.bias",)
    assert "matches no site" in message(head_sites, net, "fc7.*")
    assert "leave something to the body" in message(head_sites, net, "*")
    assert "nothing tells" in message(head_sites, model(), "")


def test_coupling_by_hand_and_as_a_penalty() -> None:
    theta = torch.tensor([[1.0, 2.0], [3.0, 2.0], [5.0, 5.0]], dtype=torch.float64)
    spread = (theta - theta.mean(0)).square().sum()
    matrix = coupling(theta, "mean")
    torch.testing.assert_close(torch.trace(theta.T @ matrix @ theta), spread)
    root = torch.diag(torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64))
    learned = coupling(root, "learned")
    shares = torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64) / 8 + 1e-6
    torch.testing.assert_close(learned, torch.diag(1 / shares))


@pytest.mark.parametrize("relationship", ["mean", "learned"])
def test_mocha_pull_is_the_gradient_of_its_penalty(relationship: Any) -> None:
    lam, ridge = 0.3, 0.2
    settings = Mocha(
        lam=lam, ridge=ridge, relationship=relationship, lr=LR, local_steps=1, batch_size=8
    )
    first, server, engine = first_round(settings, data(slope=1.0))
    sent = first.upload[THETA]
    rows = cohort_of(settings, data(slope=1.0), server)
    cohort = dataclasses.replace(rows, state={THETA: sent})
    update = settings.client_update(engine, server, cohort, Round(1, 10, 0))
    w = sent.clone().requires_grad_()
    matrix = coupling(sent, relationship)
    penalty = lam * torch.trace(w.T @ matrix @ w) + ridge * w.square().sum()
    fit = 0.5 * (w.sum(1) - A).square().sum()
    gradient = torch.autograd.grad(fit + penalty, w)[0]
    torch.testing.assert_close(update.state[THETA], sent - LR * gradient, rtol=1e-4, atol=1e-5)


def test_mocha_without_coupling_is_local() -> None:
    free = first_round(Mocha(lam=0.0, **COMMON), data())[0]
    assert torch.equal(free.state[THETA], first_round(Local(**COMMON), data())[0].state[THETA])


def test_fine_tuning_starts_at_the_server_and_leaves_it_alone() -> None:
    algorithm = FedAvgFineTuned(personal_steps=5, personal_lr=LR, **COMMON)
    _, server, engine = first_round(algorithm, data())
    cohort = cohort_of(algorithm, data(), server, steps=5)
    made = algorithm.personalize(engine, server, cohort)[PERSONAL]
    torch.testing.assert_close(body(made), descended(body(server[THETA]), A, steps=5))
    plain = first_round(FedAvg(**COMMON), data())[1]
    assert torch.equal(server[THETA], plain[THETA])


def test_looking_at_personal_models_changes_nothing_that_is_trained() -> None:
    settings = FedAvgFineTuned(lr=0.1, local_steps=2, batch_size=10)
    states = [
        Federation(
            tiny_model(torch.float32),
            toy_data((12, 20)),
            algorithm=settings,
            device="cpu",
            eval_every=every,
        )
        .run(4)
        .state
        for every in (1, 0)
    ]
    assert torch.equal(states[0].server[THETA], states[1].server[THETA])
    assert torch.equal(states[0].clients[1][PERSONAL], states[1].clients[1][PERSONAL])


def test_oracle_clusters_are_separate_federations() -> None:
    federated = toy_data((12, 12, 15, 15))
    labels = federated.dataset.y.clone()
    # Clients 0 and 2 have classes 0 and 1, the others 1 and 2.
    for client, kept in enumerate(((0, 1), (1, 2), (0, 1), (1, 2))):
        index = federated.partition.train[client]
        labels[index] = torch.tensor(kept)[torch.arange(len(index)) % 2]
    dataset = dataclasses.replace(federated.dataset, y=labels)
    settings = {"lr": 0.1, "local_steps": 3, "batch_size": 5}
    result = Federation(
        tiny_model(torch.float32),
        dataclasses.replace(federated, dataset=dataset),
        algorithm=OracleCluster(**settings),
        device="cpu",
    ).run(3)
    found = torch.stack([result.state.clients[i][PERSONAL] for i in range(4)])
    assert torch.equal(found[0], found[2])
    assert torch.equal(found[1], found[3])
    assert result.state.server["group.classes"].tolist() == [[0, 1], [1, 2]]


def test_head_variance_and_bound_against_torch() -> None:
    loc = torch.tensor([[1.0, 2.0], [0.0, -1.0]])
    scale = torch.tensor([[0.5, 0.1], [0.2, 0.3]])
    mu = torch.tensor([0.5, 0.5])
    by_hand = torch.tensor([(0.25 + 0.25 + 0.01 + 2.25) / 2, (0.04 + 0.25 + 0.09 + 2.25) / 2])
    torch.testing.assert_close(head_variance(loc, scale, mu), by_hand)
    rho = scale[0].expm1().log()
    x = torch.tensor([[1.0, 1.0]])
    theta = torch.tensor([BODY, 0.0])
    own = {
        "x": x, "y": torch.tensor([1.0]), THETA: theta, "eps": torch.tensor([0.7]),
        "variance": torch.tensor(0.6), "kl_weight": torch.tensor(0.25),
    }  # fmt: skip
    params = {"loc": loc[0, :1], "rho": rho[:1]}
    found = head_bound(model(), params, own, {"mu": mu[:1], "index": torch.tensor([1])})
    head = 1.0 + 0.5 * 0.7
    fit = 0.5 * (BODY + head - 1.0) ** 2 + 0.5 * torch.log(torch.tensor(2 * torch.pi))
    kl = torch.distributions.kl_divergence(
        torch.distributions.Normal(1.0, 0.5), torch.distributions.Normal(0.5, 0.6**0.5)
    )
    torch.testing.assert_close(found, fit + 0.25 * kl)


def test_pfedvem_server_weighs_heads_by_precision() -> None:
    from pyro_pfedbayes.inference.algorithm import Upload

    settings = PFedVEM(head="head", **COMMON)
    server = settings.init(model())
    tensors = {
        THETA: torch.tensor([[1.0], [2.0]]),
        "head.loc": torch.tensor([[0.0], [1.0]]),
        "precision": torch.tensor([1.0, 3.0]),
    }
    sent = [Upload((0, 1), tensors, torch.tensor([2.0, 6.0]))]
    after = settings.server_update(model(), server, sent, Round(0, 10, 0))
    torch.testing.assert_close(after[THETA], torch.tensor([(2 * 1.0 + 6 * 2.0) / 8, 0.75]))
    update, *_ = first_round(settings, data(slope=1.0))
    assert {k: tuple(v.shape) for k, v in update.upload.items()} == {
        THETA: (2, 1), "head.loc": (2, 1), "precision": (2,)
    }  # fmt: skip


def test_mixture_bound_against_torch_distributions() -> None:
    net = tiny_model()
    stream = torch.Generator().manual_seed(3)
    size = net.layout.size
    loc, rho, eps = (torch.randn(size, generator=stream, dtype=torch.float64) for _ in range(3))
    (x,), (y,) = random_batch(1, 6)
    bound = MixtureBound(pi=0.25, sigma1=0.7, sigma2=0.05)
    own = {"x": x, "y": y, "eps": eps, "kl_weight": torch.tensor(0.01, dtype=torch.float64)}
    found = bound(net, {"loc": loc, "rho": rho}, own, {})
    q = torch.distributions.Normal(loc, torch.nn.functional.softplus(rho))
    theta = q.loc + q.scale * eps
    prior = torch.distributions.MixtureSameFamily(
        torch.distributions.Categorical(torch.tensor([0.25, 0.75], dtype=torch.float64)),
        torch.distributions.Normal(
            torch.zeros(2, dtype=torch.float64), torch.tensor([0.7, 0.05], dtype=torch.float64)
        ),
    )
    excess = (q.log_prob(theta) - prior.log_prob(theta)).sum()
    expected = nll(net, {THETA: theta}, own, {}) + 0.01 * excess
    torch.testing.assert_close(found, expected)


def test_local_bayes_carries_moments_and_beliefs_over() -> None:
    settings = LocalBayes(lr=0.01, local_steps=2, batch_size=10)
    twice = Federation(
        tiny_model(torch.float32), toy_data((12, 20)), algorithm=settings, device="cpu"
    ).run(3)
    assert twice.state.clients[0]["adam.step"].item() == 6
    assert twice.state.server["loc"].equal(settings.init(tiny_model(torch.float32))["loc"])
    assert twice.state.bytes_uploaded == 0


@pytest.mark.parametrize("mode", ["traced", "compiled"])
def test_recorded_point_steps_are_the_eager_ones(mode: Any) -> None:
    net = tiny_model(torch.float32)
    x, y = random_batch(3, 7, torch.float32)
    theta = point_start(net) + 0.1 * torch.randn(
        3, net.layout.size, generator=torch.Generator().manual_seed(0)
    )
    mask = torch.ones(3, 7, dtype=torch.bool)
    mask[1, 5:] = False
    results = []
    for engine in (GradientEngine(net), GradientEngine(net, mode)):
        results.append(engine.differentiate(nll, {THETA: theta}, {"x": x, "y": y, "mask": mask}))
    torch.testing.assert_close(results[0][0], results[1][0])
    torch.testing.assert_close(results[0][1][THETA], results[1][1][THETA])


def test_masked_and_unknown_rows_do_not_count() -> None:
    net = tiny_model()
    (x,), (y,) = random_batch(1, 6)
    full = nll(net, {THETA: point_start(net)}, {"x": x[:4], "y": y[:4]}, {})
    mask = torch.arange(6) < 5
    hidden = y.clone()
    hidden[4] = -1
    found = nll(net, {THETA: point_start(net)}, {"x": x, "y": hidden, "mask": mask}, {})
    torch.testing.assert_close(found, full)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: FedAvg(lr=0.0), "lr is 0.0"),
        (lambda: FedAvg(momentum=1.0), "momentum is 1.0"),
        (lambda: FedAvg(weight_decay=-1.0), "weight_decay is -1.0"),
        (lambda: FedAvg(weighting="size"), "weighting is 'size'"),  # type: ignore[arg-type]
        (lambda: FedAvg(local_steps=0), "local_steps is 0"),
        (lambda: FedProx(mu=-1.0), "mu is -1.0"),
        (lambda: Ditto(lam=float("nan")), "lam is nan"),
        (lambda: PFedMe(lam=50.0, inner_lr=0.05), "product must be below 2"),
        (lambda: PerFedAvg(alpha=0.0), "alpha is 0.0"),
        (lambda: HeurFedAMP(self_weight=1.0), "self_weight is 1.0"),
        (lambda: FedRep(head_steps=20), "head_steps is 20"),
        (lambda: PFedVEM(local_steps=1), "head_steps is 0"),
        (lambda: Mocha(lam=-1.0), "lam is -1.0"),
        (lambda: LocalBayes(pi=1.0), "pi is 1.0"),
        (lambda: LocalBayes(momentum=0.9), "leave momentum"),
        (lambda: LocalBayes(sigma2=0.0), "sigma2 is 0.0"),
        (lambda: OracleCluster().init(model()), "the outcome is a number"),
        (lambda: LocalBayes().init(model()), "needs a network"),
    ],
)  # fmt: skip
def test_settings_out_of_range_are_named(make: Any, told: str) -> None:
    assert told in message(make)


def test_all_weights_may_be_points_whatever_their_roles() -> None:
    net = tiny_model(torch.float32, roles={"head.*": "private", "fc1.bias": "point"})
    result = Federation(
        net,
        toy_data((12, 20)),
        algorithm=FedAvg(lr=0.1, local_steps=2, batch_size=10),
        device="cpu",
    ).run(2)
    assert result.global_.num_weights == point_start(net).numel()
    assert result.personal.clients == 2
    assert message(result.personal.client(0).kl, result.global_).startswith(
        "a point estimate has no information gain"
    )
