"""Simulated clients with known parameters, fitted federated; and how exactly their data can tell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from pyro import poutine
from torch import Tensor

from pyro_pfedbayes.data.clients import FederatedData
from pyro_pfedbayes.data.datasets import Dataset
from pyro_pfedbayes.data.partitions.schemes import Partition
from pyro_pfedbayes.inference.algorithms.pfedbayes import PFedBayes
from pyro_pfedbayes.inference.federation.loop import Federation, Result
from pyro_pfedbayes.models.program import ProgramModel
from pyro_pfedbayes.models.settings import pyro_local
from pyro_pfedbayes.models.sites import seeded, site_trace


@dataclass(frozen=True)
class Simulation:
    """N clients of n examples each, drawn from a program with known sites.

    Attributes:
        model: The program.
        truth: Values of all sites in their own coordinates; of private sites one a client ``[N, ...]``.
        x: Inputs ``[N, n, p]``, covariates last.
        y: Outcomes ``[N, n]``.
    """

    model: ProgramModel
    truth: Mapping[str, Tensor]
    x: Tensor
    y: Tensor

    def sites_of(self, client: int) -> dict[str, Tensor]:
        private = self.model.declaration.private.shapes
        return {k: v[client] if k in private else v for k, v in self.truth.items()}


def simulate(
    model: ProgramModel, clients: int, rows: int, *, seed: int = 0, **truth: Any
) -> Simulation:
    """Standard Normal inputs, exposures between 0.5 and 3, outcomes from the program."""
    sites = {name: torch.as_tensor(value, dtype=torch.float32) for name, value in truth.items()}
    assert set(sites) == set(model.sites)
    features, columns = model.data.num_features, len(model.covariates)
    with seeded(seed):
        exposures = 0.5 + 2.5 * torch.rand(clients, rows, columns)
        x = torch.cat([torch.randn(clients, rows, features), exposures], -1)
        known = Simulation(model, sites, x, x[..., 0])
        y = torch.stack(
            [model.observation(known.sites_of(i), x[i]).sample() for i in range(clients)]
        )
    return Simulation(model, sites, x, y)


def by_client(x: Tensor, y: Tensor, classes: int, **columns: Tensor) -> FederatedData:
    """Data of N clients ``[N, n, ...]``, all of it for training."""
    clients, rows = y.shape
    names = tuple(str(label) for label in range(classes))
    flat = {name: column.reshape(-1) for name, column in columns.items()}
    dataset = Dataset("simulated", x.flatten(0, 1), y.reshape(-1), names, columns=flat)
    own = tuple(torch.arange(clients * rows).split(rows))
    none = tuple(torch.arange(0) for _ in range(clients))
    return FederatedData(dataset, Partition("by hand", own, none, none))


def federated(simulation: Simulation, *, rounds: int = 25, **options: Any) -> Result:
    """Fit a simulation's program to its clients."""
    model = simulation.model
    features = model.data.num_features
    columns = dict(zip(model.covariates, simulation.x[..., features:].unbind(-1), strict=True))
    data = by_client(simulation.x[..., :features], simulation.y, model.num_classes, **columns)
    return run(model, data, rounds=rounds, **options)


def run(model: Any, data: FederatedData, *, rounds: int = 25, **options: Any) -> Result:
    """A short run with full batches."""
    settings = {"local_steps": 20, "batch_size": 10_000, "lr": 0.1} | options
    algorithm = PFedBayes(**settings)
    return Federation(
        model, data, algorithm=algorithm, device="cpu", engine="traced", eval_every=0
    ).run(rounds)


def likelihood_sd(simulation: Simulation) -> dict[str, Tensor]:
    """Standard deviation of shared sites that all clients' data together leave, in unconstrained coordinates.

    From the curvature of the log-likelihood at the truth, the private sites being known: the posterior's by the
    theorem of Bernstein and von Mises, and an oracle that owes nothing to the fit.
    """
    model = simulation.model
    seen = unconstrained(model, simulation.truth)
    shared = model.declaration.shared
    point = shared.flatten({name: seen[name].double() for name in shared.shapes})

    def log_likelihood(flat: Tensor) -> Tensor:
        sites = model.constrain(shared.unflatten(flat))
        total = flat.new_zeros(())
        for client, (x, y) in enumerate(zip(simulation.x.double(), simulation.y, strict=True)):
            values = simulation.sites_of(client) | sites
            given = poutine.condition(model.client_program, data=values)
            total = total + site_trace(given, x, y)["y"]["fn"].log_prob(y).sum()
        return total

    with pyro_local():
        # Reverse mode twice: PyTorch's forward mode warns of its own deprecated parts.
        precision = -torch.func.jacrev(torch.func.jacrev(log_likelihood))(point)
    # Sites that the likelihood does not know of (hyper-parameters) have no curvature: no data speak of them directly.
    informed = precision.diagonal() > 0
    sd = torch.full_like(point, float("inf"))
    sd[informed] = precision[informed][:, informed].inverse().diagonal().sqrt()
    return {name: value.float() for name, value in shared.unflatten(sd).items()}


def unconstrained(model: ProgramModel, sites: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Unconstrained coordinates of sites."""
    out = {}
    for name, value in sites.items():
        transform = model.transform(name)
        out[name] = value if transform is None else transform.inv(value)
    return out


def fitted_sd(model: ProgramModel, belief: Any, draws: int = 200) -> dict[str, Tensor]:
    """Standard deviation of a belief's sites in unconstrained coordinates, to about 5 % by draws."""
    drawn = belief.sample(draws, torch.Generator().manual_seed(0))
    return {name: value.std(0) for name, value in unconstrained(model, drawn).items()}


def recovers(simulation: Simulation, result: Result, *, sharp: float) -> None:
    """The server's belief lies at the truth, as nearly as the data can tell, and is not vague.

    Every coordinate of every shared site that the likelihood knows of: its mean is within 4 of the standard
    deviations that all data together leave (`likelihood_sd`), which is at most ``sharp``, and so is the belief's own.
    """
    model = simulation.model
    possible = likelihood_sd(simulation)
    belief = result.global_
    means, truth = unconstrained(model, belief.loc), unconstrained(model, simulation.truth)
    spreads = fitted_sd(model, belief)
    for name, sd in possible.items():
        if not bool(sd.isfinite().all()):
            continue
        assert bool((sd < sharp).all()), f"{name}: the data leave {sd}, the test would be vague"
        assert bool((spreads[name] < sharp).all()), f"{name}: the belief is vague: {spreads[name]}"
        away = (means[name] - truth[name]).abs() / sd
        assert bool((away < 4).all()), f"{name}: {means[name]} is {away} sd from {truth[name]}"
