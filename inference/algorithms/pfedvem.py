"""pFedVEM (Zhu et al., ICML 2023): Bayesian heads around a common mean, a deterministic common body."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from pyro_pfedbayes.families.clients import inverse_softplus
from pyro_pfedbayes.inference.algorithm import ClientUpdate, Cohort, Round, Tensors, Upload, Values
from pyro_pfedbayes.inference.algorithms.components.point import PERSONAL
from pyro_pfedbayes.inference.algorithms.components.settings import Positive
from pyro_pfedbayes.inference.algorithms.components.split import AlternatingMethod
from pyro_pfedbayes.inference.beliefs.points import THETA
from pyro_pfedbayes.inference.engine.client_step import GradientEngine
from pyro_pfedbayes.inference.engine.noise import NoiseStreams
from pyro_pfedbayes.inference.engine.point_descent import batch, nll
from pyro_pfedbayes.inference.server.rules import averaged_into
from pyro_pfedbayes.models.declared import DeclaredModel

LOC, RHO, PRECISION = "head.loc", "head.rho", "precision"


def head_variance(loc: Tensor, scale: Tensor, mu: Tensor) -> Tensor:
    """How far heads lie from their common mean: rho_i^2 = (1/d) sum(sigma_i^2 + (m_i - mu)^2), ``[S]``.

    It maximises the expected log-prior of heads with means m_i ``[S, d]`` and standard deviations sigma_i ``[S, d]``.
    """
    return (scale.square() + (loc - mu).square()).mean(1)


def head_bound(model: DeclaredModel, params: Values, own: Values, common: Values) -> Tensor:
    """Negative ELBO of one client's head, divided by its number of examples.

    From ``loc`` and ``rho [d]`` of the head's Gaussian; the client's own ``theta [P]`` for the body, noise ``eps [d]``,
    scalars ``variance`` (the prior's) and ``kl_weight`` = 1 / n_i, and a batch; the prior's common mean ``mu [d]``
    and the head's places ``index [d]`` among all weights.
    """
    scale = F.softplus(params["rho"])
    head = params["loc"] + scale * own["eps"]
    theta = own[THETA].index_copy(0, common["index"], head)
    variance = own["variance"]
    spread = (scale.square() + (params["loc"] - common["mu"]).square()) / variance
    divergence = 0.5 * (spread - 1.0 + variance.log() - 2.0 * scale.log()).sum()
    return nll(model, {THETA: theta}, own, {}) + own["kl_weight"] * divergence


@dataclass(frozen=True)
class PFedVEM(AlternatingMethod):
    """Settings of pFedVEM: heads beta_i ~ N(mu, rho_i^2 I) with q_i = N(m_i, sigma_i^2), under a body that all share.

    A round of client i: rho_i^2 in closed form, ``head_steps`` minibatches on the head's ELBO, the others on the body
    with a head drawn from q_i. The server weighs the m_i by 1 / rho_i^2 and averages bodies by examples. The authors'
    head steps use all examples at once; here they use minibatches, as the steps of every other method.
    """

    head_lr: Positive | None = None  # their learning rate; None for ``lr``
    scale: Positive = 0.1  # standard deviation of the heads' q_i where training begins

    name = "pfedvem"
    models = ("personal", "global")

    def client_init(self, model: DeclaredModel, server: Tensors, count: int) -> Tensors:
        """Heads around the common mean."""
        theta = server[THETA].expand(count, -1).clone()
        loc = theta[:, self.private(model)]
        rho = inverse_softplus(torch.full_like(loc, self.scale))
        return {LOC: loc, RHO: rho, PERSONAL: theta}

    def client_update(
        self, engine: GradientEngine, server: Tensors, cohort: Cohort, at: Round
    ) -> ClientUpdate:
        """The spread, then the head, then the body."""
        private = self.private(engine.model)
        index = private.nonzero().squeeze(1)
        mu = server[THETA][private]
        params = {"loc": cohort.state[LOC].clone(), "rho": cohort.state[RHO].clone()}
        variance = head_variance(params["loc"], F.softplus(params["rho"]), mu)
        theta = server[THETA].expand(len(cohort.clients), -1).clone()
        noise = NoiseStreams(at.seed, at.index, cohort.clients, 1, width=len(mu), like=mu)
        known = {"variance": variance, "kl_weight": 1.0 / cohort.plan.sizes.to(mu.dtype)}
        slow, fast = self.descent(at), self.descent(at, lr=self.head_lr)
        common = {"mu": mu, "index": index}
        for step in range(self.heads):
            own = {**batch(cohort.plan, step), THETA: theta, "eps": noise.draw()[0], **known}
            _, gradients = engine.differentiate(head_bound, params, own, common)
            for name, gradient in gradients.items():
                params[name].sub_(gradient, alpha=fast.rate(step))
        total = theta.new_zeros(len(theta))
        for step in range(self.heads, cohort.plan.steps):
            theta[:, index] = params["loc"] + F.softplus(params["rho"]) * noise.draw()[0]
            loss, gradients = engine.differentiate(nll, {THETA: theta}, batch(cohort.plan, step))
            direction = gradients[THETA] + self.weight_decay * theta
            theta.sub_(direction * ~private, alpha=slow.rate(step))
            total += loss
        theta[:, index] = params["loc"]
        state = {LOC: params["loc"], RHO: params["rho"], PERSONAL: theta}
        upload = {THETA: theta[:, ~private], LOC: params["loc"], PRECISION: 1.0 / variance}
        return ClientUpdate(state, upload, total / (cohort.plan.steps - self.heads))

    def server_update(
        self, model: DeclaredModel, server: Tensors, uploads: Iterable[Upload], at: Round
    ) -> Tensors:
        """The mean of heads by their precisions, and of bodies by examples."""
        sent = list(uploads)
        bodies = super().server_update(model, server, sent, at)[THETA]
        heads = ((u.tensors[LOC], u.tensors[PRECISION]) for u in sent)
        return {THETA: averaged_into(bodies, self.private(model), heads)}

    def personalize(self, engine: GradientEngine, server: Tensors, cohort: Cohort) -> Tensors:
        """The body as the client trained it last, under the mean of its head: as the authors judge it."""
        return {PERSONAL: cohort.state[PERSONAL]}
