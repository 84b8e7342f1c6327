"""Reading a user's ``.npz`` into the parts of a data set: checked, scaled, and never unpickled."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_pfedbayes.data.array_outcomes import read_outcome
from pyro_pfedbayes.errors import UserError

Array = NDArray[Any]

_LAYOUTS = "'x, y' or 'x_train, y_train, x_test, y_test'"
_UNREADABLE = (
    *(ValueError, OSError, EOFError, KeyError, MemoryError, RuntimeError, NotImplementedError),
    *(zipfile.BadZipFile, zlib.error),
)


def read_npz(path: Path, standardise: bool = True, target: str = "auto") -> dict[str, Any]:
    """Read ``path`` and return the arguments of a ``Dataset``, all but its name.

    Args:
        path: The file; :func:`pyro_pfedbayes.data.datasets.load_dataset` says what it may hold.
        standardise: Whether the columns of a table are standardised over its training rows.
        target: What ``y`` holds: ``"class"``, ``"number"`` or ``"auto"``;
            :func:`pyro_pfedbayes.data.array_outcomes.read_outcome` says how that is told.

    Returns:
        ``x`` float32 ``[n, *features]``, ``y`` ``[n]`` (classes int64, numbers float32),
        ``classes``, ``test_mask`` bool ``[n]`` or None, ``columns``, ``column_values``, ``scaling``
        and ``set_aside``.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "toy.npz"
        ...     np.savez(path, x=[[1.0, 5.0], [3.0, 5.0]], y=[0, 1], site=["north", "south"])
        ...     parts = read_npz(path)
        >>> parts["x"].tolist(), parts["columns"]["site"].tolist(), parts["column_values"]["site"]
        ([[-1.0, 0.0], [1.0, 0.0]], [0, 1], ('north', 'south'))
    """
    arrays = _open(path)
    where = path.name
    suffixes = _suffixes(arrays, where)
    lengths = []
    for suffix in suffixes:
        x, y = arrays[f"x{suffix}"], arrays[f"y{suffix}"]
        if x.ndim == 0 or y.ndim == 0 or len(x) != len(y):
            raise UserError(
                f"{where}: x{suffix} and y{suffix} have different lengths: "
                f"{_length(x)} and {_length(y)}"
            )
        if x.size == 0:
            raise UserError(f"{where}: x{suffix} holds no values: its shape is {x.shape}")
        lengths.append(len(x))
        _check_inputs(x, f"{where}: x{suffix}")
    test_mask = None
    if len(suffixes) == 2:
        test_mask = torch.arange(sum(lengths)) >= lengths[0]
    inputs, scaling = _inputs(arrays, suffixes, where, lengths[0] if standardise else None)
    labels, classes = read_outcome(arrays, suffixes, where, target)
    columns, values = _columns(arrays, suffixes, lengths)
    return {
        **{"x": inputs, "y": labels, "classes": classes, "test_mask": test_mask},
        **{"columns": columns, "column_values": values, "scaling": scaling},
        "set_aside": _set_aside(arrays, suffixes, lengths, columns),
    }


def _open(path: Path) -> dict[str, Array]:
    if not path.is_file():
        raise UserError(f"no such file: {path} (wanted an .npz with {_LAYOUTS})")
    try:
        # NumPy leaves a file of its own open where the archive is broken.
        with path.open("rb") as stream:
            return _members(np.load(stream, allow_pickle=False), path.name)
    except _UNREADABLE as error:
        if isinstance(error, UserError):
            raise
        reason = _one_line(error)
        if "allow_pickle" in reason:
            reason = "or a pickle, which is never read"
        raise UserError(
            f"{path.name}: not a readable .npz file, it may be corrupt ({reason})"
        ) from None


def _members(file: Any, name: str) -> dict[str, Array]:
    if isinstance(file, np.ndarray):
        raise UserError(
            f"{name}: holds a single array; an .npz with {_LAYOUTS} is wanted (numpy.savez)"
        )
    arrays: dict[str, Array] = {}
    for member in file.files:
        try:
            value = file[member]
        except _UNREADABLE as error:
            if "allow_pickle" in str(error):
                raise UserError(
                    f"{name}: '{member}' is an object array; only numbers and texts are read, "
                    "as unpickling could run code"
                ) from None
            raise UserError(f"{name}: '{member}' is corrupt ({_one_line(error)})") from None
        if not isinstance(value, np.ndarray):
            raise UserError(f"{name}: '{member}' is not an array")
        arrays[member] = value
    return arrays


def _suffixes(arrays: Mapping[str, Array], where: str) -> tuple[str, ...]:
    """The layout: ``("",)`` for x, y and ``("_train", "_test")`` for a training and a test part."""
    layouts: tuple[tuple[str, ...], ...] = (("_train", "_test"), ("",))
    missing = {
        layout: [
            f"{part}{suffix}"
            for suffix in layout
            for part in "xy"
            if f"{part}{suffix}" not in arrays
        ]
        for layout in layouts
    }
    for layout in layouts:
        if not missing[layout]:
            return layout
    held = ", ".join(sorted(arrays)) or "nothing"
    split = missing[("_train", "_test")]
    lacking = ", ".join(split if len(split) < 4 else missing[("",)])
    raise UserError(f"{where}: {lacking} missing: wanted {_LAYOUTS}, found {held}")


def _check_inputs(x: Array, what: str) -> None:
    if x.dtype.kind not in "buif":
        raise UserError(f"{what} must hold numbers, not {x.dtype}")
    if x.dtype.kind != "f":
        return
    bad = ~np.isfinite(x).reshape(len(x), -1).all(axis=1)
    if bad.any():
        raise UserError(
            f"{what} holds NaN or infinite values in {int(bad.sum())} of {len(x)} examples, "
            f"first in row {int(bad.argmax())}"
        )


def _inputs(
    arrays: Mapping[str, Array], suffixes: tuple[str, ...], where: str, train_rows: int | None
) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
    parts = [arrays[f"x{suffix}"] for suffix in suffixes]
    if len({part.shape[1:] for part in parts}) > 1:
        shapes = " and ".join(str(part.shape) for part in parts)
        raise UserError(f"{where}: x_train and x_test have examples of different shapes: {shapes}")
    if len({part.dtype.kind == "f" for part in parts}) > 1:
        kinds = " and ".join(str(part.dtype) for part in parts)
        raise UserError(
            f"{where}: x_train and x_test have different types, {kinds}: scale them alike"
        )
    x: Array = np.concatenate(parts) if len(parts) > 1 else parts[0]
    if x.ndim > 4:
        raise UserError(
            f"{where}: x has {x.ndim} dimensions: wanted a table (n, d) or images (n, H, W[, C])"
        )
    if x.ndim >= 3:
        return _images(x, where), None
    return table_inputs(x.reshape(len(x), -1), where, train_rows)


def _images(x: Array, where: str) -> Tensor:
    if x.ndim == 3:
        x = x[:, None]
    elif x.shape[3] <= x.shape[1]:
        x = x.transpose(0, 3, 1, 2)
    low, high = float(x.min()), float(x.max())
    if x.dtype.kind == "f" or (low >= 0.0 and high <= 1.0):
        wanted = "float images must lie in [-1, 1] or [0, 1], or be given as uint8"
        fits, shift = low >= -1.000001 and high <= 1.000001, (2.0, 1.0) if low >= 0.0 else None
    else:
        wanted = "integer images must lie in 0 to 255"
        fits, shift = low >= 0.0 and high <= 255.0, (1 / 127.5, 1.0)
    if not fits:
        raise UserError(f"{where}: x holds values from {low:g} to {high:g}: {wanted}")
    # Always a copy of its own: a file's array must not be scaled in place twice.
    images = torch.from_numpy(np.array(x, dtype=np.float32, order="C"))
    return images if shift is None else images.mul_(shift[0]).sub_(shift[1])


def table_inputs(
    x: Array, where: str, train_rows: int | None
) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
    """A table as inputs: float32 ``[n, columns]``, and what it was standardised by.

    Args:
        x: ``[n, columns]``, in the user's units.
        where: How messages begin.
        train_rows: Columns are standardised over so many of the first rows; None: not at all.

    Returns:
        The inputs, and (loc, scale), float64 ``[columns]`` each, or None.
    """
    table = x.astype(np.float64)
    _check_float32(table, where)
    scaling = None
    if train_rows is not None:
        mean, deviation = table[:train_rows].mean(0), table[:train_rows].std(0)
        # A constant column has a deviation of rounding error only: leave its scale alone.
        constant = deviation <= 1e-12 * np.abs(mean)
        scale = np.where(constant, 1.0, deviation)
        table = (table - mean) / scale
        scaling = (torch.from_numpy(mean), torch.from_numpy(scale))
        _check_float32(table, f"{where}, standardised")
    return torch.from_numpy(table.astype(np.float32)), scaling


def _check_float32(table: Array, where: str) -> None:
    if np.abs(table).max() > np.finfo(np.float32).max:
        raise UserError(f"{where}: x holds values beyond float32's range (3.4e38): rescale them")


def _columns(
    arrays: Mapping[str, Array], suffixes: tuple[str, ...], lengths: list[int]
) -> tuple[dict[str, Tensor], dict[str, tuple[str, ...]]]:
    """Every other array that has one value an example; arrays of other shapes are left aside."""
    used = {"classes", *(f"{part}{suffix}" for suffix in suffixes for part in "xy")}
    found: dict[str, Array] = {
        name: value
        for name, value in arrays.items()
        if name not in used and value.shape == (sum(lengths),) and value.dtype.kind in "buifUS"
    }
    if len(suffixes) == 2:
        for name, value in arrays.items():
            stem = name.removesuffix("_train")
            other = arrays.get(f"{stem}_test")
            if stem in (name, "x", "y") or other is None or value.dtype.kind not in "buifUS":
                continue
            if (value.shape, other.shape) == ((lengths[0],), (lengths[1],)):
                found[stem] = np.concatenate([value, other])
    columns: dict[str, Tensor] = {}
    texts: dict[str, tuple[str, ...]] = {}
    for name, value in found.items():
        if value.dtype.kind in "US":
            kinds, value = np.unique(value.astype(str), return_inverse=True)
            texts[name] = tuple(str(kind) for kind in kinds)
        # Also out of foreign byte orders and widths, which torch does not know.
        kind = np.float64 if value.dtype.kind == "f" else np.int64
        columns[name] = torch.from_numpy(value.astype(kind))
    return columns, texts


def _set_aside(
    arrays: Mapping[str, Array],
    suffixes: tuple[str, ...],
    lengths: list[int],
    columns: Mapping[str, Tensor],
) -> dict[str, str]:
    """Why a further array is no column, in words, in case that it is asked for as one."""
    parts = [f"_{part}" for part in ("train", "test")]
    reasons: dict[str, str] = {}
    for name, value in arrays.items():
        stem = name.removesuffix(parts[0]).removesuffix(parts[1]) if len(suffixes) == 2 else name
        if name == "classes" or stem in ("x", "y") or stem in columns or stem in reasons:
            continue
        if len(suffixes) == 1 or stem == name:
            wanted = f"({sum(lengths)},)"
        else:
            wanted = " and ".join(f"({length},)" for length in lengths)
        held = [name]
        if stem != name:
            held = [stem + part for part in parts if stem + part in arrays]
        shapes = " and ".join(str(arrays[each].shape) for each in held)
        reason = (
            f"array {' and '.join(held)} has shape {shapes} and type {value.dtype}, wanted {wanted}"
        )
        if len(suffixes) == 2 and len(held) == 1:
            first, second = (
                f"{stem}{part} ({length},)" for part, length in zip(parts, lengths, strict=True)
            )
            reason += f"; use {first} and {second}"
        reasons[stem] = reason
    return reasons


def _length(array: Array) -> str:
    return str(len(array)) if array.ndim else "a single value"


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
