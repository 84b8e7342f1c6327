"""Tensors of several owners in one mapping, told apart by how their names begin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")


def prefixed(values: Mapping[str, T], prefix: str) -> dict[str, T]:
    """The same values under longer names."""
    return {prefix + name: value for name, value in values.items()}


def under(values: Mapping[str, T], prefix: str) -> dict[str, T]:
    """The values whose names begin so, under what follows."""
    return {k.removeprefix(prefix): v for k, v in values.items() if k.startswith(prefix)}
