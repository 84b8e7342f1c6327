"""Posterior predictive draws of federated clients as an ArviZ ``DataTree``, in memory and on disk.

Clients hold different numbers of examples, so all examples lie along one flat ``observation`` dimension and a
coordinate ``client_of`` says whose each is; nothing is padded. `for_client` cuts one client out.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from numpy.typing import NDArray

from pyro_pfedbayes.atomic_files import write_atomically
from pyro_pfedbayes.datatree.classes import ClassTable
from pyro_pfedbayes.datatree.groups import MAX_CELLS, Owners, integers
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
    clients: Sequence[int] | None = None,
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

    The attributes ``draws`` and ``draws_kept`` say over how many draws statistics and metrics run, and of how many
    labels and log-likelihoods are kept: all, or the first that `MAX_CELLS` allows.

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
        clients: Numbers of all clients; those without an observation have metrics that are NaN. Default: those
            that have one.
        index: Where each observation lies in its data set, ``[n]``; default 0 … n - 1.
        attrs: What to remember of the run: texts and numbers.
        seed: Seed of the labels that are drawn from the probabilities.

    Returns:
        The tree.

    Raises:
        UserError: No draws or observations, lengths or shapes that differ, probabilities that are not finite,
            labels out of range, an attribute of another type.

    Example:
        >>> import torch
        >>> probs = torch.tensor([[[0.9, 0.1], [0.2, 0.8]], [[0.7, 0.3], [0.6, 0.4]]])   # 2 draws, 2 examples
        >>> tree = to_datatree(probs, torch.tensor([0, 1]), client=torch.tensor([0, 3]))
        >>> dict(tree["client_metrics"]["accuracy"].sizes)
        {'chain': 1, 'draw': 2, 'client': 2}
        >>> tree["client_metrics"]["accuracy"].sel(client=3).values.tolist()
        [[1.0, 0.0]]
    """
    owners = Owners.of(integers(client, "client"), clients)
    table = ClassTable(integers(y, "y"), owners, seed=seed)
    return table.filled_tree(draws, index, names, attrs, classes)


def for_client(tree: xr.DataTree, client: int) -> xr.DataTree:
    """One client's part of a tree.

    Args:
        tree: What `to_datatree` made.
        client: Number of the client.
    """
    known = tree["client_metrics"].coords["client"].to_numpy()
    if client not in known:
        raise UserError(f"no client {client} in this tree; it holds {_listed(known)}")

    def cut(group: xr.Dataset) -> xr.Dataset:
        if "client" in group.dims:
            group = group.sel(client=client)
        for name in ("client_of", "client_of_example"):
            if name in group.coords:
                (dim,) = group[name].dims
                group = group.isel({dim: (group[name] == client).values})
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
    write_atomically(target, content)
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


def _listed(values: Array) -> str:
    shown = ", ".join(str(value) for value in values[:12])
    return shown + (", …" if len(values) > 12 else "")


def _one_line(problem: Exception) -> str:
    text = getattr(problem, "strerror", None) or str(problem) or type(problem).__name__
    return " ".join(text.split())
