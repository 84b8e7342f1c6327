"""The picture of a partition of examples whose outcomes are numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pyro_pfedbayes.data.datasets import Dataset
from pyro_pfedbayes.data.partitions.partition import Partition

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_POINTS = 60
"""Boxes of so many outcomes or fewer also show each one."""


def plot_numbers(partition: Partition, dataset: Dataset, part: str, title: str) -> Figure:
    """Draw a box of each client's outcomes, in their own units: quartiles, median and mean, extremes.

    Whiskers reach from the least to the largest outcome. Of a client with few outcomes, each is shown as
    well. At the right stands how many there are.

    Args:
        partition: The partition of N clients.
        dataset: The data set it indexes, whose outcomes are numbers.
        part: ``train``, ``validation`` or ``test``.
        title: What stands above.
    """
    from matplotlib.figure import Figure

    dealt = [y[~y.isnan()].numpy() for y in partition.dealt(dataset.raw_y, part)]
    clients = len(dealt)
    row = min(0.34, 14.0 / clients)
    left, height = 0.6 + 0.075 * max(map(len, partition.names)), 1.2 + max(1.2, row * clients)
    width = left + 6.5
    figure = Figure(figsize=(width, height), dpi=120)
    axes = figure.add_axes((left / width, 0.55 / height, 5.4 / width, (height - 1.2) / height))
    _boxes(axes, dealt, each=row >= 0.2)
    every = max(1, -(-clients * 11 // 100)) if row < 0.11 else 1
    places = list(range(0, clients, every))
    size = 8 if row >= 0.2 else 7
    axes.set_yticks(
        places, [partition.names[place] for place in places], fontsize=size, parse_math=False
    )
    axes.set_ylim(clients - 0.5, -0.5)
    axes.set(xlabel="outcome y", ylabel="client")
    if every == 1:
        for client, y in enumerate(dealt):
            axes.annotate(
                f"{len(y):,}",
                (1.01, client),
                xycoords=("axes fraction", "data"),
                fontsize=size,
                va="center",
                annotation_clip=False,
            )
    axes.spines[["top", "right"]].set_visible(False)
    heading = figure.text(0.1 / width, 1 - 0.1 / height, title, fontsize=10, parse_math=False)
    heading.set_verticalalignment("top")
    return figure


def _boxes(axes: Axes, dealt: Sequence[NDArray[np.float32]], each: bool) -> None:
    """A box a client that holds outcomes; with its single outcomes, if ``each`` and they are few."""
    held = [client for client, y in enumerate(dealt) if len(y)]
    if not held:
        return
    shares = (0.0, 0.25, 0.5, 0.75, 1.0)
    least, low, middle, high, most = np.array([np.quantile(dealt[c], shares) for c in held]).T
    means = [float(dealt[client].mean(dtype=np.float64)) for client in held]
    place = np.array(held)
    axes.hlines([*place, *place], [*least, *high], [*low, *most], colors="0.15", linewidth=0.9)
    ends = ([*place - 0.15, *place - 0.15], [*place + 0.15, *place + 0.15])
    axes.vlines([*least, *most], *ends, colors="0.15", linewidth=0.9)
    axes.barh(place, high - low, 0.6, left=low, color="0.85", edgecolor="0.15", linewidth=0.9)
    axes.vlines(middle, place - 0.3, place + 0.3, colors="black", linewidth=1.6)
    axes.plot(means, place, "D", markersize=3.5, markerfacecolor="white", markeredgecolor="black")
    for client in held:
        y = dealt[client]
        if each and len(y) <= _POINTS:
            axes.plot(y, [client] * len(y), "|", color="0.35", markersize=5, markeredgewidth=0.6)
