"""Data sets: named ones, and a user's own ``.npz``, as one tensor of inputs and one of labels.

All examples are one float32 tensor, which the clients share; a partition says, by index, who holds what.

Data sets that come in a training and a test part (MNIST, Fashion-MNIST, CIFAR-10, an ``.npz`` with
``x_train`` and ``x_test``) are *pooled*, training part first, and ``test_mask`` remembers the test
part: the paper's splits want 950 test images of a class for each client that holds it, more than
the test part has.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import sys
import textwrap
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from pyro_pfedbayes.data.arrays import read_npz
from pyro_pfedbayes.data.sklearn_tables import TABLES, load_table
from pyro_pfedbayes.errors import UserError, unknown


@dataclass(frozen=True, eq=False)
class Dataset:
    """Examples with labels.

    Attributes:
        name: What to call it in reports.
        x: Inputs, float32: images ``[n, C, H, W]`` in [-1, 1], tables ``[n, columns]``.
        y: Outcomes ``[n]``. Classes: int64, in ``0 .. len(classes) - 1``, or -1 where the label is
            unknown. Numbers: float32, NaN where the outcome is missing.
        classes: Names of the classes, in the order of the labels; none if the outcomes are numbers.
        test_mask: bool ``[n]``, True for examples of the data set's own test part, if it has one.
        columns: Further values, one an example (``[n]`` each), such as the site that it came from.
        column_values: For columns that held text: the texts, which ``columns`` holds as indices.
        scaling: (loc, scale), float64 ``[columns]``, of a standardised table; ``x = (raw - loc) / scale``.
        set_aside: Names of a file's further arrays that are not columns, and why, in words.
        target_scaling: If numbers were standardised: (loc, scale); ``y = (raw - loc) / scale``.

    Raises:
        UserError: If shapes, types, labels or lengths do not fit, an input is NaN or infinite, or an
            outcome is infinite.

    Example:
        >>> import torch
        >>> data = Dataset("toy", torch.zeros(4, 2), torch.tensor([0, 1, 1, 0]), ("no", "yes"))
        >>> len(data), data.num_classes, data.feature_shape
        (4, 2, (2,))
        >>> prices = Dataset("prices", torch.zeros(2, 3), torch.tensor([9.5, float("nan")]), ())
        >>> prices.outcome, prices.num_classes, prices.known.tolist()
        ('number', 0, [True, False])
    """

    name: str
    x: Tensor
    y: Tensor
    classes: tuple[str, ...]
    test_mask: Tensor | None = None
    columns: Mapping[str, Tensor] = field(default_factory=dict)
    column_values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    scaling: tuple[Tensor, Tensor] | None = None
    set_aside: Mapping[str, str] = field(default_factory=dict)
    target_scaling: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        """Check that the parts fit together."""
        n = len(self)
        if n == 0:
            raise self._error(f"no examples: x has shape {tuple(self.x.shape)}")
        if self.x.dtype != torch.float32 or self.x.ndim < 2:
            raise self._error(
                f"x must be float32 [n, *features], not {self.x.dtype} {list(self.x.shape)}"
            )
        if self.y.dtype not in (torch.int64, torch.float32) or self.y.ndim != 1:
            raise self._error(
                "y must be int64 [n] for classes, or float32 [n] for numbers, "
                f"not {self.y.dtype} {list(self.y.shape)}"
            )
        parts = {"y": self.y, **self.columns}
        if self.test_mask is not None:
            if self.test_mask.dtype != torch.bool:
                raise self._error(f"test_mask must be bool, not {self.test_mask.dtype}")
            parts["test_mask"] = self.test_mask
        for part, values in parts.items():
            if values.shape != (n,):
                raise self._error(
                    f"x and {part} have different lengths: {n} and {list(values.shape)}"
                )
        self._check_outcomes()
        # The extremes pass on NaN, and need no second tensor of the size of x.
        if not bool(torch.stack(torch.aminmax(self.x)).isfinite().all()):
            bad = ~self.x.flatten(1).isfinite().all(1)
            raise self._error(
                f"x holds NaN or infinite values in {int(bad.sum())} of {n} examples, "
                f"first in row {int(bad.int().argmax())}"
            )

    def _check_outcomes(self) -> None:
        classes = len(self.classes)
        if self.outcome == "class":
            if self.target_scaling is not None:
                raise self._error("target_scaling is for numbers; y holds classes")
            low, high = int(self.y.min()), int(self.y.max())
            if low < -1 or high >= classes:
                raise self._error(
                    f"labels out of range: y holds {low} to {high}, the {classes} classes "
                    f"want 0 to {classes - 1}, or -1 for an unknown one"
                )
            return
        if classes:
            raise self._error(
                "y is float32, so it holds numbers, but there are names of "
                f"{classes} classes: give y as int64, or classes as ()"
            )
        infinite = self.y.isinf()
        if bool(infinite.any()):
            row = int(infinite.int().argmax())
            raise self._error(f"y is infinite in row {row}; a missing outcome is written as NaN")
        loc, scale = self.target_scaling or (0.0, 1.0)
        if not (math.isfinite(loc) and 0 < scale < math.inf):
            raise self._error(
                f"target_scaling is {self.target_scaling}: wanted a finite loc and a scale above 0"
            )

    def _error(self, message: str) -> UserError:
        return UserError(f"{self.name}: {message}")

    def __len__(self) -> int:
        """Number of examples n."""
        return self.x.shape[0] if self.x.ndim else 0

    @property
    def num_classes(self) -> int:
        """Number of classes C; 0 if the outcomes are numbers."""
        return len(self.classes)

    @property
    def outcome(self) -> Literal["class", "number"]:
        """What ``y`` holds."""
        return "number" if self.y.is_floating_point() else "class"

    @property
    def known(self) -> Tensor:
        """Examples whose outcome is known, bool ``[n]``: neither -1 nor NaN."""
        return ~self.y.isnan() if self.outcome == "number" else self.y >= 0

    @property
    def raw_y(self) -> Tensor:
        """Outcomes in their own units, ``[n]``: without ``target_scaling``."""
        if self.target_scaling is None:
            return self.y
        loc, scale = self.target_scaling
        return (self.y.double() * scale + loc).float()

    @property
    def feature_shape(self) -> tuple[int, ...]:
        """Shape of one example, without n."""
        return tuple(self.x.shape[1:])

    def select(self, index: Tensor) -> Dataset:
        """The examples at ``index`` (int64 ``[m]``), in that order, as a data set of their own."""
        return self._map(lambda values: values[index.to(values.device)])

    def to(self, device: torch.device | str) -> Dataset:
        """The same data set with its tensors on ``device``."""
        return self._map(lambda values: values.to(device))

    def _map(self, change: Callable[[Tensor], Tensor]) -> Dataset:
        return replace(
            self,
            x=change(self.x),
            y=change(self.y),
            test_mask=None if self.test_mask is None else change(self.test_mask),
            columns={name: change(values) for name, values in self.columns.items()},
        )


def default_data_dir() -> Path:
    """Where data is looked for and downloaded to: ``PFEDBAYES_DATA``, else the user's cache."""
    if chosen := os.environ.get("PFEDBAYES_DATA"):
        return Path(chosen).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "pyro-pfedbayes"


def load_dataset(
    name_or_path: str | os.PathLike[str],
    data_dir: str | os.PathLike[str] | None = None,
    download: bool = True,
    standardise: bool = True,
    target: str = "auto",
) -> Dataset:
    """Load a data set by name, or a user's own from an ``.npz`` file.

    ``digits`` ships with scikit-learn (1,797 images of 8 x 8), as do the tables ``diabetes``
    (its outcome is a number), ``breast-cancer`` and ``wine``. ``mnist``, ``fmnist`` and ``cifar10``
    come through torchvision, from ``data_dir`` if they are there and by download otherwise. Images
    are scaled to [-1, 1].

    An ``.npz`` holds ``x, y`` or ``x_train, y_train, x_test, y_test``. Two dimensions make a table,
    three or four images ``(n, H, W)``, ``(n, H, W, C)`` or ``(n, C, H, W)`` (the shorter of the two
    outer axes is the channels; the last, if they are equal). Integer images hold 0 to 255 (or 0 and
    1 only); float images hold [-1, 1], which is kept, or [0, 1], which becomes [-1, 1]; any other
    range is refused, as nobody can tell what it means. Labels are integers 0 to C - 1, or -1 where
    unknown; an optional array ``classes`` of texts names them. Outcomes that are numbers are floats,
    NaN where missing (see ``target``). Any other array with one value an example (``site``; or
    the pair ``site_train``, ``site_test``) becomes a column, by which clients can be told apart;
    arrays of other shapes are left aside. Nothing is unpickled.

    Args:
        name_or_path: One of ``DATASETS``, or a path that ends in ``.npz``.
        data_dir: Folder of the torchvision data sets (``MNIST/raw``, ``FashionMNIST/raw``,
            ``cifar-10-batches-py``); default :func:`default_data_dir`.
        download: Whether a data set that is not there may be downloaded.
        standardise: Whether the columns of a table are brought to mean 0 and standard deviation 1
            over its training rows (all rows, if it has no test part of its own). Images are not
            touched by it.
        target: What ``y`` of an ``.npz`` holds: ``"class"``, ``"number"``, or ``"auto"``: numbers if
            it holds floats of which one is NaN or not whole, and no array ``classes``; else classes.

    Returns:
        The data set, training part first.

    Raises:
        UserError: If the name is unknown, a file is missing or corrupt, or its contents do not fit.

    Example:
        >>> digits = load_dataset("digits")
        >>> digits.x.shape, digits.num_classes, float(digits.x.min()), float(digits.x.max())
        (torch.Size([1797, 1, 8, 8]), 10, -1.0, 1.0)
    """
    text = os.fspath(name_or_path)
    if text.endswith(".npz"):
        path = Path(text).expanduser()
        return Dataset(path.stem, **read_npz(path, standardise=standardise, target=target))
    name = _ALIASES.get(text.lower().replace("-", "").replace("_", ""), text)
    if name not in DATASETS:
        raise unknown("unknown data set", text, [*DATASETS, "or a path to an .npz file"])
    if name == "digits":
        return _load_digits()
    if name in TABLES:
        return Dataset(name, **load_table(name, standardise=standardise))
    folder = default_data_dir() if data_dir is None else Path(data_dir).expanduser()
    return _load_torchvision(name, folder, download)


def _load_digits() -> Dataset:
    bunch = importlib.import_module("sklearn.datasets").load_digits()
    x = torch.as_tensor(bunch.images, dtype=torch.float32).unsqueeze(1)
    y = torch.as_tensor(bunch.target, dtype=torch.int64)
    return Dataset("digits", x.div_(8.0).sub_(1.0), y, tuple("0123456789"))


_IDX = "{train,t10k}-{images-idx3,labels-idx1}-ubyte"
_SOURCES: Mapping[str, tuple[str, str, str, tuple[str, ...]]] = {
    "mnist": ("MNIST", "MNIST", f"MNIST/raw/{_IDX}", tuple("0123456789")),
    "fmnist": (
        "FashionMNIST",
        "Fashion-MNIST",
        f"FashionMNIST/raw/{_IDX}",
        (
            *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
            *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
        ),
    ),
    "cifar10": (
        "CIFAR10",
        "CIFAR-10",
        "cifar-10-batches-py/{data_batch_1 .. data_batch_5,test_batch,batches.meta}",
        ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    ),
}
"""Class in torchvision, title, where files lie, and names of the classes."""
DATASETS: tuple[str, ...] = ("digits", *_SOURCES, *TABLES)
"""Names that :func:`load_dataset` knows."""
# Without it, the nearest name to "fashion-mnist" would be "mnist".
_ALIASES = {name.replace("-", ""): name for name in DATASETS} | {"fashionmnist": "fmnist"}


def _load_torchvision(name: str, folder: Path, download: bool) -> Dataset:
    attribute, title, files, classes = _SOURCES[name]
    make = getattr(importlib.import_module("torchvision.datasets"), attribute)
    expected = f"expected {folder / files}"
    parts = [
        _torchvision_part(make, title, expected, root=folder, train=train, download=download)
        for train in (True, False)
    ]
    x = torch.cat([part[0] for part in parts]).to(torch.float32).div_(127.5).sub_(1.0)
    y = torch.cat([part[1] for part in parts])
    test_mask = torch.arange(len(y)) >= len(parts[0][1])
    return Dataset(name, x, y, classes, test_mask)


def _torchvision_part(
    make: Callable[..., Any], title: str, expected: str, *, root: Path, train: bool, download: bool
) -> tuple[Tensor, Tensor]:
    """uint8 images ``[n, C, H, W]`` and int64 labels of one part, downloaded if not there."""
    # Standard output belongs to the caller's results; progress may go to standard error.
    with warnings.catch_warnings(), contextlib.redirect_stdout(sys.stderr):
        # CIFAR-10's batches are old NumPy pickles (their checksums are verified): NumPy 2.4 warns.
        warnings.simplefilter("ignore")
        for fetch in (False, True) if download else (False,):
            try:
                found = make(root=root, train=train, download=fetch)
                break
            except Exception as error:  # a broken file or connection raises nearly anything
                # "Dataset not found" has the same type as what goes wrong inside a file.
                if isinstance(error, RuntimeError) and "not found" in str(error):
                    continue
                reason = textwrap.shorten(str(error), 160, placeholder="...")
                what = (
                    "could not be downloaded" if fetch else "cannot be read, a file may be corrupt"
                )
                raise UserError(
                    f"{title} {what} ({reason or type(error).__name__}): {expected}"
                ) from None
        else:
            hint = "" if download else ", and may not be downloaded"
            raise UserError(f"{title} was not found, complete and unchanged{hint}: {expected}")
    x = torch.as_tensor(found.data)
    x = x.unsqueeze(1) if x.ndim == 3 else x.permute(0, 3, 1, 2)
    return x, torch.as_tensor(found.targets, dtype=torch.int64)
