"""Pyro effect handlers for variance reduction, to put round the evaluation of any ELBO."""

from __future__ import annotations

import contextlib
import traceback
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

import pyro.distributions as dist
import torch
from pyro.poutine import trace_struct
from pyro.poutine.messenger import Messenger
from pyro.poutine.replay_messenger import ReplayMessenger
from pyro.poutine.runtime import _PYRO_STACK
from torch import Tensor

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.inference.objective.estimators import (
    Census,
    Estimator,
    LayerNoise,
    Moments,
    suited_weights,
)

PROBED_ROWS = 4


@dataclass
class _Once:
    """Refuses a weight that a layer uses and something else too: what it was given no longer tells what it is."""

    _layers: Counter[str] = field(default_factory=Counter)
    _elsewhere: Counter[str] = field(default_factory=Counter)

    def layer(self, weight: str, bias: str | None, inputs: Tensor, out: Tensor) -> Tensor:
        """Count a layer."""
        for name in filter(None, (weight, bias)):
            self._layers[name] += 1
            self._check(name)
        return out

    def elsewhere(self, name: str) -> None:
        """Count a use outside layers; not by the log-density of the weight itself, a term that stands alone."""
        if not _computes_densities():
            self._elsewhere[name] += 1
            self._check(name)

    def reset(self, name: str) -> None:
        """Begin again with a new draw of a site."""
        self._layers[name] = self._elsewhere[name] = 0

    def _check(self, name: str) -> None:
        if self._layers[name] and self._layers[name] + self._elsewhere[name] > 1:
            raise UserError(
                f"site {name!r} is used by a layer and once more, which needs one and the same draw; take plain draws, "
                "or declare the model and let a Federation's estimator find out which weights qualify"
            )


def _computes_densities() -> bool:
    """Whether a trace of Pyro's computes its sites' log-densities now; a traced program has long ended."""
    frames = (frame for frame, _ in traceback.walk_stack(None))
    return any(frame.f_globals.get("__name__") == trace_struct.__name__ for frame in frames)


class _Handler(Messenger):  # type: ignore[misc]
    kind: Literal["local", "flipout"]

    def __enter__(self) -> Any:
        if any(isinstance(frame, ReplayMessenger) for frame in _PYRO_STACK):
            raise UserError(
                f"{type(self).__name__} stands round the model alone; put it round the evaluation of the ELBO, "
                "where it sees the guide draw the weights"
            )
        super().__enter__()
        self._computed = 0
        self._drawing: dict[str, Any] | None = None
        self._moments: dict[str, tuple[Tensor, Tensor]] = {}
        self._once = _Once()
        self._noise = LayerNoise(Estimator(self.kind), self._moments, _fresh_noise, self._once)
        self._open = contextlib.ExitStack()
        self._open.enter_context(self._noise)
        return self

    def __exit__(self, *problem: Any) -> None:
        self._open.close()
        super().__exit__(*problem)
        computed = self._computed + self._noise.computed
        # Draws and their graphs need not live until the next use.
        del self._noise, self._moments, self._drawing
        if not computed and problem[0] is None:
            raise UserError(
                f"{type(self).__name__} found no linear layer or convolution with a weight that a Normal of the guide "
                "drew; take plain draws"
            )

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        # Replayed values come from another distribution than the one that stands in the message.
        drawn = msg["value"] is None and not msg["done"] and not msg["is_observed"]
        self._drawing = msg if drawn else None
        self._noise.see_parameters(msg["fn"])

    def _pyro_post_sample(self, msg: dict[str, Any]) -> None:
        if msg is not self._drawing or msg["is_observed"]:
            return
        base = msg["fn"]
        # Not of a transformed distribution: a LogNormal stands on a Normal and is none.
        while isinstance(base, torch.distributions.Independent | dist.MaskedDistribution):
            base = base.base_dist
        if isinstance(base, dist.Delta) and (source := self._noise.name_of(base.v)) is not None:
            # AutoNormal draws an auxiliary site and passes its value on.
            moments = self._moments[source]
        elif isinstance(base, dist.Normal) and msg["value"].shape == base.loc.shape:
            moments = base.loc, base.scale
        else:
            return
        self._noise.forget(msg["name"])
        self._once.reset(msg["name"])
        self._moments[msg["name"]] = moments
        self._noise.register(msg["name"], msg["value"])

    def _pyro_network(self, msg: dict[str, Any]) -> None:
        """A stack of networks: within ``vmap`` tensors lose their identity, so weights are registered there again."""
        call, weights, x = msg["args"]
        known = {k: self._moments[k] for k, v in weights.items() if self._noise.name_of(v) == k}
        suited = self._suited(call, weights, known, x)
        if not suited:
            return

        def perturbed(weights: dict[str, Tensor], known: Moments, x: Tensor) -> Any:
            with LayerNoise(Estimator(self.kind, suited), known, _fresh_noise, values=weights):
                return call(weights, x)

        msg["value"] = torch.func.vmap(perturbed, randomness="different")(weights, known, x)
        msg["done"] = True
        self._computed += 1

    def _suited(
        self, call: Any, weights: dict[str, Tensor], known: Moments, x: Tensor
    ) -> frozenset[str]:
        """Which weights qualify, from a run of the first network on a few examples."""
        with torch.no_grad():
            one = {k: v[0].clone() for k, v in weights.items()}
            moments = {k: (loc[0], scale[0]) for k, (loc, scale) in known.items()}
            rows = x[0, :PROBED_ROWS]

        def loss(census: Census) -> Tensor:
            with LayerNoise(Estimator(self.kind), moments, _no_noise, census, one):
                out: Tensor = call(one, rows)
            return out[census.rows.to(out.device)].square().sum()

        return suited_weights(len(rows), loss)


class LocalReparameterization(_Handler):
    """Draw the outputs of linear layers instead of their weights, wherever a ``Normal`` guide drew the weights.

    Put it round the evaluation of an ELBO, this library's or one of Pyro's (``TraceMeanField_ELBO``), or round the
    steps of ``SVI``. Rows of a layer's inputs must be examples. Noise comes from PyTorch's global generator;
    a `Federation` takes it from the run's seed with ``PFedBayes(estimator="local")``.

    Raises:
        UserError: At a convolution or a layer over positions, where it would be another objective; at a weight that
            serves twice; at the end if there was nothing to do; round the model alone.

    Example:
        >>> import pyro_pfedbayes as pfb
        >>> model = pfb.BayesianModel(pfb.mlp([4, 8, 3]), pfb.Categorical(3))
        >>> start = pfb.MeanFieldGaussian.stack([model.prior, model.prior])
        >>> guide = pfb.MeanFieldGuide(model, start)
        >>> x, y = torch.zeros(2, 5, 4), torch.zeros(2, 5, dtype=torch.long)
        >>> with LocalReparameterization():
        ...     losses = pfb.ClientELBO().client_losses(model, guide, x, y)
        >>> losses.shape
        torch.Size([2])
    """

    kind = "local"


class Flipout(_Handler):
    """Flip the signs of the weights' perturbation for each example, in linear layers and convolutions.

    Used like `LocalReparameterization`; the first dimension of a layer's inputs must be the examples.

    Raises:
        UserError: At a weight that serves twice; at the end if there was nothing to do; round the model alone.
    """

    kind = "flipout"


def _no_noise(shape: tuple[int, ...], like: Tensor) -> Tensor:
    return like.new_zeros(shape)


def _fresh_noise(shape: tuple[int, ...], like: Tensor) -> Tensor:
    return torch.randn(shape, dtype=like.dtype, device=like.device)
