"""What figures share: axes, colours, legends. ArviZ's plots are not used, since they draw through pyplot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

MODELS = {"personal": "personal models", "global": "global model"}
MOST_CLIENTS = 30
WIDTH, HEIGHT = 4.8, 3.5
BLUE, ORANGE = "#0b4f8a", "#b3480a"
# Line, marker, colour: any one of them tells the two apart.
_LOOKS: Mapping[str, dict[str, Any]] = {
    "personal": {"color": BLUE, "linestyle": "-", "marker": "o"},
    "global": {"color": ORANGE, "linestyle": "--", "marker": "s"},
}


def panels(
    lines: int, columns: int, height: float, *, ticks: int = 9, **options: Any
) -> tuple[Figure, Any]:
    """A figure and its grid of axes, without frame at the top and right; ``ticks`` is the size of their labels."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    grid = figure.subplots(lines, columns, squeeze=False, **options)
    for axes in grid.flat:
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=ticks)
    return figure, grid


def blank(height: float = HEIGHT) -> tuple[Figure, Axes]:
    """A figure with one pair of axes."""
    figure, grid = panels(1, 1, height)
    return figure, grid[0, 0]


def line_style(model: str, names: Mapping[str, str] = MODELS, **changes: Any) -> dict[str, Any]:
    """How the line of ``personal`` or ``global`` is drawn."""
    shown = {**_LOOKS[model], "label": names[model], "markersize": 5, "linewidth": 1.6}
    return {**shown, **changes}


def diagonal(axes: Axes, low: float, high: float) -> None:
    """The line on which a probability comes true."""
    ends = [low, high]
    axes.plot(ends, ends, color="0.55", linewidth=1, linestyle=":", label="as it should be")


def legend(axes: Axes, size: int = 8, **options: Any) -> None:
    """A legend within the axes."""
    axes.legend(fontsize=size, frameon=False, **options)


def legend_above(figure: Figure, *entries: Any, columns: int = 2, **options: Any) -> None:
    """A legend above the axes, where no corner is free for sure."""
    place = {"loc": "outside upper center", "ncols": columns}
    figure.legend(*entries, fontsize=8, frameon=False, **place, **options)


def marker_step(count: int, most: int = 12) -> int:
    """Step between the points of a line that have a marker."""
    return max(1, count // most)


def rows_height(rows: int) -> float:
    """Height in inches of a chart with so many rows."""
    return max(2.0, 0.9 + 0.24 * rows)


def label_rows(axes: Axes, names: Sequence[str], margin: float = 0.5, size: int = 8) -> None:
    """Name the rows of a chart, the first on top."""
    # A name such as $\q$ is not a formula.
    axes.set_yticks(range(len(names)), names, fontsize=size, parse_math=False)
    axes.set_ylim(len(names) - margin, margin - 1)


def label_clients(axes: Axes, names: Sequence[str]) -> None:
    """Name the rows of a chart with one row a client."""
    label_rows(axes, [shortened(name, 18) for name in names], 0.4)
    axes.set_ylabel("client")


def shortened(text: str, most: int) -> str:
    """Text of at most so many letters."""
    return text if len(text) <= most else text[: most - 1] + "…"


def integer_ticks(axes: Axes) -> None:
    """Ticks of the horizontal axis at whole numbers only."""
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
