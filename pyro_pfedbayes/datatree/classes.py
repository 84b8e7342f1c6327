"""Predictions of classes, one draw of the weights after another, as what an ArviZ tree keeps of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pyro_pfedbayes.datatree.groups import DrawTable, Owners, as_array
from pyro_pfedbayes.errors import UserError

if TYPE_CHECKING:
    import xarray as xr

Array = NDArray[Any]


class ClassTable(DrawTable):
    """Running sums of class probabilities ``[n, C]`` over all draws, and labels drawn from the first draws.

    A label is -1 where unknown; ``seed`` is that of the labels drawn.

    Example:
        >>> table = ClassTable(np.array([0, 1]), Owners.of(np.array([0, 0])), keep=0)
        >>> table.add(0, np.array([[1.0, 0.0], [0.5, 0.5]]))
        >>> table.add(1, np.array([[0.0, 1.0]]), slice(0, 1))
        >>> table.add(1, np.array([[0.5, 0.5]]), slice(1, 2))
        >>> table.statistics()["epistemic"].values.astype(float).round(3).tolist()   # log 2: draws disagree
        [0.693, 0.0]
    """

    stored = np.int16

    def __init__(
        self, y: NDArray[np.int64], owners: Owners, *, keep: int | None = None, seed: int = 0
    ) -> None:
        super().__init__(y, y >= 0, owners, ("accuracy", "nll"), keep)
        self._seed = seed
        self._streams: list[np.random.Generator] = []
        self._total: Array | None = None
        self._entropy = np.zeros(len(y))

    def add(self, number: int, draw: Any, rows: slice = slice(None)) -> None:
        """Take up class probabilities ``[m, C]`` of draw ``number`` for the m observations ``rows``."""
        y = self.y[rows]
        probs = self._checked(draw, number, rows, len(y))
        if self._total is None:
            _check_labels(self.y, probs.shape[1])
            self._total = np.zeros((len(self.y), probs.shape[1]))
        self._total[rows] += probs
        self._entropy[rows] += _entropy(probs)
        self.draws = max(self.draws, number + 1)
        likelihood = np.maximum(probs[np.arange(len(y)), y], np.finfo(np.float32).tiny)
        log_likelihood = np.log(np.where(y < 0, np.nan, likelihood))
        self._metrics["accuracy"].add(number, (probs.argmax(1) == y).astype(float), rows)
        self._metrics["nll"].add(number, -log_likelihood, rows)
        if number < self.keep:
            if number == self.kept:
                # One a draw, so that labels depend neither on how rows come nor on how many draws there are.
                self._streams.append(np.random.default_rng([self._seed, number]))
            self._keep(number, rows, _sample(probs, self._streams[number]), log_likelihood)

    def mean(self) -> Array:
        """Class probabilities averaged over draws, ``[n, C]``."""
        if self._total is None:
            raise UserError("there are no draws")
        return self._total / self.draws

    def statistics(
        self, dim: str = "observation", classes: Sequence[str] | None = None
    ) -> xr.Dataset:
        """Mean probabilities and the split of their entropy, see `class_statistics`."""
        return class_statistics(self.mean(), self._entropy / self.draws, classes, dim)

    def _checked(self, draw: Any, number: int, rows: slice, n: int) -> Array:
        probs = as_array(draw).astype(np.float64)
        known = None if self._total is None else self._total.shape[1]
        if probs.ndim != 2 or len(probs) != n or known not in (None, probs.shape[1]):
            wanted = f"[{n}, {known or 'C'}]"
            raise UserError(f"draw {number} has shape {list(probs.shape)}; wanted {wanted}")
        bad: NDArray[np.bool_] = ~np.all(np.isfinite(probs) & (probs >= 0), axis=1)
        self._refuse(bad, number, rows, "probabilities that are negative or not finite")
        return probs


def class_statistics(
    mean: Array, aleatoric: Array, classes: Sequence[str] | None, dim: str = "observation"
) -> xr.Dataset:
    """Mean class probabilities ``[n, C]`` and their entropy in nats, split in two by its mean over draws."""
    import xarray as xr

    n, num_classes = mean.shape
    texts = [str(c) for c in (range(num_classes) if classes is None else classes)]
    if len(texts) != num_classes:
        raise UserError(f"{len(texts)} names for {num_classes} classes")
    total = _entropy(mean)
    nats = {
        "total": total,
        "aleatoric": aleatoric,
        # Not negative but for rounding, by Jensen's inequality.
        "epistemic": np.maximum(total - aleatoric, 0.0),
    }
    return xr.Dataset(
        {
            "p": ((dim, "class"), mean.astype(np.float32)),
            **{
                name: (dim, values.astype(np.float32), {"units": "nats"})
                for name, values in nats.items()
            },
        },
        coords={dim: np.arange(n), "class": texts},
    )


def _check_labels(y: NDArray[np.int64], num_classes: int) -> None:
    wrong = (y < -1) | (y >= num_classes)
    if wrong.any():
        raise UserError(
            f"label {y[wrong][0]} is out of range; there are classes 0 to {num_classes - 1}"
        )


def _sample(probs: Array, rng: np.random.Generator) -> NDArray[np.int16]:
    """A label of each row, by inversion."""
    steps = probs.cumsum(1)
    chosen = (rng.random((len(probs), 1)) * steps[:, -1:] >= steps).sum(1)
    labels: NDArray[np.int16] = np.minimum(chosen, probs.shape[1] - 1).astype(np.int16)
    return labels


def _entropy(probs: Array) -> Array:
    """Entropy of each row in nats."""
    out: Array = -(probs * np.log(np.maximum(probs, np.finfo(np.float64).tiny))).sum(1)
    return out
