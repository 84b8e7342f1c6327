"""Predicted numbers against those observed."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.figure import Figure

from pyro_pfedbayes.experiments.reports.figures import style
from pyro_pfedbayes.experiments.reports.schema import NumberFit

_MANY = 300  # examples from which marks are small and their deviations left out


def plot_predicted_observed(fit: NumberFit) -> Figure:
    """Observed outcomes against predictive means."""
    figure, axes = style.blank(height=4.2)
    finite = [value for value in (*fit.observed, *fit.predicted) if math.isfinite(value)]
    ends = [min(finite), max(finite)] if finite else [0.0, 1.0]
    axes.plot(ends, ends, color="0.4", linestyle=":", linewidth=1, label="exact")
    many = len(fit.observed) > _MANY
    if not many:
        axes.errorbar(
            fit.predicted,
            fit.observed,
            xerr=np.nan_to_num(fit.sd, posinf=0.0),
            fmt="none",
            ecolor="0.75",
            elinewidth=0.8,
            label="± 1 predictive sd",
            zorder=1,
        )
    axes.scatter(
        fit.predicted,
        fit.observed,
        s=6 if many else 16,
        color=style.BLUE,
        alpha=0.5 if many else 0.9,
        label="a test example",
        linewidths=0,
        zorder=2,
    )
    axes.set(xlabel="predicted (mean)", ylabel="observed")
    style.legend(axes)
    return figure


def plot_pit(fit: NumberFit) -> Figure:
    """Histogram of the probability integral transform, with the band that holds 95 % of the bars of an exact one."""
    figure, axes = style.blank()
    share = 1 / max(len(fit.pit), 1)
    places = [(i + 0.5) * share for i in range(len(fit.pit))]
    axes.bar(places, fit.pit, width=0.94 * share, color="0.8", edgecolor="0.25", linewidth=0.6)
    mean = sum(fit.pit) * share
    spread = 1.96 * math.sqrt(mean * (1 - share))
    for height, line in ((mean, "-"), (mean - spread, "--"), (mean + spread, "--")):
        axes.axhline(max(height, 0.0), color="0.15", linewidth=1, linestyle=line)
    axes.set(
        xlim=(0, 1), xlabel="share of the prediction below the outcome", ylabel="test examples"
    )
    return figure
