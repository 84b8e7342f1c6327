"""What trees of classes and of numbers have in common: their groups and coordinates, and checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pyro_pfedbayes.errors import UserError

if TYPE_CHECKING:
    import xarray as xr

__all__ = [
    "MAX_CELLS",
    "as_array",
    "assemble",
    "check_lengths",
    "checked_attrs",
    "client_means",
    "integers",
]

MAX_CELLS = 10_000_000
"""Most draws times observations in one tree: about 60 MB before compression, 35 MB on disk."""

Array = NDArray[Any]


def assemble(
    groups: Mapping[str, Mapping[str, Array]],
    statistics: xr.Dataset,
    owner: NDArray[np.int64],
    names: Sequence[str] | None,
    attrs: Mapping[str, str | int | float],
) -> xr.DataTree:
    """Make a tree of its groups, and write beside each observation and client who that is.

    Args:
        groups: Arrays by group and name; those of ``client_metrics`` have a last dimension of clients, the others of
            observations.
        statistics: The group ``observation_stats``.
        owner: Number of the client that each observation belongs to, ``[n]``.
        names: Names of the clients, by number.
        attrs: Of the whole tree.
    """
    import arviz_base
    import xarray as xr

    present = np.unique(owner)
    tree = arviz_base.from_dict(
        {group: dict(arrays) for group, arrays in groups.items()},
        dims={
            name: ["client" if group == "client_metrics" else "observation"]
            for group, arrays in groups.items()
            for name in arrays
        },
        coords={"observation": np.arange(len(owner)), "client": present},
        attrs={"/": dict(attrs)},
    )
    tree["observation_stats"] = xr.DataTree(statistics)
    texts = [str(client) if names is None else str(names[client]) for client in present]

    def with_owner(group: xr.Dataset) -> xr.Dataset:
        if "observation" in group.dims:
            group = group.assign_coords(client_of=("observation", owner.astype(np.int32)))
        if "client" in group.dims:
            group = group.assign_coords(client_name=("client", texts))
        return group

    out: xr.DataTree = tree.map_over_datasets(with_owner)
    return out


def client_means(
    values: Array, place: Array, clients: int, known: NDArray[np.bool_]
) -> NDArray[np.float32]:
    """Mean of ``values [K, n]`` over each client's known observations, ``[K, clients]``; NaN if there is none."""
    place, values = place[known], values[:, known]
    sizes = np.bincount(place, minlength=clients)
    sums = [np.bincount(place, weights=row, minlength=clients) for row in values]
    return (np.stack(sums) / np.where(sizes, sizes, np.nan)).astype(np.float32)


def as_array(values: Any) -> Array:
    """A tensor, on whatever device, or anything NumPy understands."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().numpy()
    return np.asarray(values)


def integers(values: Any, what: str) -> NDArray[np.int64]:
    """Integers, one an observation.

    Raises:
        UserError: Another type or shape.
    """
    array = as_array(values)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise UserError(
            f"{what} must be integers, one an observation, not {array.dtype} {list(array.shape)}"
        )
    return array.astype(np.int64)


def checked_attrs(attrs: Mapping[str, Any]) -> dict[str, str | int | float]:
    """Attributes that a file can keep.

    Raises:
        UserError: One of another type.
    """
    for name, value in attrs.items():
        # netCDF has no truth values, no None and no nesting.
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise UserError(f"attribute {name!r} is {value!r}; a file keeps texts and numbers")
    return dict(attrs)


def check_lengths(n: int, **parts: Array) -> None:
    """Raise UserError about the first of ``parts`` that has not one entry an observation."""
    for what, values in parts.items():
        if len(values) != n:
            raise UserError(f"{what} has {len(values)} entries for {n} observations")
