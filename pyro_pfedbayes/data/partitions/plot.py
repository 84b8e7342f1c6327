"""A partition to look at: as a small table of text, and as a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pyro_pfedbayes.data.datasets import Dataset
from pyro_pfedbayes.data.partitions.numeric_plot import plot_numbers
from pyro_pfedbayes.data.partitions.partition import Partition

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_INCHES = 14.0
"""A picture's cells shrink rather than take more room than this, either way."""
SIDE, TOP, GAP = 1.1, 0.7, 0.08
"""Inches: the bars at the right, those above, and the space between them and the cells."""
_PARTS = {"train": "training", "validation": "validation", "test": "test"}
_STEPS = tuple(digit * 10**power for power in range(9) for digit in (1, 2, 5))


def plot_partition(partition: Partition, dataset: Dataset, part: str = "train") -> Figure:
    """Draw clients by classes: darker for more examples, numbers in the cells, sums at the sides.

    If the outcomes are numbers, draw a box of each client's outcomes instead. Examples whose outcome is
    not known are only counted in the title.

    Args:
        partition: The partition of N clients.
        dataset: The data set it indexes.
        part: ``train``, ``validation`` or ``test``.

    Returns:
        A figure of its own (no global state of pyplot): ``figure.savefig("partition.png")``.

    Example:
        >>> from pyro_pfedbayes.data.datasets import load_dataset
        >>> from pyro_pfedbayes.data.partitions.schemes import partition_labels
        >>> digits = load_dataset("digits")
        >>> figure = plot_partition(partition_labels(digits, 10, 5, 15, 15), digits)
        >>> figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()
        ('class', 'client')
    """
    from matplotlib.figure import Figure

    if dataset.outcome == "number":
        return plot_numbers(partition, dataset, part, _title(partition, dataset, part))
    counts = partition.counts(dataset.y, dataset.num_classes, part)
    clients, classes = counts.shape
    row, column = min(0.34, MAX_INCHES / clients), min(0.6, MAX_INCHES / classes)
    across, down = max(3.0, column * classes), max(1.2, row * clients)
    row, column = down / clients, across / classes
    longest = max(map(len, dataset.classes))
    slanted = 0.085 * longest > column
    left = 0.6 + 0.075 * max(map(len, partition.names))
    below = 0.55 + (0.06 * longest if slanted else 0.0)
    width, height = left + across + GAP + SIDE + 0.45, below + down + GAP + TOP + 0.45
    figure = Figure(figsize=(width, height), dpi=120)

    def axes(x: float, y: float, w: float, h: float, **options: Any) -> Axes:
        return figure.add_axes((x / width, y / height, w / width, h / height), **options)

    main = axes(left, below, across, down)
    by_client = axes(left + across + GAP, below, SIDE, down, sharey=main)
    by_class = axes(left, below + down + GAP, across, TOP, sharex=main)
    numbered = (row >= 0.11, column >= 0.33)
    _heat_map(main, counts, all(numbered))
    _sums(by_client, by_class, counts, numbered)
    _label(main, "y", partition.names, row, 0.11)
    _label(main, "x", dataset.classes, column, 0.16)
    if slanted:
        main.tick_params(axis="x", labelrotation=40)
        for text in main.get_xticklabels():
            text.set(horizontalalignment="right", rotation_mode="anchor")
    title = _title(partition, dataset, part)
    heading = figure.text(0.1 / width, 1 - 0.1 / height, title, fontsize=10, parse_math=False)
    heading.set_verticalalignment("top")
    return figure


def _title(partition: Partition, dataset: Dataset, part: str) -> str:
    index = torch.cat(partition.part(part))
    unknown = len(index) - int(dataset.known.cpu()[index].sum())
    without = f" ({unknown:,} without a known outcome)" if unknown else ""
    about = f"{dataset.name}, {partition.scheme}"
    return f"{about}: {_PARTS[part]} examples, {len(index):,} in all{without}"


def _heat_map(axes: Axes, counts: Tensor, numbered: bool) -> None:
    """Cells from white (none) to dark grey, with their number where there is room."""
    from matplotlib.colors import PowerNorm

    top = max(1, int(counts.max()))
    # The square root tells few examples from none; a limit beyond the largest leaves that grey.
    shade = PowerNorm(0.5, vmin=0, vmax=1.3 * top)
    axes.imshow(counts.numpy(), cmap="Greys", norm=shade, aspect="auto", interpolation="nearest")
    axes.set(xlabel="class", ylabel="client")
    clients, classes = counts.shape
    if not numbered:
        return
    axes.hlines(
        [c - 0.5 for c in range(1, clients)], -0.5, classes - 0.5, colors="0.85", linewidth=0.4
    )
    axes.vlines(
        [c - 0.5 for c in range(1, classes)], -0.5, clients - 0.5, colors="0.85", linewidth=0.4
    )
    size = 7 if clients <= MAX_INCHES / 0.2 else 5.5
    for client, row in enumerate(counts.tolist()):
        for label, count in enumerate(row):
            if count:
                ink = "white" if shade(count) > 0.58 else "black"
                axes.text(
                    label, client, str(count), color=ink, fontsize=size, ha="center", va="center"
                )


def _sums(by_client: Axes, by_class: Axes, counts: Tensor, numbered: tuple[bool, bool]) -> None:
    """Bars of the examples a client, right, and a class, above."""
    clients, classes = counts.shape
    rows, columns = counts.sum(1).tolist(), counts.sum(0).tolist()
    bars = by_client.barh(range(clients), rows, color="0.6", height=0.8 if numbered[0] else 1.0)
    if numbered[0]:
        by_client.bar_label(bars, fontsize=7 if clients <= MAX_INCHES / 0.2 else 5.5, padding=2)
    bars = by_class.bar(range(classes), columns, color="0.6", width=0.8 if numbered[1] else 1.0)
    if numbered[1]:
        by_class.bar_label(bars, fontsize=7, padding=1)
    by_client.set_xlim(0, max(1, *rows) * (1.45 if numbered[0] else 1.05))
    by_class.set_ylim(0, max(1, *columns) * 1.3)
    by_client.set_xlabel("sum of client", fontsize=8)
    by_class.set_ylabel("sum of class", fontsize=8)
    for axes in (by_client, by_class):
        axes.tick_params(labelleft=False, labelbottom=False, left=False, bottom=False)
        axes.spines[["top", "right"]].set_visible(False)
    if not numbered[0]:
        by_client.tick_params(labelbottom=True, bottom=True, labelsize=7)
    if not numbered[1]:
        by_class.tick_params(labelleft=True, left=True, labelsize=7)


def _label(axes: Axes, which: str, names: tuple[str, ...], inches: float, least: float) -> None:
    """Name the ticks of an axis, as many as have ``least`` inches each."""
    every = next(step for step in _STEPS if step * inches >= least or step >= len(names))
    places = list(range(0, len(names), every))
    ticks = axes.set_yticks if which == "y" else axes.set_xticks
    # A name such as $\q$ is not a formula.
    size = 7 if inches < 0.2 else 8
    ticks(places, [names[place] for place in places], fontsize=size, parse_math=False)
