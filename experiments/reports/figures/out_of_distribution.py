"""Figures of out-of-distribution detection, and of what damage does to accuracy and certainty."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyro_pfedbayes.experiments.reports.figures.classes import WIDTH, blank
from pyro_pfedbayes.experiments.reports.schema import Corrupted, OodScore, ShiftLevel

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SCORE_NAMES: Mapping[str, str] = {
    "epistemic": "epistemic entropy",
    "total": "total entropy",
    "max_probability": "1 - largest probability",
}
# Marker, fill and colour: any one of them tells the scores apart.
_LOOKS: Mapping[str, dict[str, Any]] = {
    "epistemic": {"marker": "o", "color": "#0b4f8a"},
    "total": {"marker": "s", "color": "#b3480a", "markerfacecolor": "white"},
    "max_probability": {"marker": "^", "color": "0.25", "markerfacecolor": "0.75"},
}
# A panel of shares and one of entropies: attribute of a level, label, look.
_CURVES: Sequence[Sequence[tuple[str, str, dict[str, Any]]]] = (
    (
        ("accuracy", "accuracy", {"color": "#0b4f8a", "linestyle": "-", "marker": "o"}),
        ("ece", "ECE", {"color": "#b3480a", "linestyle": "--", "marker": "s"}),
    ),
    (
        ("total", "total entropy", {"color": "0.15", "linestyle": "-", "marker": "D"}),
        ("epistemic", "epistemic", {"color": "#5a7d1c", "linestyle": ":", "marker": "^"}),
    ),
)


def plot_detection(kinds: Mapping[str, Sequence[OodScore]]) -> Figure:
    """AUROC of each score, with its 95 % interval, at telling each kind of examples from the clients' own.

    Args:
        kinds: Scores by what they are to find, the first on top.

    Example:
        >>> from pyro_pfedbayes.experiments.reports.schema import Estimate
        >>> score = OodScore("total", Estimate(0.9, 0.85, 0.95), Estimate(0.3), 0.88)
        >>> plot_detection({"other data": [score]}).axes[0].get_xlabel()
        'AUROC (0.5: tells nothing; 1: tells all)'
    """
    figure, axes = blank(height=1.4 + 0.62 * len(kinds))
    low = 0.5
    for row, scores in enumerate(kinds.values()):
        for place, score in enumerate(scores):
            found, y = score.auroc, row + 0.24 * (place - (len(scores) - 1) / 2)
            look = {"linestyle": "none", "markersize": 6, **_LOOKS.get(score.name, {"marker": "x"})}
            name = SCORE_NAMES.get(score.name, score.name) if row == 0 else None
            axes.plot([found.lower, found.upper], [y, y], color=look.get("color"), linewidth=1.4)
            axes.plot([found.value], [y], label=name, **look)
            ends = (found.value, found.lower)
            low = min([low, *(end for end in ends if math.isfinite(end))])
    axes.axvline(0.5, color="0.3", linewidth=1, linestyle=":")
    axes.set_yticks(range(len(kinds)), list(kinds), fontsize=9, parse_math=False)
    axes.set(xlim=(max(0.0, low - 0.03), 1.01), ylim=(len(kinds) - 0.5, -0.5))
    axes.grid(axis="x", color="0.92")
    axes.set_xlabel("AUROC (0.5: tells nothing; 1: tells all)")
    figure.legend(fontsize=8, frameon=False, loc="outside upper center", ncols=3, handletextpad=0.2)
    return figure


def plot_corruptions(corrupted: Corrupted) -> Figure:
    """Accuracy, calibration error and entropy against the strength of the damage, a row a corruption.

    Example:
        >>> levels = [ShiftLevel("noise", s, 9, 0.9, 0.1, 0.2, 0.1, {}) for s in (0, 1)]
        >>> figure = plot_corruptions(Corrupted(9, 1, (), tuple(levels)))
        >>> [axes.get_title(loc="left") for axes in figure.axes]
        ['noise', 'noise']
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    kinds = list(dict.fromkeys(level.corruption for level in corrupted.levels))
    lines = max(1, len(kinds))
    figure = Figure(figsize=(WIDTH, 0.9 + 1.6 * lines), layout="constrained")
    grid = figure.subplots(lines, 2, sharex=True, sharey="col", squeeze=False)
    for kind, row in zip(kinds, grid, strict=False):
        levels = [level for level in corrupted.levels if level.corruption == kind]
        for axes, curves, scale in zip(row, _CURVES, (100, 1), strict=True):
            _curves(axes, levels, curves, scale)
            axes.set_title(kind, fontsize=9, loc="left", parse_math=False)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        row[0].set_ylabel("%", fontsize=9)
        row[1].set_ylabel("nats", fontsize=9)
    for axes in grid[-1]:
        axes.set_xlabel("strength (0: as they are)", fontsize=9)
    for axes in grid.flat:
        axes.set_ylim(bottom=0)
    handles = [line for axes in grid[0] for line in axes.lines]
    if handles:
        names = [str(line.get_label()) for line in handles]
        figure.legend(
            handles, names, fontsize=8, frameon=False, loc="outside upper center", ncols=4
        )
    return figure


def _curves(
    axes: Axes,
    levels: Sequence[ShiftLevel],
    curves: Sequence[tuple[str, str, dict[str, Any]]],
    scale: float,
) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
    axes.grid(color="0.92")
    strengths = [level.strength for level in levels]
    for name, label, look in curves:
        values = [scale * getattr(level, name) for level in levels]
        axes.plot(strengths, values, label=label, markersize=4, linewidth=1.4, **look)
