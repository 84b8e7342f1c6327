"""What trees of classes and of numbers have in common: their groups and coordinates, and checks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pyro_pfedbayes.errors import UserError

if TYPE_CHECKING:
    import xarray as xr

MAX_CELLS = 10_000_000
"""Most draws times observations of which each is kept: about 60 MB before compression, 35 MB on disk."""

Array = NDArray[Any]


def draws_that_fit(observations: int) -> int:
    """How many draws are kept one by one for so many observations: what `MAX_CELLS` allows, at least 1."""
    return max(1, MAX_CELLS // max(1, observations))


@dataclass(frozen=True)
class Owners:
    """Whose observation it is, and which clients a tree is about."""

    owner: NDArray[np.int64]  # number of the client that each observation belongs to, int64 ``[n]``
    clients: NDArray[np.int64]  # numbers of all clients, ascending; some may have no observation

    @staticmethod
    def of(owner: NDArray[np.int64], clients: Sequence[int] | None = None) -> Owners:
        """The clients that have observations, or those given."""
        present = np.unique(owner)
        known = present if clients is None else np.unique(np.asarray(clients, dtype=np.int64))
        unlisted = np.setdiff1d(present, known)
        if len(unlisted):
            raise UserError(f"an observation belongs to client {unlisted[0]}, which is not listed")
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
        """Add draw ``number``'s values of the observations ``rows``."""
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


class DrawTable(ABC):
    """Running statistics over all draws of the weights, and the first ``keep`` draws one by one.

    Rows may come in any pieces, but each draw has its rows, and each row its draws, in order. Memory does not grow
    with the number of draws beyond ``keep``, which is what fits if None. ``metrics`` are averaged over a client's
    ``known`` observations, draw by draw.
    """

    stored: ClassVar[type[np.generic]]
    """Type of outcomes in a file."""

    def __init__(
        self,
        y: Array,
        known: NDArray[np.bool_],
        owners: Owners,
        metrics: Sequence[str],
        keep: int | None,
    ) -> None:
        if not len(y):
            raise UserError("there are no observations")
        _check_length("client", owners.owner, len(y))
        self.y, self.owners = y, owners
        self.draws = 0
        self.keep = draws_that_fit(len(y)) if keep is None else keep
        self._metrics = {name: ClientMeans(owners, known) for name in metrics}
        self._outcomes: list[Array] = []
        self._log_likelihood: list[NDArray[np.float32]] = []

    @property
    def kept(self) -> int:
        """How many draws are kept one by one."""
        return len(self._outcomes)

    @abstractmethod
    def add(self, number: int, draw: Any, rows: slice = slice(None)) -> None:
        """Add draw ``number`` of the m observations ``rows``."""

    @abstractmethod
    def statistics(
        self, dim: str = "observation", classes: Sequence[str] | None = None
    ) -> xr.Dataset:
        """Statistics over all draws, ``[n]`` along ``dim``."""

    def client_metrics(self) -> dict[str, NDArray[np.float32]]:
        """Metrics ``[K, clients]``."""
        return {name: means.result() for name, means in self._metrics.items()}

    def filled_tree(
        self,
        draws: Iterable[Any],
        index: Any,
        names: Sequence[str] | None,
        attrs: Mapping[str, Any] | None,
        classes: Sequence[str] | None = None,
    ) -> xr.DataTree:
        """The tree, once all ``draws`` have been added; ``index`` None counts the observations."""
        places = np.arange(len(self.y)) if index is None else integers(index, "index")
        _check_length("index", places, len(self.y))
        for number, draw in enumerate(draws):
            self.add(number, draw)
        return self.tree(places, names, checked_attrs(attrs or {}), classes)

    def tree(
        self,
        index: NDArray[np.int64],
        names: Sequence[str] | None,
        attrs: dict[str, str | int | float],
        classes: Sequence[str] | None = None,
    ) -> xr.DataTree:
        """Lay it out in ArviZ's schema; beside each observation and client stands who that is."""
        import arviz_base
        import xarray as xr

        statistics = self.statistics(classes=classes)
        owner, clients = self.owners.owner, self.owners.clients
        metrics = {name: values[None] for name, values in self.client_metrics().items()}
        groups: dict[str, dict[str, Array]] = {
            "posterior_predictive": {"y": np.stack(self._outcomes)[None]},
            "log_likelihood": {"y": np.stack(self._log_likelihood)[None]},
            "client_metrics": metrics,
            "observed_data": {"y": self.y.astype(self.stored)},
            "constant_data": {"index": index},
        }
        tree = arviz_base.from_dict(
            groups,
            dims={name: ["client"] for name in metrics}
            | {name: ["observation"] for name in ("y", "index")},
            coords={"observation": np.arange(len(owner)), "client": clients},
            attrs={"/": attrs | {"draws": self.draws, "draws_kept": self.kept}},
        )
        tree["observation_stats"] = xr.DataTree(statistics)

        def with_owner(group: xr.Dataset) -> xr.Dataset:
            if "observation" in group.dims:
                group = group.assign_coords(client_of=("observation", owner.astype(np.int32)))
            return label_clients(group, names)

        out: xr.DataTree = tree.map_over_datasets(with_owner)
        return out

    def _keep(self, number: int, rows: slice, outcomes: Array, log_likelihood: Array) -> None:
        """Keep the outcomes and log-likelihoods of draw ``number`` itself."""
        if number == self.kept:
            self._outcomes.append(np.zeros(len(self.y), self.stored))
            self._log_likelihood.append(np.zeros(len(self.y), np.float32))
        self._outcomes[number][rows] = outcomes
        self._log_likelihood[number][rows] = log_likelihood

    def _refuse(self, bad: NDArray[np.bool_], number: int, rows: slice, what: str) -> None:
        """Name the first of the observations ``rows`` whose part of draw ``number`` is ``bad``."""
        if bad.any():
            row = range(len(self.y))[rows][int(bad.argmax())]
            raise UserError(
                f"draw {number} holds {what} (observation {row}, of client {self.owners.owner[row]})"
            )


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


def _check_length(what: str, values: Array, n: int) -> None:
    if len(values) != n:
        raise UserError(f"{what} has {len(values)} entries for {n} observations")
