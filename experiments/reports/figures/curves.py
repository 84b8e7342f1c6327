"""Curves of probabilities against what came true, and of the error against the share that is answered."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from pyro_pfedbayes.experiments.reports.figures import style
from pyro_pfedbayes.experiments.reports.schema import NumberFit, Reliability, Selective


def plot_reliability(
    models: Mapping[str, Reliability], names: Mapping[str, str] = style.MODELS
) -> Figure:
    """Accuracy against confidence by bins, of models called ``names``; larger marks hold more examples."""
    figure, axes = style.blank(height=4.2)
    style.diagonal(axes, 0, 1)
    for name, curve in models.items():
        columns = np.array([curve.confidence, curve.accuracy, curve.count])
        x, y, count = columns[:, columns[2] > 0]
        line = style.line_style(name)
        marker, color = line["marker"], line["color"]
        axes.plot(x, y, **{**line, "marker": "None", "label": None, "linewidth": 1.2})
        axes.scatter(
            x,
            y,
            12 + 90 * count / count.max(initial=1),
            marker=marker,
            facecolor=color if name == "personal" else "white",
            edgecolor=color,
            zorder=3,
            label=names[name],
        )
    axes.set(
        xlim=(0, 1.03),
        ylim=(0, 1.03),
        xlabel="stated probability (confidence)",
        ylabel="share that was right",
    )
    style.legend(axes, loc="upper left", markerscale=0.7)
    return figure


def plot_risk_coverage(
    models: Mapping[str, Selective],
    names: Mapping[str, str] = style.MODELS,
    *,
    percent: bool = True,
) -> Figure:
    """Error among the examples that are answered against their share; in per cent if it is a rate."""
    figure, axes = style.blank()
    for name, curve in models.items():
        risk = np.array(curve.risk) * (100 if percent else 1)
        line = style.line_style(name, names, markevery=style.marker_step(len(risk), 8))
        axes.plot(100 * np.array(curve.coverage), risk, **line)
    for share in (80, 90, 95):
        axes.axvline(share, color="0.8", linewidth=0.8, zorder=0)
    axes.set(
        xlim=(0, 101),
        xlabel="answered: the most certain examples (%)",
        ylabel="error among these (%)" if percent else "RMSE among these",
    )
    axes.set_ylim(bottom=0)
    short = sum(len(names[name]) for name in models) < 50
    style.legend_above(figure, columns=2 if short else 1)
    return figure


def plot_interval_coverage(fit: NumberFit, name: str = "personal models") -> Figure:
    """Share of outcomes inside central intervals against what it should be, of the models called ``name``."""
    figure, axes = style.blank()
    style.diagonal(axes, 40, 100)
    coverage = 100 * np.array(fit.coverage)
    levels = 100 * np.array(fit.levels)
    axes.plot(levels, coverage, color=style.BLUE, marker="o", markersize=5, label=name)
    axes.set(
        xlim=(45, 100),
        ylim=(np.fmin.reduce([45, *(coverage - 3)]), 102),
        xlabel="probability of the interval (%)",
        ylabel="outcomes inside (%)",
    )
    style.legend(axes, loc="upper left")
    return figure
