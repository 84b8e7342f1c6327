"""What trees of classes and of numbers have in common: their groups and coordinates, and checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pyro_pfedbayes.errors import UserError

if TYPE_CHECKING:
    import xarray as xr

__all__ = [
    "MAX_CELLS",
    "ClientMeans",
    "Owners",
    "as_array",
    "assemble",
    "check_lengths",
    "checked_attrs",
    "draws_that_fit",
    "integers",
    "label_clients",
]

MAX_CELLS = 10_000_000
"""Most draws times observations of which each is kept: about 60 MB before compression, 35 MB on disk."""

Array = NDArray[Any]


def draws_that_fit(observations: int) -> int:
    """How many draws are kept one by one for so many observations: what `MAX_CELLS` allows, at least 1."""
    return max(1, MAX_CELLS // max(1, observations))


@dataclass(frozen=True)
class Owners:
    """Whose observation it is, and which clients a tree is about.

    Attributes:
        owner: Number of the client that each observation belongs to, int64 ``[n]``.
        clients: Numbers of all clients, ascending; some may have no observation.
    """

    owner: NDArray[np.int64]
    clients: NDArray[np.int64]

    @staticmethod
    def of(owner: NDArray[np.int64], clients: Sequence[int] | None = None) -> Owners:
        """The clients that have observations, or those given."""
        present = np.unique(owner)
        known = present if clients is None else np.unique(np.asarray(clients, dtype=np.int64))
        strange = np.setdiff1d(present, known)
        if len(strange):
            raise UserError(f"an observation belongs to client {strange[0]}, which is not listed")
        return Owners(owner, known)

    @property
    def place(self) -> NDArray[np.int64]:
        """Where each observation's client stands among ``clients``, ``[n]``."""
        return np.searchsorted(self.clients, self.owner)


class ClientMeans:
    """Means over each client's known observations, draw by draw; the observations may come in pieces."""

    def __init__(self, owners: Owners, known: NDArray[np.bool_]) -> None:
        self._place, self._known = owners.place, known
        self._sizes = np.bincount(self._place[known], minlength=len(owners.clients))
        self._sums: list[Array] = []

    def add(self, number: int, values: Array, rows: slice) -> None:
        """Take up draw ``number``'s values of the observations ``rows``."""
        while len(self._sums) <= number:
            self._sums.append(np.zeros(len(self._sizes)))
        known = self._known[rows]
        self._sums[number] += np.bincount(
            self._place[rows][known], weights=values[known], minlength=len(self._sizes)
        )

    def result(self) -> NDArray[np.float32]:
        """Means ``[K, clients]``; NaN, that is not defined, for a client without a known observation."""
        means = np.stack(self._sums) / np.where(self._sizes, self._sizes, np.nan)
        return means.astype(np.float32)


def assemble(
    groups: Mapping[str, Mapping[str, Array]],
    statistics: xr.Dataset,
    owners: Owners,
    names: Sequence[str] | None,
    attrs: Mapping[str, str | int | float],
) -> xr.DataTree:
    """Make a tree of its groups, and write beside each observation and client who that is.

    Args:
        groups: Arrays by group and name; those of ``client_metrics`` have a last dimension of clients, the others of
            observations.
        statistics: The group ``observation_stats``.
        owners: Whose observation it is.
        names: Names of the clients, by number.
        attrs: Of the whole tree.
    """
    import arviz_base
    import xarray as xr

    tree = arviz_base.from_dict(
        {group: dict(arrays) for group, arrays in groups.items()},
        dims={
            name: ["client" if group == "client_metrics" else "observation"]
            for group, arrays in groups.items()
            for name in arrays
        },
        coords={"observation": np.arange(len(owners.owner)), "client": owners.clients},
        attrs={"/": dict(attrs)},
    )
    tree["observation_stats"] = xr.DataTree(statistics)

    def with_owner(group: xr.Dataset) -> xr.Dataset:
        if "observation" in group.dims:
            whose = owners.owner.astype(np.int32)
            group = group.assign_coords(client_of=("observation", whose))
        return label_clients(group, names)

    out: xr.DataTree = tree.map_over_datasets(with_owner)
    return out


def label_clients(group: xr.Dataset, names: Sequence[str] | None) -> xr.Dataset:
    """The group with names beside its numbers of clients, if it has a dimension of them."""
    if "client" not in group.dims:
        return group
    numbers = group["client"].to_numpy()
    texts = [str(client) if names is None else str(names[client]) for client in numbers]
    return group.assign_coords(client_name=("client", texts))


def as_array(values: Any) -> Array:
    """A tensor, on whatever device, or anything NumPy understands."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().numpy()
    return np.asarray(values)


def integers(values: Any, what: str) -> NDArray[np.int64]:
    """Integers, one an observation."""
    array = as_array(values)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise UserError(
            f"{what} must be integers, one an observation, not {array.dtype} {list(array.shape)}"
        )
    return array.astype(np.int64)


def checked_attrs(attrs: Mapping[str, Any]) -> dict[str, str | int | float]:
    """Attributes that a file can keep."""
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
