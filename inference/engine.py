"""Losses and gradients of a stacked cohort: run as plain Pyro, or recorded once and replayed or compiled.

All ways run the same programs (model, guide, ELBO, noise handler). ``make_fx`` records the tensor operations that
they make; replaying those costs no Python of Pyro's, and ``torch.compile`` fuses them. Everything that may change
between steps is an input of the recording (parameters, prior, zeta, data scale, noise and batch), so nothing
can go stale.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from pyro_pfedbayes.gaussian import MeanFieldGaussian
from pyro_pfedbayes.inference.elbo import ClientELBO
from pyro_pfedbayes.inference.guides import MeanFieldGuide, parameter_names
from pyro_pfedbayes.inference.noise import Noise
from pyro_pfedbayes.inference.recording import untranspose_products
from pyro_pfedbayes.layout import FlatLayout
from pyro_pfedbayes.models.bayesian import BayesianModel
from pyro_pfedbayes.models.settings import pyro_local

__all__ = ["EngineMode", "GradientEngine"]

EngineMode = Literal["eager", "traced", "compiled"]

Gradients = tuple[Tensor, Tensor, Tensor]


class _Programs(nn.Module):
    """Model, guide and ELBO as one module, so that ``functional_call`` can swap every tensor in it."""

    def __init__(self, model: BayesianModel, num_clients: int, stacked_prior: bool) -> None:
        super().__init__()
        prior = model.prior
        rows = MeanFieldGaussian.stack([prior] * num_clients)
        self.model = model.with_prior(rows if stacked_prior else prior)
        self.guide = MeanFieldGuide(self.model, rows)
        self.elbo = ClientELBO()

    def forward(self, eps: dict[str, Tensor], x: Tensor, y: Tensor, mask: Tensor | None) -> Tensor:
        losses: Tensor = self.elbo.client_losses(self.model, Noise(eps)(self.guide), x, y, mask)
        return losses


class GradientEngine:
    """Evaluates the client objective and its gradient for cohorts of one declared model.

    Args:
        model: The declared model; its prior serves only for names, shapes, dtype and device.
        mode: ``"eager"`` runs the programs as they are at every step; ``"traced"`` records them once for each
            new combination of shapes (about two seconds) and replays that, with the same bits; ``"compiled"``
            compiles the recording (10 to 30 s), with the same numbers up to rounding.
    """

    def __init__(self, model: BayesianModel, mode: EngineMode = "eager") -> None:
        self.model = model
        self.layout = model.layout
        self.mode = mode
        self._steps: dict[tuple[Any, ...], Callable[..., Gradients]] = {}

    def __call__(
        self,
        loc: Tensor,
        rho: Tensor,
        prior_loc: Tensor,
        prior_scale: Tensor,
        zeta: Tensor,
        data_scale: Tensor,
        eps: Tensor,
        x: Tensor,
        y: Tensor,
        mask: Tensor | None = None,
    ) -> Gradients:
        """One evaluation of the objective of every client of a cohort.

        Args:
            loc: Means ``[S, T]``.
            rho: Unconstrained scales ``[S, T]``.
            prior_loc: Means of the prior, ``[T]`` or one a client ``[S, T]``.
            prior_scale: Standard deviations of the prior, like ``prior_loc``.
            zeta: Scalar weight of the KL divergence.
            data_scale: n_i / c_i ``[S]``, c_i the number of valid examples in the batch.
            eps: Noise of K draws ``[K, S, T]``.
            x: Inputs ``[S, b, *features]``.
            y: Observations ``[S, b]``.
            mask: True where a row counts, ``[S, b]``; None if all do.

        Returns:
            Losses ``[S]`` in nats, and the gradients of their sum in ``loc`` and ``rho``.
        """
        inputs = (loc, rho, prior_loc, prior_scale, zeta, data_scale, eps, x, y, mask)
        key = tuple(None if t is None else (tuple(t.shape), t.dtype, t.device) for t in inputs)
        if key not in self._steps:
            with pyro_local():
                self._steps[key] = self._build(inputs)
        # A recording holds no Pyro any more, and is spared the price of its settings.
        settings = pyro_local() if self.mode == "eager" else contextlib.nullcontext()
        with settings, torch.no_grad():
            return self._steps[key](*inputs)

    def _build(self, inputs: tuple[Tensor | None, ...]) -> Callable[..., Gradients]:
        loc, prior_loc = inputs[0], inputs[2]
        assert loc is not None
        assert prior_loc is not None
        programs = _Programs(self.model, len(loc), stacked_prior=prior_loc.dim() == 2)
        step = _gradient_function(programs, self.layout)
        if self.mode == "eager":
            return step
        recording = make_fx(step)(*inputs)
        if self.mode == "traced":
            return recording
        return torch.compile(untranspose_products(recording), dynamic=False)


def _gradient_function(programs: _Programs, layout: FlatLayout) -> Callable[..., Gradients]:
    """Close over the programs only: every tensor that a step depends on is an argument."""

    def step(
        loc: Tensor,
        rho: Tensor,
        prior_loc: Tensor,
        prior_scale: Tensor,
        zeta: Tensor,
        data_scale: Tensor,
        eps: Tensor,
        x: Tensor,
        y: Tensor,
        mask: Tensor | None,
    ) -> Gradients:
        with torch.enable_grad():
            loc, rho = loc.detach().requires_grad_(), rho.detach().requires_grad_()
            tensors = {"model.zeta": zeta, "model.data_scale": data_scale}
            locs, rhos = layout.unflatten(loc), layout.unflatten(rho)
            priors = layout.unflatten(prior_loc), layout.unflatten(prior_scale)
            for name in layout.shapes:
                loc_name, rho_name = parameter_names(name)
                tensors[f"guide.{loc_name}"] = locs[name]
                tensors[f"guide.{rho_name}"] = rhos[name]
                buffer = name.replace(".", "/")
                tensors[f"model.prior_loc.{buffer}"] = priors[0][name]
                tensors[f"model.prior_scale.{buffer}"] = priors[1][name]
            losses = sum(
                torch.func.functional_call(programs, tensors, (layout.unflatten(draw), x, y, mask))
                for draw in eps.unbind(0)
            ) / len(eps)
            grad_loc, grad_rho = torch.autograd.grad(losses.sum(), (loc, rho))
        return losses.detach(), grad_loc, grad_rho

    return step
