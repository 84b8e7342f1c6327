"""Reading a user's ``.npz`` into the parts of a data set: checked, scaled, and never unpickled."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_pfedbayes.data.targets import read_target
from pyro_pfedbayes.errors import UserError

Array = NDArray[Any]
Scaling = tuple[Tensor, Tensor]

_LAYOUTS: tuple[tuple[str, ...], ...] = (("_train", "_test"), ("",))
_WANTED = "'x, y' or 'x_train, y_train, x_test, y_test'"


def read_npz(path: Path, standardise: bool = True, target: str = "auto") -> dict[str, Any]:
    """The arguments of a ``Dataset``, all but its name, from the file ``path``.

    :func:`pyro_pfedbayes.data.datasets.load_dataset` says what it may hold.

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
    arrays = open_npz(path, _WANTED)
    where = path.name
    suffixes = _suffixes(arrays, where)
    inputs = [arrays[f"x{suffix}"] for suffix in suffixes]
    for part, suffix in zip(inputs, suffixes, strict=True):
        _check_inputs(part, arrays[f"y{suffix}"], where, suffix)
    lengths = [len(part) for part in inputs]
    x, scaling = _inputs(inputs, where, lengths[0] if standardise else None)
    y, classes = read_target(arrays, suffixes, where, target)
    test_mask = torch.arange(len(x)) >= lengths[0] if len(lengths) == 2 else None
    return {
        **{"x": x, "y": y, "classes": classes, "test_mask": test_mask, "scaling": scaling},
        **_columns(arrays, suffixes, lengths),
    }


def open_npz(path: Path, wanted: str) -> dict[str, Array]:
    """All arrays of a file that should hold what is ``wanted``, by name."""
    if not path.is_file():
        raise UserError(f"no such file: {path} (wanted an .npz with {wanted})")
    member, arrays = None, {}
    try:
        # NumPy leaves a file of its own open where the archive is broken.
        with path.open("rb") as stream:
            file = np.load(stream, allow_pickle=False)
            for member in getattr(file, "files", ()):
                arrays[member] = file[member]
    except Exception as error:  # a broken archive raises nearly anything
        reason = textwrap.shorten(str(error), 160) or type(error).__name__
        pickled = "allow_pickle" in reason
        what = f"'{member}' is corrupt ({reason})"
        if member is None:
            reason = "or a pickle, which is never read" if pickled else reason
            what = f"not a readable .npz file, it may be corrupt ({reason})"
        elif pickled:
            what = (
                f"'{member}' is an object array, a pickle, which is never read: it could run code"
            )
        raise UserError(f"{path.name}: {what}") from None
    if isinstance(file, np.ndarray):
        raise UserError(
            f"{path.name}: holds a single array; an .npz with {wanted} is wanted (numpy.savez)"
        )
    for member, value in arrays.items():
        if not isinstance(value, np.ndarray):
            raise UserError(f"{path.name}: '{member}' is not an array")
    return arrays


def _suffixes(arrays: Mapping[str, Array], where: str) -> tuple[str, ...]:
    """The layout: ``("",)`` for x, y and ``("_train", "_test")`` for a training and a test part."""
    needed = {suffixes: [p + s for s in suffixes for p in "xy"] for suffixes in _LAYOUTS}
    lacking = {s: [name for name in needed[s] if name not in arrays] for s in _LAYOUTS}
    for suffixes, names in lacking.items():
        if not names:
            return suffixes
    pair, single = lacking.values()
    missing = ", ".join(pair if len(pair) < 4 else single)
    found = ", ".join(sorted(arrays)) or "nothing"
    raise UserError(f"{where}: {missing} missing: wanted {_WANTED}, found {found}")


def _check_inputs(x: Array, y: Array, where: str, suffix: str) -> None:
    if x.ndim == 0 or y.ndim == 0 or len(x) != len(y):
        lengths = (str(len(array)) if array.ndim else "a single value" for array in (x, y))
        raise UserError(
            f"{where}: x{suffix} and y{suffix} have different lengths: {' and '.join(lengths)}"
        )
    if x.size == 0:
        raise UserError(f"{where}: x{suffix} holds no values: its shape is {x.shape}")
    if x.dtype.kind not in "buif":
        raise UserError(f"{where}: x{suffix} must hold numbers, not {x.dtype}")
    bad = ~np.isfinite(x).reshape(len(x), -1).all(axis=1)
    if bad.any():
        raise UserError(
            f"{where}: x{suffix} holds NaN or infinite values in {int(bad.sum())} of {len(x)} "
            f"examples, first in row {int(bad.argmax())}"
        )


def _inputs(
    parts: Sequence[Array], where: str, train_rows: int | None
) -> tuple[Tensor, Scaling | None]:
    if len({part.shape[1:] for part in parts}) > 1:
        shapes = " and ".join(str(part.shape) for part in parts)
        raise UserError(f"{where}: x_train and x_test have examples of different shapes: {shapes}")
    if len({part.dtype.kind == "f" for part in parts}) > 1:
        kinds = " and ".join(str(part.dtype) for part in parts)
        raise UserError(
            f"{where}: x_train and x_test have different types, {kinds}: scale them alike"
        )
    x = np.concatenate(parts)
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
    images = torch.from_numpy(np.array(x, dtype=np.float32, order="C"))
    return images if shift is None else images.mul_(shift[0]).sub_(shift[1])


def table_inputs(x: Array, where: str, train_rows: int | None) -> tuple[Tensor, Scaling | None]:
    """A table ``x [n, columns]`` as float32 inputs, and (loc, scale) ``[columns]`` if standardised.

    Columns are standardised over the first ``train_rows`` rows, unless that is None. ``where`` begins messages.
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
) -> dict[str, Any]:
    """Every other array with one value an example as a column; of others, why they are set aside."""
    columns: dict[str, Tensor] = {}
    texts: dict[str, tuple[str, ...]] = {}
    reasons: dict[str, str] = {}
    for name in arrays:
        stem = next(
            name.removesuffix(suffix) for suffix in (*suffixes, "") if name.endswith(suffix)
        )
        if stem in ("x", "y", "classes", *columns, *reasons):
            continue
        parts, wanted = [name], [sum(lengths)]
        if stem != name:
            parts, wanted = [stem + s for s in suffixes if stem + s in arrays], lengths
        values = [arrays[part] for part in parts]
        if [value.shape for value in values] == [(n,) for n in wanted] and all(
            value.dtype.kind in "buifUS" for value in values
        ):
            columns[stem], kinds = _column(np.concatenate(values))
            texts |= {stem: kinds} if kinds else {}
            continue
        shapes = " and ".join(str(value.shape) for value in values)
        reasons[stem] = (
            f"array {' and '.join(parts)} has shape {shapes} and type {values[0].dtype}, "
            f"wanted {' and '.join(f'({n},)' for n in wanted)}"
        )
        if len(parts) < len(suffixes):
            pair = (f"{stem}{s} ({n},)" for s, n in zip(suffixes, lengths, strict=True))
            reasons[stem] += f"; use {' and '.join(pair)}"
    return {"columns": columns, "column_values": texts, "set_aside": reasons}


def _column(values: Array) -> tuple[Tensor, tuple[str, ...]]:
    """Values as float64 or int64, also out of foreign byte orders and widths, which torch does not know.

    Texts become indices into the texts returned.
    """
    texts: tuple[str, ...] = ()
    if values.dtype.kind in "US":
        kinds, values = np.unique(values.astype(str), return_inverse=True)
        texts = tuple(kinds.tolist())
    dtype = np.float64 if values.dtype.kind == "f" else np.int64
    return torch.from_numpy(values.astype(dtype)), texts
