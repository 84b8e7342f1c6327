"""Trying a declared model out before anything is trained or written."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from pyro import poutine
from torch import Tensor

from pyro_pfedbayes.data.clients import FederatedData
from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.families import Mixture
from pyro_pfedbayes.inference.algorithm import Algorithm
from pyro_pfedbayes.inference.beliefs.points import THETA as POINTS
from pyro_pfedbayes.inference.beliefs.points import PointBelief, point_start
from pyro_pfedbayes.inference.beliefs.sites import all_names, w_of
from pyro_pfedbayes.inference.engine.client_step import GradientEngine
from pyro_pfedbayes.inference.engine.noise import NoiseStreams
from pyro_pfedbayes.inference.engine.point_descent import batch, nll
from pyro_pfedbayes.models.bayesian import BayesianModel
from pyro_pfedbayes.models.declared import DeclaredModel
from pyro_pfedbayes.models.settings import pyro_local
from pyro_pfedbayes.models.sites import plain_reason, seeded


def try_out(
    model: DeclaredModel, algorithm: Algorithm, data: FederatedData, seed: int, cohort: int
) -> None:
    """Evaluate the objective of the first clients once, as the first rounds of ``cohort`` clients will.

    A network in the paper's setting is not tried: it has nothing that could fail then. Of methods whose beliefs are
    points it is the likelihood where all sites start.
    """
    if isinstance(model, BayesianModel) and model.plain and algorithm.estimator == "plain":
        return
    server, declared = algorithm.init(model), model.declaration
    clients = list(range(min(2, data.num_clients)))
    plan = data.plan(clients, 1, algorithm.batch_size, seed, 0)
    x, y = plan.batch(0)
    if isinstance(algorithm.global_belief(model, server), PointBelief):
        engine = GradientEngine(model, "eager")
        theta = {POINTS: point_start(model).expand(len(clients), -1).clone()}
        _try(model, lambda: engine.differentiate(nll, theta, batch(plan, 0))[0], x[0], y[0])
        return
    if isinstance(declared.server, Mixture) and declared.server.components > cohort:
        raise UserError(
            f"server is a mixture of {declared.server.components} components, but only {cohort} clients take part in "
            "a round; declare fewer"
        )
    rows = algorithm.client_init(model, server, len(clients))
    params, w = {name: rows[name] for name in all_names(model)}, w_of(server)
    like = next(iter(params.values()))
    engine = GradientEngine(model, "eager", algorithm.estimator)

    def objective(own_prior: bool) -> Tensor:
        size = engine.noise_size(params, w, x, y, own_prior=own_prior)
        noise = NoiseStreams(seed, 0, clients, 1, width=size, like=like).draw()
        one, scale = like.new_ones(()), plan.scale.to(like.dtype)
        return engine(params, w, one, scale, noise, x, y, plan.mask, own_prior=own_prior)[0]

    for own_prior in {False, declared.own_prior}:
        _try(model, partial(objective, own_prior), x[0], y[0])


def _try(model: DeclaredModel, objective: Callable[[], Tensor], x: Tensor, y: Tensor) -> None:
    """Evaluate an objective ``[S]``; refuse it if it fails or is not finite (UserError)."""
    try:
        losses = objective()
    except UserError:
        raise
    except (RuntimeError, ValueError, TypeError, KeyError, IndexError) as problem:
        reason = plain_reason(problem).partition("\n")[0]
        raise UserError(
            f"the model cannot be trained: {type(problem).__name__}: {reason}"
        ) from problem
    if not bool(torch.isfinite(losses).all()):
        raise UserError(
            f"the objective is not finite where training begins{_culprit(model, x, y)}; look at its "
            "parameters' ranges, at where sites start, and at the inputs"
        )


def _culprit(model: DeclaredModel, x: Tensor, y: Tensor) -> str:
    """Which site has no finite density where all sites start, in words."""
    values = model.constrain(model.start.loc)
    with pyro_local(), seeded(0), torch.no_grad():
        program = poutine.condition(model.client_program, data=values)
        trace = poutine.trace(program).get_trace(x, y)
        trace.compute_log_prob()
    for name, node in trace.nodes.items():
        if node["type"] == "sample" and not bool(torch.isfinite(node["log_prob_sum"])):
            return f": site {name!r} has no finite log-density"
    return ""
