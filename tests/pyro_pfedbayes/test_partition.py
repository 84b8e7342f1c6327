"""Partitions: who holds what, exactly; and the one line that an impossible split ends with."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyro_pfedbayes.datasets import Dataset, load_dataset
from pyro_pfedbayes.dealing import cut, fill_empty, hold_out, label_sets, shuffled
from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.partition import (
    PARTS,
    Partition,
    paper_split,
    partition_column,
    partition_dirichlet,
    partition_labels,
    partition_quantity,
    plot_partition,
)


def dataset(per_class: list[int], test: int = 0, **options: Any) -> Dataset:
    """So many examples of each class, in a mixed order; the last ``test`` are the test part."""
    y = torch.cat([torch.full((count,), label) for label, count in enumerate(per_class)])
    y = y[torch.randperm(len(y), generator=torch.Generator().manual_seed(1))]
    mask = torch.arange(len(y)) >= len(y) - test if test else None
    names = tuple(f"c{label}" for label in range(len(per_class)))
    return Dataset("toy", torch.zeros(len(y), 1), y, names, mask, **options)


def dealt(partition: Partition) -> torch.Tensor:
    return torch.cat([index for part in PARTS for index in partition.part(part)])


def held_labels(partition: Partition, data: Dataset, part: str = "train") -> list[set[int]]:
    return [set(data.y[index].tolist()) for index in partition.part(part)]


def same(a: Partition, b: Partition) -> bool:
    return all(
        torch.equal(i, j) for part in PARTS for i, j in zip(a.part(part), b.part(part), strict=True)
    )


def message(call: Any, *args: Any, **options: Any) -> str:
    with pytest.raises(UserError) as caught:
        call(*args, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- the paper's splits ---

KNOWL_7 = {
    ("mnist", "small"): (10, 50, 950),
    ("mnist", "medium"): (10, 200, 800),
    ("mnist", "large"): (10, 900, 300),
    ("fmnist", "small"): (10, 50, 950),
    ("fmnist", "medium"): (10, 200, 800),
    ("fmnist", "large"): (10, 900, 300),
    ("cifar10", "small"): (20, 25, 475),
    ("cifar10", "medium"): (20, 100, 400),
    ("cifar10", "large"): (20, 450, 150),
}
SIZES = {
    # Class sizes of MNIST, training and test together; the other two are balanced.
    "mnist": [6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958],
    "fmnist": [7000] * 10,
    "cifar10": [6000] * 10,
}


@pytest.mark.parametrize(("name", "split"), list(KNOWL_7))
def test_the_papers_splits(name: str, split: str) -> None:
    clients, train, test = KNOWL_7[name, split]
    assert paper_split(name, split) == (clients, train, test)
    data = dataset(SIZES[name], test=10_000)
    partition = partition_labels(data, clients, 5, train, test, validation=0.2)
    assert partition.num_clients == clients
    index = dealt(partition)
    assert len(index) == len(set(index.tolist())) == clients * 5 * (train + test)
    counts = {part: partition.counts(data.y, 10, part) for part in PARTS}
    holds = torch.zeros(clients, 10, dtype=torch.int64)
    for client in range(clients):
        holds[client, [(5 * client + j) % 10 for j in range(5)]] = 1
    assert torch.equal(counts["train"] + counts["validation"], train * holds)
    assert torch.equal(counts["validation"], train // 5 * holds)
    assert torch.equal(counts["test"], test * holds)


@pytest.mark.parametrize("split", ["small", "medium", "large"])
def test_the_digits_fit_all_three_splits(split: str) -> None:
    digits = load_dataset("digits")
    clients, train, test = paper_split("digits", split)
    partition = partition_labels(digits, clients, 5, train, test)
    index = dealt(partition)
    assert len(index) == len(set(index.tolist())) == clients * 5 * (train + test)


def test_unknown_names_are_answered_with_the_nearest() -> None:
    assert "did you mean 'mnist'" in message(paper_split, "mnits", "small")
    assert "did you mean 'medium'" in message(paper_split, "mnist", "medum")
    assert "did you mean 'rotating'" in message(
        partition_labels, dataset([9] * 4), 4, 2, 1, 1, scheme="rotate"
    )
    partition = partition_labels(dataset([9] * 4), 4, 2, 1, 1)
    assert "did you mean 'validation'" in message(partition.part, "validaton")


def test_blocks_make_two_kinds_of_client_and_rotating_ten() -> None:
    data = dataset([60] * 10)
    blocks = held_labels(partition_labels(data, 10, 5, 4, 4), data)
    assert blocks == [{0, 1, 2, 3, 4}, {5, 6, 7, 8, 9}] * 5
    rotating = held_labels(partition_labels(data, 10, 5, 4, 4, scheme="rotating"), data)
    assert rotating == [{(u + j) % 10 for j in range(5)} for u in range(10)]


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


@pytest.mark.parametrize("scheme", ["blocks", "rotating", "random"])
def test_label_partitions_depend_on_the_seed_alone(scheme: str) -> None:
    data = dataset([80] * 10)
    first, again, other = (
        partition_labels(data, 10, 5, 5, 5, scheme, seed=seed) for seed in (3, 3, 4)
    )
    assert same(first, again)
    assert not same(first, other)
    without = partition_labels(data, 10, 5, 5, 5, scheme, validation=0.0, seed=3)
    assert [len(index) for index in without.validation] == [0] * 10
    for whole, kept, held in zip(without.train, first.train, first.validation, strict=True):
        assert sorted(whole.tolist()) == sorted([*kept.tolist(), *held.tolist()])


def test_classes_are_shuffled_by_streams_of_their_own() -> None:
    orders = [shuffled(np.arange(50), 0, "class", label).tolist() for label in (1, 2, 1)]
    assert orders[0] == orders[2]
    assert orders[0] != orders[1]
    assert sorted(orders[1]) == list(range(50))


def test_own_test_parts_are_pooled_by_label_splits() -> None:
    data = dataset([20] * 4, test=40)
    partition = partition_labels(data, 2, 2, 10, 10, validation=0.0)
    assert sorted(dealt(partition).tolist()) == list(range(80))


def test_a_class_with_too_few_examples_is_named() -> None:
    data = dataset([60, 49, 60, 60])
    text = message(partition_labels, data, 10, 2, 5, 5)
    assert "class 'c1' has 49 examples, but the split needs 50" in text
    assert "5 clients x (5 training + 5 test)" in text
    assert partition_labels(dataset([60, 50, 60, 60]), 10, 2, 5, 5).num_clients == 10
    several = message(partition_labels, dataset([60, 49, 40, 60]), 10, 2, 5, 5)
    assert "class 'c2' has 40" in several
    assert "1 further classes" in several


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"clients": 0}, "clients is 0: wanted an integer of at least 1"),
        ({"clients": 2.5}, "clients is 2.5"),
        ({"labels_per_client": 5}, "labels_per_client is 5, but toy has 4 classes"),
        ({"labels_per_client": 0}, "labels_per_client is 0"),
        ({"train_per_class": 0}, "train_per_class is 0"),
        ({"test_per_class": -1}, "test_per_class is -1"),
        ({"validation": 1.0}, "validation is 1.0: wanted a fraction of at least 0 and below 1"),
        ({"validation": -0.1}, "validation is -0.1"),
        ({"validation": float("nan")}, "validation is nan"),
    ],
)
def test_numbers_out_of_range(options: dict[str, Any], words: str) -> None:
    sizes = {"clients": 4, "labels_per_client": 2, "train_per_class": 2, "test_per_class": 1}
    assert words in message(partition_labels, dataset([20] * 4), **{**sizes, **options})


# --- holding out ---


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


def test_one_training_example_is_always_left() -> None:
    partition = partition_labels(dataset([4] * 2), 2, 1, 1, 1, validation=0.9)
    assert [len(index) for index in partition.train] == [1, 1]
    assert [len(index) for index in partition.validation] == [0, 0]


# --- Dirichlet and quantity skew ---


@pytest.mark.parametrize("partition_by", [partition_dirichlet, partition_quantity])
@pytest.mark.parametrize("alpha", [1e-9, 0.05, 1.0, 1e6])
@pytest.mark.parametrize("test", [0, 100])
def test_skewed_partitions_deal_everything_once(partition_by: Any, alpha: float, test: int) -> None:
    data = dataset([150, 100, 50], test=test)
    partition = partition_by(data, 20, alpha=alpha, test_fraction=0.25, validation=0.2, seed=1)
    assert sorted(dealt(partition).tolist()) == list(range(300))
    assert min(len(index) for index in partition.train) >= 1
    if test:
        assert sorted(torch.cat(partition.test).tolist()) == list(range(200, 300))
    assert same(partition, partition_by(data, 20, alpha, 0.25, 0.2, seed=1))
    assert not same(partition, partition_by(data, 20, alpha, 0.25, 0.2, seed=2))


def test_dirichlet_shares_follow_alpha() -> None:
    """A share has mean 1/N and variance (1/N)(1 - 1/N) / (N alpha + 1)."""
    data = dataset([200] * 200)
    for alpha in (0.3, 3.0):
        partition = partition_dirichlet(data, 5, alpha, test_fraction=0.0, validation=0.0)
        shares = partition.counts(data.y, 200).double() / 200
        torch.testing.assert_close(shares.sum(0), torch.ones(200).double())
        variance = 0.2 * 0.8 / (5 * alpha + 1)
        # 1,000 shares: their sample variance is within 15 % (about 3 deviations).
        assert float(shares.var(correction=0)) == pytest.approx(variance, rel=0.15)


def test_dirichlet_deals_an_own_test_part_in_the_same_proportions() -> None:
    data = dataset([2000, 2000], test=2000)
    partition = partition_dirichlet(data, 4, 0.5, validation=0.0, seed=2)
    assert data.test_mask is not None
    for label in range(2):
        of_class = data.y == label
        n_train = int((of_class & ~data.test_mask).sum())
        n_test = int((of_class & data.test_mask).sum())
        train = partition.counts(data.y, 2, "train")[:, label] / n_train
        test = partition.counts(data.y, 2, "test")[:, label] / n_test
        assert float((train - test).abs().max()) < 1.01 / n_train + 1.01 / n_test


def test_without_an_own_test_part_each_share_is_split_by_class() -> None:
    data = dataset([400, 400])
    partition = partition_dirichlet(data, 3, 5.0, test_fraction=0.25, validation=0.0)
    train, test = (partition.counts(data.y, 2, part) for part in ("train", "test"))
    assert float((test - 0.25 * (train + test)).abs().max()) < 1


def test_quantity_skew_leaves_the_labels_alone() -> None:
    data = dataset([3000, 1000])
    partition = partition_quantity(data, 5, 0.5, test_fraction=0.0, validation=0.0, seed=0)
    counts = partition.counts(data.y, 2).double()
    sizes = counts.sum(1)
    assert float(sizes.max() / sizes.min()) > 3
    # Each client's share of class 0 is 3/4 within 4 deviations.
    deviation = (0.75 * 0.25 / sizes).sqrt()
    assert bool(((counts[:, 0] / sizes - 0.75).abs() < 4 * deviation).all())


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


@pytest.mark.parametrize("partition_by", [partition_dirichlet, partition_quantity])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"alpha": 0.0}, "alpha is 0.0: wanted a number above 0"),
        ({"alpha": float("inf")}, "alpha is inf"),
        ({"alpha": float("nan")}, "alpha is nan"),
        ({"clients": 0}, "clients is 0"),
        ({"test_fraction": 1.0}, "test_fraction is 1.0"),
        ({"validation": 1}, "validation is 1"),
        ({"clients": 21}, "20 training examples cannot give each of 21 clients one"),
    ],
)
def test_skews_out_of_range(partition_by: Any, options: dict[str, Any], words: str) -> None:
    assert words in message(partition_by, dataset([10, 10]), **{"clients": 3, **options})


# --- by column ---


def sites(values: list[int | float], test: int = 0) -> Dataset:
    column = torch.tensor(values)
    return dataset(
        [len(values) // 2, len(values) - len(values) // 2], test, columns={"site": column}
    )


def test_each_value_of_a_column_is_a_client() -> None:
    data = sites([3, 1, 3, 2, 1, 3, 3, 2, 1, 3])
    partition = partition_column(data, "site", test_fraction=0.5, validation=0.0)
    assert partition.names == ("1", "2", "3")
    for value in (1, 2, 3):
        mine = torch.cat([partition.train[value - 1], partition.test[value - 1]])
        assert sorted(mine.tolist()) == (data.columns["site"] == value).nonzero()[:, 0].tolist()
    # Halves, rounded to even.
    assert [len(index) for index in partition.test] == [2, 1, 2]


def test_a_client_with_a_single_example_trains_on_it() -> None:
    partition = partition_column(sites([0, 0, 0, 1]), "site", test_fraction=0.5, validation=0.5)
    assert [len(index) for index in partition.train] == [1, 1]
    assert [len(index) for index in partition.test] == [2, 0]


def test_a_clients_own_test_part_is_its_test_set() -> None:
    data = sites([0, 1, 0, 1, 1, 0, 1], test=3)
    partition = partition_column(data, "site", validation=0.0)
    assert [index.tolist() for index in partition.train] == [[0, 2], [1, 3]]
    assert [index.tolist() for index in partition.test] == [[5], [4, 6]]


def test_a_value_without_training_examples_is_named() -> None:
    text = message(partition_column, sites([0, 1, 0, 1, 2, 0, 1], test=3), "site")
    assert "column 'site': value 2 has no training example" in text


def test_columns_of_an_npz_by_name_and_of_its_table_by_index(tmp_path: Path) -> None:
    path = tmp_path / "patients.npz"
    ward = np.array([10.0, 12.5, 10.0, 12.5, 10.0, 12.5])
    x = np.stack([np.arange(6.0), ward], axis=1)
    np.savez(path, x=x, y=[0, 1, 0, 1, 0, 1], site=["b", "a", "b", "a", "b", "a"])
    data = load_dataset(path)
    by_name = partition_column(data, "site", test_fraction=0.0)
    assert by_name.names == ("a", "b")
    assert by_name.train[0].tolist() == [1, 3, 5]
    for column in (1, "1"):
        by_index = partition_column(data, column, test_fraction=0.0)
        assert by_index.names == ("10", "12.5")  # as in the file, not as standardised
        assert by_index.train[0].tolist() == [0, 2, 4]


@pytest.mark.parametrize(
    ("column", "words"),
    [
        ("sites", "no column 'sites'; did you mean 'site'? (columns: site, age, dose;"),
        (1, "no column 1: x has shape [6, 1]"),
        ("-1", "no column '-1'"),
        ("age", "column 'age' has 6 distinct values in 6 examples"),
        ("dose", "column 'dose' is nan in row 2"),
    ],
)
def test_columns_that_make_no_clients(column: str | int, words: str) -> None:
    data = sites([0, 1, 0, 1, 0, 1])
    extra = {"age": torch.arange(6), "dose": torch.tensor([0.0, 1.0, torch.nan, 0, 0, 0])}
    data = replace(data, columns={**data.columns, **extra})
    assert words in message(partition_column, data, column)


# --- to look at ---


def test_the_table_shows_every_client_and_the_sums() -> None:
    data = dataset([40, 40, 40, 40])
    partition = partition_labels(data, 4, 2, 10, 5, validation=0.2)
    rows = [line.split() for line in partition.to_text(data.y, data.classes, 80).splitlines()]
    assert ["client", "c0", "c1", "c2", "c3", "train", "valid.", "test"] in rows
    assert ["0", "8", "8", "·", "·", "16", "4", "10"] in rows
    assert ["3", "·", "·", "8", "8", "16", "4", "10"] in rows
    assert ["all", "16", "16", "16", "16", "64", "16", "40"] in rows


def test_the_table_of_many_clients_and_classes_stays_small() -> None:
    data = dataset([40] * 30)
    partition = partition_dirichlet(data, 100, 0.5)
    text = partition.to_text(data.y, data.classes, 60)
    lines = text.splitlines()
    assert len(lines) < 25
    assert max(len(line) for line in lines) <= 60
    first_column = [line.split()[0] for line in lines if line.split()]
    shown = [*map(str, range(5)), "...", *map(str, range(95, 100)), "all", "smallest", "largest"]
    assert [cell for cell in first_column if cell in shown] == shown
    train = [len(index) for index in partition.train]
    smallest, largest = (
        next(line.split()[1:] for line in lines if line.split()[:1] == [name])
        for name in ("smallest", "largest")
    )
    assert smallest[0] == str(min(train))
    assert largest[0] == str(max(train))


def test_names_are_not_taken_for_markup() -> None:
    data = replace(dataset([10, 10]), classes=("[/b]", "[red]"))
    partition = replace(partition_labels(data, 2, 1, 2, 2), names=("[/i]", "[x]"))
    text = partition.to_text(data.y, data.classes)
    assert "[/b]" in text
    assert "[/i]" in text


def drawn_numbers(figure: Any) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts]


def test_the_picture_prints_the_counts(tmp_path: Path) -> None:
    data = dataset([30, 30, 30])
    partition = partition_dirichlet(data, 4, 1.0, seed=3)
    counts = partition.counts(data.y, 3)
    figure = plot_partition(partition, data)
    cells = figure.axes[0]
    assert np.array_equal(np.asarray(cells.images[0].get_array()), counts.numpy())
    assert drawn_numbers(figure) == [str(n) for row in counts.tolist() for n in row if n]
    assert [text.get_text() for text in cells.get_xticklabels()] == ["c0", "c1", "c2"]
    assert [text.get_text() for text in cells.get_yticklabels()] == ["0", "1", "2", "3"]
    sums = [[text.get_text() for text in axes.texts] for axes in figure.axes[1:]]
    assert sums == [[str(n) for n in counts.sum(axis).tolist()] for axis in (1, 0)]
    figure.savefig(tmp_path / "partition.png")
    assert (tmp_path / "partition.png").stat().st_size > 5000


def test_the_picture_of_many_clients_stays_of_a_size() -> None:
    data = dataset([400] * 10)
    hundred, thousand = (
        plot_partition(partition_dirichlet(data, clients, 0.3), data, "train")
        for clients in (100, 1000)
    )
    assert len(drawn_numbers(hundred)) > 100
    assert drawn_numbers(thousand) == []
    assert max(*hundred.get_size_inches(), *thousand.get_size_inches()) < 18
    assert "did you mean 'test'" in message(
        plot_partition, partition_dirichlet(data, 3), data, "tests"
    )


# --- size ---


def test_a_thousand_clients_are_cheap() -> None:
    data = dataset([6000] * 10)
    start = time.process_time()
    partition = partition_labels(data, 1000, 2, 15, 5, scheme="random")
    partition_dirichlet(data, 1000, 0.1)
    assert time.process_time() - start < 6  # about 1 s on one core
    assert len(dealt(partition)) == 1000 * 2 * 20


@pytest.mark.skipif(
    not os.environ.get("PFEDBAYES_DATA"), reason="PFEDBAYES_DATA does not point at data"
)
@pytest.mark.parametrize("split", ["small", "medium", "large"])
@pytest.mark.parametrize("name", ["mnist", "fmnist"])
def test_the_papers_splits_fit_the_real_data(name: str, split: str) -> None:
    data = load_dataset(name, download=False)
    clients, train, test = paper_split(name, split)
    partition = partition_labels(data, clients, 5, train, test, validation=0.0)
    index = dealt(partition)
    assert len(index) == len(set(index.tolist())) == clients * 5 * (train + test)
    assert {len(part) for part in partition.test} == {5 * test}
