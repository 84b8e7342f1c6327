"""Run folders made by hand, whose measures are known."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from pyro_pfedbayes.datatree.numeric import NumberDraw, to_datatree_numbers
from pyro_pfedbayes.datatree.tree import save_datatree, to_datatree

Array = NDArray[Any]
CONFIG = """
[data]
name = "{data}"
split = "mine"
[algorithm]
name = "{algorithm}"
zeta = {zeta}
[run]
rounds = 4
seed = {seed}
"""


def write_folder(
    path: Path,
    *,
    data: str = "gone.npz",
    algorithm: str = "pfedbayes",
    zeta: float = 1.0,
    seed: int = 0,
    summary: Mapping[str, Any] | None = None,
    history: Sequence[Mapping[str, Any]] = (),
) -> Path:
    """A run's folder without predictions; its data cannot be loaded again."""
    path.mkdir(parents=True, exist_ok=True)
    text = CONFIG.format(data=data, algorithm=algorithm, zeta=zeta, seed=seed)
    (path / "config.toml").write_text(text)
    (path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in history))
    if summary is not None:
        (path / "summary.json").write_text(json.dumps(summary))
    return path


def brief_summary(accuracy: float = 0.75, **changes: Any) -> dict[str, Any]:
    """What a finished run of four clients would say."""
    column = {"accuracy": {"last": accuracy, "best": accuracy, "selected": None}, "nll": 0.5}
    head = {"algorithm": "pfedbayes", "data": "toy", "split": "mine", "seed": 0, "clients": 4}
    return {**head, "rounds": 4, "personal": column, "global": column, "dropped": {}, **changes}


def class_tree(
    probs: Array, y: Array, owner: Array, *, names: Sequence[str] | None = None
) -> xr.DataTree:
    """A tree of the personal models as versions before 0.2 wrote it; ``probs [K, n, C]``."""
    tree: xr.DataTree = to_datatree(probs, y, owner, names=names)
    return tree


def stats(probs: Array, dim: str) -> dict[str, Any]:
    """The statistics of one group; the aleatoric part is taken as half of the total."""
    total = -(probs * np.log(np.maximum(probs, 1e-30))).sum(1)
    columns = {"total": total, "aleatoric": total / 2, "epistemic": total / 2}
    return {"p": ((dim, "class"), probs), **{name: (dim, v) for name, v in columns.items()}}


def wide(probs: Array, dims: Sequence[str]) -> xr.Dataset:
    """The same of probabilities along several dimensions."""
    flat = stats(probs.reshape(-1, probs.shape[-1]), "row")
    return xr.Dataset(
        {
            name: ((*dims, *own[1:]), values.reshape(*probs.shape[:-1], *values.shape[1:]))
            for name, (own, values) in (
                (name, ((dim,) if isinstance(dim, str) else dim, values))
                for name, (dim, values) in flat.items()
            )
        }
    )


def add_groups(
    tree: xr.DataTree,
    *,
    global_: Array | None = None,
    validation: tuple[Array, Array, Array] | None = None,
    unseen: tuple[Array, Array] | None = None,
    kl: Array | None = None,
    foreign: Array | None = None,
    corrupted: tuple[Array, Array, Array, Array] | None = None,
) -> xr.DataTree:
    """Add the groups of newer versions.

    They are ``p``; ``(p, y, client)``; ``(p, client)``; ``[client, site]``; ``p [client, example, class]``; and
    ``(p [corruption, strength, example, class], y, client, index)``.
    """
    if global_ is not None:
        tree["global_stats"] = xr.DataTree(xr.Dataset(stats(global_, "observation")))
    if validation is not None:
        p, y, client = validation
        dim = "validation_observation"
        columns = {**stats(p, dim), "y": (dim, y)}
        found = xr.Dataset(columns, coords={"client_of": (dim, client)})
        tree["validation_stats"] = xr.DataTree(found)
    if unseen is not None:
        p, client = unseen
        found = xr.Dataset(stats(p, "example"), coords={"client_of_example": ("example", client)})
        tree["unseen_stats"] = xr.DataTree(found)
    if foreign is not None:
        found = wide(foreign, ("client", "example"))
        found = found.assign_coords(client=np.arange(len(foreign))).assign_attrs(data="shoes")
        tree["foreign_stats"] = xr.DataTree(found)
    if corrupted is not None:
        p, y, client, index = corrupted
        found = wide(p, ("corruption", "strength", "example")).assign(y=("example", y))
        found = found.assign_coords(
            corruption=["noise", "blur"][: len(p)],
            strength=np.arange(1, p.shape[1] + 1),
            client_of_example=("example", client),
            index=("example", index),
        )
        tree["corrupted_stats"] = xr.DataTree(found)
    if kl is not None:
        sites = [f"layer{i}" for i in range(kl.shape[1])]
        found = xr.Dataset(
            {"kl": (("client", "site"), kl)}, coords={"client": np.arange(len(kl)), "site": sites}
        )
        tree["information_gain"] = xr.DataTree(found)
    return tree


def number_tree(outcomes: Array, y: Array, owner: Array) -> xr.DataTree:
    """A tree of numbers, from drawn outcomes ``[K, n]`` of unit variance."""
    import torch

    drawn = torch.from_numpy(outcomes)
    truth = torch.from_numpy(y)
    draws = [
        NumberDraw(
            row, torch.ones_like(row), torch.where(truth.isnan(), torch.nan, -1.0), row[None]
        )
        for row in drawn
    ]
    tree: xr.DataTree = to_datatree_numbers(draws, truth, torch.from_numpy(owner))
    return tree


def save(path: Path, tree: xr.DataTree) -> Path:
    """Write the tree of a run."""
    save_datatree(tree, path / "posterior.nc")
    return path


def sharp(labels: Sequence[int], p: float = 0.9, classes: int = 3) -> Array:
    """Probabilities ``[n, C]`` that give ``p`` to the labels and share the rest evenly."""
    found = np.full((len(labels), classes), (1 - p) / (classes - 1))
    found[np.arange(len(labels)), labels] = p
    return found
