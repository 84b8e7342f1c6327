"""Several runs side by side: a measure by method, and against the weight of the prior."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from pyro_pfedbayes.experiments.reports.figures import style


def plot_comparison(
    groups: Mapping[str, Sequence[float]], label: str, *, scale: float = 1.0
) -> Figure:
    """Values of the runs times ``scale`` by method, and each method's mean."""
    figure, axes = style.blank(height=style.rows_height(2 * len(groups)))
    for place, values in enumerate(groups.values()):
        found = [scale * value for value in values if math.isfinite(value)]
        rows = [place] * len(found)
        axes.plot(found, rows, "o", color=style.BLUE, markersize=6, markerfacecolor="none")
        if found:
            axes.plot(sum(found) / len(found), place, "|", color="black", markersize=16, mew=2)
    style.label_rows(axes, ["\n".join(textwrap.wrap(name, 26)[:3]) for name in groups])
    axes.margins(x=0.1)
    axes.grid(axis="y", color="0.92")
    axes.set_xlabel(f"{label}: ○ a run, | mean")
    return figure


def plot_tempering(points: Sequence[tuple[float, float, float]]) -> Figure:
    """Accuracy and calibration error of personal models against ζ, of points (ζ, accuracy, error)."""
    figure, grid = style.panels(2, 1, 4.4, ticks=10, sharex=True)
    zetas = sorted({zeta for zeta, *_ in points})
    for axes, column, name in zip(grid.flat, (1, 2), ("accuracy (%)", "ECE (%)"), strict=True):
        means = []
        for zeta in zetas:
            values = [100 * p[column] for p in points if p[0] == zeta and math.isfinite(p[column])]
            axes.plot([zeta] * len(values), values, "o", color="0.45", markerfacecolor="none")
            means.append(sum(values) / len(values) if values else math.nan)
        axes.plot(zetas, means, "-", color=style.BLUE, marker="_", markersize=12)
        axes.set_ylabel(name)
        if min(zetas) > 0:
            axes.set_xscale("log")
            axes.set_xticks(zetas, [f"{zeta:g}" for zeta in zetas], minor=False)
            axes.minorticks_off()
    axes.set_xlabel("ζ (○ a run, line: mean)")
    return figure
