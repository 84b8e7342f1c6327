"""A belief for a client that was not in the run: the server's w, or a few local steps from it."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from pyro_pfedbayes.data.clients import FederatedData
from pyro_pfedbayes.data.datasets import Dataset
from pyro_pfedbayes.data.partitions.schemes import Partition
from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.inference.algorithm import Round
from pyro_pfedbayes.inference.algorithms.pfedbayes import PFedBayes
from pyro_pfedbayes.inference.beliefs.client_objective import POINT
from pyro_pfedbayes.inference.beliefs.sites import Belief, w_of
from pyro_pfedbayes.inference.engine.client_step import GradientEngine
from pyro_pfedbayes.inference.engine.devices import EngineChoice, choose_engine
from pyro_pfedbayes.inference.federation.cohort import CohortWork
from pyro_pfedbayes.inference.federation.loop import Federation, Result
from pyro_pfedbayes.inference.federation.state import FederationState, moved
from pyro_pfedbayes.randomness import seed_for


def onboard(
    source: Result | Federation,
    x: Tensor | None = None,
    y: Tensor | None = None,
    *,
    state: FederationState | None = None,
    steps: int = 100,
    lr: float | None = None,
    seed: int = 0,
    engine: EngineChoice = "auto",
) -> Belief:
    """The belief of a client that was not in the run.

    Without data (or with ``steps=0``) that is the server's w, under which private sites are drawn from their own
    priors: its posterior predictive is the *prior* predictive of the new client. With data the client takes ``steps``
    minibatches of the run's personal phase: stochastic variational inference against the frozen w, with the run's zeta,
    batch size and schedule. Nothing is sent, and neither the run nor its state changes. Of a run with kinds it starts
    from w itself.

    Args:
        source: A finished run, or a federation together with ``state``.
        x: The client's inputs ``[n, *features]`` as the federation's data set holds them (images in [-1, 1], tables
            standardised by ``dataset.scaling``), covariates as the last columns.
        y: Its outcomes ``[n]``: labels, or numbers standardised by ``dataset.target_scaling``.
        state: Of a federation; a result has its own.
        steps: Minibatches R.
        lr: Adam's learning rate at the first of them; None for the run's ``personal_lr``, or its ``lr``.
        seed: Of minibatches and noise, beside the run's own.
        engine: As for a federation.

    Returns:
        An unstacked belief, for ``posterior_predictive`` or ``sample``.

    Raises:
        UserError: No state, inputs or outcomes that do not fit the model, numbers that are not finite after training,
            a method other than pFedBayes.

    Example:
        >>> import pyro_pfedbayes as pfb
        >>> digits = pfb.load_dataset("digits")
        >>> data = pfb.FederatedData(digits, pfb.partition_labels(digits, 4, 5, 15, 15))
        >>> model = pfb.BayesianModel(pfb.mlp([64, 8, 10]), pfb.Categorical(10))
        >>> result = pfb.Federation(model, data, algorithm=pfb.PFedBayes(local_steps=2), device="cpu").run(2)
        >>> x, y = data.examples(0, "test")           # as if they were a new client's
        >>> belief = onboard(result, x, y, steps=5)
        >>> pfb.posterior_predictive(model, belief, x, draws=5).shape
        torch.Size([75, 10])
    """
    if isinstance(source, Result):
        federation, state = source.federation, source.state if state is None else state
    elif not isinstance(source, Federation):
        raise UserError(f"source is a {type(source).__name__}; give a Result, or a Federation")
    elif state is None:
        raise UserError("a federation alone believes nothing yet: give state=, or a Result")
    else:
        federation = source
    if steps < 0:
        raise UserError(f"steps is {steps}; it must be at least 0")
    rows, outcomes = (0 if part is None else len(part) for part in (x, y))
    if rows != outcomes:
        raise UserError(f"x has {rows} rows and y {outcomes}: wanted as many, or neither")
    if x is None or y is None or len(y) == 0 or steps == 0:
        return federation.global_belief(state)
    method = federation.algorithm
    if not isinstance(method, PFedBayes):
        raise UserError(f"onboarding knows pFedBayes only, not {method.name!r}")
    algorithm = replace(
        method,
        local_steps=steps,
        kinds=1,
        kind_rounds=0,
        personal_rounds=1,
        personal_start="server",
        personal_lr=method.personal_lr if lr is None else lr,
        optimizer_state="reset",
    )
    data = _data_of_one(federation, x, y)
    model, device = federation.model, federation.device
    mode = choose_engine(
        engine,
        evaluations=algorithm.gradient_steps(Round(0, 2, 0)),
        weights=model.declaration.num_weights,
        device=device,
    )
    # Kinds are of the clients in the run, and Adam's averages have done their work.
    names = (*w_of(state.server), POINT)
    server = moved({n: state.server[n] for n in names if n in state.server}, device)
    # The second round of two: the one personal round.
    at = Round(1, 2, seed_for(federation.seed, "onboarding", seed))
    gradients = GradientEngine(model, mode, algorithm.estimator)
    begin = FederationState(round=1, server=server)
    work = CohortWork(algorithm, gradients, data, begin, at, chunk=1, store=device)
    try:
        for _ in work.uploads([0]):
            pass
    except UserError as problem:
        if work.dropped:
            raise UserError(
                f"the new client diverged within {steps} steps (numbers are not finite); "
                "try a lower lr, or look at its inputs' range"
            ) from problem
        raise
    row = {name: value[None] for name, value in work.rows[0].items()}
    return algorithm.personal_belief(model, row).client(0)


def _data_of_one(federation: Federation, x: Tensor, y: Tensor) -> FederatedData:
    """The new client as a federation of one."""
    known = federation.data.dataset
    x = torch.as_tensor(x, dtype=torch.float32, device=federation.device)
    kind = torch.float32 if known.outcome == "number" else torch.int64
    y = torch.as_tensor(y, dtype=kind, device=federation.device)
    if tuple(x.shape[1:]) != known.feature_shape:
        raise UserError(
            f"an example of the new client has shape {list(x.shape[1:])}, "
            f"one of {known.name} {list(known.feature_shape)}"
        )
    dataset = Dataset("the new client's data", x, y, known.classes)
    federation.model.check_fits(x[:2], y, dataset.name)
    everybody, nobody = torch.arange(len(y)), torch.arange(0)
    return FederatedData(dataset, Partition("onboarding", (everybody,), (nobody,), (nobody,)))
