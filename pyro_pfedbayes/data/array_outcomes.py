"""The outcomes ``y`` of a user's ``.npz``: classes, or numbers, and how to tell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_pfedbayes.errors import UserError, nearest

Array = NDArray[Any]
TARGETS = ("auto", "class", "number")
_AS_NUMBERS = "; data.target=number reads them as numbers"


def read_outcome(
    arrays: Mapping[str, Array], suffixes: tuple[str, ...], where: str, target: str = "auto"
) -> tuple[Tensor, tuple[str, ...]]:
    """Read the arrays ``y``, or ``y_train`` and ``y_test``.

    Args:
        arrays: What the file holds.
        suffixes: ``("",)``, or ``("_train", "_test")``.
        where: How messages begin.
        target: ``"class"``: integers 0 to C - 1, and -1 for an unknown one. ``"number"``: any finite
            numbers, and NaN for a missing one. ``"auto"``: numbers if ``y`` holds floats of which
            one is NaN or not whole, and no array ``classes`` names any; classes otherwise.

    Returns:
        ``y`` and the names of the classes: int64 ``[n]`` and C names; or float32 ``[n]`` and none.

    Example:
        >>> read_outcome({"y": np.array([0.5, np.nan])}, ("",), "mine.npz")
        (tensor([0.5000,    nan]), ())
        >>> read_outcome({"y": np.array([1.0, 0.0])}, ("",), "mine.npz")
        (tensor([1, 0]), ('0', '1'))
    """
    if target not in TARGETS:
        raise UserError(
            f"target is '{target}'{nearest(target, TARGETS)} (known: {', '.join(TARGETS)})"
        )
    parts = [_one_each(arrays[f"y{suffix}"], f"{where}: y{suffix}") for suffix in suffixes]
    if target == "number" or (
        target == "auto" and "classes" not in arrays and any(map(_fractional, parts))
    ):
        numbers = [_numbers(y, f"{where}: y{s}") for y, s in zip(parts, suffixes, strict=True)]
        return torch.from_numpy(np.concatenate(numbers)), ()
    labels = [_integers(y, f"{where}: y{s}") for y, s in zip(parts, suffixes, strict=True)]
    return _classes(np.concatenate(labels), arrays.get("classes"), where)


def _one_each(y: Array, what: str) -> Array:
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1:
        raise UserError(f"{what} must be one label an example, shape (n,), not {y.shape}")
    return y


def _fractional(y: Array) -> bool:
    """Whether ``y`` cannot be meant as classes: a float is NaN or not whole."""
    return y.dtype.kind == "f" and bool((y != np.floor(y)).any())


def _numbers(y: Array, what: str) -> NDArray[np.float32]:
    if y.dtype.kind not in "buif":
        raise UserError(f"{what}: data.target is 'number', but y holds {y.dtype}")
    values = y.astype(np.float64)
    wrong = np.isinf(values) | (np.abs(values) > np.finfo(np.float32).max)
    if wrong.any():
        row = int(wrong.argmax())
        raise UserError(
            f"{what}: row {row} holds {y[row]}; outcomes are numbers within float32's range "
            "(3.4e38), or NaN where they are missing"
        )
    return values.astype(np.float32)


def _integers(y: Array, what: str) -> NDArray[np.int64]:
    if y.dtype.kind not in "buif":
        names = "; an array 'classes' of texts may name them" if y.dtype.kind in "US" else ""
        raise UserError(f"{what}: labels must be integers 0 to C - 1, not {y.dtype}{names}")
    with np.errstate(invalid="ignore"):
        wrong = (y != np.floor(y)) | ~np.isfinite(y) | (np.abs(y.astype(np.float64)) > 2**53)
    if wrong.any():
        row = int(wrong.argmax())
        hint = "; -1 stands for an unknown one" if np.isnan(y[row]) else ""
        raise UserError(
            f"{what}: labels must be integers 0 to C - 1, but row {row} holds {y[row]}{hint}"
            f"{_AS_NUMBERS}"
        )
    return y.astype(np.int64)


def _classes(
    y: NDArray[np.int64], named: Array | None, where: str
) -> tuple[Tensor, tuple[str, ...]]:
    low, high = int(y.min()), int(y.max())
    if high == -1 and low == -1:
        raise UserError(f"{where}: y holds no label: all are -1, which stands for an unknown one")
    if named is not None:
        if named.ndim != 1 or named.dtype.kind not in "US":
            raise UserError(
                f"{where}: 'classes' must be a list of texts, one a class, not {named.dtype}"
            )
        names = tuple(str(name) for name in named.astype(str))
        if low < -1 or high >= len(names):
            raise UserError(
                f"{where}: labels out of range: y holds {low} to {high}, "
                f"the {len(names)} names in 'classes' want 0 to {len(names) - 1}"
            )
        return torch.from_numpy(y), names
    present = np.unique(y)
    known = present[present >= 0]
    # Of -1 and 0 alone, both may be meant as classes.
    ambiguous = low == -1 and len(known) == 1
    if low < -1 or len(known) != high + 1 or ambiguous:
        gap = next((label for label, at in enumerate(known.tolist()) if label != at), 0)
        if low >= 0:
            hint = f" (none is {gap}; an array 'classes' may name classes without examples)"
        else:
            hint = " (-1 stands for an unknown label)" if low == -1 else ""
        raise UserError(
            f"{where}: labels out of range: y holds {len(present)} labels from {low} to {high}, "
            f"wanted 0 to {len(present) - 1}{hint}{_AS_NUMBERS}"
        )
    return torch.from_numpy(y), tuple(str(label) for label in range(high + 1))
