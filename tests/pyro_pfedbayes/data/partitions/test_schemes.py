"""Partitions: who holds what, exactly; and the one line that an impossible split ends with."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest
import torch

from pyro_pfedbayes.data.datasets import Dataset, load_dataset
from pyro_pfedbayes.data.partitions.schemes import (
    PARTS,
    Partition,
    paper_split,
    partition_dirichlet,
    partition_labels,
    partition_quantity,
)
from tests.helpers import dataset, message


def dealt(partition: Partition) -> torch.Tensor:
    return torch.cat([index for part in PARTS for index in partition.part(part)])


def held_labels(partition: Partition, data: Dataset, part: str = "train") -> list[set[int]]:
    return [set(data.y[index].tolist()) for index in partition.part(part)]


def same(a: Partition, b: Partition) -> bool:
    return all(
        torch.equal(i, j) for part in PARTS for i, j in zip(a.part(part), b.part(part), strict=True)
    )


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
