"""The figure of a sweep: what the personal models and the global one reach at each value, beside reference figures."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyro_pfedbayes.experiments.tables.sweeps import is_scale, value_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Curve", "Curves", "draw"]

_LOOKS = (
    ("#0b4f8a", "-", "o"),
    ("#b3480a", "--", "s"),
    ("#2c6e2f", "-.", "^"),
    ("#6b3a91", ":", "D"),
    ("#7a6a00", (0, (5, 1, 1, 1, 1, 1)), "v"),
    ("#444444", (0, (1, 3)), "P"),
)
_TITLES = {"personal": "personal models", "global": "global model"}
_WIDTH, _HEIGHT = 4.6, 3.3


@dataclass(frozen=True)
class Curve:
    """One line.

    Attributes:
        name: In the legend.
        model: ``"personal"`` or ``"global"``: which pair of axes it belongs to.
        means: By value; NaN where there is none.
        deviations: Over seeds, by value; NaN where there is none.
        reference: Whether the figures are others'.
    """

    name: str
    model: str
    means: tuple[float, ...]
    deviations: tuple[float, ...]
    reference: bool = False

    @property
    def empty(self) -> bool:
        """Whether there is nothing to draw."""
        return not any(math.isfinite(mean) for mean in self.means)


@dataclass(frozen=True)
class Curves:
    """All lines of a sweep on one data set.

    Attributes:
        setting: What is varied.
        measure: What the lines show, with its unit.
        values: Of the setting.
        curves: The lines.
    """

    setting: str
    measure: str
    values: tuple[Any, ...]
    curves: tuple[Curve, ...]

    def svg(self) -> bytes:
        """The figure as an SVG element; the same curves give the same bytes."""
        drawing = _saved(self, "svg", {"Date": None})
        # Without the prolog, which names a document type on the network.
        return drawing[drawing.index(b"<svg") :]

    def pdf(self) -> bytes:
        """The figure for LaTeX."""
        return _saved(self, "pdf", {"CreationDate": None})


def draw(curves: Curves) -> Figure:
    """A pair of axes for each model that has a line."""
    from matplotlib.figure import Figure

    shown = [curve for curve in curves.curves if not curve.empty]
    models = [model for model in _TITLES if any(curve.model == model for curve in shown)]
    figure = Figure(figsize=(_WIDTH * max(1, len(models)), _HEIGHT), layout="constrained")
    names = list(dict.fromkeys(curve.name for curve in shown))
    for number, model in enumerate(models):
        axes = figure.add_subplot(1, len(models), number + 1)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_title(_TITLES[model], fontsize=10)
        axes.set_xlabel(curves.setting, parse_math=False)
        axes.set_ylabel(curves.measure)
        places = _axis(axes, curves.values)
        for curve in shown:
            if curve.model == model:
                _line(axes, places, curve, names.index(curve.name))
        axes.legend(fontsize=8, frameon=False)
    return figure


def _axis(axes: Axes, values: Sequence[Any]) -> list[float]:
    """Where the values stand."""
    scale = is_scale(values)
    places = [float(v) for v in values] if scale is not None else [*map(float, range(len(values)))]
    if scale == "log":
        axes.set_xscale("log")
    axes.set_xticks(places, [value_text(value) for value in values], parse_math=False)
    axes.minorticks_off()
    return places


def _line(axes: Axes, places: Sequence[float], curve: Curve, number: int) -> None:
    colour, line, marker = _LOOKS[number % len(_LOOKS)]
    order = sorted(range(len(places)), key=places.__getitem__)
    known = [i for i in order if math.isfinite(curve.means[i])]
    bars = [d if math.isfinite(d) else 0.0 for d in (curve.deviations[i] for i in known)]
    axes.errorbar(
        [places[i] for i in known],
        [curve.means[i] for i in known],
        yerr=bars if any(bars) else None,
        color=colour,
        linestyle=line,
        marker=marker,
        markerfacecolor="none" if curve.reference else colour,
        markersize=5,
        linewidth=1.5,
        capsize=2,
        label=curve.name.replace("$", r"\$"),
    )


def _saved(curves: Curves, form: str, metadata: dict[str, Any]) -> bytes:
    import matplotlib

    out = io.BytesIO()
    options = {"svg.hashsalt": "pfedbayes", "svg.fonttype": "path"}
    with matplotlib.rc_context(options), warnings.catch_warnings():
        # A letter that the font lacks is shown as a box; the table beside the figure has the name.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        draw(curves).savefig(out, format=form, metadata=metadata)
    return out.getvalue()
