"""A partition as a picture: how many examples of each class, or which numbers, each client holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from pyro_pfedbayes.data.datasets import Dataset
from pyro_pfedbayes.data.partitions.partition import Partition

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_INCHES = 14.0
"""A picture's cells shrink rather than take more room than this, either way."""
SIDE, TOP, GAP = 1.1, 0.7, 0.08
"""Inches: the bars at the right, those above, and the space between them and the cells."""
FEW = 60
"""Boxes of this number of outcomes or fewer also show each one."""
_PARTS = {"train": "training", "validation": "validation", "test": "test"}
_STEPS = tuple(digit * 10**power for power in range(9) for digit in (1, 2, 5))


def plot_partition(partition: Partition, dataset: Dataset, part: str = "train") -> Figure:
    """Draw clients by classes: darker for more examples, numbers in the cells, sums at the sides.

    If the outcomes are numbers, draw a box of each client's outcomes instead: quartiles, median, mean and
    extremes. Examples whose outcome is not known are only counted in the title.

    ``part`` is ``train``, ``validation`` or ``test``. The figure is one of its own, without the global state of
    pyplot: ``figure.savefig("partition.png")``.

    Example:
        >>> from pyro_pfedbayes.data.datasets import load_dataset
        >>> from pyro_pfedbayes.data.partitions.schemes import partition_labels
        >>> digits = load_dataset("digits")
        >>> figure = plot_partition(partition_labels(digits, 10, 5, 15, 15), digits)
        >>> figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()
        ('class', 'client')
    """
    index = torch.cat(partition.part(part))
    unknown = len(index) - int(dataset.known.cpu()[index].sum())
    title = f"{dataset.name}, {partition.scheme}: {_PARTS[part]} examples, {len(index):,} in all"
    title += f" ({unknown:,} without a known outcome)" if unknown else ""
    draw = _plot_numbers if dataset.outcome == "number" else _plot_classes
    figure = draw(partition, dataset, part)
    width, height = figure.get_size_inches()
    heading = figure.text(0.1 / width, 1 - 0.1 / height, title, fontsize=10, parse_math=False)
    heading.set_verticalalignment("top")
    return figure


def _plot_classes(partition: Partition, dataset: Dataset, part: str) -> Figure:
    """Cells of examples a client and class, from white (none) to dark grey, and bars of their sums."""
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure

    counts = partition.counts(dataset.y, dataset.num_classes, part).numpy()
    clients, classes = counts.shape
    across = max(3.0, min(0.6 * classes, MAX_INCHES))
    down = max(1.2, min(0.34 * clients, MAX_INCHES))
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
    # The square root tells few examples from none; a limit beyond the largest leaves that grey.
    shade = PowerNorm(0.5, vmin=0, vmax=1.3 * max(1, counts.max()))
    main.imshow(counts, cmap="Greys", norm=shade, aspect="auto", interpolation="nearest")
    main.set(xlabel="class", ylabel="client")
    size = 7 if clients <= MAX_INCHES / 0.2 else 5.5
    if row >= 0.11 and column >= 0.33:
        line: Any = {"colors": "0.85", "linewidth": 0.4}
        main.hlines(np.arange(1, clients) - 0.5, -0.5, classes - 0.5, **line)
        main.vlines(np.arange(1, classes) - 0.5, -0.5, clients - 0.5, **line)
        for client, label in np.argwhere(counts):
            count = counts[client, label]
            ink = "white" if shade(count) > 0.58 else "black"
            main.text(label, client, count, color=ink, fontsize=size, ha="center", va="center")
    _label(main, "y", partition.names, row, 0.11)
    _label(main, "x", dataset.classes, column, 0.16)
    if slanted:
        main.tick_params(axis="x", labelrotation=40)
        for text in main.get_xticklabels():
            text.set(horizontalalignment="right", rotation_mode="anchor")

    right = axes(left + across + GAP, below, SIDE, down, sharey=main)
    above = axes(left, below + down + GAP, across, TOP, sharex=main)
    for side in (right, above):
        side.tick_params(labelleft=False, labelbottom=False, left=False, bottom=False)
        side.spines[["top", "right"]].set_visible(False)
    sums, numbered = counts.sum(1), row >= 0.11
    bars = right.barh(range(clients), sums, color="0.6", height=0.8 if numbered else 1.0)
    right.set_xlim(0, max(1, *sums) * (1.45 if numbered else 1.05))
    right.set_xlabel("sum of client", fontsize=8)
    if numbered:
        right.bar_label(bars, fontsize=size, padding=2)
    else:
        right.tick_params(labelbottom=True, bottom=True, labelsize=7)
    sums, numbered = counts.sum(0), column >= 0.33
    bars = above.bar(range(classes), sums, color="0.6", width=0.8 if numbered else 1.0)
    above.set_ylim(0, max(1, *sums) * 1.3)
    above.set_ylabel("sum of class", fontsize=8)
    if numbered:
        above.bar_label(bars, fontsize=7, padding=1)
    else:
        above.tick_params(labelleft=True, left=True, labelsize=7)
    return figure


def _plot_numbers(partition: Partition, dataset: Dataset, part: str) -> Figure:
    """A box a client that holds outcomes, in their own units, with each outcome where they are few.

    Whiskers reach from the least to the largest outcome. At the right stands how many there are.
    """
    from matplotlib.figure import Figure

    outcomes = [y[~y.isnan()].numpy() for y in partition.dealt(dataset.raw_y, part)]
    clients = len(outcomes)
    row = min(0.34, MAX_INCHES / clients)
    left, height = 0.6 + 0.075 * max(map(len, partition.names)), 1.2 + max(1.2, row * clients)
    width = left + 6.5
    figure = Figure(figsize=(width, height), dpi=120)
    axes = figure.add_axes((left / width, 0.55 / height, 5.4 / width, (height - 1.2) / height))
    _boxes(axes, outcomes)
    for client, y in enumerate(outcomes):
        if row >= 0.2 and 0 < len(y) <= FEW:
            axes.plot(y, [client] * len(y), "|", color="0.35", markersize=5, markeredgewidth=0.6)
    every, size = _label(axes, "y", partition.names, row, 0.11)
    axes.set(xlabel="outcome y", ylabel="client", ylim=(clients - 0.5, -0.5))
    axes.spines[["top", "right"]].set_visible(False)
    for client, y in enumerate(outcomes if every == 1 else ()):
        place: Any = {"xycoords": ("axes fraction", "data"), "annotation_clip": False}
        axes.annotate(f"{len(y):,}", (1.01, client), fontsize=size, va="center", **place)
    return figure


def _boxes(axes: Axes, outcomes: list[NDArray[np.float32]]) -> None:
    place = np.array([client for client, y in enumerate(outcomes) if len(y)])
    if not len(place):
        return
    shares = (0.0, 0.25, 0.5, 0.75, 1.0)
    least, low, middle, high, most = np.array([np.quantile(outcomes[c], shares) for c in place]).T
    means = [float(outcomes[client].mean(dtype=np.float64)) for client in place]
    line: Any = {"colors": "0.15", "linewidth": 0.9}
    axes.hlines([*place, *place], [*least, *high], [*low, *most], **line)
    axes.vlines([*least, *most], [*place - 0.15] * 2, [*place + 0.15] * 2, **line)
    axes.barh(place, high - low, 0.6, left=low, color="0.85", edgecolor="0.15", linewidth=0.9)
    axes.vlines(middle, place - 0.3, place + 0.3, colors="black", linewidth=1.6)
    axes.plot(means, place, "D", markersize=3.5, markerfacecolor="white", markeredgecolor="black")


def _label(
    axes: Axes, which: str, names: tuple[str, ...], inches: float, least: float
) -> tuple[int, int]:
    """Name the ticks of an axis, as many as have ``least`` inches each; their step and font size."""
    every = next(step for step in _STEPS if step * inches >= least or step >= len(names))
    ticks = axes.set_yticks if which == "y" else axes.set_xticks
    size = 7 if inches < 0.2 else 8
    # A name such as $\q$ is not a formula.
    ticks(range(0, len(names), every), names[::every], fontsize=size, parse_math=False)
    return every, size
