"""Measures and information gain against the round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pyro_pfedbayes.experiments.reports.figures import style

_SITE_LINES = ("--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)), (0, (8, 2)))


def plot_history(
    records: Sequence[Mapping[str, Any]],
    measure: str,
    label: str,
    names: Mapping[str, str] = style.MODELS,
) -> Figure:
    """A measure in the records of ``metrics.jsonl`` by round; a ``%`` in the axis' label multiplies by 100."""
    figure, axes = style.blank(height=3.0)
    scale = 100 if "%" in label else 1
    for name in style.MODELS:
        points = [
            (record["round"], scale * record[name][measure])
            for record in records
            if isinstance(record.get(name), Mapping)
            and isinstance(record[name].get(measure), int | float)
        ]
        if points:
            line = style.line_style(name, names, markevery=style.marker_step(len(points)))
            axes.plot(*zip(*points, strict=True), **line)
    axes.set_ylabel(label)
    _rounds(axes, [record["round"] for record in records])
    if axes.lines:
        style.legend(axes)
    return figure


def plot_gain_history(records: Sequence[Mapping[str, Any]]) -> Figure:
    """Information gain KL(q^i‖w) against the round: a median client's, the middle 80 % of clients, and by site.

    Records of ``metrics.jsonl`` without ``information_gain`` are passed over.
    """
    figure, axes = style.blank(height=3.0)
    known = [record for record in records if record.get("information_gain")]
    rounds = [record["round"] for record in known]
    gains = [record["information_gain"] for record in known]
    if gains:
        totals = [np.sum(list(gain.values()), axis=0) for gain in gains]
        low, middle, high = np.transpose([np.quantile(total, [0.1, 0.5, 0.9]) for total in totals])
        axes.fill_between(rounds, low, high, color="0.85", label="middle 80 % of clients")
        line: dict[str, Any] = {"color": "black", "marker": "o", "markersize": 4}
        axes.plot(
            rounds, middle, label="median client", markevery=style.marker_step(len(gains)), **line
        )
        sites = list(gains[-1])
        if 1 < len(sites) <= len(_SITE_LINES):
            for site, dashes in zip(sites, _SITE_LINES, strict=False):
                values = [np.median(gain.get(site, [np.nan])) for gain in gains]
                line = {"color": style.BLUE, "linestyle": dashes, "linewidth": 1.2}
                axes.plot(rounds, values, label=f"median, {site}", **line)
        style.legend(axes, 7)
    axes.set_ylabel("information gain (nats)")
    _rounds(axes, rounds)
    return figure


def _rounds(axes: Axes, rounds: Sequence[int]) -> None:
    """An axis of whole rounds, of one round too."""
    axes.set_xlabel("round")
    if len(set(rounds)) == 1:
        axes.set_xlim(rounds[0] - 1, rounds[0] + 1)
        axes.set_xticks([rounds[0]])
    else:
        style.integer_ticks(axes)
