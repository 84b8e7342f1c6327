"""New inputs for a trained model, brought to the scale of its training data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_pfedbayes.data.arrays import open_npz
from pyro_pfedbayes.data.datasets import Dataset
from pyro_pfedbayes.errors import UserError

Array = NDArray[Any]


@dataclass(frozen=True)
class InputRule:
    """How raw inputs become what the network sees; all plain values, kept with a run's checkpoint.

    Images are multiplied, divided and lowered by 1, which brings them to [-1, 1]; then, like tables, they are
    centred and scaled.
    """

    shape: tuple[int, ...]  # of one input, ``[C, H, W]`` or ``[columns]``
    top: int | None = None  # of images of integers from 0; None: they are not understood
    multiply: float = 1.0  # of integer (and of unit) images
    divide: float = 1.0  # of integer images
    floats: str = ""  # in images: "signed" [-1, 1], "unit" [0, 1]; "" are not understood
    loc: tuple[float, ...] | None = None  # one number, or one a column
    scale: tuple[float, ...] | None = None
    target: tuple[float, float] | None = None  # loc and scale by which outcomes were standardised

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> InputRule:
        """Take up what ``dataclasses.asdict`` and JSON made of a rule."""
        plain: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in values.items()
        }
        return cls(**plain)

    @property
    def limits(self) -> tuple[float, float]:
        """What has become of black and white, -1 and 1, in images."""
        (loc, *_), (scale, *_) = self.loc or (0.0,), self.scale or (1.0,)
        return (-1.0 - loc) / scale, (1.0 - loc) / scale

    def centred(self, x: Tensor) -> Tensor:
        """Apply ``loc`` and ``scale`` to images that lie in [-1, 1]."""
        if self.loc is None or self.scale is None:
            return x
        return x.sub(self.loc[0]).div_(self.scale[0])

    def apply(self, x: Array, where: str) -> Tensor:
        """Raw inputs ``[n, *features]`` as the network sees them, float32 ``[n, *shape]``."""
        if x.dtype.kind not in "buif":
            raise UserError(f"{where} must hold numbers, not {x.dtype}")
        if not len(x):
            raise UserError(f"{where} holds no examples")
        bad = ~np.isfinite(x.reshape(len(x), -1)).all(axis=1)
        if bad.any():
            raise UserError(
                f"{where} holds NaN or infinite values in {int(bad.sum())} of {len(x)} examples, "
                f"first in row {int(bad.argmax())}"
            )
        if len(self.shape) == 1:
            return self._table(x, where)
        return self.centred(self._image(self._laid_out(x, where), where))

    def _table(self, x: Array, where: str) -> Tensor:
        if x.shape[1:] != self.shape:
            raise UserError(
                f"{where} has shape {list(x.shape)}; the model takes [n, {self.shape[0]}]"
            )
        table = x.astype(np.float64)
        if self.loc is not None and self.scale is not None:
            table = (table - np.array(self.loc)) / np.array(self.scale)
        return torch.from_numpy(table.astype(np.float32))

    def _laid_out(self, x: Array, where: str) -> Array:
        channels, *sides = self.shape
        given = list(x.shape)
        if x.ndim == 4 and x.shape[1:] == (*sides, channels):
            x = x.transpose(0, 3, 1, 2)
        elif channels == 1 and (x.ndim == 3 or x.shape[1:] == (math.prod(sides),)):
            x = x.reshape(len(x), 1, *(sides if x.ndim == 2 else x.shape[1:]))
        if x.shape[1:] != self.shape:
            raise UserError(
                f"{where} has shape {given}; the model takes images [n, {channels}, "
                f"{sides[0]}, {sides[1]}], channels first or last"
                + (f" or left out, or flattened [n, {math.prod(sides)}]" if channels == 1 else "")
            )
        return x

    def _image(self, x: Array, where: str) -> Tensor:
        low, high = float(x.min()), float(x.max())
        images = torch.from_numpy(np.array(x, dtype=np.float32, order="C"))
        # Floats 0.0, 1.0, ..., such as scikit-learn's digits, are integers; but 0.0 and 1.0 alone may be a [0, 1].
        whole = (
            self.top is not None and low >= 0 and 1 < high <= self.top and (x == np.floor(x)).all()
        )
        if self.top is not None and (whole or x.dtype.kind != "f"):
            if low < 0 or high > self.top:
                raise UserError(
                    f"{where} holds integers from {low:g} to {high:g}; "
                    f"the training images held 0 to {self.top}"
                )
            return images.mul_(self.multiply).div_(self.divide).sub_(1.0)
        if self.floats == "signed" and -1.000001 <= low <= high <= 1.000001:
            if low >= 0 and self.top is not None:
                raise UserError(
                    f"{where} holds floats from {low:g} to {high:g}, which could mean [0, 1] or [-1, 1]; "
                    f"give integers from 0 to {self.top}"
                )
            return images
        if self.floats == "unit" and low >= 0 and high <= 1:
            return images.mul_(2.0).sub_(1.0)
        wanted = {"signed": "floats in [-1, 1]", "unit": "numbers in [0, 1]", "": ""}[self.floats]
        if self.top is not None:
            wanted = f"integers from 0 to {self.top}" + (f" or {wanted}" if wanted else "")
        raise UserError(
            f"{where} holds {x.dtype} from {low:g} to {high:g}; like the training images, give {wanted}"
        )


def input_rule(dataset: Dataset, path: str | None) -> InputRule:
    """The rule by which a data set, from the ``.npz`` ``path`` or named, came to its scale."""
    shape = dataset.feature_shape
    if len(shape) == 1:
        if dataset.scaling is None:
            return InputRule(shape)
        loc, scale = (tuple(part.tolist()) for part in dataset.scaling)
        return InputRule(shape, loc=loc, scale=scale)
    if path is None:
        top = 16 if dataset.name == "digits" else 255
        return InputRule(shape, top=top, divide=top / 2, floats="signed")
    arrays = open_npz(Path(path), "images")
    raw = [arrays[name] for name in ("x_train", "x_test") if name in arrays] or [arrays["x"]]
    low, high = min(float(x.min()) for x in raw), max(float(x.max()) for x in raw)
    if low >= 0 and high <= 1:
        return InputRule(shape, floats="unit")
    if raw[0].dtype.kind == "f":
        return InputRule(shape, floats="signed")
    return InputRule(shape, top=255, multiply=1 / 127.5)


def read_inputs(path: Path, rule: InputRule, covariates: Sequence[str] = ()) -> Tensor:
    """Read inputs for prediction from an ``.npz``: its array ``x``, or its only one; nothing is unpickled.

    Covariates are further arrays ``[n]``, such as exposures, which become last columns in their own units.
    """
    arrays = open_npz(path, "an array x")
    absent = {name: ", which the model wants beside x" for name in covariates if name not in arrays}
    if "x" not in arrays and len(arrays) != 1:
        absent.setdefault("x", "")
    for name, why in absent.items():
        present = ", ".join(sorted(arrays)) or "nothing"
        raise UserError(f"{path.name}: no array {name!r} in it{why}; it holds {present}")
    name = "x" if "x" in arrays else next(iter(arrays))
    if arrays[name].ndim < 2:
        raise UserError(
            f"{path.name}: {name} has shape {list(arrays[name].shape)}; wanted [n, *features]"
        )
    x = rule.apply(arrays[name], f"{path.name}: {name}")
    if not covariates:
        return x
    added = [_covariate(arrays[each], len(x), f"{path.name}: {each}") for each in covariates]
    return torch.cat([x, torch.from_numpy(np.stack(added, 1))], 1)


def _covariate(values: Array, n: int, where: str) -> NDArray[np.float32]:
    if values.shape != (n,) or values.dtype.kind not in "buif":
        raise UserError(
            f"{where} has shape {list(values.shape)} and type {values.dtype}; wanted one number an input, [{n}]"
        )
    wrong = ~(np.abs(values.astype(np.float64)) <= np.finfo(np.float32).max)
    if wrong.any():
        row = int(wrong.argmax())
        raise UserError(f"{where} holds {values[row]} in row {row}; wanted finite numbers")
    return values.astype(np.float32)
