"""The figure of a sweep: what the personal models and the global one reach at each value, beside reference figures."""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pyro_pfedbayes.experiments.reports.figures.figure_bytes import drawing
from pyro_pfedbayes.experiments.tables.declaration.spec import value_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LOOKS = (
    ("#0b4f8a", "-", "o"),
    ("#b3480a", "--", "s"),
    ("#2c6e2f", "-.", "^"),
    ("#6b3a91", ":", "D"),
    ("#7a6a00", (0, (5, 1, 1, 1, 1, 1)), "v"),
    ("#444444", (0, (1, 3)), "P"),
)
_TITLES = {"personal": "personal models", "global": "global model"}
_WIDTH, _HEIGHT = 4.6, 3.6
_LONGEST_TICK, _LONGEST_NAME = 24, 40
# Labels nearer than this share of an axis would lie on one another.
_NEAR = 0.07
_MARGIN = 0.06
# Numbers that span more than this factor are drawn on a logarithmic axis.
_WIDE = 8


@dataclass(frozen=True)
class Curve:
    """One line: means and deviations over seeds by value, NaN where there is none."""

    name: str
    model: str  # "personal" or "global": which pair of axes it belongs to
    means: tuple[float, ...]
    deviations: tuple[float, ...]
    reference: bool = False  # others' figures, which stand at a few values


@dataclass(frozen=True)
class Curves:
    """All lines of a sweep on one data set."""

    setting: str
    measure: str  # with its unit
    labels: tuple[str, ...]  # of the values
    places: tuple[float, ...]  # of the values on the axis
    scale: str | None  # "linear", "log", or None for values without an order
    curves: tuple[Curve, ...]

    @property
    def shown(self) -> list[Curve]:
        """The lines that have a point."""
        return [curve for curve in self.curves if any(map(math.isfinite, curve.means))]

    def svg(self) -> bytes:
        """The figure as an SVG element; the same curves give the same bytes."""
        return _saved(self, "svg")

    def pdf(self) -> bytes:
        """The figure for LaTeX."""
        return _saved(self, "pdf")


def make_curves(
    setting: str, measure: str, values: Sequence[Any], curves: Sequence[Curve]
) -> Curves:
    """Curves over values of any type: numbers stand where they belong, others side by side."""
    scale = scale_of(values)
    places = values if scale is not None else range(len(values))
    labels = tuple(_short(value_text(value), _LONGEST_TICK) for value in values)
    return Curves(setting, measure, labels, tuple(map(float, places)), scale, tuple(curves))


def scale_of(values: Collection[Any]) -> str | None:
    """How an axis shows values: ``"log"``, ``"linear"``, or None for a place each, as they have no order."""
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    if len(numbers) < len(values) or not all(map(math.isfinite, numbers)):
        return None
    return "log" if min(numbers) > 0 and max(numbers) > _WIDE * min(numbers) else "linear"


def draw(curves: Curves) -> Figure:
    """A pair of axes for each model that has a line."""
    from matplotlib.figure import Figure

    shown = curves.shown
    models = [model for model in _TITLES if any(curve.model == model for curve in shown)]
    names = list(dict.fromkeys(curve.name for curve in shown))
    figure = Figure(figsize=(_WIDTH * len(models), _HEIGHT), layout="constrained")
    handles: dict[str, Any] = {}
    for model, axes in zip(models, figure.subplots(1, len(models), squeeze=False)[0], strict=True):
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_title(_TITLES[model], fontsize=10)
        scale = " (logarithmic)" if curves.scale == "log" else ""
        axes.set_xlabel(f"{curves.setting}{scale}", parse_math=False)
        axes.set_ylabel(curves.measure)
        _axis(axes, curves)
        for curve in shown:
            if curve.model == model:
                handles[curve.name] = _line(axes, curves, curve, names.index(curve.name))
    legend = figure.legend(
        list(handles.values()),
        [_short(name, _LONGEST_NAME) for name in handles],
        loc="outside lower center",
        ncols=min(3, len(handles)),
        fontsize=8,
        frameon=False,
    )
    for text in legend.get_texts():
        text.set_parse_math(False)
    return figure


def _short(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _axis(axes: Axes, curves: Curves) -> None:
    """All values have a place, those without a figure too; labels that would lie on others are left out."""
    log = curves.scale == "log"
    spots = [math.log10(place) if log else place for place in curves.places]
    low, high = min(spots), max(spots)
    width = (high - low) or 1.0
    ends = (low - _MARGIN * width, high + _MARGIN * width)
    axes.set_xscale("log" if log else "linear")
    axes.set_xlim(*(10.0**end for end in ends) if log else ends)
    labelled: list[int] = []
    for i in sorted(range(len(spots)), key=spots.__getitem__):
        if not labelled or spots[i] - spots[labelled[-1]] >= _NEAR * width:
            labelled.append(i)
    labels = [curves.labels[i] for i in labelled]
    crowded = sum(map(len, labels)) > _LONGEST_TICK
    axes.set_xticks(
        [curves.places[i] for i in labelled],
        labels,
        parse_math=False,
        fontsize=8,
        rotation=30 if crowded else 0,
        ha="right" if crowded else "center",
    )
    axes.minorticks_off()


def _line(axes: Axes, curves: Curves, curve: Curve, number: int) -> Any:
    colour, line, marker = _LOOKS[number % len(_LOOKS)]
    points = np.array([curves.places, curve.means, curve.deviations])
    points = points[:, np.argsort(points[0], kind="stable")]
    places, means, bars = points[:, np.isfinite(points[1])]
    bars = np.nan_to_num(bars)
    return axes.errorbar(
        places,
        means,
        yerr=bars if bars.any() else None,
        color=colour,
        # A line between values without an order, or across values without a figure, would show what nobody saw.
        linestyle="none" if curve.reference or curves.scale is None else line,
        marker=marker,
        markerfacecolor="none" if curve.reference else colour,
        markersize=5,
        linewidth=1.5,
        capsize=2,
    )


@functools.lru_cache(maxsize=64)
def _saved(curves: Curves, form: Literal["svg", "pdf"]) -> bytes:
    """Drawn once: a table is written whenever a run has ended, and most of its figures stay what they are."""
    return drawing(draw(curves), form)
