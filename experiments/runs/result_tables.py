"""Tables for people: the result of a run, and how each client fares."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text


def counted(number: int, what: str) -> str:
    """A number and its noun: ``1 client``, ``2 clients``."""
    return f"{number} {what}" + ("" if number == 1 else "s")


def plain_title(text: str) -> Text:
    """A table's title that is not read as markup, as names of data and clients may look like some."""
    return Text(text, style="table.title")


@dataclass(frozen=True)
class _Layout:
    """How the measures of one kind of outcome are shown.

    Attributes:
        first: Name of the first measure.
        heading: What the result's table is about.
        unit: What follows ``selected`` and ``last`` in its head.
        best: What the best figure on the test set is called.
        shown: How a first measure is written.
        further: The other measures of the result's table, with their headings.
        by_client: Those of the table of clients; ``{}`` stands for PM or GM.
        explained: What ``best`` means, in words.
    """

    first: str
    heading: str
    unit: str
    best: str
    shown: Callable[[float | None], str]
    further: Mapping[str, tuple[str, Callable[[float | None], str]]]
    by_client: Mapping[str, tuple[str, Callable[[float | None], str]]]
    explained: str


def short_number(value: float | None) -> str:
    """A number of any size to four digits; a dash for one that is missing or not finite."""
    return "–" if value is None or not math.isfinite(value) else f"{value:.4g}"


def first_measure(values: Mapping[str, Any]) -> str:
    """The name of the first measure of a summary's column or a record: accuracy, or RMSE of numbers."""
    return "rmse" if any(name in values for name in ("rmse", "validation_rmse")) else "accuracy"


def result_table(summary: Mapping[str, Any]) -> Table:
    """The first measure of a summary, the honest figures first, then the last round's others."""
    look = _layout(summary["personal"])
    first = look.first
    selected = any(summary[key][first]["selected"] is not None for key in ("personal", "global"))
    order = ("selected", "last", "best") if selected else ("last", "best")
    headings = {
        "selected": f"selected{look.unit}",
        "last": f"last{look.unit}",
        "best": f"({look.best}{look.unit})",
    }
    size = f"{counted(summary['clients'], 'client')}, {counted(summary['rounds'], 'round')}"
    title = f"{summary['algorithm']} on {summary['data']}, {summary['split']}, {size}"
    table = Table(title=plain_title(title), title_justify="left", box=box.SIMPLE, pad_edge=False)
    table.add_column(look.heading)
    for name in order:
        style = {"best": "dim"}.get(name, "bold" if name == order[0] else "")
        table.add_column(headings[name], justify="right", style=style)
    for heading, _ in look.further.values():
        table.add_column(heading, justify="right")
    for name, key in (("personal models (PM)", "personal"), ("global model (GM)", "global")):
        column = summary[key]
        table.add_row(
            name,
            *(look.shown(column[first][which]) for which in order),
            *(shown(column.get(measure)) for measure, (_, shown) in look.further.items()),
        )
    at_mean = summary["global"].get(f"mean_weights_{first}")
    if at_mean is not None:
        cells = [look.shown(at_mean) if which == "last" else "" for which in order]
        table.add_row("GM at mean weights", *cells, *[""] * len(look.further))
    return table


def result_lines(summary: Mapping[str, Any], folder: str) -> list[str]:
    """What stands below the table."""
    seconds = summary["seconds"]
    look = _layout(summary["personal"])
    lines = []
    if summary["personal"][look.first]["selected"] is not None:
        lines.append(
            f"selected: at the round that was best on validation examples; {look.explained}"
        )
    for client, count in summary["dropped"].items():
        rounds = counted(count, "round")
        lines.append(f"client {client} diverged in {rounds}; its updates were left out there")
    if "screened" in summary:
        lines.append(_screening_line(summary["screened"]))
    spent = f"{seconds['train']:.1f} s of training, {seconds['evaluate']:.1f} s of evaluation"
    lines += [
        f"{spent}, {summary['gradient_steps']:,} gradient steps",
        f"everything is in {folder}",
    ]
    return lines


def _screening_line(screened: Mapping[str, int]) -> str:
    """Whose uploads the server's rule left out, and how often."""
    if not screened:
        return "screening left no client out"
    each = [f"client {client} in {counted(count, 'round')}" for client, count in screened.items()]
    return f"screening left uploads out of the average: {', '.join(each)}"


def client_rows(
    names: Sequence[str],
    measured: Mapping[str, Mapping[int, Mapping[str, float]]],
    sizes: Mapping[int, int],
) -> list[dict[str, Any]]:
    """A record a client that has examples: ``client``, ``name``, ``examples``, ``personal``, ``global``."""
    return [
        {
            "client": client,
            "name": names[client],
            "examples": size,
            **{key: dict(by_client[client]) for key, by_client in measured.items()},
        }
        for client, size in sizes.items()
    ]


def client_table(rows: Sequence[Mapping[str, Any]], pooled: Mapping[str, Any], title: str) -> Table:
    """Per-client measures of the personal and the global models, and those of all examples together."""
    look = _layout(pooled["personal"])
    table = Table(title=plain_title(title), title_justify="left", box=box.SIMPLE, pad_edge=False)
    table.add_column("client")
    table.add_column("examples", justify="right")
    for model in ("PM", "GM"):
        for measure, (heading, _) in look.by_client.items():
            style = "bold" if measure == look.first else ""
            table.add_column(heading.format(model), justify="right", style=style)

    def cells(row: Mapping[str, Any]) -> list[str]:
        return [
            shown(row[key].get(measure))
            for key in ("personal", "global")
            for measure, (_, shown) in look.by_client.items()
        ]

    for row in rows:
        table.add_row(Text(str(row["name"])), f"{row['examples']:,}", *cells(row))
    table.add_section()
    table.add_row("all", f"{pooled['examples']:,}", *cells(pooled))
    return table


def list_table(rows: Mapping[str, str]) -> Table:
    """Names and what they are, a line each."""
    table = Table(box=None, show_header=False, pad_edge=True, padding=(0, 2, 0, 1))
    table.add_column(style="bold", no_wrap=True, min_width=14)
    table.add_column()
    for name, line in rows.items():
        table.add_row(Text(name), Text(line))
    return table


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}"


def _number(value: float | None) -> str:
    return "–" if value is None or math.isinf(value) else f"{value:.3f}"


def _layout(column: Mapping[str, Any]) -> _Layout:
    return _LAYOUTS[first_measure(column)]


_LAYOUTS = {
    "accuracy": _Layout(
        first="accuracy",
        heading="test accuracy",
        unit=" %",
        best="peak",
        shown=_percent,
        further={"nll": ("NLL", _number), "ece": ("ECE %", _percent), "brier": ("Brier", _number)},
        by_client={
            "accuracy": ("{} %", _percent),
            "nll": ("NLL", _number),
            "ece": ("ECE %", _percent),
        },
        explained="peak: the best on the test set",
    ),
    "rmse": _Layout(
        first="rmse",
        heading="test RMSE",
        unit="",
        best="least",
        shown=short_number,
        further={
            "mae": ("MAE", short_number),
            "nll": ("NLL", _number),
            "coverage90": ("in 90 %", _percent),
        },
        by_client={
            "rmse": ("{} RMSE", short_number),
            "nll": ("NLL", _number),
            "coverage90": ("in 90 %", _percent),
        },
        explained="least: the best on the test set",
    ),
}
