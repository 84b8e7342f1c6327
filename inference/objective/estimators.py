"""Variance reduction: layers whose noise is drawn per example, not one draw of the weights a batch.

*Local reparameterization* (Kingma, Salimans & Welling 2015) draws a linear layer's outputs, whose distribution given
the inputs is Gaussian, rather than its weights. *Flipout* (Wen et al. 2018) flips the signs of one draw's perturbation
independently for every example. Both leave the expected gradient of the ELBO as it is, as long as

* nothing else sees the weight, so that no other term of an example's likelihood depends on the same draw;
* every row of the layer's inputs belongs to another example, whose likelihood no other row touches;
* for local reparameterization, a row meets the weight once. A convolution and a linear layer over the positions
  of a sequence use it many times, and drawing those outputs independently would be another objective: that is refused.

A `Census` finds out, and weights that do not qualify keep plain draws.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import pyro.distributions as dist
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from pyro_pfedbayes.errors import UserError

EstimatorKind = Literal["plain", "local", "flipout"]

_CONVOLUTIONS = (torch.conv1d, torch.conv2d, torch.conv3d)
_LINEAR = (F.linear,)

LEAST_VARIANCE = 1e-16
"""Of a layer's output: the derivative of a root at 0 is infinite, and a layer of zeros has no variance."""

Moments = Mapping[str, tuple[Tensor, Tensor]]
Randn = Callable[[tuple[int, ...], Tensor], Tensor]
Layer = Callable[[Tensor, Tensor, Tensor | None], Tensor]


class Watch(Protocol):
    """Sees how a program uses its weights."""

    def layer(self, weight: str, bias: str | None, inputs: Tensor, out: Tensor) -> Tensor:
        """A layer was computed; returns its outputs, which may be changed."""

    def elsewhere(self, name: str) -> None:
        """A weight went into something else."""


@dataclass
class Census:
    """How a program uses its weights, found in a run that computes layers as usual."""

    examples: int  # rows b of the batch
    odd: bool = False  # whether the loss is of rows 1, 3, 5, … instead of 0, 2, 4, …
    _layers: list[tuple[str, str | None, Tensor | None]] = field(default_factory=list)
    _elsewhere: Counter[str] = field(default_factory=Counter)

    def layer(self, weight: str, bias: str | None, inputs: Tensor, out: Tensor) -> Tensor:
        """Count a layer, and add zeros to its outputs whose gradient will tell which rows matter to whom."""
        probe = None
        if inputs.dim() >= 2 and out.shape[0] == self.examples:
            probe = torch.zeros_like(out, requires_grad=True)
            out = out + probe
        self._layers.append((weight, bias, probe))
        return out

    def elsewhere(self, name: str) -> None:
        """Count a use outside layers."""
        self._elsewhere[name] += 1

    @property
    def rows(self) -> Tensor:
        """The examples that the loss given to `suited` must be of, booleans ``[b]``."""
        return torch.arange(self.examples) % 2 == int(self.odd)

    def suited(self, loss: Tensor) -> frozenset[str]:
        """Weights that one layer uses once, on rows that are examples, and nothing else; and their biases.

        A layer's other rows must leave the loss, that of the examples in `rows`, alone. As dependence may go one way,
        both halves should be tried.
        """
        probes = [probe for _, _, probe in self._layers if probe is not None]
        touched: set[int] = set()
        if probes and loss.requires_grad:
            gradients = torch.autograd.grad(loss, probes, allow_unused=True)
            others = ~self.rows.to(loss.device)
            touched = {
                id(p)
                for p, g in zip(probes, gradients, strict=True)
                if g is not None and bool((g[others] != 0).any())
            }
        uses = Counter(name for weight, bias, _ in self._layers for name in (weight, bias) if name)
        found = set()
        for weight, bias, probe in self._layers:
            alone = [k for k in (weight, bias) if k and uses[k] == 1 and not self._elsewhere[k]]
            if probe is not None and id(probe) not in touched and weight in alone:
                found.update(alone)
        return frozenset(found)


def suited_weights(examples: int, loss: Callable[[Census], Tensor]) -> frozenset[str]:
    """Weights that qualify, from losses of either half of the examples."""
    with torch.enable_grad():
        halves = Census(examples), Census(examples, odd=True)
        first, second = (census.suited(loss(census)) for census in halves)
    return first & second


@dataclass(frozen=True)
class Estimator:
    """How the noise of layers is drawn."""

    kind: EstimatorKind
    suited: frozenset[str] | None = None  # sites that it may be used for; None for all
    undrawn: frozenset[str] = frozenset()  # sites that need no draw, as only their layer sees them


class LayerNoise(TorchFunctionMode):
    """Computes linear layers and convolutions whose weights were registered, with noise of their own.

    ``moments`` are mean and standard deviation of each site whose guide is a Normal, ``randn`` draws standard normal
    numbers of a shape, like a tensor, and ``watch`` learns how weights are used.
    """

    def __init__(
        self,
        estimator: Estimator,
        moments: Moments,
        randn: Randn,
        watch: Watch | None = None,
        values: Mapping[str, Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.estimator = estimator
        self.moments, self._randn, self._watch = moments, randn, watch
        self.computed = 0
        self._known: dict[int, tuple[str, Tensor]] = {}
        for name, value in (values or {}).items():
            self.register(name, value)

    def register(self, name: str, value: Tensor) -> None:
        """Remember which site a tensor is the value of; it is kept alive, so that its identity stays its own."""
        if name in self.moments:
            self._known[id(value)] = (name, value)

    def forget(self, name: str) -> None:
        """Let go of a site's values."""
        self._known = {key: known for key, known in self._known.items() if known[0] != name}

    def name_of(self, value: Any) -> str | None:
        """The site that an object is the value of, if any."""
        known = self._known.get(id(value))
        return None if known is None else known[0]

    def see_parameters(self, fn: Any) -> None:
        """Tell the watch of weights that are themselves parameters of a distribution: no operation shows that."""
        if self._watch is None:
            return
        for value in vars(fn).values():
            if isinstance(value, torch.distributions.Distribution):
                self.see_parameters(value)
            elif (name := self.name_of(value)) is not None:
                self._watch.elsewhere(name)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Compute a layer with its noise; pass everything else on."""
        kwargs = kwargs or {}
        if func in _LINEAR or func in _CONVOLUTIONS:
            return self._layer(func, *args, **kwargs)
        out = func(*args, **kwargs)
        # A question for its shape or dtype is no use of a weight.
        if self._watch is not None and any(True for _ in _tensors(out)):
            for tensor in _tensors((args, kwargs)):
                if (name := self.name_of(tensor)) is not None:
                    self._watch.elsewhere(name)
        return out

    def _layer(
        self,
        func: Callable[..., Tensor],
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Tensor:
        site, bias_site = self.name_of(weight), self.name_of(bias)
        if self._watch is not None:
            # Of a layer whose weight is no random variable, the bias is plainly added.
            others = [input] if site is not None else [input, bias]
            for name in filter(None, map(self.name_of, others)):
                self._watch.elsewhere(name)
        if site is None or not self._suits(site):
            return func(input, weight, bias, *args, **kwargs)

        def apply(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
            return func(input, weight, bias, *args, **kwargs)

        if self.estimator.kind == "flipout":
            out = self._flipout(apply, input, weight, bias, site)
        else:
            if func in _CONVOLUTIONS or input.dim() > 2:
                what = "a convolution" if func in _CONVOLUTIONS else "a linear layer over positions"
                raise UserError(
                    f"local reparameterization of {what} (site {site!r}) would optimise another objective, "
                    "as positions share their weights; use estimator 'flipout' or 'plain'"
                )
            out = self._local(apply, input, site, bias, bias_site)
        self.computed += 1
        if self._watch is not None:
            out = self._watch.layer(site, bias_site, input, out)
        return out

    def _local(
        self, apply: Layer, input: Tensor, site: str, bias: Tensor | None, bias_site: str | None
    ) -> Tensor:
        loc, scale = self.moments[site]
        variance_of_bias = None
        if bias_site is not None and self._suits(bias_site):
            bias, deviation_of_bias = self.moments[bias_site]
            variance_of_bias = deviation_of_bias.square()
        mean = apply(input, loc, bias)
        variance = apply(input.square(), scale.square(), variance_of_bias)
        least = max(LEAST_VARIANCE, torch.finfo(variance.dtype).tiny)
        return mean + variance.clamp_min(least).sqrt() * self._randn(tuple(mean.shape), mean)

    def _flipout(
        self, apply: Layer, input: Tensor, weight: Tensor, bias: Tensor | None, site: str
    ) -> Tensor:
        loc, _ = self.moments[site]
        # Signs are an example's own, and the same at all of its positions. In groups of channels the outputs see
        # only some of the inputs, which takes nothing from the argument.
        space = weight.dim() - 2
        lead = tuple(d if i == 0 else 1 for i, d in enumerate(input.shape[: -space - 1]))
        sign_in, sign_out = (
            self._signs((*lead, channels, *(1,) * space), input)
            for channels in (input.shape[-space - 1], weight.shape[0])
        )
        return apply(input, loc, bias) + apply(input * sign_in, weight - loc, None) * sign_out

    def _signs(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        return torch.where(self._randn(shape, like) < 0, -1.0, 1.0).to(like.dtype)

    def _suits(self, site: str) -> bool:
        return self.estimator.suited is None or site in self.estimator.suited


class PartlyDrawn(dist.Normal):  # type: ignore[misc]
    """Normal whose draws leave some coordinates at their means, where nothing will look at them.

    ``runs`` are alternating stretches of the ``T`` coordinates: pairs of length and whether it is drawn.
    """

    def __init__(self, loc: Tensor, scale: Tensor, runs: tuple[tuple[int, bool], ...]) -> None:
        super().__init__(loc, scale)
        self.runs = runs

    def rsample(self, sample_shape: torch.Size = torch.Size()) -> Tensor:  # noqa: B008
        """A draw that is reparametrised where it is drawn; ``sample_shape`` must be empty."""
        assert not sample_shape
        parts, begin = [], 0
        for length, drawn in self.runs:
            loc, scale = (p.narrow(-1, begin, length) for p in (self.loc, self.scale))
            parts.append(dist.Normal(loc, scale).rsample() if drawn else loc)
            begin += length
        return torch.cat(parts, -1)


def _tensors(value: Any) -> Iterator[Tensor]:
    """Tensors in an argument or a result, however nested."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping | tuple | list):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors(part)
