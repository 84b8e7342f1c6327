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
from pyro_pfedbayes.gaussians.mean_field import MeanFieldGaussian
from pyro_pfedbayes.inference.beliefs.client_objective import ClientLoss
from pyro_pfedbayes.inference.beliefs.guides import MeanFieldGuide
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

Losses = Callable[[dict[str, Tensor], dict[str, Any], dict[str, Any]], Tensor]
"""Of all clients ``[S]``, from three groups of tensors: the parameters to differentiate by, and two more."""


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

    The model's prior serves only for names, shapes, dtype and device. ``"eager"`` runs the programs as they are at
    every step; ``"traced"`` records them once for each new combination of shapes (about two seconds) and replays
    that, with the same bits; ``"compiled"`` compiles the recording (10 to 30 s), with the same numbers up to
    rounding.
    """

    def __init__(
        self, model: DeclaredModel, mode: EngineMode = "eager", estimator: EstimatorKind = "plain"
    ) -> None:
        self.model, self.mode, self.estimator = model, mode, estimator
        self._steps: dict[tuple[Any, ...], Callable[..., tuple[Tensor, ...]]] = {}
        self._objectives: dict[tuple[Any, ...], tuple[ClientLoss, int]] = {}
        if estimator != "plain" and not isinstance(model.declaration.guide, MeanFieldNormal):
            raise UserError(
                f"estimator is {estimator!r}, which needs a mean-field guide, "
                f"not {model.declaration.guide.name!r}; use estimator 'plain'"
            )

    def noise_size(
        self, params: Tensors, prior: Tensors, x: Tensor, y: Tensor, *, own_prior: bool = False
    ) -> int:
        """How many standard normal numbers E one draw of one client takes; arguments are those of a call."""
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
        """Losses ``[S]`` in nats of all clients of a cohort, and the gradients of their sum, like ``params``.

        ``params`` are the unconstrained parameters of q^i by name, ``[S, P]`` each; ``prior`` is the server's w as
        its family holds it, one of independent weights also as one a client ``[S, T]``; ``data_scale [S]`` is n_i /
        c_i, c_i the number of valid examples in the batch; ``eps [K, S, E]`` is the noise of K draws, see
        `noise_size`. The batch is x ``[S, b, *features]``, y ``[S, b]`` and mask ``[S, b]``, True where a row counts
        (None: everywhere). With ``own_prior`` the model's own priors stand in for w.
        """
        rest = {"zeta": zeta, "data_scale": data_scale, "eps": eps, "x": x, "y": y, "mask": mask}
        groups = (params, prior, rest)
        return self._evaluate(own_prior, groups, lambda: self._losses(groups, own_prior))

    def differentiate(
        self,
        objective: ClientObjective,
        params: Tensors,
        own: Mapping[str, Tensor | None],
        common: Tensors | None = None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Values ``[S]`` and gradients in ``params`` of any objective of one client, for each client of a cohort.

        ``objective`` is a function of a module, or a frozen dataclass of settings: it is the key of the recording.
        ``own`` is what else is each client's own, ``[S, ...]`` each, such as x, y and mask (None is left out),
        ``common`` what all clients have in common.
        """
        groups = (params, {k: v for k, v in own.items() if v is not None}, common or {})
        losses = torch.func.vmap(partial(objective, self.model), in_dims=(0, 0, None))
        return self._evaluate(objective, groups, lambda: losses)

    def _evaluate(
        self,
        key: Any,
        groups: tuple[Tensors, Mapping[str, Tensor | None], Tensors | Mapping[str, Tensor | None]],
        losses: Callable[[], Losses],
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Losses and their gradients in the first group, by a step that is made once for each combination of shapes."""
        names = tuple(tuple(group) for group in groups)
        inputs = tuple(tensor for group in groups for tensor in group.values())
        shapes = tuple(None if t is None else (tuple(t.shape), t.dtype, t.device) for t in inputs)
        key = (key, names, shapes)
        if key not in self._steps:
            with pyro_local():
                self._steps[key] = self._recorded(partial(_gradients, losses(), names), inputs)
        # A recording holds no Pyro any more, and is spared the price of its settings.
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

    def _losses(
        self, groups: tuple[Tensors, Tensors, Mapping[str, Any]], own_prior: bool
    ) -> Losses:
        params, prior, rest = groups
        x, stacked_prior = rest["x"], self._one_a_client(prior)
        if self._stacked(own_prior):
            assert isinstance(self.model, BayesianModel)
            return partial(_stacked_losses, _Programs(self.model, len(x), stacked_prior))
        objective, _ = self._objective(params, prior, x, rest["y"], own_prior)
        dims = (0, 0 if stacked_prior else None, None, 0, 0, 0, 0, 0)
        losses = partial(_mapped_losses, objective, dims, True)
        try:
            with torch.no_grad():
                names = tuple(tuple(group) for group in groups)
                _gradients(losses, names, *(t for group in groups for t in group.values()))
        except RuntimeError as problem:
            if "vmap" not in str(problem):
                raise
            return partial(_mapped_losses, objective, dims, False)
        return losses

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
    ) -> tuple[ClientLoss, int]:
        """The objective of one client, and the noise that one draw takes, found by running it once."""
        key = (own_prior, tuple(x.shape[1:]))
        if key in self._objectives:
            return self._objectives[key]
        one = {name: value[0] for name, value in params.items()}
        w = {k: v[0] for k, v in prior.items()} if self._one_a_client(prior) else prior
        objective = ClientLoss(self.model, own_prior, private=private_guide(self.model))
        try:
            with pyro_local():
                if self.estimator != "plain":
                    estimator = self._fitted(objective, one, w, x[0], y[0])
                    objective = replace(objective, estimator=estimator)
                size = objective.noise_size(one, w, x[0], y[0])
        except NotImplementedError as problem:
            raise UserError(f"the model cannot be trained: {problem}") from problem
        self._objectives[key] = objective, size
        return objective, size

    def _fitted(
        self, objective: ClientLoss, one: Tensors, w: Tensors, x: Tensor, y: Tensor
    ) -> Estimator:
        """The estimator with the weights that it may be used for, found by running the objective."""
        declared, kind = self.model.declaration, self.estimator
        probe = replace(objective, estimator=Estimator(kind))
        suited, undrawn = probe.suited_sites(one, w, x, y), frozenset[str]()
        if not suited:
            raise UserError(
                f"estimator is {kind!r}, but no linear layer or convolution has a random weight to itself, "
                "example by example; use estimator 'plain'"
            )
        if kind == "local" and not objective.own_prior and declared.shared.shapes:
            q, p = declared.guide.distribution(one), declared.server.distribution(w)
            # A divergence that is estimated needs the draw itself.
            with contextlib.suppress(NotImplementedError):
                divergence(q, p)
                undrawn = suited & declared.shared.shapes.keys()
        return Estimator(kind, suited, undrawn)


def _gradients(
    losses: Losses, names: tuple[tuple[str, ...], ...], *inputs: Any
) -> tuple[Tensor, ...]:
    """Losses ``[S]`` and the gradients of their sum in the first group; all that they depend on is an argument."""
    tensors = iter(inputs)
    params, second, third = ({name: next(tensors) for name in group} for group in names)
    with torch.enable_grad():
        leaves = {name: value.detach().requires_grad_() for name, value in params.items()}
        values = losses(leaves, second, third)
        gradients = torch.autograd.grad(
            values.sum(), tuple(leaves.values()), materialize_grads=True
        )
    return values.detach(), *gradients


def _stacked_losses(
    programs: _Programs, params: Tensors, prior: Tensors, rest: Mapping[str, Any]
) -> Tensor:
    """Mean over draws of the losses of the one stacked program, its tensors swapped for these."""
    tensors = {"model.zeta": rest["zeta"], "model.data_scale": rest["data_scale"]}
    layout = programs.model.layout
    for place, flat in (
        ("guide.locs.{}_unconstrained", params["loc"]),
        ("guide.scales.{}_unconstrained", params["rho"]),
        ("model.prior_loc.{}", prior["loc"]),
        ("model.prior_scale.{}", prior["scale"]),
    ):
        for name, value in layout.unflatten(flat).items():
            own = name if place.startswith("guide") else name.replace(".", "/")
            tensors[place.format(own)] = value
    batch = rest["x"], rest["y"], rest["mask"]
    draws = rest["eps"].unbind(0)
    losses: Tensor = sum(
        torch.func.functional_call(programs, tensors, (layout.unflatten(draw), *batch))
        for draw in draws
    ) / len(draws)
    return losses


def _mapped_losses(
    objective: ClientLoss,
    dims: tuple[int | None, ...],
    vectorised: bool,
    params: Tensors,
    prior: Tensors,
    rest: Mapping[str, Any],
) -> Tensor:
    """Mean over draws of the losses of one client's objective, mapped over the cohort."""
    zeta, data_scale, eps, x, y, mask = rest.values()
    dims = dims if mask is not None else (*dims[:-1], None)
    mapped = torch.func.vmap(objective, in_dims=dims) if vectorised else _looped(objective, dims)
    each = [mapped(params, prior, zeta, data_scale, draw, x, y, mask) for draw in eps.unbind(0)]
    return torch.stack(each).mean(0)


def _looped(
    objective: Callable[..., Tensor], dims: tuple[int | None, ...]
) -> Callable[..., Tensor]:
    """One client after the other, for programs with operations that ``vmap`` does not know."""

    def row(part: Any, dim: int | None, i: int) -> Any:
        if dim is None:
            return part
        return {k: v[i] for k, v in part.items()} if isinstance(part, dict) else part[i]

    def mapped(*inputs: Any) -> Tensor:
        each = []
        for i in range(len(inputs[3])):
            each.append(objective(*(row(p, dim, i) for p, dim in zip(inputs, dims, strict=True))))
        return torch.stack(each)

    return mapped
