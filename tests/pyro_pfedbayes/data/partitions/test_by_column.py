"""Clients by column, and what makes no clients."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pyro_pfedbayes.data.datasets import Dataset, load_dataset
from pyro_pfedbayes.data.partitions.schemes import (
    partition_column,
)
from tests.helpers import dataset, message


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


HALVES = {
    "x_train": np.eye(6),
    "x_test": np.eye(6)[:4],
    "y_train": [0, 1] * 3,
    "y_test": [0, 1] * 2,
}
WHOLE = {"x": np.eye(6), "y": [0, 1] * 3}


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({**WHOLE, "h": np.zeros(5, int)}, "array h has shape (5,) and type int64, wanted (6,)"),
        (
            {**WHOLE, "h": np.zeros((6, 2))},
            "array h has shape (6, 2) and type float64, wanted (6,)",
        ),
        ({**HALVES, "h": np.zeros(6)}, "has shape (6,) and type float64, wanted (10,)"),
        ({**HALVES, "h": np.zeros(6)}, "use h_train (6,) and h_test (4,)"),
        ({**HALVES, "h_train": np.zeros(6)}, "use h_train (6,) and h_test (4,)"),
        (
            {**HALVES, "h_train": np.zeros(6), "h_test": np.zeros(3)},
            "array h_train and h_test has shape (6,) and (3,) and type float64, wanted (6,) and (4,)",
        ),
    ],
)
def test_an_array_that_does_not_fit_is_told_apart_from_none(
    tmp_path: Path, arrays: dict[str, Any], words: str
) -> None:
    np.savez(tmp_path / "d.npz", **arrays)
    text = message(partition_column, load_dataset(tmp_path / "d.npz"), "h")
    assert text.startswith("d: no column 'h': ")
    assert words in text
