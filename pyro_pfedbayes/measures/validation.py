"""Checks of what measures are given: shapes, NaN by row, labels in range. Each refusal names the row."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyro_pfedbayes.errors import UserError

# How far a row's probabilities may be from 1: rounding of a softmax over many classes, by format.
_SLACK = {torch.float64: 1e-3, torch.float32: 1e-3}
_SLACK_HALF = 2e-2


def vector(values: Tensor, name: str, *, finite: bool = False) -> Tensor:
    """One number an example, detached, float64 ``[n]``; NaN is refused, and infinities if it is to be ``finite``.

    Example:
        >>> vector(torch.tensor([0.1, float("nan")]), "uncertainty")
        Traceback (most recent call last):
        ...
        pyro_pfedbayes.errors.UserError: uncertainty is NaN at row 1; leave such rows out or mend what made them
    """
    if values.ndim != 1 or values.is_complex():
        shown = f"{values.dtype} {list(values.shape)}"
        raise UserError(f"{name} must hold one real number an example, [n], not {shown}")
    found = values.detach().double()
    wrong = ~found.isfinite() if finite else found.isnan()
    _refuse(wrong, found, name)
    return found


def probabilities(probs: Tensor, name: str = "probs") -> Tensor:
    """The class probabilities ``[n, C]``, detached, once each row has been checked.

    Example:
        >>> probabilities(torch.tensor([[0.5, 0.6]]))
        Traceback (most recent call last):
        ...
        pyro_pfedbayes.errors.UserError: probs at row 0 sum to 1.1; they must sum to 1
    """
    if probs.ndim != 2 or not probs.is_floating_point() or probs.shape[1] < 1:
        shown = f"{probs.dtype} {list(probs.shape)}"
        raise UserError(f"{name} must be floating-point numbers [n, C] with C >= 1, not {shown}")
    probs = probs.detach()
    slack = _SLACK.get(probs.dtype, _SLACK_HALF)
    _refuse(probs.isnan().any(-1), None, name)
    outside = ((probs < 0) | (probs > 1 + slack)).any(-1)
    if bool(outside.any()):
        row = _first(outside)
        raise UserError(f"{name} at row {row} lie outside [0, 1]: {_shown(probs[row])}")
    total = probs.double().sum(-1)
    off = (total - 1).abs() > slack
    if bool(off.any()):
        row = _first(off)
        raise UserError(f"{name} at row {row} sum to {float(total[row]):.4g}; they must sum to 1")
    return probs


def labels(y: Tensor, probs: Tensor) -> Tensor:
    """Labels ``[n]`` that go with ``probs [n, C]``, as int64, checked; -1, an unknown one, is refused."""
    if y.ndim != 1 or y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        raise UserError(f"y must hold integer labels [n], not {y.dtype} {list(y.shape)}")
    same_length(len(probs), y=y)
    if y.device != probs.device:
        raise UserError(f"y is on {y.device} but the probabilities are on {probs.device}")
    y, classes = y.detach().long(), probs.shape[-1]
    wrong = (y < 0) | (y >= classes)
    if bool(wrong.any()):
        row = _first(wrong)
        hint = " (unknown: leave it out)" if int(y[row]) == -1 else ""
        raise UserError(f"y is {int(y[row])} at row {row}{hint}; labels go from 0 to {classes - 1}")
    return y


def same_length(n: int, **tensors: Tensor) -> None:
    """Require tensors, by name, to hold one entry for each of n examples."""
    for name, tensor in tensors.items():
        if tensor.ndim == 0 or len(tensor) != n:
            raise UserError(f"{name} has shape {list(tensor.shape)}; wanted one for {n} examples")


def level_of(level: float, name: str = "level") -> float:
    """A probability strictly between 0 and 1."""
    if not (isinstance(level, int | float) and math.isfinite(level) and 0 < level < 1):
        raise UserError(f"{name} is {level!r}: give a number between 0 and 1, such as 0.95")
    return float(level)


def _refuse(wrong: Tensor, values: Tensor | None, name: str) -> None:
    if bool(wrong.any()):
        row = _first(wrong)
        value = float("nan") if values is None else float(values[row])
        shown = "NaN" if math.isnan(value) else f"{value}"
        verb = "are" if name.endswith("s") else "is"
        raise UserError(
            f"{name} {verb} {shown} at row {row}; leave such rows out or mend what made them"
        )


def _first(mask: Tensor) -> int:
    return int(mask.nonzero()[0, 0])


def _shown(row: Tensor) -> str:
    return "[" + ", ".join(f"{float(v):.4g}" for v in row[:6]) + (", …]" if len(row) > 6 else "]")
