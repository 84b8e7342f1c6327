"""A user's own file: how it is scaled, and the one line that bad contents end with."""

from __future__ import annotations

import gzip
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pyro_pfedbayes.data.datasets import load_dataset
from tests.helpers import message

X = np.array([[0.0, 10.0], [2.0, 10.0], [4.0, 10.0], [6.0, 10.0]])
Y = np.array([0, 1, 1, 0])


def write(tmp_path: Path, **arrays: Any) -> Path:
    path = tmp_path / "mine.npz"
    np.savez(path, **arrays)
    return path


def test_a_table_is_standardised_over_all_rows(tmp_path: Path) -> None:
    data = load_dataset(write(tmp_path, x=X, y=Y))
    assert data.name == "mine"
    expected = (torch.tensor([0.0, 2, 4, 6]) - 3) / 5**0.5
    torch.testing.assert_close(data.x[:, 0], expected)
    assert data.x[:, 1].tolist() == [0.0] * 4  # constant: centred, not divided by zero
    assert data.classes == ("0", "1")
    assert data.test_mask is None
    assert data.scaling is not None
    loc, scale = data.scaling
    torch.testing.assert_close(data.x.double() * scale + loc, torch.from_numpy(X))


def test_a_table_with_a_test_part_is_standardised_over_its_training_rows(tmp_path: Path) -> None:
    path = write(tmp_path, x_train=X[:2], y_train=Y[:2], x_test=X[2:], y_test=Y[2:])
    data = load_dataset(path)
    assert data.x[:, 0].tolist() == [-1.0, 1.0, 3.0, 5.0]
    assert data.test_mask is not None
    assert data.test_mask.tolist() == [False, False, True, True]


def test_a_table_can_be_left_as_it_is(tmp_path: Path) -> None:
    data = load_dataset(write(tmp_path, x=X, y=Y), standardise=False)
    torch.testing.assert_close(data.x, torch.from_numpy(X).float())
    assert data.scaling is None


IMAGE_CASES = [
    ("grey", (4, 5, 6), (4, 1, 5, 6)),
    ("channels last", (4, 5, 6, 3), (4, 3, 5, 6)),
    ("channels first", (4, 3, 5, 6), (4, 3, 5, 6)),
    ("one channel", (4, 5, 6, 1), (4, 1, 5, 6)),
]


@pytest.mark.parametrize(("label", "given", "wanted"), IMAGE_CASES)
def test_images_get_channels_first(
    tmp_path: Path, label: str, given: tuple[int, ...], wanted: tuple[int, ...]
) -> None:
    x = np.random.default_rng(0).integers(0, 256, given).astype(np.uint8)
    data = load_dataset(write(tmp_path, x=x, y=Y))
    assert data.x.shape == wanted, label
    flat = {"grey": x[:, None], "channels first": x}.get(label, np.moveaxis(x, -1, 1))
    torch.testing.assert_close(data.x, torch.from_numpy(flat.astype(np.float32)) / 127.5 - 1)
    assert data.x.is_contiguous()


@pytest.mark.parametrize(
    ("x", "low", "high"),
    [
        (np.array([0, 255], dtype=np.uint8), -1.0, 1.0),
        (np.array([0, 51], dtype=np.int32), -1.0, -0.6),
        (np.array([0, 1], dtype=np.uint8), -1.0, 1.0),
        (np.array([False, True]), -1.0, 1.0),
        (np.array([0.0, 0.75]), -1.0, 0.5),
        (np.array([-0.5, 0.75]), -0.5, 0.75),
    ],
)
def test_image_ranges(tmp_path: Path, x: np.ndarray, low: float, high: float) -> None:
    images = np.repeat(x, 8).reshape(4, 2, 2)
    data = load_dataset(write(tmp_path, x=images, y=Y))
    assert float(data.x.min()) == pytest.approx(low)
    assert float(data.x.max()) == pytest.approx(high)


@pytest.mark.parametrize("value", [1.5, -2.0, 255.0])
def test_float_images_of_another_range_are_refused(tmp_path: Path, value: float) -> None:
    x = np.zeros((4, 3, 3))
    x[1, 1, 1] = value
    assert "must lie in [-1, 1] or [0, 1]" in message(load_dataset, write(tmp_path, x=x, y=Y))


def test_columns_and_class_names(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        **{"x_train": X[:3], "y_train": Y[:3], "x_test": X[3:], "y_test": Y[3:]},
        **{"site_train": ["south", "north", "south"], "site_test": ["east"]},
        **{"age": np.array([1, 2, 3, 4], dtype=">i2"), "noise": np.zeros(7)},
        classes=["ill", "well", "unseen"],
    )
    data = load_dataset(path)
    assert set(data.columns) == {"site", "age"}
    assert data.column_values == {"site": ("east", "north", "south")}
    assert data.columns["site"].tolist() == [2, 1, 2, 0]
    assert data.columns["age"].tolist() == [1, 2, 3, 4]
    assert data.classes == ("ill", "well", "unseen")


def test_integral_float_labels_and_column_vectors_are_labels(tmp_path: Path) -> None:
    data = load_dataset(write(tmp_path, x=X, y=Y[:, None].astype(np.float32)))
    assert data.y.tolist() == Y.tolist()
    assert data.y.dtype == torch.int64


def bad(**changes: Any) -> dict[str, Any]:
    return {"x": X, "y": Y, **changes}


NAN = np.where(X == 4.0, np.nan, X)
INF = np.where(X == 0.0, np.inf, X)
BAD = [
    ("lengths", bad(y=Y[:3]), "x and y have different lengths: 4 and 3"),
    ("scalar", bad(y=np.array(1)), "x and y have different lengths: 4 and a single value"),
    ("empty", bad(x=X[:0], y=Y[:0]), "x holds no values"),
    ("nan", bad(x=NAN), "x holds NaN or infinite values in 1 of 4 examples, first in row 2"),
    ("inf", bad(x=INF), "x holds NaN or infinite values in 1 of 4 examples, first in row 0"),
    ("text", bad(x=X.astype(str)), "x must hold numbers"),
    ("beyond float32", bad(x=X * 1e300), "beyond float32's range"),
    ("negative", bad(y=Y - 1), "labels out of range: y holds 2 labels from -1 to 0, wanted 0 to 1"),
    ("from one", bad(y=Y + 1), "labels out of range: y holds 2 labels from 1 to 2, wanted 0 to 1"),
    ("gap", bad(y=2 * Y), "none is 1"),
    ("infinite", bad(y=np.array([0, 1, np.inf, 1])), "integers 0 to C - 1, but row 2 holds inf"),
    ("words", bad(y=["a", "b", "a", "b"]), "not <U1; an array 'classes' of texts may name them"),
    ("one-hot", bad(y=np.eye(4)), "must be one label an example"),
    ("classes", bad(classes=["only"]), "the 1 names in 'classes' want 0 to 0"),
    ("dimensions", bad(x=np.zeros((4, 1, 2, 2, 2))), "x has 5 dimensions"),
    ("object", bad(note=np.array([{}, 1], dtype=object)), "'note' is an object array"),
    ("names", {"X": X, "y": Y}, "x missing: wanted 'x, y' or 'x_train, y_train, x_test, y_test'"),
    ("half", {"x_train": X, "y_train": Y}, "x_test, y_test missing"),
    (
        "shapes",
        {"x_train": X, "y_train": Y, "x_test": X[:, :1], "y_test": Y},
        "examples of different shapes: (4, 2) and (4, 1)",
    ),
    (
        "types",
        {"x_train": X, "y_train": Y, "x_test": X.astype(np.uint8), "y_test": Y},
        "different types, float64 and uint8",
    ),
    (
        "test lengths",
        {"x_train": X, "y_train": Y, "x_test": X, "y_test": Y[:1]},
        "x_test and y_test have different lengths: 4 and 1",
    ),
]


@pytest.mark.parametrize(("arrays", "words"), [case[1:] for case in BAD], ids=[c[0] for c in BAD])
def test_bad_contents_end_with_one_clear_line(
    tmp_path: Path, arrays: dict[str, Any], words: str
) -> None:
    text = message(load_dataset, write(tmp_path, **arrays))
    assert words in text
    assert text.startswith("mine.npz: ")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "gone.npz"
    assert f"no such file: {path}" in message(load_dataset, path)


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-60])


def scrambled(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[130:160] = b"?" * 30
    path.write_bytes(bytes(content))


def one_array(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, X)


def pickled(path: Path) -> None:
    path.write_bytes(pickle.dumps({"x": X, "y": Y}))


def gzipped(path: Path) -> None:
    path.write_bytes(gzip.compress(b"hello"))


def empty(path: Path) -> None:
    path.write_bytes(b"")


def not_an_array(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("x", b"hello")
        file.writestr("y", b"hello")


@pytest.mark.parametrize(
    "spoil", [truncated, scrambled, one_array, pickled, gzipped, empty, not_an_array]
)
def test_corrupt_files_end_with_one_clear_line(tmp_path: Path, spoil: Any) -> None:
    path = write(tmp_path, x=X, y=Y)
    spoil(path)
    text = message(load_dataset, path)
    assert text.startswith("mine.npz: ")
    assert any(word in text for word in ("corrupt", "single array", "not an array"))


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    ran = tmp_path / "ran"

    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(ran),)

    trap = np.empty(4, dtype=object)
    trap[:] = [Trap()] * 4
    assert "object array" in message(load_dataset, write(tmp_path, x=trap, y=Y))
    assert not ran.exists()
