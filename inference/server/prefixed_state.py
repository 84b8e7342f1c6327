"""Tensors of several owners in one mapping, told apart by how their names begin."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor


def prefixed(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The same tensors under longer names."""
    return {prefix + name: value for name, value in tensors.items()}


def under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin so, under what follows."""
    return {
        name.removeprefix(prefix): value
        for name, value in tensors.items()
        if name.startswith(prefix)
    }
