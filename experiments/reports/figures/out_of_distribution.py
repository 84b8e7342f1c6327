"""Figures of out-of-distribution detection, and of what damage does to accuracy and certainty."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from pyro_pfedbayes.experiments.reports.figures import style
from pyro_pfedbayes.experiments.reports.schema import Corrupted, OodScore

SCORE_NAMES: Mapping[str, str] = {
    "epistemic": "epistemic entropy",
    "total": "total entropy",
    "max_probability": "1 - largest probability",
}
# Marker, fill and colour: any one of them tells the scores apart.
_LOOKS: Mapping[str, dict[str, Any]] = {
    "epistemic": {"marker": "o", "color": style.BLUE},
    "total": {"marker": "s", "color": style.ORANGE, "markerfacecolor": "white"},
    "max_probability": {"marker": "^", "color": "0.25", "markerfacecolor": "0.75"},
}
# A panel of shares and one of entropies: attribute of a level, label, look.
_PANELS: Sequence[tuple[str, int, Sequence[tuple[str, str, dict[str, Any]]]]] = (
    (
        "%",
        100,
        (
            ("accuracy", "accuracy", {"color": style.BLUE, "linestyle": "-", "marker": "o"}),
            ("ece", "ECE", {"color": style.ORANGE, "linestyle": "--", "marker": "s"}),
        ),
    ),
    (
        "nats",
        1,
        (
            ("total", "total entropy", {"color": "0.15", "linestyle": "-", "marker": "D"}),
            ("epistemic", "epistemic", {"color": "#5a7d1c", "linestyle": ":", "marker": "^"}),
        ),
    ),
)


def plot_detection(kinds: Mapping[str, Sequence[OodScore]]) -> Figure:
    """AUROC of each score, with its 95 % interval, at telling each kind of examples from the clients' own."""
    figure, axes = style.blank(height=1.4 + 0.62 * len(kinds))
    ends = [0.5]
    for row, scores in enumerate(kinds.values()):
        for place, score in enumerate(scores):
            found, y = score.auroc, row + 0.24 * (place - (len(scores) - 1) / 2)
            look = {"linestyle": "none", "markersize": 6, **_LOOKS.get(score.name, {"marker": "x"})}
            name = SCORE_NAMES.get(score.name, score.name) if row == 0 else None
            axes.plot([found.lower, found.upper], [y, y], color=look.get("color"), linewidth=1.4)
            axes.plot([found.value], [y], label=name, **look)
            ends += [end for end in (found.value, found.lower) if math.isfinite(end)]
    axes.axvline(0.5, color="0.3", linewidth=1, linestyle=":")
    style.label_rows(axes, list(kinds), size=9)
    axes.set_xlim(max(0.0, min(ends) - 0.03), 1.01)
    axes.grid(axis="x", color="0.92")
    axes.set_xlabel("AUROC (0.5: tells nothing; 1: tells all)")
    style.legend_above(figure, columns=3, handletextpad=0.2)
    return figure


def plot_corruptions(corrupted: Corrupted) -> Figure:
    """Accuracy, calibration error and entropy against the strength of the damage, a row a corruption."""
    by_kind = corrupted.by_corruption
    lines = max(1, len(by_kind))
    figure, grid = style.panels(lines, 2, 0.9 + 1.6 * lines, ticks=8, sharex=True, sharey="col")
    for (kind, levels), row in zip(by_kind.items(), grid, strict=False):
        for axes, (unit, scale, curves) in zip(row, _PANELS, strict=True):
            for name, label, look in curves:
                values = [scale * getattr(level, name) for level in levels]
                line = {"label": label, "markersize": 4, "linewidth": 1.4, **look}
                axes.plot([level.strength for level in levels], values, **line)
            axes.grid(color="0.92")
            axes.set_title(kind, fontsize=9, loc="left", parse_math=False)
            axes.set_ylabel(unit, fontsize=9)
            style.integer_ticks(axes)
    for axes in grid[-1]:
        axes.set_xlabel("strength (0: as they are)", fontsize=9)
    for axes in grid.flat:
        axes.set_ylim(bottom=0)
    handles = [line for axes in grid[0] for line in axes.lines]
    if handles:
        style.legend_above(figure, handles, [line.get_label() for line in handles], columns=4)
    return figure
