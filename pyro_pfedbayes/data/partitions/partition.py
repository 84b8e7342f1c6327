"""A partition: which examples of a data set each client learns from and is evaluated on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from rich.table import Table
from torch import Tensor

from pyro_pfedbayes.data.datasets import Dataset
from pyro_pfedbayes.data.partitions.allocation import (
    Index,
    check_fraction,
    fill_empty,
    hold_out,
    stream,
)
from pyro_pfedbayes.data.partitions.text_tables import class_table, number_table, table_text
from pyro_pfedbayes.errors import UserError, unknown

PARTS = ("train", "validation", "test")


@dataclass(frozen=True, eq=False)
class Partition:
    """Index lists, one a client and part, into one data set.

    Attributes:
        scheme: How it came about, such as ``"blocks"`` or ``"dirichlet(alpha=0.5)"``.
        train: For each client the examples it learns from, int64 ``[n_i]``.
        validation: For each client the examples held out of its training data; may be empty.
        test: For each client the examples it is evaluated on; may be empty for one with a single example.
        names: What to call the clients in tables, such as the values of a column; default 0, 1, ...

    Example:
        >>> import torch
        >>> train, validation, test = torch.tensor([0, 1]), torch.tensor([2]), torch.tensor([3])
        >>> part = Partition("by hand", (train,), (validation,), (test,))
        >>> part.num_clients, part.names
        (1, ('0',))
        >>> part.counts(torch.tensor([0, 1, 1, 0]), num_classes=2).tolist()
        [[1, 1]]
    """

    scheme: str
    train: tuple[Tensor, ...]
    validation: tuple[Tensor, ...]
    test: tuple[Tensor, ...]
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check the lengths and name clients that have no name."""
        names = self.names or tuple(map(str, range(len(self.train))))
        lengths = {len(self.train), len(self.validation), len(self.test), len(names)}
        if len(lengths) != 1 or not self.train:
            raise UserError(
                f"partition '{self.scheme}': {len(self.train)} training, {len(self.validation)} "
                f"validation and {len(self.test)} test lists and {len(self.names)} names: "
                "wanted one of each a client"
            )
        object.__setattr__(self, "names", names)

    @property
    def num_clients(self) -> int:
        """Number of clients N."""
        return len(self.train)

    def part(self, part: str) -> tuple[Tensor, ...]:
        """The index lists of ``part``: ``"train"``, ``"validation"`` or ``"test"``."""
        if part not in PARTS:
            raise unknown("unknown part", part, PARTS)
        lists: tuple[Tensor, ...] = getattr(self, part)
        return lists

    def sizes(self, part: str = "train") -> Tensor:
        """Examples a client, int64 ``[N]``."""
        return torch.tensor([len(index) for index in self.part(part)])

    def counts(self, y: Tensor, num_classes: int, part: str = "train") -> Tensor:
        """Examples a client and class, int64 ``[N, num_classes]``, given labels ``y`` ``[n]``.

        Examples without a known label (-1) are counted nowhere.
        """
        # Unknown labels are counted in a last column, which is left out.
        return torch.stack(
            [
                torch.where(labels < 0, num_classes, labels).bincount(minlength=num_classes + 1)
                for labels in self.dealt(y, part)
            ]
        )[:, :num_classes]

    def table(self, y: Tensor, classes: tuple[str, ...], width: int = 100) -> Table:
        """A small table: a row a client (the first and last, if many), then the sums.

        ``y`` are all outcomes ``[n]``: labels of ``classes``, or numbers in the units to show. Classes that do
        not fit in ``width`` columns of text are summed up.
        """
        sizes = {part: self.sizes(part) for part in PARTS}
        if y.is_floating_point():
            return number_table(self.scheme, self.names, self.dealt(y), sizes)
        counts = self.counts(y, len(classes))
        return class_table(self.scheme, self.names, classes, counts, sizes, width)

    def dealt(self, y: Tensor, part: str = "train") -> list[Tensor]:
        """The outcomes that each client holds in ``part``, ``[n_i]`` each, on the CPU."""
        y = y.cpu()
        return [y[index] for index in self.part(part)]

    def to_text(self, y: Tensor, classes: tuple[str, ...], width: int = 100) -> str:
        """The same table as plain text."""
        return table_text(self.table(y, classes, width), width)


def deal_pools(
    dataset: Dataset,
    scheme: str,
    clients: int,
    deal: Callable[[Index, str], list[Index]],
    test_fraction: float,
    validation: float,
    seed: int,
    strata: Index | None = None,
) -> Partition:
    """Deal the training examples, and as test the data set's own or a fraction of each share.

    What is held out is spread evenly over ``strata`` ``[n]``; by default these are the labels, and for
    numbers whether the outcome is known.
    """
    check_fraction("test_fraction", test_fraction)
    if strata is None:
        strata = (dataset.known if dataset.outcome == "number" else dataset.y).cpu().long().numpy()
    own_test = np.zeros(len(dataset), dtype=np.bool_)
    if dataset.test_mask is not None:
        own_test = dataset.test_mask.cpu().numpy()
    shares = fill_empty(deal(np.flatnonzero(~own_test), "train"), stream(seed, "fill"))
    if own_test.any():
        test = deal(np.flatnonzero(own_test), "test")
    else:
        shares, test = _hold_out(shares, strata, test_fraction, seed, "test")
    return finish(scheme, strata, shares, test, validation, seed)


def finish(
    scheme: str,
    strata: Index,
    shares: Sequence[Index],
    test: Sequence[Index],
    validation: float,
    seed: int,
) -> Partition:
    """Hold validation examples out of the training shares, and make the index lists tensors."""
    check_fraction("validation", validation)
    train, held_out = _hold_out(shares, strata, validation, seed, "validation")
    parts = (train, held_out, [np.sort(index) for index in test])
    lists = [tuple(torch.from_numpy(index) for index in part) for part in parts]
    return Partition(scheme, lists[0], lists[1], lists[2])


def _hold_out(
    shares: Sequence[Index], strata: Index, fraction: float, seed: int, part: str
) -> tuple[list[Index], list[Index]]:
    """Split off a fraction of each share, by a stream of its own."""
    split = [
        hold_out(share, strata, fraction, stream(seed, part, client))
        for client, share in enumerate(shares)
    ]
    return [rest for rest, _ in split], [held_out for _, held_out in split]
