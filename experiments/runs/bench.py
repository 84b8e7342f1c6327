"""How fast a round is: ours beside a hand-written bound and a plain Pyro program, interleaved in one process."""

from __future__ import annotations

import json
import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pyro
import pyro.distributions as dist
import torch
import torch.nn.functional as F
from pyro.infer import SVI, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoNormal
from rich.console import Console
from rich.table import Column, Table
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
Speeds = dict[str, dict[str, float]]
MODES: tuple[EngineMode, ...] = ("compiled", "traced", "eager")


@dataclass(frozen=True)
class Scale:
    """One point of the scaling table: N clients, S of them in a round, hidden units of the network."""

    clients: int
    cohort: int
    hidden: int

    def network(self) -> torch.nn.Module:
        """The network that all clients train."""
        return mlp([SIZES[0], self.hidden, SIZES[2]])


SCALES = (
    Scale(10, 10, 100),
    Scale(100, 10, 100),
    Scale(1000, 10, 100),
    Scale(100, 1, 100),
    Scale(100, 50, 100),
    Scale(10, 10, 20),
    Scale(10, 10, 400),
)


def synthetic(clients: int, examples: int) -> FederatedData:
    """Random examples, ``examples`` to train and one to test a client; speed does not depend on their meaning."""
    stream = torch.Generator().manual_seed(0)
    total = clients * (examples + 1)
    x = torch.randn(total, SIZES[0], generator=stream)
    y = torch.randint(10, (total,), generator=stream)
    parts = torch.arange(total).split(examples + 1)
    train, none, test = (
        tuple(part[cut] for part in parts) for cut in (slice(-1), slice(0), slice(-1, None))
    )
    partition = Partition("synthetic", train, none, test)
    return FederatedData(Dataset("synthetic", x, y, tuple("0123456789")), partition)


def our_steps(data: FederatedData, algorithm: Algorithm, mode: EngineMode) -> Callable[[], None]:
    """A cohort's update as a run makes it, bookkeeping included."""
    model = BayesianModel(mlp(SIZES), Categorical(10))
    engine, server = GradientEngine(model, mode), algorithm.init(model)
    clients = tuple(range(data.num_clients))
    start = algorithm.client_init(model, server, len(clients))
    # Adam's moments begin afresh.
    fresh = {name: rows for name, rows in start.items() if "." not in name}
    rows = row_copies(fresh, clients, [True] * len(clients), torch.device("cpu"))
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


def compare_steps(repeats: int, steps: int) -> list[Speeds]:
    """Milliseconds of one stacked step, rounds of ``steps`` interleaved: of pFedBayes, and of a point method.

    For each contestant the median and the fastest round, and the median of its ratio to the bound, round by round.
    """
    data = synthetic(CLIENTS, EXAMPLES)

    def ours(label: str, algorithm: Algorithm) -> dict[str, Callable[[], None]]:
        return {f"{label}, {mode}": our_steps(data, algorithm, mode) for mode in MODES}

    bayes = PFedBayes(local_steps=steps, batch_size=BATCH, personal_rounds=0)
    point = FedAvg(local_steps=steps, batch_size=BATCH)
    contestants = {BOUND: hand_written_steps(data, steps), **ours("pyro-pfedbayes", bayes)}
    with pyro.settings.context(module_local_params=True):
        contestants["plain Pyro, client by client"] = plain_pyro_steps(data, steps)
        speeds = _interleaved(contestants, repeats, steps)
    contestants = {BOUND: bare_steps(data, steps), **ours("pyro-pfedbayes fedavg", point)}
    return [speeds, _interleaved(contestants, repeats, steps)]


def _interleaved(contestants: Mapping[str, Callable[[], None]], repeats: int, steps: int) -> Speeds:
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
    federation = Federation(
        BayesianModel(scale.network(), Categorical(10)),
        synthetic(scale.clients, 100),
        algorithm=PFedBayes(local_steps=20, personal_rounds=0),
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
        bayes, point = compare_steps(repeats=5 if quick else 15, steps=steps)
    growth: list[tuple[Scale, dict[str, float]]] = []
    for scale in () if quick else SCALES:
        with console.status(f"{scale}"):
            growth.append((scale, measure_rounds(scale)))
    if as_json:
        rounds = [{**vars(scale), **found} for scale, found in growth]
        print(json.dumps({"step": bayes, "point_step": point, "rounds": rounds}, indent=1))
        return
    for what, speeds in {"": bayes, " of a point method": point}.items():
        title = f"One stacked step{what} of {CLIENTS} clients ({torch.get_num_threads()} threads), interleaved"
        heads = _headings("median ms", "fastest ms", "ratio to the bound")
        table = Table("program", *heads, title=title)
        for name, row in speeds.items():
            table.add_row(name, *(f"{value:.2f}" for value in row.values()))
        console.print(table)
    if not growth:
        return
    title = "A round of 20 steps, traced, against N, S and the network"
    heads = _headings("clients N", "cohort S", "hidden", "weights T", "seconds a round", "peak MiB")
    table = Table(*heads, title=title)
    for scale, found in growth:
        weights = sum(w.numel() for w in scale.network().parameters())
        figures = (f"{weights:,}", f"{found['seconds']:.2f}", f"{found['peak_mib']:.0f}")
        table.add_row(*map(str, vars(scale).values()), *figures)
    console.print(table)


def _headings(*texts: str) -> list[Column]:
    """Headings of columns of numbers."""
    return [Column(text, justify="right") for text in texts]
