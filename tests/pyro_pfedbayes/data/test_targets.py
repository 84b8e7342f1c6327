"""Outcomes of a user's ``.npz``: classes or numbers, unknown ones, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pyro_pfedbayes.data.datasets import Dataset, load_dataset
from pyro_pfedbayes.data.targets import read_target
from tests.helpers import message

X = np.arange(8.0).reshape(4, 2)


def loaded(folder: Path, y: Any, target: str = "auto", **arrays: Any) -> Dataset:
    np.savez(folder / "mine.npz", x=X, y=np.asarray(y), **arrays)
    return load_dataset(folder / "mine.npz", target=target)


@pytest.mark.parametrize(
    ("y", "target", "outcome"),
    [
        ([0, 1, 1, 0], "auto", "class"),
        ([0.0, 1.0, 1.0, 0.0], "auto", "class"),
        ([True, False, True, False], "auto", "class"),
        ([0, 1, -1, 0], "auto", "class"),
        ([0.0, 1.0, 1.0, 0.5], "auto", "number"),
        ([0.0, 1.0, np.nan, 0.0], "auto", "number"),
        ([0, 1, 1, 0], "number", "number"),
        ([7, 0, 250, 3], "number", "number"),
        ([0.0, 1.0, 1.0, 0.0], "class", "class"),
    ],
)
def test_what_outcomes_are(tmp_path: Path, y: list[float], target: str, outcome: str) -> None:
    data = loaded(tmp_path, y, target)
    assert data.outcome == outcome
    assert data.y.dtype == (torch.float32 if outcome == "number" else torch.int64)
    assert np.array_equal(data.y.numpy(), np.asarray(y), equal_nan=True)
    assert bool(data.classes) == (outcome == "class")


def test_names_of_classes_make_classes(tmp_path: Path) -> None:
    words = message(loaded, tmp_path, [0.0, 1.0, 0.5, 1.0], classes=["ill", "well"])
    assert "row 2 holds 0.5" in words
    assert loaded(tmp_path, [0.0, 1.0, 0.5, 1.0], "number", classes=["ill", "well"]).classes == ()


def test_one_fraction_in_either_part_makes_numbers_of_both(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "two.npz",
        **{"x_train": X, "y_train": np.zeros(4), "x_test": X, "y_test": np.array([0, 1, 0.5, 0])},
    )
    data = load_dataset(tmp_path / "two.npz")
    assert data.y.tolist() == [0, 0, 0, 0, 0, 1, 0.5, 0]


def test_unknown_labels_are_no_class(tmp_path: Path) -> None:
    data = loaded(tmp_path, [2, -1, 0, 1])
    assert data.classes == ("0", "1", "2")
    assert data.known.tolist() == [True, False, True, True]
    named = loaded(tmp_path, [0, -1, -1, 0], classes=["ill", "well"])
    assert named.classes == ("ill", "well")


AS_NUMBERS = "; data.target=number reads them as numbers"
BAD = [
    ([3, 0, 7, 1], "auto", "labels out of range: y holds 4 labels from 0 to 7", AS_NUMBERS),
    ([-1, 1, -1, 1], "auto", "(-1 stands for an unknown label)", AS_NUMBERS),
    ([-1, 0, -1, 0], "auto", "y holds 2 labels from -1 to 0, wanted 0 to 1", AS_NUMBERS),
    ([-2, 0, 1, 0], "auto", "labels from -2 to 1", AS_NUMBERS),
    ([-1, -1, -1, -1], "auto", "y holds no label: all are -1", ""),
    ([0.0, 1.0, np.nan, 0.0], "class", "row 2 holds nan; -1 stands for an unknown", AS_NUMBERS),
    ([0.0, 1.0, 0.5, 0.0], "class", "but row 2 holds 0.5", AS_NUMBERS),
    ([0.5, 1.0, np.inf, 0.0], "auto", "row 2 holds inf; outcomes are numbers within", ""),
    ([0.5, 1.0, 1e39, 0.0], "number", "row 2 holds 1e+39", ""),
    (["a", "b", "a", "b"], "number", "data.target is 'number', but y holds <U1", ""),
    (np.eye(4), "number", "y must be one label an example", ""),
    ([0, 1, 0, 1], "numbers", "target is 'numbers'; did you mean 'number'?", ""),
]


@pytest.mark.parametrize(("y", "target", "words", "hint"), BAD)
def test_bad_outcomes_end_with_one_clear_line(
    tmp_path: Path, y: Any, target: str, words: str, hint: str
) -> None:
    text = message(loaded, tmp_path, y, target)
    assert words in text
    assert text.endswith(hint)


def test_foreign_byte_orders_are_read() -> None:
    y, _ = read_target({"y": np.array([1.5, 2.0], dtype=">f8")}, ("",), "mine.npz")
    assert y.tolist() == [1.5, 2.0]
