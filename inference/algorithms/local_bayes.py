"""Bayes by Backprop (Blundell et al., ICML 2015) at each client alone, with its scale-mixture prior."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.inference.algorithm import ClientUpdate, Cohort, Round, Tensors, Values
from pyro_pfedbayes.inference.algorithms.components.settings import Positive
from pyro_pfedbayes.inference.algorithms.local import Local
from pyro_pfedbayes.inference.beliefs.points import THETA
from pyro_pfedbayes.inference.beliefs.sites import Belief
from pyro_pfedbayes.inference.engine.client_step import GradientEngine
from pyro_pfedbayes.inference.engine.noise import NoiseStreams
from pyro_pfedbayes.inference.engine.optimizer import RowAdam
from pyro_pfedbayes.inference.engine.point_descent import batch, nll
from pyro_pfedbayes.inference.server.prefixed_state import prefixed, under
from pyro_pfedbayes.models.bayesian import BayesianModel
from pyro_pfedbayes.models.declared import DeclaredModel


@dataclass(frozen=True)
class MixtureBound:
    """Negative ELBO of one client under a scale-mixture prior, divided by its number of examples.

    The KL divergence has no closed form: it is estimated with the draw that the likelihood is evaluated at.
    The prior of each weight is pi N(0, sigma1^2) + (1 - pi) N(0, sigma2^2).
    """

    pi: float
    sigma1: float
    sigma2: float

    def __call__(self, model: DeclaredModel, params: Values, own: Values, common: Values) -> Tensor:
        """From ``loc`` and ``rho [P]``, noise ``eps [P]``, ``kl_weight`` = 1 / n_i and a batch to nats per example."""
        scale = F.softplus(params["rho"])
        theta = params["loc"] + scale * own["eps"]
        log_q = -0.5 * own["eps"].square() - scale.log() - 0.5 * math.log(2 * math.pi)
        excess = (log_q - self.log_prior(theta)).sum()
        return nll(model, {THETA: theta}, own, common) + own["kl_weight"] * excess

    def log_prior(self, theta: Tensor) -> Tensor:
        """Log-density of each weight."""
        parts = [
            math.log(share)
            + torch.distributions.Normal(0.0, sigma, validate_args=False).log_prob(theta)
            for share, sigma in ((self.pi, self.sigma1), (1 - self.pi, self.sigma2))
        ]
        return torch.logaddexp(*parts)


@dataclass(frozen=True)
class LocalBayes(Local):
    """Settings of Bayes by Backprop without communication: the Bayesian bound that a federation must beat.

    Each client keeps q = N(mu, softplus(rho)^2) over all weights of a network, and follows Adam on `MixtureBound`.
    """

    lr: Positive = 1e-3  # Adam's learning rate
    pi: Annotated[float, "(0, 1)"] = 0.5
    """The prior's weight of its wide component. The paper tries 1/4, 1/2, 3/4."""
    sigma1: Positive = 1.0  # its standard deviation; the paper tries exp(0), exp(-1), exp(-2)
    sigma2: Positive = 0.0025
    """Standard deviation of the narrow one; the paper tries exp(-6), exp(-7), exp(-8)."""
    rho: float = -4.0  # standard deviation where training begins, as softplus(rho)

    name = "local-bayes"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.momentum or self.weight_decay:
            raise UserError(
                "local-bayes follows Adam under its prior; leave momentum and weight_decay at 0"
            )

    def init(self, model: DeclaredModel) -> Tensors:
        """Where every client begins: the network's weights, with standard deviations softplus(rho)."""
        if not isinstance(model, BayesianModel) or not model.plain:
            raise UserError(
                "local-bayes needs a network whose weights are all shared Gaussians (the default roles and families)"
            )
        loc = model.layout.flatten(model.start.loc)
        return {"loc": loc, "rho": torch.full_like(loc, self.rho)}

    def client_init(self, model: DeclaredModel, server: Tensors, count: int) -> Tensors:
        """Rows of new clients, with the server's Gaussian."""
        rows = {name: server[name].expand(count, -1).clone() for name in ("loc", "rho")}
        return rows | prefixed(RowAdam.fresh_state(list(rows.values())), "adam.")

    def client_update(
        self, engine: GradientEngine, server: Tensors, cohort: Cohort, at: Round
    ) -> ClientUpdate:
        """R steps of Adam on each client's own bound."""
        params = {name: cohort.state[name].clone() for name in ("loc", "rho")}
        adam = RowAdam(list(params.values()), under(cohort.state, "adam."))
        size, like = params["loc"].shape[1], params["loc"]
        noise = NoiseStreams(at.seed, at.index, cohort.clients, 1, width=size, like=like)
        objective = MixtureBound(self.pi, self.sigma1, self.sigma2)
        descent, total = self.descent(at), like.new_zeros(len(like))
        weight = 1.0 / cohort.plan.sizes.to(like.dtype)
        for step in range(cohort.plan.steps):
            own = {**batch(cohort.plan, step), "eps": noise.draw()[0], "kl_weight": weight}
            loss, gradients = engine.differentiate(objective, params, own)
            adam.step([gradients[name] for name in params], descent.rate(step))
            total += loss
        state = {**params, **prefixed(adam.state(), "adam.")}
        return ClientUpdate(state, {}, total / cohort.plan.steps)

    def personal_belief(self, model: DeclaredModel, clients: Tensors) -> Belief:
        """The clients' q."""
        assert isinstance(model, BayesianModel)  # as `init` checks
        return model.layout.gaussian(clients["loc"], F.softplus(clients["rho"]))

    def global_belief(self, model: DeclaredModel, server: Tensors) -> Belief:
        """Where all began."""
        return self.personal_belief(model, server)
