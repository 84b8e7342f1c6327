"""Data sets: what is loaded, how it is scaled, and the one line that bad input ends with."""

from __future__ import annotations

import os
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pyro_pfedbayes.data.datasets import Dataset, default_data_dir, load_dataset
from tests.helpers import message

# --- named data sets ---


def test_digits_are_scaled_images() -> None:
    digits = load_dataset("digits")
    assert digits.x.shape == (1797, 1, 8, 8)
    assert digits.x.dtype == torch.float32
    assert digits.y.dtype == torch.int64
    assert (float(digits.x.min()), float(digits.x.max())) == (-1.0, 1.0)
    # scikit-learn's first digit is a zero whose first row is 0 0 5 13 9 1 0 0 of 16.
    expected = torch.tensor([0.0, 0, 5, 13, 9, 1, 0, 0]) / 8 - 1
    torch.testing.assert_close(digits.x[0, 0, 0], expected)
    assert int(digits.y[0]) == 0
    assert digits.classes == tuple("0123456789")
    assert digits.test_mask is None


def test_unknown_names_are_answered_with_the_nearest() -> None:
    text = message(load_dataset, "minst")
    assert "unknown data set 'minst'" in text
    assert "did you mean 'mnist'" in text
    assert "digits, mnist, fmnist, cifar10" in text


def write_idx(folder: Path, part: str, images: np.ndarray, labels: np.ndarray) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    head = struct.pack(">4B3I", 0, 0, 8, 3, *images.shape)
    (folder / f"{part}-images-idx3-ubyte").write_bytes(head + images.tobytes())
    head = struct.pack(">4BI", 0, 0, 8, 1, len(labels))
    (folder / f"{part}-labels-idx1-ubyte").write_bytes(head + labels.tobytes())


@pytest.fixture
def mnist_folder(tmp_path: Path) -> Path:
    """A folder with MNIST in torchvision's format, of five images."""
    raw = tmp_path / "MNIST" / "raw"
    images = np.zeros((5, 28, 28), dtype=np.uint8)
    images[:, 0, 0], images[:, 0, 1] = 255, [0, 1, 2, 3, 4]
    labels = np.array([7, 0, 9, 3, 4], dtype=np.uint8)
    write_idx(raw, "train", images[:3], labels[:3])
    write_idx(raw, "t10k", images[3:], labels[3:])
    return tmp_path


def test_mnist_pools_training_then_test_images(
    mnist_folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data = load_dataset("mnist", mnist_folder)
    assert data.x.shape == (5, 1, 28, 28)
    assert data.y.tolist() == [7, 0, 9, 3, 4]
    assert data.test_mask is not None
    assert data.test_mask.tolist() == [False, False, False, True, True]
    assert data.x[:, 0, 0, 0].tolist() == [1.0] * 5
    torch.testing.assert_close(data.x[:, 0, 0, 1], torch.arange(5) / 127.5 - 1)
    assert len(data.classes) == 10
    assert capfd.readouterr() == ("", "")


def test_mnist_is_looked_for_where_the_environment_says(
    mnist_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PFEDBAYES_DATA", str(mnist_folder))
    assert default_data_dir() == mnist_folder
    assert len(load_dataset("mnist")) == 5
    monkeypatch.delenv("PFEDBAYES_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(mnist_folder / "cache"))
    assert default_data_dir() == mnist_folder / "cache" / "pyro-pfedbayes"


@pytest.mark.parametrize(
    ("name", "title", "expected"),
    [
        ("mnist", "MNIST", "MNIST/raw/"),
        ("fashion-mnist", "Fashion-MNIST", "FashionMNIST/raw/"),
        ("cifar10", "CIFAR-10", "cifar-10-batches-py/"),
    ],
)
def test_missing_files_are_named(tmp_path: Path, name: str, title: str, expected: str) -> None:
    text = message(load_dataset, name, tmp_path, download=False)
    assert text.startswith(f"{title} was not found")
    assert "may not be downloaded" in text
    assert f"expected {tmp_path / expected}" in text


def test_a_failed_download_says_which_folder_is_expected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import torchvision.datasets

    def fail(self: Any) -> None:
        print("Downloading ...")
        raise OSError("no\nnetwork")

    monkeypatch.setattr(torchvision.datasets.MNIST, "download", fail)
    text = message(load_dataset, "mnist", tmp_path)
    assert "MNIST could not be downloaded (no network)" in text
    assert f"expected {tmp_path / 'MNIST' / 'raw'}" in text
    assert capsys.readouterr().out == ""


def test_a_truncated_image_file_is_called_corrupt(mnist_folder: Path) -> None:
    file = mnist_folder / "MNIST" / "raw" / "train-images-idx3-ubyte"
    file.write_bytes(file.read_bytes()[:-100])
    text = message(load_dataset, "mnist", mnist_folder)
    assert "MNIST cannot be read, a file may be corrupt" in text


def test_cifar10_is_channels_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CIFAR-10 of three images, whose checksums torchvision is told to skip."""
    import torchvision.datasets

    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    image = np.zeros((3, 32, 32), dtype=np.uint8)
    image[0], image[2, 0, 5] = 255, 51
    batch = {"data": image.reshape(1, -1), "labels": [6]}
    for file, content in (("one", batch), ("test_batch", batch), ("meta", {"label_names": ["a"]})):
        (folder / file).write_bytes(pickle.dumps(content))
    cifar10 = torchvision.datasets.CIFAR10
    monkeypatch.setattr(cifar10, "train_list", [["one", ""]])
    monkeypatch.setattr(cifar10, "test_list", [["test_batch", ""]])
    monkeypatch.setattr(cifar10, "meta", {"filename": "meta", "key": "label_names", "md5": ""})
    monkeypatch.setattr(cifar10, "_check_integrity", lambda self: True)
    monkeypatch.setattr(torchvision.datasets.cifar, "check_integrity", lambda *_: True)
    data = load_dataset("cifar10", tmp_path)
    assert data.x.shape == (2, 3, 32, 32)
    assert data.x[0, :, 0, 5].tolist() == pytest.approx([1.0, -1.0, 51 / 127.5 - 1])
    assert data.y.tolist() == [6, 6]
    assert data.classes[6] == "frog"


# --- Dataset itself ---


def toy(**changes: Any) -> Dataset:
    parts: dict[str, Any] = {
        **{"name": "toy", "x": torch.zeros(4, 2), "y": torch.tensor([0, 1, 1, 0])},
        **{"classes": ("no", "yes"), "test_mask": torch.tensor([False, False, True, True])},
        "columns": {"site": torch.arange(4)},
    }
    return Dataset(**{**parts, **changes})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"x": torch.zeros(0, 2)}, "no examples"),
        ({"x": torch.zeros(4)}, "x must be float32 [n, *features]"),
        ({"x": torch.zeros(4, 2).double()}, "x must be float32 [n, *features]"),
        ({"y": torch.tensor([0, 1, 1, 0]).int()}, "y must be int64"),
        ({"y": torch.tensor([0, 1, 1])}, "x and y have different lengths: 4 and [3]"),
        ({"y": torch.tensor([0, 1, 2, 0])}, "labels out of range: y holds 0 to 2"),
        ({"y": torch.tensor([0, 1, -2, 0])}, "labels out of range: y holds -2 to 1"),
        (
            {"y": torch.zeros(4)},
            "y is float32, so it holds numbers, but there are names of 2 classes",
        ),
        ({"y": torch.zeros(4).double(), "classes": ()}, "or float32 [n] for numbers"),
        ({"y": torch.tensor([0, 0, torch.inf, 0]), "classes": ()}, "y is infinite in row 2"),
        ({"target_scaling": (0.0, 1.0)}, "target_scaling is for numbers"),
        (
            {"y": torch.zeros(4), "classes": (), "target_scaling": (0.0, 0.0)},
            "wanted a finite loc and a scale above 0",
        ),
        ({"test_mask": torch.zeros(3).bool()}, "x and test_mask have different lengths"),
        ({"test_mask": torch.zeros(4)}, "test_mask must be bool"),
        ({"columns": {"site": torch.zeros(5)}}, "x and site have different lengths"),
        ({"x": torch.zeros(4, 2).index_fill_(0, torch.tensor(2), torch.nan)}, "first in row 2"),
        ({"x": torch.tensor([[1.0], [-torch.inf], [torch.inf], [0.0]])}, "in 2 of 4 examples"),
        ({"x": torch.tensor([[1.0], [-torch.inf], [2.0], [0.0]])}, "in 1 of 4 examples"),
    ],
)
def test_datasets_check_their_parts(changes: dict[str, Any], words: str) -> None:
    assert words in message(toy, **changes)


def test_outcomes_may_be_numbers_some_of_them_missing() -> None:
    data = toy(y=torch.tensor([1.5, torch.nan, -1.0, 0.0]), classes=(), target_scaling=(10.0, 2.0))
    assert (data.outcome, data.num_classes) == ("number", 0)
    assert data.known.tolist() == [True, False, True, True]
    assert data.raw_y[data.known].tolist() == [13.0, 8.0, 10.0]
    part = data.select(torch.tensor([3, 0]))
    assert part.y.tolist() == [0.0, 1.5]
    assert part.target_scaling == (10.0, 2.0)


def test_labels_may_be_unknown() -> None:
    data = toy(y=torch.tensor([0, -1, 1, -1]))
    assert (data.outcome, data.num_classes) == ("class", 2)
    assert data.known.tolist() == [True, False, True, False]
    assert data.raw_y is data.y


def test_large_finite_inputs_are_not_taken_for_infinite() -> None:
    assert len(toy(x=torch.full((4, 2), 3e38))) == 4


def test_select_keeps_everything_in_step() -> None:
    part = toy(x=torch.arange(8.0).view(4, 2)).select(torch.tensor([2, 0]))
    assert part.x.tolist() == [[4.0, 5.0], [0.0, 1.0]]
    assert part.y.tolist() == [1, 0]
    assert part.test_mask is not None
    assert part.test_mask.tolist() == [True, False]
    assert part.columns["site"].tolist() == [2, 0]


# --- the real ones ---

real = pytest.mark.skipif(
    not os.environ.get("PFEDBAYES_DATA"), reason="PFEDBAYES_DATA does not point at data"
)


@real
@pytest.mark.parametrize("name", ["mnist", "fmnist"])
def test_real_data(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    data = load_dataset(name, download=False)
    assert data.x.shape == (70_000, 1, 28, 28)
    assert (float(data.x.min()), float(data.x.max())) == (-1.0, 1.0)
    assert data.test_mask is not None
    assert data.test_mask.tolist() == [False] * 60_000 + [True] * 10_000
    # The published class sizes: MNIST's rarest is the five; Fashion-MNIST is balanced.
    sizes = torch.bincount(data.y)
    assert int(sizes.min()) == {"mnist": 6313, "fmnist": 7000}[name]
    assert int(sizes.argmin()) == {"mnist": 5, "fmnist": 0}[name]
    assert data.y[:5].tolist() == {"mnist": [5, 0, 4, 1, 9], "fmnist": [9, 0, 0, 3, 0]}[name]
    assert capfd.readouterr() == ("", "")
