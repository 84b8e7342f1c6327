"""Figures of a report on numbers, and of comparisons."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pyro_pfedbayes.experiments.reports.figures.classes import blank, tall
from pyro_pfedbayes.experiments.reports.schema import NumberFit

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_predicted_observed(fit: NumberFit) -> Figure:
    """Observed outcomes against predictive means.

    Example:
        >>> fit = NumberFit((1.0, 2.0), (1.5, 1.8), (0.2, 0.3))
        >>> plot_predicted_observed(fit).axes[0].get_xlabel()
        'predicted (mean)'
    """
    figure, axes = blank(height=4.2)
    low, high = _range([*fit.observed, *fit.predicted])
    axes.plot([low, high], [low, high], color="0.4", linestyle=":", linewidth=1, label="exact")
    many = len(fit.observed) > 300
    if not many:
        spread = [value if math.isfinite(value) else 0.0 for value in fit.sd]
        axes.errorbar(
            fit.predicted,
            fit.observed,
            xerr=spread,
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
        color="#0b4f8a",
        alpha=0.5 if many else 0.9,
        label="a test example",
        linewidths=0,
        zorder=2,
    )
    axes.set(xlabel="predicted (mean)", ylabel="observed")
    axes.legend(fontsize=8, frameon=False)
    return figure


def plot_interval_coverage(fit: NumberFit, name: str = "personal models") -> Figure:
    """Share of outcomes inside central intervals against what it should be, of the models called ``name``.

    Example:
        >>> fit = NumberFit((), (), (), (0.5, 0.9), (0.4, 0.95), (1.0, 2.0), ())
        >>> plot_interval_coverage(fit).axes[0].get_ylabel()
        'outcomes inside (%)'
    """
    figure, axes = blank()
    axes.plot(
        [40, 100], [40, 100], color="0.55", linestyle=":", linewidth=1, label="as it should be"
    )
    levels, coverage = ([100 * v for v in values] for values in (fit.levels, fit.coverage))
    axes.plot(levels, coverage, color="#0b4f8a", marker="o", markersize=5, label=name)
    finite = [value for value in coverage if math.isfinite(value)]
    axes.set(
        xlim=(45, 100),
        ylim=(min([45, *(value - 3 for value in finite)]), 102),
        xlabel="probability of the interval (%)",
        ylabel="outcomes inside (%)",
    )
    axes.legend(fontsize=8, frameon=False, loc="upper left")
    return figure


def plot_pit(fit: NumberFit) -> Figure:
    """Histogram of the probability integral transform, with the band within which 95 % of the bars of an exact one lie.

    Example:
        >>> fit = NumberFit((), (), (), pit=(5, 5))
        >>> len(plot_pit(fit).axes[0].patches) >= 2
        True
    """
    figure, axes = blank()
    bins, total = len(fit.pit), sum(fit.pit)
    share = 1 / max(bins, 1)
    places = [(i + 0.5) * share for i in range(bins)]
    axes.bar(places, fit.pit, width=0.94 * share, color="0.8", edgecolor="0.25", linewidth=0.6)
    spread = 1.96 * math.sqrt(total * share * (1 - share))
    for value, style in (
        (total * share, "-"),
        *((total * share + s * spread, "--") for s in (-1, 1)),
    ):
        axes.axhline(max(value, 0.0), color="0.15", linewidth=1, linestyle=style)
    axes.set(
        xlim=(0, 1), xlabel="share of the prediction below the outcome", ylabel="test examples"
    )
    return figure


def plot_comparison(
    groups: Mapping[str, Sequence[float]], label: str, *, scale: float = 1.0
) -> Figure:
    """Every run's figure by method, and each method's mean.

    Args:
        groups: Values of the runs, by the method's label.
        label: What to write at the axis.
        scale: Factor of the values.

    Example:
        >>> plot_comparison({"ours": [0.9, 0.91]}, "accuracy (%)", scale=100).axes[0].get_xlabel()
        'accuracy (%): ○ a run, | mean'
    """
    figure, axes = blank(height=tall(2 * len(groups)))
    for place, values in enumerate(groups.values()):
        found = [scale * value for value in values if math.isfinite(value)]
        axes.plot(
            found, [place] * len(found), "o", color="#0b4f8a", markersize=6, markerfacecolor="none"
        )
        if found:
            axes.plot(sum(found) / len(found), place, "|", color="black", markersize=16, mew=2)
    names = ["\n".join(_folded(name)) for name in groups]
    axes.set_yticks(range(len(names)), names, fontsize=8, parse_math=False)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.margins(x=0.1)
    axes.grid(axis="y", color="0.92")
    axes.set_xlabel(f"{label}: ○ a run, | mean")
    return figure


def plot_tempering(points: Sequence[tuple[float, float, float]]) -> Figure:
    """Accuracy and calibration error of personal models against the weight ζ of the prior.

    Args:
        points: ζ, accuracy and expected calibration error of each run, shares.

    Example:
        >>> len(plot_tempering([(1.0, 0.9, 0.02), (10.0, 0.91, 0.03)]).axes)
        2
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.8, 4.4), layout="constrained")
    zetas = sorted({zeta for zeta, *_ in points})
    for axes, column, name in zip(
        figure.subplots(2, 1, sharex=True), (1, 2), ("accuracy (%)", "ECE (%)"), strict=True
    ):
        axes.spines[["top", "right"]].set_visible(False)
        means = []
        for zeta in zetas:
            values = [100 * p[column] for p in points if p[0] == zeta and math.isfinite(p[column])]
            axes.plot([zeta] * len(values), values, "o", color="0.45", markerfacecolor="none")
            means.append(sum(values) / len(values) if values else math.nan)
        axes.plot(zetas, means, "-", color="#0b4f8a", marker="_", markersize=12)
        axes.set_ylabel(name)
        if min(zetas) > 0:
            axes.set_xscale("log")
            axes.set_xticks(zetas, [f"{zeta:g}" for zeta in zetas], minor=False)
            axes.minorticks_off()
    axes.set_xlabel("ζ (○ a run, line: mean)")
    return figure


def _range(values: Sequence[float]) -> tuple[float, float]:
    finite = [value for value in values if math.isfinite(value)]
    return (min(finite), max(finite)) if finite else (0.0, 1.0)


def _folded(text: str) -> list[str]:
    import textwrap

    return textwrap.wrap(text, 26)[:3] or [""]
