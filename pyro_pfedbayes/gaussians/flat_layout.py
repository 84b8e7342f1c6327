"""Named tensors as one flat vector, and back, without copies on the way back.

Optimizers, noise and checkpoints are fastest and simplest over one vector of all T weights; programs want
the weights by name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_pfedbayes.gaussians.mean_field import MeanFieldGaussian


@dataclass(frozen=True)
class FlatLayout:
    """Order, shapes and offsets of named weights in a vector of length T.

    Example:
        >>> layout = FlatLayout({"w": (2, 3), "b": (2,)})
        >>> layout.size
        8
        >>> flat = torch.arange(8.0)
        >>> layout.unflatten(flat)["b"]
        tensor([6., 7.])
        >>> bool((layout.flatten(layout.unflatten(flat)) == flat).all())
        True
    """

    shapes: Mapping[str, tuple[int, ...]]

    @property
    def size(self) -> int:
        """T, the number of scalar weights."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    def unflatten(self, flat: Tensor) -> dict[str, Tensor]:
        """Views ``[..., *shape]`` into ``flat [..., T]``, by name."""
        parts = flat.split([math.prod(shape) for shape in self.shapes.values()], dim=-1)
        return {
            name: part.unflatten(-1, shape) if shape else part.squeeze(-1)
            for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
        }

    def flatten(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Copy ``tensors`` of shapes ``[..., *shape]`` into one ``[..., T]``."""
        rows = []
        for name, shape in self.shapes.items():
            batch = tensors[name].shape[: tensors[name].dim() - len(shape)]
            rows.append(tensors[name].reshape(*batch, math.prod(shape)))
        return torch.cat(rows, dim=-1)

    def gaussian(self, loc: Tensor, scale: Tensor) -> MeanFieldGaussian:
        """View ``[T]`` vectors, or ``[N, T]`` matrices (stacked), as a Gaussian over the named weights."""
        return MeanFieldGaussian.unchecked(
            self.unflatten(loc), self.unflatten(scale), stacked=loc.dim() == 2
        )
