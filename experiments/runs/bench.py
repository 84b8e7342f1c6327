"""How fast a round is: ours beside a hand-written bound and a plain Pyro program, interleaved in one process."""

from __future__ import annotations

import json
import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyro
import pyro.distributions as dist
import torch
import torch.nn.functional as F
from pyro.infer import SVI, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoNormal
from rich.console import Console
from rich.table import Table
from torch import Tensor

from pyro_pfedbayes.data.clients import FederatedData
from pyro_pfedbayes.data.datasets import Dataset
from pyro_pfedbayes.data.partitions.schemes import Partition
from pyro_pfedbayes.inference.algorithm import Algorithm, Cohort, Round
from pyro_pfedbayes.inference.algorithms.fedavg import FedAvg
from pyro_pfedbayes.inference.algorithms.pfedbayes import PFedBayes
from pyro_pfedbayes.inference.engine.client_step import EngineMode, GradientEngine
from pyro_pfedbayes.inference.federation.loop import Federation
from pyro_pfedbayes.inference.federation.state import FederationState, gather_rows, row_copies
from pyro_pfedbayes.models.bayesian import BayesianModel
from pyro_pfedbayes.models.likelihoods import Categorical
from pyro_pfedbayes.models.networks import mlp

SIZES = (784, 100, 10)
CLIENTS, EXAMPLES, BATCH = 10, 1000, 100
BOUND = "hand-written bound"
MODES: tuple[EngineMode, ...] = ("compiled", "traced", "eager")


@dataclass(frozen=True)
class Scale:
    """One point of the scaling table: N clients, S of them in a round, hidden units of the network."""

    clients: int
    cohort: int
    hidden: int


SCALES = (
    Scale(10, 10, 100),
    Scale(100, 10, 100),
    Scale(1000, 10, 100),
    Scale(100, 1, 100),
    Scale(100, 50, 100),
    Scale(10, 10, 20),
    Scale(10, 10, 400),
)


def synthetic(clients: int, examples: int, features: int = SIZES[0]) -> FederatedData:
    """Random examples, ``examples`` to train and one to test a client; speed does not depend on their meaning."""
    stream = torch.Generator().manual_seed(0)
    total = clients * (examples + 1)
    x = torch.randn(total, features, generator=stream)
    y = torch.randint(10, (total,), generator=stream)
    parts = torch.arange(total).split(examples + 1)
    partition = Partition(
        "synthetic",
        tuple(part[:-1] for part in parts),
        tuple(part[:0] for part in parts),
        tuple(part[-1:] for part in parts),
    )
    names = tuple(str(label) for label in range(10))
    return FederatedData(Dataset("synthetic", x, y, names, None, {}), partition)


# -- the three contestants: functions that make a number of stacked steps ----------------------------------------


def our_steps(data: FederatedData, algorithm: Algorithm, mode: EngineMode) -> Callable[[], None]:
    """A cohort's update as a run makes it, bookkeeping included."""
    model = BayesianModel(mlp(SIZES), Categorical(10))
    engine, server = GradientEngine(model, mode), algorithm.init(model)
    clients = tuple(range(data.num_clients))
    start = algorithm.client_init(model, server, len(clients))
    # Adam's moments begin afresh.
    kept = {name: rows for name, rows in start.items() if "." not in name}
    rows = row_copies(kept, clients, [True] * len(clients), torch.device("cpu"))
    state = FederationState(0, server, rows)
    steps = algorithm.local_steps
    rounds = iter(range(10**9))

    def run() -> None:
        at = Round(next(rounds), 10**9, 0)
        plan = data.plan(clients, steps, BATCH, 0, at.index)
        cohort = Cohort(clients, gather_rows(algorithm, model, state, clients), plan)
        algorithm.client_update(engine, server, cohort, at)

    return run


_SHAPES = ((SIZES[0], SIZES[1]), (1, SIZES[1]), (SIZES[1], SIZES[2]), (1, SIZES[2]))
_LENGTHS = [a * b for a, b in _SHAPES]


def _start() -> Tensor:
    """Every client's weights, one contiguous row each."""
    return torch.cat([0.1 * torch.randn(n) for n in _LENGTHS]).repeat(CLIENTS, 1)


def _batches(data: FederatedData) -> Callable[[], tuple[Tensor, Tensor]]:
    """Draws a batch of every client."""
    x = data.dataset.x.view(CLIENTS, -1, SIZES[0])[:, :EXAMPLES].contiguous()
    y = data.dataset.y.view(CLIENTS, -1)[:, :EXAMPLES].contiguous()
    rows = torch.arange(CLIENTS)[:, None]

    def draw() -> tuple[Tensor, Tensor]:
        index = torch.randint(EXAMPLES, (CLIENTS, BATCH))
        return x[rows, index], y[rows, index]

    return draw


def _summed_loss(theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy summed over all clients' batches."""
    parts = zip(theta.split(_LENGTHS, 1), _SHAPES, strict=True)
    w1, b1, w2, b2 = (part.view(CLIENTS, *shape) for part, shape in parts)
    logits = torch.baddbmm(b2, torch.relu(torch.baddbmm(b1, x, w1)), w2)
    return F.cross_entropy(logits.view(-1, SIZES[2]), y.view(-1), reduction="sum")


def bare_steps(data: FederatedData, steps: int) -> Callable[[], None]:
    """The bound of point methods: gradient descent on one contiguous matrix, in plain PyTorch."""
    batch = _batches(data)
    theta = _start()
    theta.requires_grad_()

    def run() -> None:
        for _ in range(steps):
            x, y = batch()
            (gradient,) = torch.autograd.grad(_summed_loss(theta, x, y) / BATCH, theta)
            with torch.no_grad():
                theta.sub_(gradient, alpha=1e-2)

    return run


def hand_written_steps(data: FederatedData, steps: int) -> Callable[[], None]:
    """The bound: one contiguous matrix, noise in one call, fused Adam, compiled element-wise parts, no Pyro."""
    batch = _batches(data)
    mu = _start()
    rho = torch.full_like(mu, -2.5)
    w_mu, w_sigma = mu[0].clone(), F.softplus(rho[0])
    adam = torch.optim.Adam([mu.requires_grad_(), rho.requires_grad_()], lr=1e-3, fused=True)

    def forward(mu: Tensor, rho: Tensor, eps: Tensor) -> Tensor:
        return mu + F.softplus(rho) * eps

    def backward(g: Tensor, mu: Tensor, rho: Tensor, eps: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        sigma = F.softplus(rho)
        to_mu = g + (mu - w_mu) / w_sigma**2
        to_sigma = g * eps + sigma / w_sigma**2 - 1 / sigma
        kl = torch.log(w_sigma / sigma) + 0.5 * ((sigma**2 + (mu - w_mu) ** 2) / w_sigma**2 - 1)
        return to_mu, to_sigma * torch.sigmoid(rho), kl.sum()

    forward, backward = torch.compile(forward), torch.compile(backward)

    def run() -> None:
        for _ in range(steps):
            x, y = batch()
            eps = torch.randn(mu.shape)
            with torch.no_grad():
                theta = forward(mu, rho, eps)
            loss = _summed_loss(theta.requires_grad_(), x, y) * (EXAMPLES / BATCH)
            (g,) = torch.autograd.grad(loss, theta)
            with torch.no_grad():
                mu.grad, rho.grad, _ = backward(g, mu, rho, eps)
            adam.step()

    return run


def plain_pyro_steps(data: FederatedData, steps: int) -> Callable[[], None]:
    """What one would write first: a Pyro model a client, AutoNormal, SVI, one client after the other."""
    network = mlp(SIZES)
    prior = {name: w.detach() for name, w in network.named_parameters()}

    def model(x: Tensor, y: Tensor) -> None:
        weights = {
            name: pyro.sample(name, dist.Normal(loc, 0.08).to_event(loc.dim()))
            for name, loc in prior.items()
        }
        logits = torch.func.functional_call(network, weights, (x,))
        with pyro.plate("data", EXAMPLES, subsample_size=len(x)):
            pyro.sample("y", dist.Categorical(logits=logits), obs=y)

    clients = []
    for client in range(CLIENTS):
        guide = AutoNormal(model, init_scale=0.08)
        svi = SVI(model, guide, pyro.optim.Adam({"lr": 1e-3}), TraceMeanField_ELBO())
        clients.append((*data.examples(client), svi))

    def run() -> None:
        for x, y, svi in clients:
            for _ in range(steps):
                index = torch.randint(EXAMPLES, (BATCH,))
                svi.step(x[index], y[index])

    return run


def compare_steps(repeats: int, steps: int) -> dict[str, dict[str, float]]:
    """Milliseconds of one stacked step, rounds of ``steps`` interleaved.

    For each contestant the median and the fastest round, and the median of its ratio to the bound, round by round.
    """
    data = synthetic(CLIENTS, EXAMPLES)
    ours = PFedBayes(local_steps=steps, batch_size=BATCH, personal_rounds=0)
    contestants = {
        BOUND: hand_written_steps(data, steps),
        **{f"pyro-pfedbayes, {mode}": our_steps(data, ours, mode) for mode in MODES},
    }
    with pyro.settings.context(module_local_params=True):
        contestants["plain Pyro, client by client"] = plain_pyro_steps(data, steps)
        return _interleaved(contestants, repeats, steps)


def compare_point_steps(repeats: int, steps: int) -> dict[str, dict[str, float]]:
    """The same for point methods, whose bound is a bare loop."""
    data = synthetic(CLIENTS, EXAMPLES)
    ours = FedAvg(local_steps=steps, batch_size=BATCH)
    contestants = {
        BOUND: bare_steps(data, steps),
        **{f"pyro-pfedbayes fedavg, {mode}": our_steps(data, ours, mode) for mode in MODES},
    }
    return _interleaved(contestants, repeats, steps)


def _interleaved(
    contestants: Mapping[str, Callable[[], None]], repeats: int, steps: int
) -> dict[str, dict[str, float]]:
    for run in contestants.values():
        run()
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(repeats):
        for name, run in contestants.items():
            started = time.perf_counter()
            run()
            times[name].append(1e3 * (time.perf_counter() - started) / steps)
    return {
        name: {
            "median_ms": statistics.median(own),
            "fastest_ms": min(own),
            "ratio": statistics.median(a / b for a, b in zip(own, times[BOUND], strict=True)),
        }
        for name, own in times.items()
    }


def measure_rounds(scale: Scale, rounds: int = 3) -> dict[str, float]:
    """Median seconds a round after the first, and peak memory in MiB, of a small run in a fresh process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_rounds_here, (scale, rounds))


def _rounds_here(scale: Scale, rounds: int) -> dict[str, float]:
    model = BayesianModel(mlp([SIZES[0], scale.hidden, SIZES[2]]), Categorical(10))
    algorithm = PFedBayes(local_steps=20, personal_rounds=0)
    federation = Federation(
        model,
        synthetic(scale.clients, 100),
        algorithm=algorithm,
        participation=scale.cohort,
        device="cpu",
        engine="traced",
        eval_every=0,
    )
    state, seconds = federation.initial_state(), []
    for _ in range(rounds + 1):
        # A run that never reaches its last round is never evaluated.
        before = time.perf_counter()
        state, _ = federation.advance(state, 10**6)
        seconds.append(time.perf_counter() - before)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"seconds": statistics.median(seconds[1:]), "peak_mib": peak}


def bench_command(steps: int = 20, quick: bool = False, as_json: bool = False) -> None:
    """Print how fast a stacked step and a round of ``steps`` are here; ``quick`` leaves the scaling table out."""
    console = Console(stderr=as_json)
    with console.status(
        f"{CLIENTS} clients, MLP {'-'.join(map(str, SIZES))}, batch {BATCH}; compiling takes a while first"
    ):
        repeats = 5 if quick else 15
        speed = compare_steps(repeats=repeats, steps=steps)
        points = compare_point_steps(repeats=repeats, steps=steps)
    scales: Sequence[Scale] = () if quick else SCALES
    growth: list[dict[str, Any]] = []
    for scale in scales:
        with console.status(f"{scale}"):
            growth.append({**vars(scale), **measure_rounds(scale)})
    if as_json:
        print(json.dumps({"step": speed, "point_step": points, "rounds": growth}, indent=1))
        return
    console.print(_step_table(speed, "One stacked step"))
    console.print(_step_table(points, "One stacked step of a point method"))
    if growth:
        console.print(_round_table(growth))


def _step_table(speed: dict[str, dict[str, float]], what: str) -> Table:
    threads = torch.get_num_threads()
    table = Table(title=f"{what} of {CLIENTS} clients ({threads} threads), interleaved")
    table.add_column("program")
    for head in ("median ms", "fastest ms", "ratio to the bound"):
        table.add_column(head, justify="right")
    for name, row in speed.items():
        table.add_row(name, *(f"{row[k]:.2f}" for k in ("median_ms", "fastest_ms", "ratio")))
    return table


def _round_table(growth: list[dict[str, Any]]) -> Table:
    table = Table(title="A round of 20 steps, traced, against N, S and the network")
    for head in ("clients N", "cohort S", "hidden", "weights T", "seconds a round", "peak MiB"):
        table.add_column(head, justify="right")
    for row in growth:
        weights = sum(w.numel() for w in mlp([SIZES[0], row["hidden"], SIZES[2]]).parameters())
        figures = (f"{row['seconds']:.2f}", f"{row['peak_mib']:.0f}")
        table.add_row(
            *(str(row[k]) for k in ("clients", "cohort", "hidden")), f"{weights:,}", *figures
        )
    return table
