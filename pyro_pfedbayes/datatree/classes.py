"""Predictions of classes, one draw of the weights after another, as what an ArviZ tree keeps of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pyro_pfedbayes.datatree.groups import (
    ClientMeans,
    Owners,
    as_array,
    assemble,
    draws_that_fit,
)
from pyro_pfedbayes.errors import UserError

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["ClassTable", "class_statistics"]

Array = NDArray[Any]


class ClassTable:
    """Running sums over all draws, and the first draws one by one.

    Rows may come in any pieces, but each draw has its rows, and each row its draws, in order. Memory is that of sums
    ``[n, C]`` and of ``keep`` draws ``[n]``, however many draws there are.

    Args:
        y: Labels ``[n]``, -1 where unknown.
        owners: Whose observation it is.
        keep: Draws kept one by one; None for what fits, 0 for none.
        seed: Seed of the labels that are drawn from the probabilities.

    Example:
        >>> table = ClassTable(np.array([0, 1]), Owners.of(np.array([0, 0])), keep=0)
        >>> table.add(0, np.array([[1.0, 0.0], [0.5, 0.5]]))
        >>> table.add(1, np.array([[0.0, 1.0]]), slice(0, 1))
        >>> table.add(1, np.array([[0.5, 0.5]]), slice(1, 2))
        >>> table.statistics()["epistemic"].values.astype(float).round(3).tolist()   # log 2: draws disagree
        [0.693, 0.0]
    """

    def __init__(
        self, y: NDArray[np.int64], owners: Owners, *, keep: int | None = None, seed: int = 0
    ) -> None:
        if not len(y):
            raise UserError("there are no observations")
        self.y, self.owners = y, owners
        self.draws = 0
        self.keep = draws_that_fit(len(y)) if keep is None else keep
        self._seed = seed
        self._streams: list[np.random.Generator] = []
        self._total: Array | None = None
        self._entropy = np.zeros(len(y))
        self._labels: list[NDArray[np.int16]] = []
        self._log_likelihood: list[NDArray[np.float32]] = []
        self._accuracy = ClientMeans(owners, y >= 0)
        self._nll = ClientMeans(owners, y >= 0)

    @property
    def kept(self) -> int:
        """How many draws are kept one by one."""
        return len(self._labels)

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
        self._accuracy.add(number, (probs.argmax(1) == y).astype(float), rows)
        self._nll.add(number, -log_likelihood, rows)
        if number < self.keep:
            if number == self.kept:
                # One a draw, so that labels depend neither on how rows come nor on how many draws there are.
                self._streams.append(np.random.default_rng([self._seed, number]))
                self._labels.append(np.zeros(len(self.y), np.int16))
                self._log_likelihood.append(np.zeros(len(self.y), np.float32))
            self._labels[number][rows] = _sample(probs, self._streams[number])
            self._log_likelihood[number][rows] = log_likelihood

    def mean(self) -> Array:
        """Class probabilities averaged over draws, ``[n, C]``."""
        if self._total is None:
            raise UserError("there are no draws")
        return self._total / self.draws

    def statistics(
        self, classes: Sequence[str] | None = None, dim: str = "observation"
    ) -> xr.Dataset:
        """Mean probabilities and the split of their entropy, see `class_statistics`."""
        return class_statistics(self.mean(), self._entropy / self.draws, classes, dim)

    def tree(
        self,
        index: NDArray[np.int64],
        classes: Sequence[str] | None,
        names: Sequence[str] | None,
        attrs: dict[str, str | int | float],
    ) -> xr.DataTree:
        """Lay it out as `pyro_pfedbayes.datatree.tree.to_datatree` says."""
        statistics = self.statistics(classes)
        metrics = {"accuracy": self._accuracy.result(), "nll": self._nll.result()}
        return assemble(
            {
                "posterior_predictive": {"y": np.stack(self._labels)[None]},
                "log_likelihood": {"y": np.stack(self._log_likelihood)[None]},
                "client_metrics": {name: values[None] for name, values in metrics.items()},
                "observed_data": {"y": self.y.astype(np.int16)},
                "constant_data": {"index": index},
            },
            statistics,
            self.owners,
            names,
            attrs | {"draws": self.draws, "draws_kept": self.kept},
        )

    def _checked(self, draw: Any, number: int, rows: slice, n: int) -> Array:
        probs = as_array(draw).astype(np.float64)
        known = None if self._total is None else self._total.shape[1]
        if probs.ndim != 2 or len(probs) != n or known not in (None, probs.shape[1]):
            wanted = f"[{n}, {known or 'C'}]"
            raise UserError(f"draw {number} has shape {list(probs.shape)}; wanted {wanted}")
        bad = ~(np.isfinite(probs) & (probs >= 0)).all(1)
        if bad.any():
            row = range(len(self.y))[rows][int(bad.argmax())]
            raise UserError(
                f"draw {number} holds probabilities that are negative or not finite "
                f"(observation {row}, of client {self.owners.owner[row]})"
            )
        return probs


def class_statistics(
    mean: Array, aleatoric: Array, classes: Sequence[str] | None, dim: str = "observation"
) -> xr.Dataset:
    """Mean class probabilities and their entropy in nats, split in two.

    Args:
        mean: Class probabilities averaged over draws ``[n, C]``.
        aleatoric: Mean over draws of the entropy ``[n]``.
        classes: Names of the C classes; default ``"0"``, ``"1"``, ….
        dim: Name of the first dimension.
    """
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
