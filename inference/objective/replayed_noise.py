"""Noise as an input: whatever draws standard normal numbers gets those of a vector."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_FILLS = (torch.Tensor.normal_, torch.Tensor.uniform_)
_LIKE = {torch.randn_like: True, torch.rand_like: False}
_MADE = {torch.randn: True, torch.rand: False}


class ReplayedNoise(TorchFunctionMode):
    """Serve draws of standard normal and uniform noise, in order, from a vector given.

    Within it a run of any program whose draws are reparametrised is a function of that vector: guides of Pyro's own,
    recorded and compiled steps and stacked clients all get reproducible noise, a row of a matrix each. Uniform numbers
    are normal ones through the normal distribution function. A filling method, such as ``Tensor.normal_``, returns
    new numbers and leaves its tensor as it is; PyTorch's and Pyro's distributions use only what it returns.

    Args:
        noise: Standard normal numbers ``[E]``; None to serve zeros and count what would be needed.
    """

    def __init__(self, noise: Tensor | None) -> None:
        super().__init__()
        self._noise = noise
        self.used = 0

    def take(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """The next ``prod(shape)`` numbers, in that shape; without a vector zeros that are like ``like``."""
        count = math.prod(shape)
        begin, self.used = self.used, self.used + count
        if self._noise is None:
            return torch.zeros(shape, dtype=like.dtype, device=like.device)
        return self._noise.narrow(-1, begin, count).reshape(shape)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Answer what draws noise; pass everything else on."""
        kwargs = kwargs or {}
        # Whoever brings a generator wants its numbers.
        if kwargs.get("generator") is None:
            if func in _FILLS:
                return self._fill(func, *args, **kwargs)
            if func in _LIKE:
                return self._draw(tuple(args[0].shape), args[0], normal=_LIKE[func])
            if func in _MADE:
                return self._made(*args, normal=_MADE[func], **kwargs)
            if func is torch.normal and all(isinstance(a, Tensor) for a in args[:1]):
                return self._normal(*args, **kwargs)
        return func(*args, **kwargs)

    def _draw(self, shape: tuple[int, ...], like: Tensor, *, normal: bool) -> Tensor:
        noise = self.take(shape, like)
        if normal:
            return noise
        info = torch.finfo(noise.dtype)
        # In [0, 1), as torch.rand is; farther out the distribution function rounds to 1.
        uniform: Tensor = torch.special.ndtr(noise).clamp_max(1 - info.eps / 2)
        return uniform

    def _fill(self, func: Any, like: Tensor, *bounds: float, **named: float) -> Tensor:
        """``normal_(mean, std)`` or ``uniform_(from, to)``."""
        normal = func is torch.Tensor.normal_
        names = ("mean", "std") if normal else ("from", "to")
        first, second = (
            bounds[i] if i < len(bounds) else named.get(name, float(i))
            for i, name in enumerate(names)
        )
        noise = self._draw(tuple(like.shape), like, normal=normal)
        if (first, second) == (0.0, 1.0):
            return noise
        return first + (second if normal else second - first) * noise

    def _made(
        self,
        *shape: Any,
        normal: bool,
        size: Any = None,
        dtype: torch.dtype | None = None,
        device: Any = None,
        **_: Any,
    ) -> Tensor:
        """``torch.randn(size, ...)`` or ``torch.rand(size, ...)``."""
        given = size if size is not None else shape
        if len(given) == 1 and isinstance(given[0], tuple | list):
            given = given[0]
        like = torch.empty(0, dtype=dtype, device=device)
        return self._draw(tuple(given), like, normal=normal)

    def _normal(self, mean: Tensor, std: Tensor | float = 1.0, **_: Any) -> Tensor:
        shape = torch.broadcast_shapes(mean.shape, std.shape if isinstance(std, Tensor) else ())
        return mean + std * self.take(tuple(shape), mean)
