"""Dealing examples to clients: the steps that partitions are made of.

All functions work on NumPy index arrays and draw only from streams named by a seed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.randomness import seed_for

Index = NDArray[np.int64]


def check_count(name: str, value: int, least: int) -> None:
    """Raise UserError unless ``value`` is an integer of at least ``least``."""
    if not isinstance(value, (int, np.integer)) or value < least:
        raise UserError(f"{name} is {value!r}: wanted an integer of at least {least}")


def check_fraction(name: str, value: float) -> None:
    """Raise UserError unless ``value`` is in [0, 1)."""
    if not 0 <= value < 1:
        raise UserError(f"{name} is {value!r}: wanted a fraction of at least 0 and below 1")


def stream(seed: int, *keys: int | str) -> np.random.Generator:
    """A NumPy generator at the start of the stream that ``seed`` and ``keys`` name."""
    return np.random.default_rng(seed_for(seed, "partition", *keys))


def shuffled(index: Index, seed: int, *keys: int | str) -> Index:
    """``index`` in an order that depends on seed and keys only."""
    return stream(seed, *keys).permutation(index)


def cut(index: Index, proportions: NDArray[np.float64]) -> list[Index]:
    """Cut ``index`` into consecutive pieces, each within one example of its proportion."""
    edges = np.rint(np.cumsum(proportions)[:-1] * len(index)).astype(np.int64)
    # Rounding errors of the sum must not lose the last examples, nor reach beyond them.
    return np.split(index, np.minimum(edges, len(index)))


def hold_out(
    index: Index, y: Index, fraction: float, rng: np.random.Generator
) -> tuple[Index, Index]:
    """Split off ``round(fraction * n)`` of n examples, but leave at least one; both parts ascending.

    Each class gives its share rounded down; the rest come one each from the classes with the largest
    remainders, those that would lose their last example coming last. ``y`` are all labels of the data set.

    Example:
        >>> y = np.array([0, 0, 0, 0, 1, 1])
        >>> rest, held_out = hold_out(np.arange(6), y, 0.5, np.random.default_rng(0))
        >>> y[rest].tolist(), y[held_out].tolist()
        ([0, 0, 1], [0, 0, 1])
    """
    index = rng.permutation(index)
    wanted = min(round(fraction * len(index)), len(index) - 1)
    if wanted <= 0:
        return np.sort(index), index[:0]
    _, kind, counts = np.unique(y[index], return_inverse=True, return_counts=True)
    share = fraction * counts
    quota = np.floor(share + 1e-9).astype(np.int64)
    emptied = quota + 1 >= counts
    # lexsort's last key comes first: who would be emptied, then the remainders, then chance.
    order = np.lexsort((rng.random(len(counts)), quota - share, emptied))
    quota[order[: max(wanted - int(quota.sum()), 0)]] += 1
    # Where each example stands within its class, in the shuffled order.
    by_kind = np.argsort(kind, kind="stable")
    rank = np.empty(len(index), dtype=np.int64)
    rank[by_kind] = np.arange(len(index)) - np.repeat(np.cumsum(counts) - counts, counts)
    out = rank < quota[kind]
    return np.sort(index[~out]), np.sort(index[out])


def quantile_bins(y: NDArray[np.floating], bins: int) -> Index:
    """Number each value's quantile bin, 0 to ``bins - 1``; -1 for NaN.

    Where many values are equal, bins differ in size, and some may be empty.

    Example:
        >>> quantile_bins(np.array([10.0, np.nan, 40.0, 20.0, 30.0]), 2)
        array([ 0, -1,  1,  0,  1])
    """
    out: Index = np.full(len(y), -1, dtype=np.int64)
    known = ~np.isnan(y)
    if known.any():
        edges = np.quantile(y[known].astype(np.float64), np.arange(1, bins) / bins)
        out[known] = np.searchsorted(edges, y[known], side="left")
    return out


def fill_empty(shares: list[Index], rng: np.random.Generator) -> list[Index]:
    """Give each empty share one example, at random, of the share that is then the largest.

    Example:
        >>> shares = fill_empty([np.arange(3), np.arange(0)], np.random.default_rng(0))
        >>> [len(share) for share in shares]
        [2, 1]
    """
    sizes = np.array([len(share) for share in shares])
    if sizes.sum() < len(shares):
        raise UserError(
            f"{sizes.sum()} training examples cannot give each of {len(shares)} clients one: "
            f"at most {sizes.sum()} clients are possible"
        )
    filled = list(shares)
    for empty in np.flatnonzero(sizes == 0):
        donor = int(sizes.argmax())
        place = int(rng.integers(sizes[donor]))
        filled[empty] = filled[donor][place : place + 1]
        filled[donor] = np.delete(filled[donor], place)
        sizes[donor] -= 1
        sizes[empty] = 1
    return filled


def label_sets(
    scheme: str, clients: int, labels: int, num_classes: int, seed: int
) -> NDArray[np.bool_]:
    """Which classes each client holds, bool ``[clients, num_classes]``, ``labels`` of them each.

    See :func:`pyro_pfedbayes.data.partitions.schemes.partition_labels` for the schemes.

    Example:
        >>> label_sets("blocks", clients=3, labels=2, num_classes=4, seed=0).astype(int)
        array([[1, 1, 0, 0],
               [0, 0, 1, 1],
               [1, 1, 0, 0]])
    """
    holds = np.zeros((clients, num_classes), dtype=np.bool_)
    if scheme != "random":
        first = (labels if scheme == "blocks" else 1) * np.arange(clients)[:, None]
        holds[np.arange(clients)[:, None], (first + np.arange(labels)) % num_classes] = True
        return holds
    rng = stream(seed, "labels")
    clients_of = np.zeros(num_classes, dtype=np.int64)
    for row in holds:
        rarest = np.lexsort((rng.random(num_classes), clients_of))[:labels]
        row[rarest] = True
        clients_of[rarest] += 1
    # So far each client complements the one before. Trading labels between random pairs of clients
    # keeps both sums and forgets the order (the "curveball" chain, Strona et al. 2014).
    for a, b in rng.integers(clients, size=(10 * clients, 2)):
        differ = np.flatnonzero(holds[a] != holds[b])
        to_a = rng.permutation(differ)[: int(holds[a, differ].sum())]
        holds[a, differ], holds[b, differ] = False, True
        holds[a, to_a], holds[b, to_a] = True, False
    return holds
