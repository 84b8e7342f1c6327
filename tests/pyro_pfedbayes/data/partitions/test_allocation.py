"""The steps of dealing: label sets, holding out, cutting and filling, exactly."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pyro_pfedbayes.data.partitions.allocation import (
    cut,
    fill_empty,
    hold_out,
    label_sets,
    shuffled,
)


def test_blocks_wrap_around() -> None:
    held = label_sets("blocks", clients=4, labels=3, num_classes=10, seed=0)
    sets = [set(np.flatnonzero(row).tolist()) for row in held]
    assert sets == [{0, 1, 2}, {3, 4, 5}, {6, 7, 8}, {9, 0, 1}]


@given(
    clients=st.integers(1, 30),
    classes=st.integers(1, 12),
    share=st.floats(0, 1),
    seed=st.integers(0, 5),
)
@settings(max_examples=40, deadline=None)
def test_random_labels_use_each_class_equally(
    clients: int, classes: int, share: float, seed: int
) -> None:
    labels = 1 + round(share * (classes - 1))
    held = label_sets("random", clients, labels, classes, seed)
    assert (held.sum(1) == labels).all()
    assert held.sum(0).max() - held.sum(0).min() <= 1


def test_random_labels_are_not_complements_in_turn() -> None:
    """Two clients of five labels each share 2.5 of ten on average, neighbours as well as others."""
    held = label_sets("random", 1000, 5, 10, seed=0).astype(int)
    neighbours = (held[::2] * held[1::2]).sum(1)
    # Hypergeometric: variance 25/36, so the mean of 500 pairs has a deviation of 0.037.
    assert abs(neighbours.mean() - 2.5) < 0.12
    assert abs(neighbours.var() - 25 / 36) < 0.15


def test_classes_are_shuffled_by_streams_of_their_own() -> None:
    orders = [shuffled(np.arange(50), 0, "class", label).tolist() for label in (1, 2, 1)]
    assert orders[0] == orders[2]
    assert orders[0] != orders[1]
    assert sorted(orders[1]) == list(range(50))


@given(
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=60),
    fraction=st.floats(0, 0.99),
    seed=st.integers(0, 3),
)
@settings(max_examples=100, deadline=None)
def test_hold_out(labels: list[int], fraction: float, seed: int) -> None:
    y = np.array([9, *labels])
    index = np.arange(1, len(y))
    kept, held = hold_out(index, y, fraction, np.random.default_rng(seed))
    assert sorted([*kept, *held]) == index.tolist()
    assert len(held) == min(round(fraction * len(labels)), len(labels) - 1)
    for label in set(labels):
        share = fraction * labels.count(label)
        assert abs(int((y[held] == label).sum()) - share) < 1 + 1e-6


def test_hold_out_spares_the_last_example_of_a_class() -> None:
    # Shares of 4.2 and 0.6: the larger remainder is that of the class with a single example.
    y = np.array([0] * 7 + [1])
    for seed in range(5):
        _, held = hold_out(np.arange(8), y, 0.6, np.random.default_rng(seed))
        assert y[held].tolist() == [0] * 5


def test_hold_out_chooses_at_random() -> None:
    y = np.zeros(10, dtype=np.int64)
    chosen = {
        int(hold_out(np.arange(10), y, 0.1, np.random.default_rng(s))[1][0]) for s in range(99)
    }
    assert chosen == set(range(10))


def test_fill_empty_takes_from_the_largest() -> None:
    shares = [np.arange(0), np.arange(5), np.arange(5, 8), np.arange(0), np.arange(0)]
    filled = fill_empty(shares, np.random.default_rng(0))
    assert sorted(np.concatenate(filled).tolist()) == list(range(8))
    # 5 and 3 examples: the first takes from the five, the second from the four, the third from 3.
    assert sorted(len(share) for share in filled) == [1, 1, 1, 2, 3]


@given(
    n=st.integers(0, 200),
    weights=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=20).filter(lambda w: sum(w) > 0.01),
)
@settings(max_examples=50, deadline=None)
def test_cut_is_exact_within_one(n: int, weights: list[float]) -> None:
    proportions = np.array(weights) / sum(weights)
    pieces = cut(np.arange(n), proportions)
    assert np.concatenate(pieces).tolist() == list(range(n))
    for piece, proportion in zip(pieces, proportions, strict=True):
        assert abs(len(piece) - n * proportion) <= 1 + 1e-9
