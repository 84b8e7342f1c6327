"""The localized w_i of the paper's Algorithm 1."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from pyro_pfedbayes.families import MeanFieldNormal
from pyro_pfedbayes.gaussians.mean_field import MeanFieldGaussian
from pyro_pfedbayes.inference.engine.optimizer import RowAdam


@dataclass(frozen=True)
class LocalizedGaussian:
    """A stack of w_i that follow their q^i by gradient steps on KL(q^i‖w_i) (Zhang et al. 2022, section 4)."""

    loc: Tensor  # [S, T], changed in place
    rho: Tensor  # unconstrained scales, likewise
    adam: RowAdam  # over both
    lr: float  # the paper's eta_2

    @classmethod
    def begin(
        cls, w: Mapping[str, Tensor], clients: int, state: Mapping[str, Tensor], lr: float
    ) -> LocalizedGaussian:
        """Every w_i at w, with Adam's state from earlier rounds, if any."""
        loc, scale = (w[name].expand(clients, -1).clone() for name in ("loc", "scale"))
        rows = MeanFieldNormal().start(loc, scale)
        adam = RowAdam([rows["loc"], rows["rho"]], state)
        return cls(rows["loc"], rows["rho"], adam, lr)

    def step(self, q_loc: Tensor, q_scale: Tensor, zeta: Tensor) -> None:
        """One step of every w_i towards its q^i, whose mean and standard deviation are ``[S, T]``."""
        with torch.enable_grad():
            loc, rho = self.loc.detach().requires_grad_(), self.rho.detach().requires_grad_()
            q = MeanFieldGaussian.unchecked({"theta": q_loc}, {"theta": q_scale}, stacked=True)
            w = MeanFieldGaussian.unchecked(
                {"theta": loc}, {"theta": F.softplus(rho)}, stacked=True
            )
            gradients = torch.autograd.grad(zeta * q.kl(w).sum(), (loc, rho))
        self.adam.step(gradients, self.lr)
