"""Figures of a report on classes; each can be told without colour, and none touches pyplot's global state."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyro_pfedbayes.experiments.reports.schema import (
    ClientRow,
    Example,
    GainMap,
    Reliability,
    Selective,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MODELS = {"personal": "personal models", "global": "global model"}
MOST_CLIENTS = 30
WIDTH, HEIGHT = 4.8, 3.5
# Line, marker, colour: any one of them tells the two apart.
_LOOKS: Mapping[str, dict[str, Any]] = {
    "personal": {"color": "#0b4f8a", "linestyle": "-", "marker": "o"},
    "global": {"color": "#b3480a", "linestyle": "--", "marker": "s"},
}


_SITE_LINES = ("--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)), (0, (8, 2)))


def blank(width: float = WIDTH, height: float = HEIGHT) -> tuple[Figure, Axes]:
    """A figure of its own with one pair of axes, without frame at the top and right."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=9)
    return figure, axes


def look(model: str) -> dict[str, Any]:
    """How the line of ``personal`` or ``global`` is drawn."""
    return {**_LOOKS[model], "label": MODELS[model], "markersize": 5, "linewidth": 1.6}


def label_clients(axes: Axes, names: Sequence[str]) -> None:
    """Name the rows of a chart with one row a client, the first on top."""
    shown = [name if len(name) <= 18 else name[:17] + "…" for name in names]
    # A name such as $\q$ is not a formula.
    axes.set_yticks(range(len(names)), shown, fontsize=8, parse_math=False)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_ylabel("client")


def tall(rows: int) -> float:
    """Height in inches of a chart with so many rows."""
    return max(2.0, 0.9 + 0.24 * rows)


def plot_reliability(
    models: Mapping[str, Reliability], names: Mapping[str, str] = MODELS
) -> Figure:
    """Accuracy against confidence, by bins; larger marks hold more examples.

    Args:
        models: By ``personal`` and ``global``.
        names: What these are called.

    Example:
        >>> curve = Reliability((0.0, 0.5, 1.0), (math.nan, 0.8), (math.nan, 0.9), (0, 10))
        >>> figure = plot_reliability({"personal": curve})
        >>> figure.axes[0].get_xlabel()
        'stated probability (confidence)'
    """
    figure, axes = blank(height=4.2)
    axes.plot([0, 1], [0, 1], color="0.55", linewidth=1, linestyle=":", label="as it should be")
    for name, curve in models.items():
        rows = [i for i, count in enumerate(curve.count) if count]
        x, y = [curve.confidence[i] for i in rows], [curve.accuracy[i] for i in rows]
        most = max((curve.count[i] for i in rows), default=1)
        style = look(name)
        marker, color = style.pop("marker"), style["color"]
        axes.plot(x, y, **{**style, "label": None, "linewidth": 1.2})
        sizes = [12 + 90 * curve.count[i] / most for i in rows]
        face = color if name == "personal" else "white"
        axes.scatter(
            x,
            y,
            sizes,
            marker=marker,
            facecolor=face,
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
    axes.legend(fontsize=8, frameon=False, loc="upper left", markerscale=0.7)
    return figure


def plot_risk_coverage(
    models: Mapping[str, Selective], names: Mapping[str, str] = MODELS, *, percent: bool = True
) -> Figure:
    """Error among the examples that are answered, against their share.

    Args:
        models: By ``personal`` and ``global``.
        names: What these are called.
        percent: Whether the risk is a rate.

    Example:
        >>> curve = Selective((0.5, 1.0), (0.0, 0.1), {}, 0.05, 0.0)
        >>> plot_risk_coverage({"personal": curve}).axes[0].get_ylabel()
        'error among these (%)'
    """
    figure, axes = blank()
    scale = 100 if percent else 1
    for name, curve in models.items():
        every = max(1, len(curve.risk) // 8)
        values = [scale * value for value in curve.risk]
        style = {**look(name), "label": names[name]}
        axes.plot([100 * c for c in curve.coverage], values, markevery=every, **style)
    for share in (80, 90, 95):
        axes.axvline(share, color="0.8", linewidth=0.8, zorder=0)
    axes.set(
        xlim=(0, 101),
        xlabel="answered: the most certain examples (%)",
        ylabel="error among these (%)" if percent else "RMSE among these",
    )
    axes.set_ylim(bottom=0)
    # Above the axes: no corner is free of curves for sure.
    figure.legend(
        fontsize=8, frameon=False, loc="outside upper center", ncols=_columns(names, models)
    )
    return figure


def _columns(names: Mapping[str, str], models: Iterable[str]) -> int:
    """Columns of a legend that is as wide as a figure."""
    return 2 if sum(len(names[name]) for name in models) < 50 else 1


def plot_clients(
    rows: Sequence[ClientRow], outcome: str = "class", *, lead: str = "personal"
) -> Figure:
    """Each client's accuracy (or RMSE) with its interval, in the order given; the first `MOST_CLIENTS`.

    Args:
        rows: Clients.
        outcome: ``class`` or ``number``.
        lead: The model that the intervals are of, ``personal`` or ``global``.

    Example:
        >>> row = ClientRow(0, "ward", 9, 9, 9, 0, {"accuracy": 0.9}, None, 0.6, 0.99)
        >>> plot_clients([row]).axes[0].get_yticklabels()[0].get_text()
        'ward'
    """
    rows = rows[:MOST_CLIENTS]
    first, scale = ("accuracy", 100) if outcome == "class" else ("rmse", 1)
    figure, axes = blank(height=tall(len(rows)) + 0.3)
    for place, row in enumerate(rows):
        axes.plot(
            [scale * row.lower, scale * row.upper],
            [place] * 2,
            color=_LOOKS[lead]["color"],
            linewidth=1.4,
        )
    styles = {name: {**look(name), "linestyle": "none"} for name in MODELS}
    own = [scale * row.personal.get(first, math.nan) for row in rows]
    axes.plot(own, range(len(rows)), **styles["personal"])
    if any(row.global_ is not None for row in rows):
        other = [scale * (row.global_ or {}).get(first, math.nan) for row in rows]
        axes.plot(other, range(len(rows)), markerfacecolor="white", **styles["global"])
    label_clients(axes, [row.name for row in rows])
    axes.grid(axis="y", color="0.92")
    axes.set_xlabel(
        "accuracy (%), with 95 % interval" if outcome == "class" else "RMSE, with 95 % interval"
    )
    figure.legend(fontsize=8, frameon=False, loc="outside upper center", ncols=2)
    return figure


def plot_entropy_split(rows: Sequence[ClientRow], outcome: str = "class") -> Figure:
    """Each client's mean uncertainty in two parts: noise in the data, and what more data would remove.

    Args:
        rows: Clients; the first `MOST_CLIENTS` are shown.
        outcome: ``class``: entropies in nats. ``number``: the mean predictive standard deviation, and its epistemic
            part beside it (standard deviations do not add up).

    Example:
        >>> row = ClientRow(0, "ward", 9, 9, 9, 0, {"aleatoric": 0.2, "epistemic": 0.1}, None)
        >>> plot_entropy_split([row]).axes[0].get_xlabel()
        'mean entropy (nats)'
    """
    rows = rows[:MOST_CLIENTS]
    figure, axes = blank(height=tall(len(rows)) + 0.3)
    places = range(len(rows))

    def column(name: str) -> list[float]:
        # An undefined bar is left out, and the table says that it is not defined.
        return [row.personal.get(name, math.nan) for row in rows]

    grey: dict[str, Any] = {"color": "0.75", "edgecolor": "0.25", "linewidth": 0.6}
    white: dict[str, Any] = {
        "color": "white",
        "edgecolor": "0.15",
        "linewidth": 0.6,
        "hatch": "////",
    }
    if outcome == "class" and not any(map(math.isfinite, column("aleatoric"))):
        axes.barh(places, column("entropy"), label="total, which is not split", height=0.72, **grey)
        axes.set_xlabel("mean entropy (nats)")
    elif outcome == "class":
        noise = column("aleatoric")
        axes.barh(places, noise, label="aleatoric (noise)", height=0.72, **grey)
        known = column("epistemic")
        axes.barh(places, known, left=noise, label="epistemic (too few data)", height=0.72, **white)
        axes.set_xlabel("mean entropy (nats)")
    else:
        axes.barh(places, column("sd"), label="all (predictive sd)", height=0.72, **grey)
        known = column("epistemic_sd")
        if any(map(math.isfinite, known)):
            axes.barh(places, known, label="epistemic part alone", height=0.4, **white)
        axes.set_xlabel("mean standard deviation (units of the outcome)")
    label_clients(axes, [row.name for row in rows])
    figure.legend(fontsize=8, frameon=False, loc="outside upper center", ncols=2)
    return figure


def plot_history(
    records: Sequence[Mapping[str, Any]],
    measure: str,
    label: str,
    names: Mapping[str, str] = MODELS,
) -> Figure:
    """A measure on test examples against the round.

    Args:
        records: Of ``metrics.jsonl``.
        measure: Its name there.
        label: What to write at the axis; a ``%`` in it multiplies by 100.
        names: What ``personal`` and ``global`` are called.

    Example:
        >>> records = [{"round": 1, "personal": {"nll": 0.4}, "global": {"nll": 0.5}}]
        >>> len(plot_history(records, "nll", "NLL (nats)").axes[0].lines)
        2
    """
    figure, axes = blank(height=3.0)
    scale = 100 if "%" in label else 1
    for name in MODELS:
        points = [
            (record["round"], scale * record[name][measure])
            for record in records
            if isinstance(record.get(name), Mapping)
            and isinstance(record[name].get(measure), int | float)
        ]
        if points:
            every = max(1, len(points) // 12)
            style = {**look(name), "label": names[name]}
            axes.plot(*zip(*points, strict=True), markevery=every, **style)
    axes.set(xlabel="round", ylabel=label)
    _rounds(axes, [record["round"] for record in records])
    if axes.lines:
        axes.legend(fontsize=8, frameon=False)
    return figure


def _rounds(axes: Axes, rounds: Sequence[int]) -> None:
    """An axis of whole rounds, of one round too."""
    from matplotlib.ticker import MaxNLocator

    if len(set(rounds)) == 1:
        axes.set_xlim(rounds[0] - 1, rounds[0] + 1)
        axes.set_xticks([rounds[0]])
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def plot_gain_history(records: Sequence[Mapping[str, Any]]) -> Figure:
    """Information gain KL(q^i‖w) against the round: a median client's, the middle 80 % of clients, and by site.

    Args:
        records: Of ``metrics.jsonl``; those without ``information_gain`` are passed over.

    Example:
        >>> records = [{"round": k, "information_gain": {"w": [1.0 * k, 2.0 * k]}} for k in (1, 2)]
        >>> plot_gain_history(records).axes[0].get_ylabel()
        'information gain (nats)'
    """
    import numpy as np

    figure, axes = blank(height=3.0)
    told = [record for record in records if record.get("information_gain")]
    rounds = [record["round"] for record in told]
    sites = list(told[-1]["information_gain"]) if told else []
    if told:
        totals = [np.sum(list(record["information_gain"].values()), axis=0) for record in told]
        low, middle, high = (
            [float(np.quantile(total, share)) for total in totals] for share in (0.1, 0.5, 0.9)
        )
        every = max(1, len(told) // 12)
        axes.fill_between(rounds, low, high, color="0.85", label="middle 80 % of clients")
        axes.plot(
            rounds,
            middle,
            "-",
            color="black",
            marker="o",
            markevery=every,
            markersize=4,
            label="median client",
        )
    if 1 < len(sites) <= len(_SITE_LINES):
        for site, line in zip(sites, _SITE_LINES, strict=False):
            values = [
                float(np.median(record["information_gain"].get(site, [np.nan]))) for record in told
            ]
            axes.plot(
                rounds,
                values,
                color="#0b4f8a",
                linestyle=line,
                linewidth=1.2,
                label=f"median, {site}",
            )
    axes.set(xlabel="round", ylabel="information gain (nats)")
    _rounds(axes, rounds)
    if told:
        axes.legend(fontsize=7, frameon=False)
    return figure


def plot_information_gain(gain: GainMap) -> Figure:
    """Clients by sites: darker where the client's posterior moved further from the server's; nats in the cells.

    Example:
        >>> plot_information_gain(GainMap(("a", "b"), ("w",), ((1.0,), (2.0,)))).axes[0].get_xlabel()
        'site (a layer or parameter of the model)'
    """
    from matplotlib.colors import PowerNorm

    rows = gain.kl[:MOST_CLIENTS]
    finite = [value for row in rows for value in row if math.isfinite(value)]
    top = max([*finite, 1e-12])
    figure, axes = blank(height=tall(len(rows)) + 0.8)
    # The square root tells little from none.
    shade = PowerNorm(0.5, vmin=0.0, vmax=1.3 * top)
    values = [[value if math.isfinite(value) else math.nan for value in row] for row in rows]
    axes.imshow(values, cmap="Greys", norm=shade, aspect="auto", interpolation="nearest")
    for place, row in enumerate(values):
        for column, value in enumerate(row):
            text = "–" if math.isnan(value) else f"{value:.3g}"
            ink = "white" if shade(max(value, 0.0)) > 0.58 else "black"
            if len(row) <= 8:
                axes.text(column, place, text, ha="center", va="center", color=ink, fontsize=8)
    label_clients(axes, gain.clients[:MOST_CLIENTS])
    turned = len(gain.sites) > 3 or max(map(len, gain.sites)) > 12
    axes.set_xticks(range(len(gain.sites)), gain.sites, fontsize=8, parse_math=False)
    if turned:
        axes.tick_params(axis="x", labelrotation=30)
        for label in axes.get_xticklabels():
            label.set(horizontalalignment="right", rotation_mode="anchor")
    axes.set_xlabel("site (a layer or parameter of the model)")
    return figure


def plot_examples(examples: Sequence[Example]) -> Figure:
    """Pictures of examples with outcome, prediction and uncertainty; those without a picture are left out.

    Example:
        >>> one = Example(3, "0", "5", "9", 0.4, 1.5, 0.2, image=[[0.0, 1.0], [1.0, 0.0]])
        >>> len(plot_examples([one]).axes)
        1
    """
    from matplotlib.figure import Figure

    shown = [example for example in examples if example.image is not None]
    columns = 3
    lines = max(1, -(-len(shown) // columns))
    figure = Figure(figsize=(WIDTH, 2.15 * lines), layout="constrained")
    grid = figure.subplots(lines, columns, squeeze=False)
    for axes in grid.flat[len(shown) :]:
        figure.delaxes(axes)
    for axes, example in zip(grid.flat, shown, strict=False):
        axes.imshow(example.image, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        axes.set_xticks([])
        axes.set_yticks([])
        sure = "" if math.isnan(example.probability) else f" ({100 * example.probability:.0f} %)"
        text = f"is {_short(example.label)}\nsaid {_short(example.predicted)}{sure}\nclient {_short(example.client)}"
        axes.set_title(text, fontsize=8, parse_math=False)
    return figure


def _short(text: str) -> str:
    return text if len(text) <= 14 else text[:13] + "…"
