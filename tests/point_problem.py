"""A federation whose arithmetic can be done by hand.

Client i has examples x = (1, s) and y = a_i, and weights (body, head): its loss is (body + s head - a_i)^2 / 2. With
s = 0 that is a parabola in the body alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_pfedbayes.data.clients import FederatedData
from pyro_pfedbayes.data.datasets import Dataset
from pyro_pfedbayes.data.partitions.schemes import Partition
from pyro_pfedbayes.inference.algorithm import Algorithm, ClientUpdate, Cohort, Round, Tensors
from pyro_pfedbayes.inference.engine.client_step import GradientEngine
from pyro_pfedbayes.inference.federation.cohort import CohortWork
from pyro_pfedbayes.inference.federation.state import FederationState
from pyro_pfedbayes.models.program import ProgramModel
from pyro_pfedbayes.models.spec import DataSpec

TARGETS = (1.0, 3.0)
SIZES = (2, 6)
BODY, HEAD = 0.5, 0.25


def parabola(x: Tensor, y: Tensor | None = None) -> None:
    """Two weights and a Normal outcome."""
    body = pyro.sample("body", dist.Normal(0.0, 1.0))
    head = pyro.sample("head", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(body * x[:, 0] + head * x[:, 1], 1.0), obs=y)


def model() -> ProgramModel:
    """The program, beginning at `BODY` and `HEAD`."""
    spec = DataSpec((2,))
    return ProgramModel(parabola, spec, start={"body": BODY, "head": HEAD})


def data(slope: float = 0.0, targets: Sequence[float] = TARGETS) -> FederatedData:
    """Clients of `SIZES` training examples, and one each to validate and to test."""
    sizes = [*SIZES, *[4] * (len(targets) - len(SIZES))]
    y = torch.cat([torch.full((size + 2,), a) for size, a in zip(sizes, targets, strict=False)])
    x = torch.tensor([1.0, slope]).expand(len(y), 2).contiguous()
    parts: dict[str, list[Tensor]] = {"train": [], "validation": [], "test": []}
    start = 0
    for size, _ in zip(sizes, targets, strict=False):
        for part, count in (("train", size), ("validation", 1), ("test", 1)):
            parts[part].append(torch.arange(start, start + count))
            start += count
    partition = Partition("toy", *(tuple(parts[p]) for p in ("train", "validation", "test")))
    return FederatedData(Dataset("toy", x, y, ()), partition)


def first_round(
    algorithm: Algorithm, examples: FederatedData
) -> tuple[ClientUpdate, Tensors, GradientEngine]:
    """All clients' update of the first round from the start, and the server's next state."""
    engine = GradientEngine(model())
    server = algorithm.init(engine.model)
    updates: list[ClientUpdate] = []
    at = Round(0, 10, 0)
    cohort = cohort_of(algorithm, examples, server)
    updates.append(algorithm.client_update(engine, server, cohort, at))
    state = FederationState(0, server)
    work = CohortWork(algorithm, engine, examples, state, at, chunk=32, store=torch.device("cpu"))
    clients = range(examples.num_clients)
    after = algorithm.server_update(engine.model, server, work.uploads(clients), at)
    return updates[0], after, engine


def cohort_of(
    algorithm: Algorithm, examples: FederatedData, server: Tensors, steps: int | None = None
) -> Cohort:
    """All clients, as they are before any round."""
    clients = tuple(range(examples.num_clients))
    rows = algorithm.client_init(model(), server, len(clients))
    plan = examples.plan(clients, steps or algorithm.local_steps, algorithm.batch_size, 0, 0)
    return Cohort(clients, rows, plan, examples.examples)
