"""Stochastic gradient descent of a cohort on point objectives, the stacked loop that all point methods share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from pyro import poutine
from torch import Tensor

from pyro_pfedbayes.data.clients import BatchPlan
from pyro_pfedbayes.inference.beliefs.points import THETA, point_layout
from pyro_pfedbayes.inference.engine.client_step import ClientObjective, GradientEngine
from pyro_pfedbayes.models.declared import DeclaredModel
from pyro_pfedbayes.models.sites import site_trace


def nll(
    model: DeclaredModel,
    params: dict[str, Tensor],
    own: dict[str, Tensor],
    common: dict[str, Tensor],
) -> Tensor:
    """Mean negative log-likelihood of one client's minibatch at flat weights ``params["theta"]``, a scalar in nats."""
    del common
    values = model.constrain(point_layout(model).unflatten(params[THETA]))
    return mean_nll(model, values, own)


def mean_nll(model: DeclaredModel, values: dict[str, Tensor], own: dict[str, Tensor]) -> Tensor:
    """Mean of -log p(y | x, values) over the rows of a batch that count and whose outcome is known.

    ``values`` are all sites in their own coordinates; ``own`` holds ``x [b, *features]``, ``y [b]``, and ``mask [b]``
    if some rows are padding.
    """
    y, counts = counted(own, numbers=model.outcome == "number")
    program = poutine.condition(model.client_program, data=values)
    observation = site_trace(program, own["x"], y)["y"]
    log_prob: Tensor = observation["fn"].log_prob(observation["value"])
    return -(log_prob * counts).sum() / counts.sum().clamp_min(1)


def counted(own: dict[str, Tensor], *, numbers: bool = False) -> tuple[Tensor, Tensor]:
    """Outcomes of a batch, harmless where they must not count, and which of them count.

    Numbers are missing where NaN, classes below 0; a ``mask [b]`` marks padding.
    """
    y = own["y"]
    counts = ~y.isnan() if numbers else y >= 0
    if "mask" in own:
        counts = counts & own["mask"]
    # What must not count must be possible all the same, or its gradient would be NaN.
    return torch.where(counts, y, torch.zeros_like(y)), counts


def batch(plan: BatchPlan, step: int) -> dict[str, Tensor | None]:
    """The minibatches of one step as an objective takes them."""
    x, y = plan.batch(step)
    return {"x": x, "y": y, "mask": plan.needed_mask}


@dataclass(frozen=True)
class Descent:
    """How a step follows a gradient."""

    rate: Callable[[int], float]  # learning rate at a step of the round
    momentum: float = 0.0  # share of the last step in the next (Polyak), in [0, 1)
    weight_decay: float = 0.0  # factor of the weights added to the gradient


def descend(
    engine: GradientEngine,
    theta: Tensor,
    plan: BatchPlan,
    descent: Descent,
    *,
    objective: ClientObjective = nll,
    own: dict[str, Tensor] | None = None,
    common: dict[str, Tensor] | None = None,
    pull: Callable[[Tensor], Tensor] | None = None,
    trained: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Follow the gradient of ``objective`` in a copy of ``theta [S, P]`` through all minibatches of a plan.

    ``own`` is what else the objective takes of each client, ``[S, ...]`` each, ``common`` what all clients have in
    common. ``pull`` is added to the gradient at given weights, such as that of a proximal term. Only weights where
    ``trained`` (bool ``[P]`` or ``[S, P]``) is true move. Returns where it ends, and the objective averaged over the
    steps ``[S]``, without the pull.
    """
    theta = theta.detach().clone()
    velocity = torch.zeros_like(theta) if descent.momentum else None
    total = theta.new_zeros(len(theta))
    for step in range(plan.steps):
        loss, gradients = engine.differentiate(
            objective, {THETA: theta}, {**batch(plan, step), **(own or {})}, common
        )
        direction = gradients[THETA]
        if descent.weight_decay:
            direction = direction + descent.weight_decay * theta
        if pull is not None:
            direction = direction + pull(theta)
        if trained is not None:
            direction = direction * trained
        if velocity is not None:
            direction = velocity.mul_(descent.momentum).add_(direction)
        theta.sub_(direction, alpha=descent.rate(step))
        total += loss
    return theta, total / plan.steps
