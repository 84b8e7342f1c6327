"""Examples that beliefs are asked about, client by client, and what is kept of the answers."""

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
Spoil = Callable[[int, Tensor], Tensor]
"""From a client's number and inputs to the inputs that it is asked about instead."""


@dataclass(frozen=True)
class Asked:
    """Examples of all clients, end to end, and what is kept of the answers."""

    dataset: Dataset  # where the examples lie
    index: Tensor  # into the data set, int64 ``[n]``
    starts: tuple[int, ...]  # where each client's begin, ``[N + 1]``
    table: Table  # the answers so far
    spoil: Spoil | None = None  # changes a client's inputs, all of them at once
    broken: NDArray[np.bool_] | None = None
    """bool ``[n]``, where an answer that is no probability may stand for itself alone: True where there was one, and
    the statistics are NaN. None: such an answer is an error."""

    @staticmethod
    def of(
        data: FederatedData, lists: Sequence[Tensor], *, keep: int | None, seed: int = 0
    ) -> Asked:
        """Examples of the clients' data set, a list of indices a client."""
        dataset, (index, owners, starts) = data.dataset, _laid_out(lists)
        y = dataset.y.cpu()[index].numpy()
        table: Table
        if data.outcome == "number":
            scaling = dataset.target_scaling
            table = NumberTable(y.astype(np.float64), owners, target_scaling=scaling, keep=keep)
        else:
            table = ClassTable(y, owners, keep=keep, seed=seed)
        return Asked(dataset, index, starts, table)

    @staticmethod
    def beside(
        dataset: Dataset, lists: Sequence[Tensor], *, labels: bool, spoil: Spoil | None = None
    ) -> Asked:
        """Examples of classes beside those that a model is judged by: no draw is kept, and no answer is an error.

        Args:
            dataset: Where they lie, not necessarily the clients' own.
            lists: Indices, a list a client.
            labels: Whether the labels mean the classes that the model knows; else they count as unknown.
            spoil: See `Asked`.
        """
        index, owners, starts = _laid_out(lists)
        y = dataset.y.cpu()[index].numpy() if labels else np.full(len(index), -1)
        broken = np.zeros(len(index), np.bool_)
        return Asked(dataset, index, starts, ClassTable(y, owners, keep=0), spoil, broken)

    def rows(self, client: int | None) -> range:
        """Places of one client's observations, or of all."""
        if client is None:
            return range(len(self.index))
        return range(self.starts[client], self.starts[client + 1])

    def pieces(self, client: int | None, chunk: int) -> Iterator[Piece]:
        """Inputs and outcomes of one client's observations, or of all, a piece at a time."""
        rows, dataset = self.rows(client), self.dataset
        device = dataset.y.device
        spoilt = None
        if self.spoil is not None and client is not None and len(rows):
            index = self.index[rows.start : rows.stop].to(device)
            spoilt = self.spoil(client, dataset.x.index_select(0, index))
        for start in range(rows.start, rows.stop, chunk):
            piece = slice(start, min(start + chunk, rows.stop))
            index = self.index[piece].to(device)
            if spoilt is None:
                x = dataset.x.index_select(0, index)
            else:
                x = spoilt[piece.start - rows.start : piece.stop - rows.start]
            yield piece, x, dataset.y.index_select(0, index)

    def once(self, client: int | None, chunk: int) -> bool:
        """Whether inputs are to be made ready once for all draws: they fit in one piece, or are dear to make."""
        return self.spoil is not None or len(self.rows(client)) <= chunk

    def add_probabilities(self, number: int, probs: Tensor, piece: slice) -> None:
        """Take up class probabilities ``[m, C]`` of draw ``number``."""
        assert isinstance(self.table, ClassTable)
        if self.broken is not None:
            bad = ~(probs.isfinite() & (probs >= 0)).all(-1)
            if bool(bad.any()):
                self.broken[piece] |= bad.cpu().numpy()
                # Anything that the table takes: these rows become NaN.
                probs = probs.masked_fill(bad[:, None], 1.0 / probs.shape[1])
        self.table.add(number, probs, piece)

    def statistics(
        self, dim: str = "observation", *, classes: Sequence[str], truth: str | None = None
    ) -> xr.Dataset:
        """Of all observations, beside whose they are; and the truth as a variable."""
        table = self.table
        found = table.statistics(dim, classes)
        if self.broken is not None and self.broken.any():
            whole = (dim, ~self.broken)
            found = found.where(_array(whole))
        if truth is not None:
            found[truth] = (dim, table.y.astype(table.stored))
        coords = {"client_of": (dim, table.owners.owner.astype(np.int32))}
        if dim != "observation":
            coords["index"] = (dim, self.index.numpy())
        return found.assign_coords(coords)

    def tree(self, names: Sequence[str], attrs: dict[str, str | int | float]) -> xr.DataTree:
        """The groups of the personal models."""
        return self.table.tree(self.index.numpy(), names, attrs, self.dataset.classes)


def _laid_out(lists: Sequence[Tensor]) -> tuple[Tensor, Owners, tuple[int, ...]]:
    """All indices end to end, whose each is, and where each client's begin."""
    sizes = torch.tensor([len(index) for index in lists])
    owner = torch.arange(len(lists)).repeat_interleave(sizes).numpy()
    owners = Owners.of(owner, range(len(lists)))
    return torch.cat(list(lists)), owners, (0, *sizes.cumsum(0).tolist())


def _array(part: tuple[str, NDArray[np.bool_]]) -> xr.DataArray:
    import xarray as xr

    return xr.DataArray(part[1], dims=(part[0],))
