"""Examples that a client's model should know that it does not know: new classes, damaged pictures, other data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_pfedbayes.data.clients import FederatedData
from pyro_pfedbayes.data.corruptions import IMAGE_CORRUPTIONS, corrupt_images
from pyro_pfedbayes.data.datasets import Dataset
from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.inference.posterior.stored_predictions import StoredPredictions
from pyro_pfedbayes.randomness import generator, seed_for

if TYPE_CHECKING:
    import xarray as xr

UNSEEN_LIMIT = 300
"""Most examples of classes that a client never saw that it predicts."""
CORRUPTED_LIMIT = 100
"""Most test examples of a client that are damaged."""
FOREIGN_LIMIT = 300
"""Most examples of another data set that every client predicts."""
SHIFTS = tuple((kind, strength) for kind in IMAGE_CORRUPTIONS for strength in range(1, 6))
"""All ways to damage a picture: kind and strength."""


def unseen_examples(
    data: FederatedData, seed: int, *, limit: int = UNSEEN_LIMIT
) -> tuple[Tensor, ...]:
    """For each client, indices of test examples of other clients whose class none of its training examples has.

    They are what a client's model should know that it does not know: natural out-of-distribution inputs, which only a
    simulation can lay hands on, for they are others' data. The run's seed decides which are taken where there are
    more than ``limit``.
    """
    y, lists = data.dataset.y.cpu(), data.partition.test
    pool = torch.cat(lists)
    holder = torch.arange(len(lists)).repeat_interleave(torch.tensor([len(i) for i in lists]))
    labels, found = y[pool], []
    for client, train in enumerate(data.partition.train):
        seen = torch.zeros(data.num_classes, dtype=torch.bool)
        known = y[train]
        seen[known[known >= 0]] = True
        # An unknown label may be of any class.
        new = (labels >= 0) & ~seen[labels.clamp_min(0)] & (holder != client)
        found.append(_some(pool[new], limit, generator(seed, "unseen", client)))
    return tuple(found)


def corrupted_predictions(
    data: FederatedData,
    seed: int,
    limits: tuple[float, float],
    *,
    limit: int = CORRUPTED_LIMIT,
) -> StoredPredictions | None:
    """Some test examples of each client, in each of the `SHIFTS`; the same noise and turns at every strength.

    ``limits`` are black and white in the scale of the inputs, see `pyro_pfedbayes.data.corruptions.corrupt_images`. A
    client's rows are its examples in the first shift, then in the second, and so on. None if inputs are no images,
    outcomes no classes, or nobody has a test example.
    """
    if data.outcome != "class" or len(data.feature_shape) != 3:
        return None
    chosen = [
        _some(index, limit, generator(seed, "corrupted", client))
        for client, index in enumerate(data.partition.test)
    ]
    if not any(map(len, chosen)):
        return None

    def corrupt(client: int, x: Tensor) -> Tensor:
        own = seed_for(seed, "corrupted", client)
        parts = x.split(len(x) // len(SHIFTS))
        return torch.cat(
            [
                corrupt_images(part, kind, strength, seed=own, limits=limits)
                for part, (kind, strength) in zip(parts, SHIFTS, strict=True)
            ]
        )

    lists = [index.repeat(len(SHIFTS)) for index in chosen]
    return StoredPredictions.beside(data.dataset, lists, labels=True, corrupt=corrupt)


def foreign_examples(
    data: FederatedData, foreign: Dataset, seed: int, *, limit: int = FOREIGN_LIMIT
) -> Tensor:
    """Indices of the examples of another data set that every client predicts: of its test part, if it has one."""
    if data.outcome != "class":
        raise UserError(
            f"foreign examples are for models of classes, but {data.dataset.name} holds numbers"
        )
    if foreign.feature_shape != data.feature_shape:
        raise UserError(
            f"foreign data set {foreign.name} has inputs {list(foreign.feature_shape)}, "
            f"but the clients' are {list(data.feature_shape)}"
        )
    pool = torch.arange(len(foreign))
    if foreign.test_mask is not None and bool(foreign.test_mask.any()):
        pool = pool[foreign.test_mask.cpu()]
    return _some(pool, limit, generator(seed, "foreign"))


def foreign_predictions(data: FederatedData, foreign: Dataset, index: Tensor) -> StoredPredictions:
    """Every client on the examples ``index`` of another data set, whose labels mean nothing to it."""
    taken = foreign.select(index).to(data.dataset.y.device)
    everyone = [torch.arange(len(index))] * data.num_clients
    return StoredPredictions.beside(taken, everyone, labels=False)


def unseen_statistics(stored: StoredPredictions, classes: Sequence[str]) -> xr.Dataset:
    """The group ``unseen_stats``, by ``example`` and ``class``."""
    labels = ("example", stored.table.y.astype(np.int16))
    found = stored.statistics("example", classes=classes)
    return found.rename({"client_of": "client_of_example"}).assign_coords(label=labels)


def corrupted_statistics(stored: StoredPredictions, classes: Sequence[str]) -> xr.Dataset:
    """The group ``corrupted_stats``, by ``corruption``, ``strength``, ``example`` and ``class``."""
    starts = np.asarray(stored.starts)
    sizes = np.diff(starts) // len(SHIFTS)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    within = np.arange(len(owner)) - (starts[:-1] // len(SHIFTS))[owner]
    # Where each shift of each example lies among the rows, [shifts, examples].
    place = starts[owner] + np.arange(len(SHIFTS))[:, None] * sizes[owner] + within
    strengths = sorted({strength for _, strength in SHIFTS})
    cube = place.reshape(len(IMAGE_CORRUPTIONS), len(strengths), -1)
    found = _unfolded(stored, classes, cube, ("corruption", "strength", "example"))
    return found.assign(y=("example", stored.table.y[place[0]].astype(np.int16))).assign_coords(
        corruption=list(IMAGE_CORRUPTIONS),
        strength=np.asarray(strengths, np.int8),
        client_of_example=("example", owner.astype(np.int32)),
        index=("example", stored.index.numpy()[place[0]]),
    )


def foreign_statistics(
    stored: StoredPredictions, foreign: Dataset, index: Tensor, classes: Sequence[str]
) -> xr.Dataset:
    """The group ``foreign_stats``, by ``client``, ``example`` and ``class``; its attribute ``data`` is the name."""
    clients = len(stored.starts) - 1
    place = np.arange(len(stored.index)).reshape(clients, -1)
    found = _unfolded(stored, classes, place, ("client", "example"))
    coords = {"client": np.arange(clients), "index": ("example", index.numpy())}
    return found.assign_coords(coords).assign_attrs(data=foreign.name)


def _unfolded(
    stored: StoredPredictions,
    classes: Sequence[str],
    place: NDArray[np.int_],
    dims: tuple[str, ...],
) -> xr.Dataset:
    """Statistics of the rows at ``place``, which has dimensions ``dims``."""
    import xarray as xr

    flat = stored.statistics("example", classes=classes).drop_vars(["client_of", "index"])
    return flat.isel(example=xr.DataArray(place, dims=dims))


def _some(index: Tensor, limit: int, stream: torch.Generator) -> Tensor:
    """At most ``limit`` of some indices, in their order."""
    if len(index) <= limit:
        return index
    return index[torch.randperm(len(index), generator=stream)[:limit].sort().values]
