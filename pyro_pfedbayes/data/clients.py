"""Clients with their data: one shared data set, index lists, and minibatches for a cohort."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from pyro_pfedbayes.data.datasets import Dataset
from pyro_pfedbayes.data.partitions.schemes import PARTS, Partition
from pyro_pfedbayes.errors import UserError, nearest
from pyro_pfedbayes.randomness import generator


@dataclass(frozen=True, eq=False)
class BatchPlan:
    """The minibatches of one round: for S clients, R steps of b examples.

    A client with n_i < b examples has all of them in each batch, then the first of them again, masked. Batches of
    other clients are full.
    """

    index: Tensor  # which examples, int64 [S, R, b], into the shared inputs
    mask: Tensor  # bool [S, b], False for padding
    sizes: Tensor  # n_i, float32 [S]
    counts: Tensor  # examples in a batch that count, min(b, n_i), float32 [S]
    x: Tensor  # shared inputs [n, *features]
    y: Tensor  # shared outcomes [n]: labels int64, numbers float32

    @property
    def steps(self) -> int:
        """Number of steps R."""
        return int(self.index.shape[1])

    @property
    def scale(self) -> Tensor:
        """n_i / min(b, n_i), float32 ``[S]``: how many examples one of a batch stands for."""
        return self.sizes / self.counts

    @cached_property
    def needed_mask(self) -> Tensor | None:
        """The mask, or None if every row counts; looked at once, for that waits for the device."""
        return None if bool(self.mask.all()) else self.mask

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """The minibatches of one step: x ``[S, b, *features]`` and y ``[S, b]``."""
        index = self.index[:, step]
        flat = index.reshape(-1)
        x = self.x.index_select(0, flat).view(*index.shape, *self.x.shape[1:])
        return x, self.y.index_select(0, flat).view(index.shape)


@dataclass(frozen=True, eq=False)
class FederatedData:
    """A data set and who holds what of it.

    The clients share the data set's tensors; the partition's index lists stay on the CPU.

    UserError is raised if an index does not exist or is dealt twice, or a client has no training example.

    Example:
        >>> from pyro_pfedbayes.data.datasets import load_dataset
        >>> from pyro_pfedbayes.data.partitions.schemes import partition_labels
        >>> digits = load_dataset("digits")
        >>> data = FederatedData(digits, partition_labels(digits, 10, 5, 15, 15, validation=0.0))
        >>> data.num_clients, data.num_classes, data.feature_shape
        (10, 10, (1, 8, 8))
        >>> plan = data.plan(clients=[0, 7], steps=3, batch_size=25, seed=0, round=1)
        >>> x, y = plan.batch(0)
        >>> x.shape, y.shape, plan.scale.tolist()
        (torch.Size([2, 25, 1, 8, 8]), torch.Size([2, 25]), [3.0, 3.0])
    """

    dataset: Dataset  # on any device
    partition: Partition

    def __post_init__(self) -> None:
        """Check that the two fit together."""
        n, where = len(self.dataset), f"partition '{self.partition.scheme}'"
        for name, index in zip(self.partition.names, self.partition.train, strict=True):
            if not len(index):
                raise UserError(f"{where}: client {name} has no training example")
        lists = [index for part in PARTS for index in self.partition.part(part)]
        if any(index.dtype != torch.int64 or index.ndim != 1 for index in lists):
            raise UserError(f"{where}: index lists must be int64 tensors of one dimension")
        dealt = torch.cat(lists)
        low, high = int(dealt.min()), int(dealt.max())
        if low < 0 or high >= n:
            raise UserError(
                f"{where}: holds indices {low} to {high}, but {self.dataset.name} has {n} examples"
            )
        most, example = torch.bincount(dealt).max(0)
        if most > 1:
            raise UserError(f"{where}: example {example} is dealt {most} times, wanted once")

    @property
    def num_clients(self) -> int:
        """Number of clients N."""
        return self.partition.num_clients

    @property
    def num_classes(self) -> int:
        """Number of classes C of the data set; 0 if its outcomes are numbers."""
        return self.dataset.num_classes

    @property
    def outcome(self) -> Literal["class", "number"]:
        """What there is to predict."""
        return self.dataset.outcome

    @property
    def feature_shape(self) -> tuple[int, ...]:
        """Shape of one example."""
        return self.dataset.feature_shape

    @cached_property
    def train_sizes(self) -> Tensor:
        """Training examples n_i of each client, int64 ``[N]``, on the CPU."""
        return self.partition.sizes()

    def to(self, device: torch.device | str) -> FederatedData:
        """The same clients with the shared tensors on ``device``."""
        return replace(self, dataset=self.dataset.to(device))

    def with_covariates(self, names: Sequence[str]) -> FederatedData:
        """The same clients with columns of the data set appended to a table ``x``, in their own units.

        ``names`` of ``dataset.columns`` become the last columns of x, in this order. Values must be finite numbers.

        Example:
            >>> from pyro_pfedbayes.data.datasets import Dataset
            >>> days = {"days": torch.tensor([30.0, 7.0])}
            >>> visits = Dataset("visits", torch.zeros(2, 1), torch.tensor([4.0, 1.0]), (), columns=days)
            >>> nobody, everybody = torch.arange(0), torch.arange(2)
            >>> data = FederatedData(visits, Partition("all", (everybody,), (nobody,), (nobody,)))
            >>> data.with_covariates(["days"]).dataset.x.tolist()
            [[0.0, 30.0], [0.0, 7.0]]
        """
        if not names:
            return self
        dataset = self.dataset
        if dataset.x.ndim != 2:
            raise UserError(
                f"{dataset.name}: the model wants column {names[0]!r} beside the inputs, which only "
                f"tables can have; x holds images {list(dataset.feature_shape)}"
            )
        added = torch.stack([_covariate(dataset, name) for name in names], 1)
        scaling = dataset.scaling
        if scaling is not None:  # the columns are appended as they are
            loc, scale = scaling
            none = loc.new_zeros(len(names))
            scaling = torch.cat([loc, none]), torch.cat([scale, none + 1])
        x = torch.cat([dataset.x, added], 1)
        return replace(self, dataset=replace(dataset, x=x, scaling=scaling))

    def examples(self, client: int, part: str = "train") -> tuple[Tensor, Tensor]:
        """All examples of one client and part: x ``[m, *features]`` and y ``[m]``; m may be 0."""
        lists = self.partition.part(part)
        self.check_clients([client])
        index = lists[client].to(self.dataset.y.device)
        return self.dataset.x.index_select(0, index), self.dataset.y.index_select(0, index)

    def plan(
        self, clients: Sequence[int], steps: int, batch_size: int, seed: int, round: int
    ) -> BatchPlan:
        """Draw a round's minibatches: shuffled epochs, one after the other, cut into batches.

        A client's batches depend on seed, round and client only, not on who else takes part, nor on
        the device. Each round begins a fresh epoch. A client with fewer examples than
        ``batch_size`` has all of them in each batch.

        Args:
            clients: The S clients that take part.
            steps: Batches R of each.
            batch_size: Examples b in a batch; no more than the largest client has.
            seed: Of the run.
            round: Number of the round.
        """
        self.check_clients(clients)
        if steps < 1 or batch_size < 1:
            raise UserError(
                f"steps is {steps} and batch_size {batch_size}: both must be at least 1"
            )
        # Wider than the largest client is nothing but padding.
        batch_size = min(batch_size, int(self.train_sizes.max()))
        index = torch.empty(len(clients), steps, batch_size, dtype=torch.int64)
        for row, client in zip(index, clients, strict=True):
            _fill(row, self.partition.train[client], generator(seed, "batch", round, client))
        sizes = self.train_sizes[list(clients)]
        counts = sizes.clamp(max=batch_size)
        mask = torch.arange(batch_size) < counts[:, None]
        device = self.dataset.x.device
        return BatchPlan(
            index=index.to(device),
            mask=mask.to(device),
            sizes=sizes.to(device, torch.float32),
            counts=counts.to(device, torch.float32),
            x=self.dataset.x,
            y=self.dataset.y,
        )

    def check_clients(self, clients: Sequence[int], purpose: str = "") -> None:
        """Raise UserError for a client that does not exist."""
        for client in clients:
            if not 0 <= client < self.num_clients:
                raise UserError(
                    f"no client {client}{purpose}: there are {self.num_clients}, numbered from 0"
                )


def _covariate(dataset: Dataset, name: str) -> Tensor:
    """A column as float32 ``[n]``, if a model can compute with it."""
    if name not in dataset.columns:
        why = f": {dataset.set_aside[name]}" if name in dataset.set_aside else ""
        raise UserError(
            f"{dataset.name}: the model wants column {name!r}, which there is not{why}"
            f"{nearest(name, dataset.columns)} (columns: {', '.join(dataset.columns) or 'none'})"
        )
    if name in dataset.column_values:
        raise UserError(
            f"{dataset.name}: the model wants column {name!r} as numbers, but it holds texts such "
            f"as {dataset.column_values[name][0]!r}"
        )
    values = dataset.columns[name]
    # Also what overflows in float32 becomes infinite.
    covariate = values.to(torch.float32)
    wrong = ~covariate.isfinite()
    if bool(wrong.any()):
        row = int(wrong.int().argmax())
        raise UserError(
            f"{dataset.name}: column {name!r} is {values[row].item()} in row {row}: "
            "wanted finite numbers within float32's range"
        )
    return covariate


def _fill(batches: Tensor, examples: Tensor, stream: torch.Generator) -> None:
    """Fill ``batches`` ``[R, b]`` from the n ``examples`` of a client."""
    n, (steps, size) = len(examples), batches.shape
    if n < size:
        batches[:, :n] = examples
        batches[:, n:] = examples[0]
        return
    epochs = -(-steps * size // n)
    order = torch.cat([torch.randperm(n, generator=stream) for _ in range(epochs)])[: steps * size]
    torch.index_select(examples, 0, order, out=batches.view(-1))
