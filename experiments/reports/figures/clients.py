"""Charts with a row a client: accuracy or RMSE, uncertainty in two parts, information gain by site."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure

from pyro_pfedbayes.experiments.reports.figures import style
from pyro_pfedbayes.experiments.reports.schema import ClientRow, GainMap


def plot_clients(
    rows: Sequence[ClientRow], *, numeric: bool = False, lead: str = "personal"
) -> Figure:
    """Accuracy (or RMSE) of the first `style.MOST_CLIENTS` clients, with the interval of the lead model."""
    rows = rows[: style.MOST_CLIENTS]
    key, scale, title = ("rmse", 1, "RMSE") if numeric else ("accuracy", 100, "accuracy (%)")
    figure, axes = style.blank(height=style.rows_height(len(rows)) + 0.3)
    color = style.line_style(lead)["color"]
    for place, row in enumerate(rows):
        ends = [scale * row.lower, scale * row.upper]
        axes.plot(ends, [place] * 2, color=color, linewidth=1.4)

    def points(model: str, **line: Any) -> None:
        values = [scale * row.measures(model).get(key, math.nan) for row in rows]
        axes.plot(values, range(len(rows)), **style.line_style(model, linestyle="none", **line))

    points("personal")
    if any(row.global_ is not None for row in rows):
        points("global", markerfacecolor="white")
    axes.grid(axis="y", color="0.92")
    axes.set_xlabel(f"{title}, with 95 % interval")
    return _finished(figure, axes, rows)


def plot_entropy_split(rows: Sequence[ClientRow], *, numeric: bool = False) -> Figure:
    """Mean uncertainty of each client's personal model: noise in the data, and what more data would remove.

    Of classes these are entropies in nats, which add up; of numbers the mean predictive standard deviation and its
    epistemic part beside it, which do not. The first `style.MOST_CLIENTS` clients are shown.
    """
    rows = rows[: style.MOST_CLIENTS]
    figure, axes = style.blank(height=style.rows_height(len(rows)) + 0.3)
    grey: dict[str, Any] = {"color": "0.75", "edgecolor": "0.25"}
    white: dict[str, Any] = {"color": "white", "edgecolor": "0.15", "hatch": "////"}

    def values(name: str) -> list[float]:
        # An undefined bar is left out, and the table says that it is not defined.
        return [row.personal.get(name, math.nan) for row in rows]

    def bars(name: str, label: str, height: float = 0.72, **line: Any) -> None:
        axes.barh(range(len(rows)), values(name), label=label, height=height, linewidth=0.6, **line)

    def known(name: str) -> bool:
        return any(map(math.isfinite, values(name)))

    if numeric:
        bars("sd", "all (predictive sd)", **grey)
        if known("epistemic_sd"):
            bars("epistemic_sd", "epistemic part alone", 0.4, **white)
    elif known("aleatoric"):
        bars("aleatoric", "aleatoric (noise)", **grey)
        bars("epistemic", "epistemic (too few data)", left=values("aleatoric"), **white)
    else:
        bars("entropy", "total, which is not split", **grey)
    what = "standard deviation (units of the outcome)" if numeric else "entropy (nats)"
    axes.set_xlabel(f"mean {what}")
    return _finished(figure, axes, rows)


def plot_information_gain(gain: GainMap) -> Figure:
    """Clients by sites: darker where the client's posterior moved further from the server's; nats in the cells."""
    values = np.array(gain.kl[: style.MOST_CLIENTS], dtype=float)
    values[~np.isfinite(values)] = np.nan
    figure, axes = style.blank(height=style.rows_height(len(values)) + 0.8)
    # The square root tells little from none.
    shade = PowerNorm(0.5, vmin=0.0, vmax=1.3 * np.fmax.reduce(values, axis=None, initial=1e-12))
    axes.imshow(values, cmap="Greys", norm=shade, aspect="auto", interpolation="nearest")
    for (place, column), value in np.ndenumerate(values):
        text = "–" if math.isnan(value) else f"{value:.3g}"
        ink = "white" if shade(max(value, 0.0)) > 0.58 else "black"
        if len(gain.sites) <= 8:
            axes.text(column, place, text, ha="center", va="center", color=ink, fontsize=8)
    style.label_clients(axes, gain.clients[: style.MOST_CLIENTS])
    axes.set_xticks(range(len(gain.sites)), gain.sites, fontsize=8, parse_math=False)
    if len(gain.sites) > 3 or max(map(len, gain.sites)) > 12:
        axes.tick_params(axis="x", labelrotation=30)
        for label in axes.get_xticklabels():
            label.set(horizontalalignment="right", rotation_mode="anchor")
    axes.set_xlabel("site (a layer or parameter of the model)")
    return figure


def _finished(figure: Figure, axes: Axes, rows: Sequence[ClientRow]) -> Figure:
    style.label_clients(axes, [row.name for row in rows])
    style.legend_above(figure)
    return figure
