"""Losses and gradients of a stacked cohort: run as plain Pyro, or recorded once and replayed or compiled.

A network in the paper's setting runs as one stacked program; any other declared model as its own program of one client,
mapped over the cohort.

All ways run the same programs (model, guide, ELBO, noise handler). ``make_fx`` records the tensor operations that
they make; replaying those costs no Python of Pyro's, and ``torch.compile`` fuses them. Everything that may change
between steps is an input of the recording (parameters, prior, zeta, data scale, noise and batch), so nothing
can go stale.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.families import ELEMENTWISE, MeanFieldNormal
from pyro_pfedbayes.families.divergence import divergence
from pyro_pfedbayes.gaussians.flat_layout import FlatLayout
from pyro_pfedbayes.gaussians.mean_field import MeanFieldGaussian
from pyro_pfedbayes.inference.beliefs.client_objective import LiftedObjective
from pyro_pfedbayes.inference.beliefs.guides import MeanFieldGuide, parameter_names
from pyro_pfedbayes.inference.beliefs.private_guides import private_guide
from pyro_pfedbayes.inference.engine.graph_rewriting import untranspose_products
from pyro_pfedbayes.inference.engine.noise import Noise
from pyro_pfedbayes.inference.objective.elbo import ClientELBO
from pyro_pfedbayes.inference.objective.estimators import Estimator, EstimatorKind
from pyro_pfedbayes.models.bayesian import BayesianModel
from pyro_pfedbayes.models.declared import DeclaredModel
from pyro_pfedbayes.models.settings import pyro_local

EngineMode = Literal["eager", "traced", "compiled"]

Tensors = Mapping[str, Tensor]


ClientObjective = Callable[
    [DeclaredModel, dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]], Tensor
]
"""From a model, parameters, what else is a client's own and what all have in common to a scalar."""


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
        estimator: How the noise of layers is drawn: ``"plain"``, ``"local"`` or ``"flipout"``.
    """

    def __init__(
        self, model: DeclaredModel, mode: EngineMode = "eager", estimator: EstimatorKind = "plain"
    ) -> None:
        self.model = model
        self.mode = mode
        self.estimator = estimator
        self._steps: dict[tuple[Any, ...], Callable[..., tuple[Tensor, ...]]] = {}
        self._objectives: dict[tuple[Any, ...], tuple[LiftedObjective, int]] = {}
        if estimator != "plain" and not isinstance(model.declaration.guide, MeanFieldNormal):
            raise UserError(
                f"estimator is {estimator!r}, which needs a mean-field guide, "
                f"not {model.declaration.guide.name!r}; use estimator 'plain'"
            )

    def noise_size(
        self, params: Tensors, prior: Tensors, x: Tensor, y: Tensor, *, own_prior: bool = False
    ) -> int:
        """How many standard normal numbers E one draw of one client takes.

        Args:
            params: Parameters of q^i, ``[S, ...]`` each.
            prior: The server's w.
            x: A batch ``[S, b, *features]``.
            y: Its observations ``[S, b]``.
            own_prior: As for calls.
        """
        if self._stacked(own_prior):
            return self.model.declaration.shared.size
        return self._objective(params, prior, x, y, own_prior)[1]

    def __call__(
        self,
        params: Tensors,
        prior: Tensors,
        zeta: Tensor,
        data_scale: Tensor,
        eps: Tensor,
        x: Tensor,
        y: Tensor,
        mask: Tensor | None = None,
        *,
        own_prior: bool = False,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """One evaluation of the objective of every client of a cohort.

        Args:
            params: Unconstrained parameters of q^i by name, ``[S, P]`` each: ``loc`` and ``rho`` for mean-field
                Gaussians.
            prior: The server's w as its family holds it; one of independent weights also as one a client, ``[S, T]``.
            zeta: Scalar weight of the KL divergence.
            data_scale: n_i / c_i ``[S]``, c_i the number of valid examples in the batch.
            eps: Noise of K draws ``[K, S, E]``, see `noise_size`.
            x: Inputs ``[S, b, *features]``.
            y: Observations ``[S, b]``.
            mask: True where a row counts, ``[S, b]``; None if all do.
            own_prior: Whether the model's own priors stand in for w.

        Returns:
            Losses ``[S]`` in nats, and the gradients of their sum, like ``params``.
        """
        names, prior_names = tuple(params), tuple(prior)
        inputs = (*params.values(), *prior.values(), zeta, data_scale, eps, x, y, mask)
        shapes = tuple(None if t is None else (tuple(t.shape), t.dtype, t.device) for t in inputs)
        key = (names, prior_names, own_prior, *shapes)
        if key not in self._steps:
            with pyro_local():
                self._steps[key] = self._build(inputs, params, prior, x, y, own_prior)
        # A recording holds no Pyro any more, and is spared the price of its settings.
        settings = pyro_local() if self.mode == "eager" else contextlib.nullcontext()
        with settings, torch.no_grad():
            losses, *gradients = self._steps[key](*inputs)
        return losses, dict(zip(names, gradients, strict=True))

    def differentiate(
        self,
        objective: ClientObjective,
        params: Tensors,
        own: Mapping[str, Tensor | None],
        common: Tensors | None = None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The value and gradient of any objective of one client, for each client of a cohort.

        It is run, recorded or compiled as the client objective of pFedBayes is.

        Args:
            objective: A function of the module, or a frozen dataclass of settings: it is the key of the recording.
            params: What to differentiate by, ``[S, ...]`` each.
            own: What else is each client's own, ``[S, ...]`` each, such as x, y and mask; None is left out.
            common: What all clients have in common.

        Returns:
            Values ``[S]``, and the gradients, like ``params``.
        """
        groups = dict(params), {k: v for k, v in own.items() if v is not None}, dict(common or {})
        names = tuple(tuple(group) for group in groups)
        inputs = tuple(tensor for group in groups for tensor in group.values())
        shapes = tuple((tuple(t.shape), t.dtype, t.device) for t in inputs)
        key = (objective, names, shapes)
        if key not in self._steps:
            with pyro_local():
                step = partial(_differentiated, self.model, objective, names)
                self._steps[key] = self._recorded(step, inputs)
        settings = pyro_local() if self.mode == "eager" else contextlib.nullcontext()
        with settings, torch.no_grad():
            values, *gradients = self._steps[key](*inputs)
        return values, dict(zip(names[0], gradients, strict=True))

    def _one_a_client(self, prior: Tensors) -> bool:
        """Whether w is given for each client; without shared sites there is none."""
        elementwise = isinstance(self.model.declaration.server, ELEMENTWISE)
        return elementwise and "loc" in prior and prior["loc"].dim() == 2

    def _stacked(self, own_prior: bool) -> bool:
        """Whether the cohort runs as the one stacked program of a network, the quickest way."""
        return (
            isinstance(self.model, BayesianModel)
            and self.model.plain
            and self.estimator == "plain"
            and not own_prior
        )

    def _build(
        self,
        inputs: tuple[Tensor | None, ...],
        params: Tensors,
        prior: Tensors,
        x: Tensor,
        y: Tensor,
        own_prior: bool,
    ) -> Callable[..., tuple[Tensor, ...]]:
        stacked_prior = self._one_a_client(prior)
        if self._stacked(own_prior):
            assert isinstance(self.model, BayesianModel)
            programs = _Programs(self.model, len(x), stacked_prior)
            step = _gradient_function(programs, self.model.layout)
        else:
            objective, _ = self._objective(params, prior, x, y, own_prior)
            names = tuple(params), tuple(prior)
            step = _lifted_gradient_function(objective, *names, stacked_prior, stack=True)
            try:
                with torch.no_grad():
                    step(*inputs)
            except RuntimeError as problem:
                if "vmap" not in str(problem):
                    raise
                step = _lifted_gradient_function(objective, *names, stacked_prior, stack=False)
        return self._recorded(step, inputs)

    def _recorded(
        self, step: Callable[..., tuple[Tensor, ...]], inputs: tuple[Tensor | None, ...]
    ) -> Callable[..., tuple[Tensor, ...]]:
        """A step as the engine's mode wants it."""
        if self.mode == "eager":
            return step
        try:
            recording = make_fx(step)(*inputs)
        except RuntimeError as problem:
            if "data-dependent" not in str(problem):
                raise
            # A program that branches on values has no one recording; it runs as it is.
            return pyro_local()(step)
        if self.mode == "traced":
            return recording
        return torch.compile(untranspose_products(recording), dynamic=False)

    def _objective(
        self, params: Tensors, prior: Tensors, x: Tensor, y: Tensor, own_prior: bool
    ) -> tuple[LiftedObjective, int]:
        """The objective of one client, and the noise that one draw takes, found by running it once."""
        key = (own_prior, tuple(x.shape[1:]))
        if key in self._objectives:
            return self._objectives[key]
        one = {name: value[0] for name, value in params.items()}
        stacked_prior = self._one_a_client(prior)
        w = {name: value[0] for name, value in prior.items()} if stacked_prior else prior
        guide = private_guide(self.model)
        objective = LiftedObjective(self.model, own_prior, private=guide)
        try:
            with pyro_local():
                if self.estimator != "plain":
                    estimator = Estimator(self.estimator)
                    probe = replace(objective, estimator=estimator)
                    suited = probe.suited_sites(one, w, x[0], y[0])
                    objective = replace(
                        objective, estimator=self._fitted(estimator, suited, own_prior, one, w)
                    )
                size = objective.rehearse(one, w, x[0], y[0])
        except NotImplementedError as problem:
            raise UserError(f"the model cannot be trained: {problem}") from problem
        self._objectives[key] = objective, size
        return objective, size

    def _fitted(
        self,
        estimator: Estimator,
        suited: frozenset[str],
        own_prior: bool,
        one: Tensors,
        w: Tensors,
    ) -> Estimator:
        declared = self.model.declaration
        if not suited:
            raise UserError(
                f"estimator is {estimator.kind!r}, but no linear layer or convolution has a random weight to itself, "
                "example by example; use estimator 'plain'"
            )
        undrawn: frozenset[str] = frozenset()
        if estimator.kind == "local" and not own_prior and declared.shared.shapes:
            q, p = declared.guide.distribution(one), declared.server.distribution(w)
            # A divergence that is estimated needs the draw itself.
            with contextlib.suppress(NotImplementedError):
                divergence(q, p)
                undrawn = suited & declared.shared.shapes.keys()
        return replace(estimator, suited=suited, undrawn=undrawn)


def _gradient_function(
    programs: _Programs, layout: FlatLayout
) -> Callable[..., tuple[Tensor, ...]]:
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
    ) -> tuple[Tensor, ...]:
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


def _lifted_gradient_function(
    objective: LiftedObjective,
    names: tuple[str, ...],
    prior_names: tuple[str, ...],
    stacked_prior: bool,
    stack: bool,
) -> Callable[..., tuple[Tensor, ...]]:
    """The gradient of a client's objective, mapped over a cohort; every tensor that it depends on is an argument."""
    prior_dim = 0 if stacked_prior else None

    def step(*inputs: Any) -> tuple[Tensor, ...]:
        params, rest = inputs[: len(names)], inputs[len(names) :]
        prior = dict(zip(prior_names, rest[: len(prior_names)], strict=True))
        zeta, data_scale, eps, x, y, mask = rest[len(prior_names) :]
        dims = (0, prior_dim, None, 0, 0, 0, 0, None if mask is None else 0)
        mapped = torch.func.vmap(objective, in_dims=dims) if stack else _looped(objective, dims)
        with torch.enable_grad():
            leaves = {
                name: value.detach().requires_grad_()
                for name, value in zip(names, params, strict=True)
            }
            each = [
                mapped(leaves, prior, zeta, data_scale, draw, x, y, mask) for draw in eps.unbind(0)
            ]
            losses = torch.stack(each).mean(0)
            gradients = torch.autograd.grad(
                losses.sum(), tuple(leaves.values()), materialize_grads=True
            )
        return losses.detach(), *gradients

    return step


def _differentiated(
    model: DeclaredModel,
    objective: ClientObjective,
    names: tuple[tuple[str, ...], ...],
    *inputs: Tensor,
) -> tuple[Tensor, ...]:
    """Values of an objective ``[S]`` and their gradients, mapped over a cohort."""
    tensors = iter(inputs)
    params, own, common = ({name: next(tensors) for name in group} for group in names)
    with torch.enable_grad():
        leaves = {name: value.detach().requires_grad_() for name, value in params.items()}
        one = partial(objective, model)
        values = torch.func.vmap(one, in_dims=(0, 0, None))(leaves, own, common)
        gradients = torch.autograd.grad(
            values.sum(), tuple(leaves.values()), materialize_grads=True
        )
    return values.detach(), *gradients


def _looped(
    objective: Callable[..., Tensor], dims: tuple[int | None, ...]
) -> Callable[..., Tensor]:
    """One client after the other, for programs with operations that ``vmap`` does not know."""

    def mapped(*inputs: Any) -> Tensor:
        clients = len(inputs[dims.index(0, 3)])
        losses = []
        for i in range(clients):
            row = [
                part
                if dim is None
                else {k: v[i] for k, v in part.items()}
                if isinstance(part, dict)
                else part[i]
                for part, dim in zip(inputs, dims, strict=True)
            ]
            losses.append(objective(*row))
        return torch.stack(losses)

    return mapped
