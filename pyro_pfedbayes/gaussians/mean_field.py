"""The mean-field Gaussian over named weights, and its closed-form divergence.

All that the server knows and every client believes is one of these: a location and a scale for each
weight, optionally with a leading client dimension N ("stacked").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from pyro_pfedbayes.errors import UserError, nearest

_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


@dataclass(frozen=True, eq=False, repr=False)
class MeanFieldGaussian:
    """Independent Gaussians over named weights: one belief, or N beliefs stacked.

    In the notation of Zhang et al. (2022), section 3: a client's q^i(θ) = Π N(θ_m; μ_i,m, σ²_i,m),
    the server's w(θ), or all q^i at once if stacked. The mappings are copied into read-only views;
    the tensors are kept as they are (not cloned), with their gradients. Names keep the order of
    ``loc``, which is also the order of the draws in `sample`.

    Args:
        loc: Mean μ of each weight, ``[*event]``, or ``[N, *event]`` if stacked.
        scale: Standard deviation σ of each weight, same names and shapes as ``loc``.
        stacked: Whether every tensor has a leading client dimension N.

    Raises:
        UserError: If there are no weights; loc and scale differ in names or shapes; the tensors are
            not of one floating dtype and device; a loc is not finite, or a scale not finite and
            > 0; or, when stacked, a weight has no client dimension or another N.

    Example:
        >>> q = MeanFieldGaussian(
        ...     loc={"w": torch.tensor([[0.0, 1.0], [2.0, 3.0]])},
        ...     scale={"w": torch.full((2, 2), 0.5)},
        ...     stacked=True,
        ... )
        >>> q
        MeanFieldGaussian('w' [2], clients=2, num_weights=2, float32, cpu)
        >>> q.kl(q.client(0))
        tensor([ 0., 16.])
    """

    loc: Mapping[str, Tensor]
    scale: Mapping[str, Tensor]
    stacked: bool = False

    def __post_init__(self) -> None:
        """Copy the mappings into read-only views in one order, and check them."""
        loc, scale = dict(self.loc), dict(self.scale)
        if not loc:
            raise UserError("loc names no weights: a MeanFieldGaussian needs at least one")
        _check_names(loc, scale, "loc", "scale")
        _check(loc, scale, self.stacked)
        object.__setattr__(self, "loc", MappingProxyType(loc))
        object.__setattr__(self, "scale", MappingProxyType({name: scale[name] for name in loc}))

    @classmethod
    def unchecked(
        cls, loc: Mapping[str, Tensor], scale: Mapping[str, Tensor], stacked: bool = False
    ) -> MeanFieldGaussian:
        """Build without any check, which would wait for the device, from what is known to be right."""
        gaussian = object.__new__(cls)
        views = MappingProxyType(dict(loc)), MappingProxyType(dict(scale))
        vars(gaussian).update(loc=views[0], scale=views[1], stacked=stacked)
        return gaussian

    @classmethod
    def stack(cls, gaussians: Sequence[MeanFieldGaussian]) -> MeanFieldGaussian:
        """Stack N unstacked Gaussians over the same weights, in any order, into one stacked Gaussian.

        Example:
            >>> q = MeanFieldGaussian(loc={"w": torch.zeros(3)}, scale={"w": torch.ones(3)})
            >>> MeanFieldGaussian.stack([q, q]).clients
            2
        """
        if not gaussians:
            raise UserError("there is nothing to stack: give at least one MeanFieldGaussian")
        first = gaussians[0]
        for position, gaussian in enumerate(gaussians):
            if gaussian.stacked:
                raise UserError(f"Gaussian {position} is stacked already: stack unstacked ones")
            first._check_matches(gaussian, f"Gaussian {position}")
        return cls.unchecked(
            {name: torch.stack([g.loc[name] for g in gaussians]) for name in first.loc},
            {name: torch.stack([g.scale[name] for g in gaussians]) for name in first.loc},
            stacked=True,
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the weights, in the order of ``loc``."""
        return tuple(self.loc)

    @property
    def clients(self) -> int | None:
        """The number of clients N if stacked, else None."""
        return self._first.shape[0] if self.stacked else None

    @property
    def num_weights(self) -> int:
        """The number T of scalar weights of one client."""
        return sum(self.event_shape(name).numel() for name in self.loc)

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self._first.device

    @property
    def dtype(self) -> torch.dtype:
        """The floating dtype of the tensors."""
        return self._first.dtype

    def event_shape(self, name: str) -> torch.Size:
        """Return the shape of one client's weight, without the client dimension."""
        if name not in self.loc:
            raise UserError(f"there is no weight {name!r}{nearest(name, self.loc)}")
        return self.loc[name].shape[int(self.stacked) :]

    def one_client(self) -> Mapping[str, Tensor]:
        """The loc of the first client, for its shapes."""
        return {name: loc[0] for name, loc in self.loc.items()} if self.stacked else self.loc

    def to(
        self, device: str | torch.device | None = None, dtype: torch.dtype | None = None
    ) -> MeanFieldGaussian:
        """Return the Gaussian on another device, in another floating dtype, or both.

        Raises UserError if a narrower dtype cannot hold a value (a scale becomes 0, a loc infinite).
        """
        moved = self._map(lambda value: value.to(device, dtype or self.dtype), self.stacked)
        # Only a change of dtype can make values invalid, so only then are they checked again.
        return moved if moved.dtype == self.dtype else MeanFieldGaussian(**vars(moved))

    def select(self, index: Sequence[int] | Tensor) -> MeanFieldGaussian:
        """Return S >= 1 clients of a stacked Gaussian, by their numbers in [0, N), as a stacked one.

        Example:
            >>> q = MeanFieldGaussian({"w": torch.arange(3.0)}, {"w": torch.ones(3)}, stacked=True)
            >>> q.select([2, 0]).loc["w"]
            tensor([2., 0.])
        """
        rows = torch.as_tensor(index)
        if rows.ndim != 1 or not rows.numel() or rows.dtype not in (torch.int64, torch.int32):
            raise UserError("select needs a flat list of at least one client number")
        self._check_clients(int(rows.min()), int(rows.max()))
        rows = rows.to(self.device)
        return self._map(lambda value: value.index_select(0, rows), stacked=True)

    def client(self, i: int) -> MeanFieldGaussian:
        """Return client i of a stacked Gaussian as an unstacked one (views, not copies)."""
        self._check_clients(i)
        return self._map(lambda value: value[i], stacked=False)

    def sample(
        self, draws: int | None = None, generator: torch.Generator | None = None
    ) -> dict[str, Tensor]:
        """Draw weights θ = μ + σ ε with ε ~ N(0, 1): ``{name: [draws?, N?, *event]}``.

        Gradients flow to loc and scale. Without ``draws`` there is one draw, without a draw dimension. The generator,
        on this Gaussian's device (see `pyro_pfedbayes.randomness.generator`), is called once for each name, in order;
        None is PyTorch's global one.

        Example:
            >>> from pyro_pfedbayes.randomness import generator
            >>> q = MeanFieldGaussian(loc={"w": torch.zeros(3)}, scale={"w": torch.ones(3)})
            >>> q.sample(draws=5, generator=generator(0, "example"))["w"].shape
            torch.Size([5, 3])
        """
        if draws is not None and draws < 1:
            raise UserError(f"draws is {draws}: give a whole number >= 1, or None")
        if generator is not None and generator.device.type != self.device.type:
            right = f"make it with device={self.device.type!r}, as the weights are"
            raise UserError(f"the generator is on {generator.device}: {right}")
        lead = () if draws is None else (draws,)
        drawn = {}
        for name, loc in self.loc.items():
            shape = lead + loc.shape
            noise = torch.randn(shape, generator=generator, dtype=loc.dtype, device=loc.device)
            drawn[name] = loc + self.scale[name] * noise
        return drawn

    def log_prob(self, weights: Mapping[str, Tensor]) -> Tensor:
        """Return the log-density ``[*batch, N?]`` of weights, summed over all of them, in nats.

        Weights are ``{name: [*batch, N?, *event]}``, as `sample` returns; the leading ``batch`` dimensions (draws,
        say) are those of every weight.
        """
        _check_names(self.loc, weights, "the Gaussian", "the given weights")
        first = weights[self.names[0]]
        batch = first.shape[: max(0, first.ndim - self._first.ndim)]
        parts = []
        for name, loc in self.loc.items():
            value, scale = weights[name], self.scale[name]
            if value.shape != batch + loc.shape:
                want = f"{list(loc.shape)} after leading dimensions that all weights share, if any"
                raise UserError(f"weight {name!r} has shape {list(value.shape)}: give {want}")
            density = -0.5 * ((value - loc) / scale).square() - scale.log() - _HALF_LOG_2PI
            parts.append(_sum_after(density, len(batch) + self.stacked))
        return torch.stack(parts).sum(0)

    def entropy(self) -> Tensor:
        """Return the differential entropy, summed over all weights, in nats: ``[N?]``."""
        each = (scale.log() + (0.5 + _HALF_LOG_2PI) for scale in self.scale.values())
        return torch.stack([_sum_after(part, int(self.stacked)) for part in each]).sum(0)

    def kl(self, other: MeanFieldGaussian) -> Tensor:
        """Return the divergence KL(self ‖ other) in closed form, summed over all weights, in nats.

        Exactly 0 for equal Gaussians, never negative, and accurate for nearly equal ones. Both sides are over
        the same weights, in any order; an unstacked side is compared with every client of the other. Returns
        ``[N]`` if either side is stacked, else ``[]``; raises UserError if the two do not fit.

        Example:
            >>> q = MeanFieldGaussian(loc={"w": torch.ones(2)}, scale={"w": torch.ones(2)})
            >>> w = MeanFieldGaussian(loc={"w": torch.zeros(2)}, scale={"w": torch.ones(2)})
            >>> q.kl(w)
            tensor(1.)
        """
        return torch.stack(list(self.kl_by_name(other).values())).sum(0)

    def kl_by_name(self, other: MeanFieldGaussian) -> dict[str, Tensor]:
        """Return the parts of `kl`, one for each name, in nats: ``{name: [N]}`` or ``{name: []}``."""
        self._check_matches(other, "the other Gaussian")
        if self.stacked and other.stacked and self.clients != other.clients:
            right = f"give {self.clients} as in this one, or an unstacked Gaussian"
            raise UserError(f"the other Gaussian has {other.clients} clients: {right}")
        keep = int(self.stacked or other.stacked)
        return {
            name: _sum_after(_kl(loc, self.scale[name], other.loc[name], other.scale[name]), keep)
            for name, loc in self.loc.items()
        }

    def __repr__(self) -> str:
        """Say names, shapes and sizes, not values (a network has 10^5 of them)."""
        weights = ", ".join(f"{name!r} {list(self.event_shape(name))}" for name in self.names[:4])
        more = ", ..." if len(self.loc) > 4 else ""
        clients = f"clients={self.clients}, " if self.stacked else ""
        dtype = str(self.dtype).removeprefix("torch.")
        sizes = f"{clients}num_weights={self.num_weights}, {dtype}, {self.device}"
        return f"MeanFieldGaussian({weights}{more}, {sizes})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Let ``copy.deepcopy`` through (a read-only view cannot be copied by itself)."""
        return type(self).unchecked, (dict(self.loc), dict(self.scale), self.stacked)

    @property
    def _first(self) -> Tensor:
        return next(iter(self.loc.values()))

    def _map(self, change: Callable[[Tensor], Tensor], stacked: bool) -> MeanFieldGaussian:
        loc, scale = ({n: change(v) for n, v in side.items()} for side in (self.loc, self.scale))
        return MeanFieldGaussian.unchecked(loc, scale, stacked)

    def _check_clients(self, *rows: int) -> None:
        if self.clients is None:
            raise UserError("this MeanFieldGaussian is one belief: only a stacked one has clients")
        for row in rows:
            if not 0 <= row < self.clients:
                raise UserError(f"there is no client {row}: give 0 to {self.clients - 1}")

    def _check_matches(self, other: MeanFieldGaussian, what: str) -> None:
        check_same_weights(self.one_client(), other.one_client(), "this Gaussian", what)


def kl_divergence(q: MeanFieldGaussian, w: MeanFieldGaussian) -> Tensor:
    """Return KL(q ‖ w) in closed form, in nats, as `MeanFieldGaussian.kl`: ``[N]`` or ``[]``.

    Example:
        >>> q = MeanFieldGaussian(loc={"w": torch.ones(2)}, scale={"w": torch.ones(2)})
        >>> kl_divergence(q, q)
        tensor(0.)
    """
    return q.kl(w)


def _kl(loc: Tensor, scale: Tensor, other_loc: Tensor, other_scale: Tensor) -> Tensor:
    """Return KL(N(μ, s²) ‖ N(m, t²)) = log(t/s) + (s²/t² - 1)/2 + ((μ - m)/t)²/2 elementwise.

    With u = (s - t)/t the first two terms are u²/2 + (u - log(1 + u)): near u = 0 this keeps the
    digits that they would cancel. Far from 0 the plain form is safe, and 1 + u may round to 0.
    """
    u = (scale - other_scale) / other_scale
    near = u.abs() < 0.5
    small = torch.where(near, u, torch.zeros_like(u))  # keeps log1p's gradient finite where unused
    near_form = 0.5 * small.square() + (small - small.log1p())
    far_form = (other_scale.log() - scale.log()) + 0.5 * ((scale / other_scale).square() - 1.0)
    return torch.where(near, near_form, far_form) + 0.5 * ((loc - other_loc) / other_scale).square()


def _sum_after(value: Tensor, keep: int) -> Tensor:
    """Sum over all dimensions but the first ``keep``."""
    # sum(dim=()) would sum over every dimension.
    return value.sum(tuple(range(keep, value.ndim))) if value.ndim > keep else value


def _check_names(mine: Iterable[str], theirs: Iterable[str], here: str, there: str) -> None:
    common = set(mine) & set(theirs)
    for names, has, lacks in ((mine, here, there), (theirs, there, here)):
        for name in names:
            if name not in common:
                raise UserError(f"weight {name!r} of {has} is missing from {lacks}: add it there")


def check_same_weights(
    mine: Mapping[str, Tensor], theirs: Mapping[str, Tensor], here: str, there: str
) -> None:
    """Raise unless both have the same names, shapes and device."""
    _check_names(mine, theirs, here, there)
    for name in mine:
        if mine[name].shape != theirs[name].shape:
            shapes = f"has shape {list(theirs[name].shape)}: give {list(mine[name].shape)}"
            raise UserError(f"weight {name!r} of {there} {shapes}")
        if mine[name].device != theirs[name].device:
            device = f"{mine[name].device} with .to()"
            raise UserError(f"{there} is on {theirs[name].device}: bring it to {device}")


def _check(loc: Mapping[str, Tensor], scale: Mapping[str, Tensor], stacked: bool) -> None:
    """Raise unless every weight has fitting shapes, one dtype and device, and admissible values."""
    first: Tensor | None = None
    for name in loc:
        for what, value in ((f"loc of {name!r}", loc[name]), (f"scale of {name!r}", scale[name])):
            if not isinstance(value, Tensor) or not value.is_floating_point():
                kind = value.dtype if isinstance(value, Tensor) else type(value).__name__
                raise UserError(f"{what} is {kind}: give a tensor of a floating dtype")
            first = value if first is None else first
            if (value.dtype, value.device) != (first.dtype, first.device):
                have, want = f"{value.dtype} on {value.device}", f"{first.dtype} on {first.device}"
                raise UserError(f"{what} is {have}: give all tensors as {want}")
            if stacked and not (value.ndim and value.shape[0] == first.shape[0] > 0):
                want = "[N, *event] with one N >= 1 for all weights, as it is stacked"
                raise UserError(f"{what} has shape {list(value.shape)}: give {want}")
        if loc[name].shape != scale[name].shape:
            shapes = list(scale[name].shape), list(loc[name].shape)
            raise UserError(f"scale of {name!r} has shape {shapes[0]}: give its loc's, {shapes[1]}")
        if not bool(loc[name].isfinite().all()):
            raise UserError(f"loc of {name!r} is not finite everywhere: make it so")
        if not bool((scale[name].isfinite() & (scale[name] > 0)).all()):
            raise UserError(f"scale of {name!r} is not finite and > 0 everywhere: make it so")
