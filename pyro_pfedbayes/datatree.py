"""Posterior predictive draws of federated clients as an ArviZ ``DataTree``, in memory and on disk.

Clients hold different numbers of examples, so all examples lie along one flat ``observation`` dimension and a
coordinate ``client_of`` says whose each is; nothing is padded. `for_client` cuts one client out.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from pyro_pfedbayes.datatree_core import (
    MAX_CELLS,
    as_array,
    assemble,
    check_lengths,
    checked_attrs,
    client_means,
    integers,
)
from pyro_pfedbayes.errors import UserError

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["MAX_CELLS", "for_client", "load_datatree", "save_datatree", "to_datatree"]

Array = NDArray[Any]
_ENGINE: Literal["h5netcdf"] = "h5netcdf"


def to_datatree(
    draws: Iterable[Any],
    y: Any,
    client: Any,
    *,
    classes: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
    index: Any = None,
    attrs: Mapping[str, str | int | float] | None = None,
    seed: int = 0,
) -> xr.DataTree:
    """Lay predictions out in ArviZ's schema.

    ===================== ========================================= ===========================================
    group                 variables                                 dimensions
    ===================== ========================================= ===========================================
    posterior_predictive  ``y`` label drawn (int16)                 chain, draw, observation
    log_likelihood        ``y`` log p(y | x, weights), nats         chain, draw, observation
    client_metrics        ``accuracy``, ``nll`` (nats)              chain, draw, client
    observed_data         ``y`` the true label                      observation
    constant_data         ``index`` of the example in its data set  observation
    observation_stats     ``p`` mean class probabilities            observation, class
    observation_stats     ``total``, ``aleatoric``, ``epistemic``   observation
    ===================== ========================================= ===========================================

    The entropies are in nats: ``total`` is that of the mean prediction, ``aleatoric`` the mean over draws of the
    entropy of each, ``epistemic`` their difference, the mutual information of label and weights (Depeweg et al. 2018).
    Per-draw probabilities are not kept: they would make up nine tenths of a file. 40,000 observations of 10
    classes with 20 draws take about 6 MB on disk.

    Args:
        draws: Class probabilities ``[n, C]``, one tensor or array a draw of the weights; or all of them as
            ``[K, n, C]``.
        y: True labels ``[n]``, integers; -1 where unknown: the log-likelihood is NaN there, and no metric counts it.
        client: Number of the client that each observation belongs to, ``[n]``.
        classes: Names of the C classes; default ``"0"``, ``"1"``, ….
        names: Names of the clients, by number; default their numbers.
        index: Where each observation lies in its data set, ``[n]``; default 0 … n - 1.
        attrs: What to remember of the run: texts and numbers.
        seed: Seed of the labels that are drawn from the probabilities.

    Returns:
        The tree.

    Raises:
        UserError: No draws or observations, lengths or shapes that differ, probabilities that are not finite,
            labels out of range, more than `MAX_CELLS` draws times observations, an attribute of another type.

    Example:
        >>> import torch
        >>> probs = torch.tensor([[[0.9, 0.1], [0.2, 0.8]], [[0.7, 0.3], [0.6, 0.4]]])   # 2 draws, 2 examples
        >>> tree = to_datatree(probs, torch.tensor([0, 1]), client=torch.tensor([0, 3]))
        >>> dict(tree["client_metrics"]["accuracy"].sizes)
        {'chain': 1, 'draw': 2, 'client': 2}
        >>> tree["client_metrics"]["accuracy"].sel(client=3).values.tolist()
        [[1.0, 0.0]]
    """
    labels, owner = integers(y, "y"), integers(client, "client")
    table = _Draws(draws, labels, seed)
    places = np.arange(len(labels)) if index is None else integers(index, "index")
    check_lengths(len(labels), client=owner, index=places)
    return _assemble(table, labels, owner, places, classes, names, checked_attrs(attrs or {}))


def for_client(tree: xr.DataTree, client: int) -> xr.DataTree:
    """One client's part of a tree.

    Args:
        tree: What `to_datatree` made.
        client: Number of the client.

    Raises:
        UserError: The tree holds no such client.
    """
    known = tree["client_metrics"].coords["client"].to_numpy()
    if client not in known:
        raise UserError(f"no client {client} in this tree; it holds {_listed(known)}")

    def cut(group: xr.Dataset) -> xr.Dataset:
        if "client" in group.dims:
            group = group.sel(client=client)
        if "client_of" in group.coords:
            group = group.isel(observation=(group["client_of"] == client).values)
        return group

    out: xr.DataTree = tree.map_over_datasets(cut)
    return out


def save_datatree(tree: xr.DataTree, path: str | os.PathLike[str]) -> Path:
    """Write a tree as compressed netCDF-4, under a temporary name first, so that no half of a file stays.

    Args:
        tree: The tree.
        path: Where to; a file that is there is replaced.

    Returns:
        The path.

    Raises:
        OSError: It cannot be written (a full disk, no permission); ``filename`` is the path, and what was there stays.
    """
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    encoding = {
        group.path: {
            str(name): {"zlib": True, "complevel": 4, "shuffle": True}
            for name, values in group.to_dataset(inherit=False).variables.items()
            if values.dtype.kind in "fiu"
        }
        for group in tree.subtree
        if group.has_data
    }
    # Into memory first: where a disk is full, HDF5 ends the whole process with a segmentation fault.
    content = tree.to_netcdf(None, engine=_ENGINE, encoding=encoding)
    try:
        temporary.write_bytes(content)
        os.replace(temporary, target)
    except OSError as problem:
        raise OSError(problem.errno, problem.strerror, str(target)) from problem
    finally:
        temporary.unlink(missing_ok=True)
    return target


def load_datatree(path: str | os.PathLike[str]) -> xr.DataTree:
    """Read a tree back into memory.

    Args:
        path: As given to `save_datatree`.

    Raises:
        UserError: No such file, or not a netCDF-4 file.
    """
    import xarray as xr

    if not Path(path).is_file():
        raise UserError(f"no such file: {path}")
    try:
        with xr.open_datatree(path, engine=_ENGINE) as tree:
            return tree.load()
    except (OSError, ValueError, KeyError) as problem:
        raise UserError(f"{path} is not a readable netCDF file: {_one_line(problem)}") from problem


class _Draws:
    """What is kept of a stream of predictions, which are looked at once, one after the other."""

    def __init__(self, draws: Iterable[Any], y: NDArray[np.int64], seed: int) -> None:
        rng = np.random.default_rng(seed)
        labels: list[Array] = []
        log_likelihood: list[Array] = []
        accuracies: list[Array] = []
        rows = np.arange(len(y))
        total, entropy = np.zeros((0, 0)), np.zeros(len(y))
        for number, draw in enumerate(draws):
            probs = _probabilities(draw, number, len(y), total.shape[1] or None)
            if number == 0:
                if not len(y):
                    raise UserError("there are no observations")
                _check_labels(y, probs.shape[1])
                total = np.zeros(probs.shape)
            if (number + 1) * len(y) > MAX_CELLS:
                raise UserError(
                    f"more than {MAX_CELLS:,} draws times observations; "
                    f"{MAX_CELLS // len(y)} draws fit {len(y)} observations"
                )
            total += probs
            entropy += _entropy(probs)
            labels.append(_sample(probs, rng))
            likelihood = np.maximum(probs[rows, y], np.finfo(np.float32).tiny)
            log_likelihood.append(np.log(np.where(y < 0, np.nan, likelihood)).astype(np.float32))
            accuracies.append(probs.argmax(1) == y)
        if not labels:
            raise UserError("there are no draws")
        self.labels = np.stack(labels)
        self.log_likelihood = np.stack(log_likelihood)
        self.right = np.stack(accuracies)
        self.mean = total / len(labels)
        self.aleatoric = entropy / len(labels)


def _assemble(
    table: _Draws,
    y: NDArray[np.int64],
    owner: NDArray[np.int64],
    index: NDArray[np.int64],
    classes: Sequence[str] | None,
    names: Sequence[str] | None,
    attrs: dict[str, str | int | float],
) -> xr.DataTree:
    present, place = np.unique(owner, return_inverse=True)
    metrics = {
        "accuracy": client_means(table.right, place, len(present), y >= 0),
        "nll": client_means(-table.log_likelihood, place, len(present), y >= 0),
    }
    return assemble(
        {
            "posterior_predictive": {"y": table.labels[None]},
            "log_likelihood": {"y": table.log_likelihood[None]},
            "client_metrics": {name: values[None] for name, values in metrics.items()},
            "observed_data": {"y": y.astype(np.int16)},
            "constant_data": {"index": index},
        },
        _statistics(table, classes),
        owner,
        names,
        attrs,
    )


def _statistics(table: _Draws, classes: Sequence[str] | None) -> xr.Dataset:
    import xarray as xr

    n, num_classes = table.mean.shape
    texts = [str(c) for c in (range(num_classes) if classes is None else classes)]
    if len(texts) != num_classes:
        raise UserError(f"{len(texts)} names for {num_classes} classes")
    total = _entropy(table.mean)
    nats = {
        "total": total,
        "aleatoric": table.aleatoric,
        # Not negative but for rounding, by Jensen's inequality.
        "epistemic": np.maximum(total - table.aleatoric, 0.0),
    }
    return xr.Dataset(
        {
            "p": (("observation", "class"), table.mean.astype(np.float32)),
            **{
                name: ("observation", values.astype(np.float32), {"units": "nats"})
                for name, values in nats.items()
            },
        },
        coords={"observation": np.arange(n), "class": texts},
    )


def _probabilities(draw: Any, number: int, n: int, num_classes: int | None) -> Array:
    probs = as_array(draw).astype(np.float64)
    if probs.ndim != 2 or len(probs) != n or num_classes not in (None, probs.shape[1]):
        wanted = f"[{n}, {num_classes or 'C'}]"
        raise UserError(f"draw {number} has shape {list(probs.shape)}; wanted {wanted}")
    if not np.isfinite(probs).all() or (probs < 0).any():
        raise UserError(f"draw {number} holds probabilities that are negative or not finite")
    return probs


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


def _listed(values: Array) -> str:
    shown = ", ".join(str(value) for value in values[:12])
    return shown + (", …" if len(values) > 12 else "")


def _one_line(problem: Exception) -> str:
    text = getattr(problem, "strerror", None) or str(problem) or type(problem).__name__
    return " ".join(text.split())
