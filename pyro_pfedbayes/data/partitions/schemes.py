"""Who holds which examples: the paper's label splits, Dirichlet and quantity skew, and by a column.

A partition is index lists into one shared data set, so a thousand clients cost no more memory than
ten. No example is dealt twice. What each scheme does is random only through its seed.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from pyro_pfedbayes.data.datasets import Dataset
from pyro_pfedbayes.data.partitions.allocation import (
    Index,
    check_count,
    cut,
    label_sets,
    quantile_bins,
    shuffled,
    stream,
)
from pyro_pfedbayes.data.partitions.by_column import partition_column
from pyro_pfedbayes.data.partitions.partition import PARTS, Partition, deal_pools, finish
from pyro_pfedbayes.data.partitions.plot import plot_partition
from pyro_pfedbayes.errors import UserError, unknown

__all__ = [
    "PAPER_SPLITS",
    "PARTS",
    "Partition",
    "paper_split",
    "partition_column",
    "partition_dirichlet",
    "partition_labels",
    "partition_quantity",
    "plot_partition",
]

LABEL_SCHEMES = ("blocks", "rotating", "random")
SPLITS = ("small", "medium", "large")
FIFTHS = 5
"""Bins of outcomes that are numbers, where classes are wanted."""

PAPER_SPLITS: Mapping[str, tuple[int, tuple[tuple[int, int], ...]]] = {
    "mnist": (10, ((50, 950), (200, 800), (900, 300))),
    "fmnist": (10, ((50, 950), (200, 800), (900, 300))),
    "cifar10": (20, ((25, 475), (100, 400), (450, 150))),
    # Not the paper's: the same three regimes, as far as 174 images of the rarest class, for 5
    # clients, go.
    "digits": (10, ((5, 20), (15, 15), (24, 10))),
}
"""Clients, and (training, test) examples a client and class, for small, medium and large."""


def paper_split(dataset_name: str, split: str) -> tuple[int, int, int]:
    """The paper's sample-size regimes: clients, training and test examples a client and class.

    ``small`` is mostly test, ``large`` mostly training examples.

    Example:
        >>> paper_split("mnist", "medium")
        (10, 200, 800)
    """
    if dataset_name not in PAPER_SPLITS:
        raise unknown("no paper split for data set", dataset_name, PAPER_SPLITS)
    if split not in SPLITS:
        raise unknown("unknown split", split, SPLITS)
    clients, sizes = PAPER_SPLITS[dataset_name]
    return clients, *sizes[SPLITS.index(split)]


def partition_labels(
    dataset: Dataset,
    clients: int = 10,
    labels_per_client: int = 5,
    train_per_class: int = 50,
    test_per_class: int = 950,
    scheme: str = "blocks",
    validation: float = 0.1,
    seed: int = 0,
) -> Partition:
    """Give each client a few classes, and the same number of examples of each: the paper's setting.

    Of C classes, client u holds L = ``labels_per_client``:

    - ``blocks``: labels (L u + j) mod C, j < L. That is the paper's; 5 of 10 labels make only two
      kinds of client.
    - ``rotating``: labels (u + j) mod C.
    - ``random``: L labels at random, each class with as many clients as any other, give or take
      one.

    Examples of a class are shuffled and dealt to the clients that hold it, exactly
    ``train_per_class + test_per_class`` each, and none twice. A data set's own training and test
    part are pooled, as in the paper. Examples without a known label (-1) are dealt to nobody.

    Args:
        dataset: The data set, C classes.
        clients: Number of clients N.
        labels_per_client: L, 1 to C.
        train_per_class: Training examples a client and class, validation included.
        test_per_class: Test examples likewise; may be 0.
        scheme: ``blocks``, ``rotating`` or ``random``.
        validation: Fraction in [0, 1) of each client's training examples to hold out, evenly over
            its classes.
        seed: Chooses the examples, the random labels and what is held out.

    Raises:
        UserError: If a class has too few examples, or the outcomes are numbers.

    Example:
        >>> from pyro_pfedbayes.data.datasets import load_dataset
        >>> part = partition_labels(load_dataset("digits"), 10, 5, 15, 15, validation=0.2)
        >>> len(part.train[0]), len(part.validation[0]), len(part.test[0])
        (60, 15, 75)
    """
    if scheme not in LABEL_SCHEMES:
        raise unknown("unknown label scheme", scheme, LABEL_SCHEMES)
    if dataset.outcome == "number":
        raise UserError(
            f"{dataset.name}: outcomes are numbers, which scheme '{scheme}' cannot deal by label; "
            "use dirichlet (over fifths of y), quantity or column"
        )
    num_classes = dataset.num_classes
    check_count("clients", clients, 1)
    check_count("labels_per_client", labels_per_client, 1)
    if labels_per_client > num_classes:
        raise UserError(
            f"labels_per_client is {labels_per_client}, "
            f"but {dataset.name} has {num_classes} classes"
        )
    check_count("train_per_class", train_per_class, 1)
    check_count("test_per_class", test_per_class, 0)
    holds = label_sets(scheme, clients, labels_per_client, num_classes, seed)
    _check_supply(dataset, holds.sum(0), train_per_class, test_per_class)
    y = dataset.y.cpu().numpy()
    each = train_per_class + test_per_class
    train: list[list[Index]] = [[] for _ in range(clients)]
    test: list[list[Index]] = [[] for _ in range(clients)]
    for label in range(num_classes):
        dealt = shuffled(np.flatnonzero(y == label), seed, "class", label)
        for turn, client in enumerate(np.flatnonzero(holds[:, label])):
            share = dealt[turn * each : (turn + 1) * each]
            train[client].append(share[:train_per_class])
            test[client].append(share[train_per_class:])
    shares = [np.concatenate(pieces) for pieces in train]
    return finish(scheme, y, shares, [np.concatenate(pieces) for pieces in test], validation, seed)


def partition_dirichlet(
    dataset: Dataset,
    clients: int = 10,
    alpha: float = 0.5,
    test_fraction: float = 0.2,
    validation: float = 0.1,
    seed: int = 0,
) -> Partition:
    """Deal each class in proportions drawn from a symmetric Dirichlet distribution: label skew.

    The smaller ``alpha``, the fewer clients share a class; a large one deals all classes evenly.
    (Drawn a class over clients, as Yurochkin et al. 2019 do; Hsu et al. 2019 draw a client over
    classes.) A client that would get no training example is given one by the client that then holds
    most; all examples are dealt.

    Outcomes that are numbers are cut at their quantiles into fifths, which are dealt as classes are:
    a client then holds mostly high or mostly low outcomes. Examples without a known outcome (-1 or
    NaN) have no class and are dealt to nobody.

    Args:
        dataset: The data set. If it has a test part of its own, that is dealt in the same
            proportions.
        clients: Number of clients N.
        alpha: Concentration, > 0.
        test_fraction: Fraction in [0, 1) of each client's share that becomes its test set, evenly
            over its classes; used only if the data set has no test part of its own.
        validation: As in :func:`partition_labels`.
        seed: Chooses the proportions, the examples and what is held out.

    Returns:
        The partition. Each client has a training example; one with very few may have no test example.

    Raises:
        UserError: If there are fewer training examples than clients.

    Example:
        >>> from pyro_pfedbayes.data.datasets import load_dataset
        >>> part = partition_dirichlet(load_dataset("digits"), clients=5, alpha=0.1)
        >>> sum(len(part.train[u]) + len(part.validation[u]) + len(part.test[u]) for u in range(5))
        1797
    """
    rng = _dirichlet_rng(clients, alpha, seed)
    y = dataset.y.cpu().numpy()
    num_classes, by = dataset.num_classes, ""
    if dataset.outcome == "number":
        y, num_classes, by = quantile_bins(y, FIFTHS), FIFTHS, " over fifths of y"
    if not (y >= 0).any():
        raise UserError(f"{dataset.name}: no outcome is known; deal by 'quantity' or 'column'")
    proportions = rng.dirichlet(np.full(clients, alpha), size=num_classes)

    def deal(pool: Index, part: str) -> list[Index]:
        shares: list[list[Index]] = [[] for _ in range(clients)]
        for label in range(num_classes):
            dealt = shuffled(pool[y[pool] == label], seed, part, label)
            for share, piece in zip(shares, cut(dealt, proportions[label]), strict=True):
                share.append(piece)
        return [np.concatenate(share) for share in shares]

    scheme = f"dirichlet(alpha={alpha:g}){by}"
    return deal_pools(dataset, scheme, clients, deal, test_fraction, validation, seed, strata=y)


def partition_quantity(
    dataset: Dataset,
    clients: int = 10,
    alpha: float = 1.0,
    test_fraction: float = 0.2,
    validation: float = 0.1,
    seed: int = 0,
) -> Partition:
    """Deal examples at random, in shares drawn from a symmetric Dirichlet: quantity skew.

    Outcomes are identically distributed; only how much each client holds differs, the more so the
    smaller ``alpha`` (Li et al. 2022). Examples without a known outcome are dealt like the others.
    Arguments, result and errors as in :func:`partition_dirichlet`.

    Example:
        >>> from pyro_pfedbayes.data.datasets import load_dataset
        >>> digits = load_dataset("digits")
        >>> part = partition_quantity(digits, clients=3, alpha=100.0, validation=0.0)
        >>> all(400 < len(index) < 560 for index in part.train)
        True
    """
    rng = _dirichlet_rng(clients, alpha, seed)
    proportions = rng.dirichlet(np.full(clients, alpha))

    def deal(pool: Index, part: str) -> list[Index]:
        return cut(shuffled(pool, seed, part), proportions)

    scheme = f"quantity(alpha={alpha:g})"
    return deal_pools(dataset, scheme, clients, deal, test_fraction, validation, seed)


def _dirichlet_rng(clients: int, alpha: float, seed: int) -> np.random.Generator:
    check_count("clients", clients, 1)
    if not 0 < alpha < float("inf"):
        raise UserError(f"alpha is {alpha!r}: wanted a number above 0")
    return stream(seed, "proportions")


def _check_supply(dataset: Dataset, holders: NDArray[np.int64], train: int, test: int) -> None:
    """Raise UserError about the class that most lacks examples, if one does."""
    have = np.bincount(dataset.y[dataset.known].cpu().numpy(), minlength=dataset.num_classes)
    need = holders * (train + test)
    worst = int((need - have).argmax())
    if need[worst] <= have[worst]:
        return
    others = int((need > have).sum()) - 1
    also = f" (too few in {others} further classes as well)" if others else ""
    raise UserError(
        f"{dataset.name}: class '{dataset.classes[worst]}' has {have[worst]} examples, "
        f"but the split needs {need[worst]}: "
        f"{holders[worst]} clients x ({train} training + {test} test){also}"
    )
