"""Examples that beliefs predict, client by client, and what is stored of the predictions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_pfedbayes.data.clients import FederatedData
from pyro_pfedbayes.data.datasets import Dataset
from pyro_pfedbayes.datatree.classes import ClassTable
from pyro_pfedbayes.datatree.groups import Owners
from pyro_pfedbayes.datatree.numeric import NumberTable

if TYPE_CHECKING:
    import xarray as xr

Table = ClassTable | NumberTable
Piece = tuple[slice, Tensor, Tensor]
"""Rows of a table, their inputs and outcomes."""
Corrupt = Callable[[int, Tensor], Tensor]
"""From a client's number and inputs to the inputs that are predicted instead."""


@dataclass(frozen=True)
class StoredPredictions:
    """Examples of all clients, end to end, and what is stored of the predictions."""

    dataset: Dataset
    index: Tensor  # into the data set, int64 [n]
    starts: tuple[int, ...]  # where each client's examples begin, [N + 1]
    table: Table
    corrupt: Corrupt | None = None  # changes a client's inputs, all of them at once
    # bool [n]: where a prediction was no probability, so that the statistics are NaN. None: it is an error.
    invalid: NDArray[np.bool_] | None = None

    @staticmethod
    def of(
        data: FederatedData, lists: Sequence[Tensor], *, keep: int | None, seed: int = 0
    ) -> StoredPredictions:
        """Examples of the clients' data set, a list of indices a client."""
        dataset, (index, owners, starts) = data.dataset, _concatenated(lists)
        y = dataset.y.cpu()[index].numpy()
        table: Table
        if data.outcome == "number":
            scaling = dataset.target_scaling
            table = NumberTable(y.astype(np.float64), owners, target_scaling=scaling, keep=keep)
        else:
            table = ClassTable(y, owners, keep=keep, seed=seed)
        return StoredPredictions(dataset, index, starts, table)

    @staticmethod
    def beside(
        dataset: Dataset, lists: Sequence[Tensor], *, labels: bool, corrupt: Corrupt | None = None
    ) -> StoredPredictions:
        """Examples of classes beside those that a model is judged by: no draw is stored, no prediction is an error.

        They lie in ``dataset``, not necessarily the clients' own; without ``labels`` its classes count as unknown.
        """
        index, owners, starts = _concatenated(lists)
        y = dataset.y.cpu()[index].numpy() if labels else np.full(len(index), -1)
        invalid = np.zeros(len(index), np.bool_)
        return StoredPredictions(
            dataset, index, starts, ClassTable(y, owners, keep=0), corrupt, invalid
        )

    def rows(self, client: int | None) -> range:
        """Places of one client's observations, or of all."""
        if client is None:
            return range(len(self.index))
        return range(self.starts[client], self.starts[client + 1])

    def pieces(self, client: int | None, chunk: int) -> Iterator[Piece]:
        """Inputs and outcomes of one client's observations, or of all, a piece at a time."""
        rows, dataset = self.rows(client), self.dataset
        device = dataset.y.device
        index = self.index[rows.start : rows.stop].to(device)
        corrupted = None
        if self.corrupt is not None and client is not None and len(rows):
            corrupted = self.corrupt(client, dataset.x.index_select(0, index))
        for start in range(0, len(rows), chunk):
            part = slice(start, min(start + chunk, len(rows)))
            x = dataset.x.index_select(0, index[part]) if corrupted is None else corrupted[part]
            piece = slice(rows.start + part.start, rows.start + part.stop)
            yield piece, x, dataset.y.index_select(0, index[part])

    def once(self, client: int | None, chunk: int) -> bool:
        """Whether inputs are to be made ready once for all draws: they fit in one piece, or are dear to make."""
        return self.corrupt is not None or len(self.rows(client)) <= chunk

    def add_probabilities(self, number: int, probs: Tensor, piece: slice) -> None:
        """Add class probabilities ``[m, C]`` of draw ``number``."""
        assert isinstance(self.table, ClassTable)
        if self.invalid is not None:
            bad = ~(probs.isfinite() & (probs >= 0)).all(-1)
            if bool(bad.any()):
                self.invalid[piece] |= bad.cpu().numpy()
                # Anything that the table takes: these rows become NaN.
                probs = probs.masked_fill(bad[:, None], 1.0 / probs.shape[1])
        self.table.add(number, probs, piece)

    def statistics(
        self, dim: str = "observation", *, classes: Sequence[str], truth: str | None = None
    ) -> xr.Dataset:
        """Of all observations, beside whose they are; and the truth as a variable."""
        import xarray as xr

        table = self.table
        found = table.statistics(dim, classes)
        if self.invalid is not None and self.invalid.any():
            found = found.where(xr.DataArray(~self.invalid, dims=(dim,)))
        if truth is not None:
            found[truth] = (dim, table.y.astype(table.stored))
        coords = {"client_of": (dim, table.owners.owner.astype(np.int32))}
        if dim != "observation":
            coords["index"] = (dim, self.index.numpy())
        return found.assign_coords(coords)

    def tree(self, names: Sequence[str], attrs: dict[str, str | int | float]) -> xr.DataTree:
        """The groups of the personal models."""
        return self.table.tree(self.index.numpy(), names, attrs, self.dataset.classes)


def _concatenated(lists: Sequence[Tensor]) -> tuple[Tensor, Owners, tuple[int, ...]]:
    """All indices end to end, whose each is, and where each client's begin."""
    sizes = torch.tensor([len(index) for index in lists])
    owner = torch.arange(len(lists)).repeat_interleave(sizes).numpy()
    owners = Owners.of(owner, range(len(lists)))
    return torch.cat(list(lists)), owners, (0, *sizes.cumsum(0).tolist())
