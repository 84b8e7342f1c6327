"""The outcomes ``y`` of a user's ``.npz``: classes, or numbers, and how to tell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_pfedbayes.errors import UserError, unknown

Array = NDArray[Any]
TARGETS = ("auto", "class", "number")
_AS_NUMBERS = "; data.target=number reads them as numbers"


def read_target(
    arrays: Mapping[str, Array], suffixes: tuple[str, ...], where: str, target: str = "auto"
) -> tuple[Tensor, tuple[str, ...]]:
    """``y``, or ``y_train`` and ``y_test``: int64 ``[n]`` and names of C classes, or float32 ``[n]`` and none.

    As target ``"class"`` they are integers 0 to C - 1, and -1 where unknown; as ``"number"`` any finite numbers,
    and NaN where missing. ``"auto"`` takes them as numbers if ``y`` holds floats of which one is NaN or not
    whole, and no array ``classes`` names any.

    Example:
        >>> read_target({"y": np.array([0.5, np.nan])}, ("",), "mine.npz")
        (tensor([0.5000,    nan]), ())
        >>> read_target({"y": np.array([1.0, 0.0])}, ("",), "mine.npz")
        (tensor([1, 0]), ('0', '1'))
    """
    if target not in TARGETS:
        raise unknown("target is", target, TARGETS)
    parts = {f"{where}: y{suffix}": arrays[f"y{suffix}"] for suffix in suffixes}
    for what, y in parts.items():
        if y.ndim != 1 and (y.ndim != 2 or y.shape[1] != 1):
            raise UserError(f"{what} must be one label an example, shape (n,), not {y.shape}")
        parts[what] = y.reshape(-1)
    fractional = any(y.dtype.kind == "f" and (y != np.floor(y)).any() for y in parts.values())
    if target == "number" or (target == "auto" and fractional and "classes" not in arrays):
        return torch.from_numpy(np.concatenate([_numbers(y, w) for w, y in parts.items()])), ()
    labels = np.concatenate([_integers(y, what) for what, y in parts.items()])
    return torch.from_numpy(labels), _class_names(labels, arrays.get("classes"), where)


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


def _class_names(y: NDArray[np.int64], named: Array | None, where: str) -> tuple[str, ...]:
    low, high = int(y.min()), int(y.max())
    if high == low == -1:
        raise UserError(f"{where}: y holds no label: all are -1, which stands for an unknown one")
    if named is not None:
        if named.ndim != 1 or named.dtype.kind not in "US":
            raise UserError(
                f"{where}: 'classes' must be a list of texts, one a class, not {named.dtype}"
            )
        if low < -1 or high >= len(named):
            raise UserError(
                f"{where}: labels out of range: y holds {low} to {high}, "
                f"the {len(named)} names in 'classes' want 0 to {len(named) - 1}"
            )
        return tuple(named.astype(str).tolist())
    present = np.unique(y)
    known = present[present >= 0]
    # Of -1 and 0 alone, both may be meant as classes.
    ambiguous = low == -1 and len(known) == 1
    if low < -1 or len(known) != high + 1 or ambiguous:
        hint = " (-1 stands for an unknown label)" if low == -1 else ""
        if low >= 0:
            gap = int(np.setdiff1d(np.arange(len(known)), known)[0])
            hint = f" (none is {gap}; an array 'classes' may name classes without examples)"
        raise UserError(
            f"{where}: labels out of range: y holds {len(present)} labels from {low} to {high}, "
            f"wanted 0 to {len(present) - 1}{hint}{_AS_NUMBERS}"
        )
    return tuple(map(str, range(high + 1)))
