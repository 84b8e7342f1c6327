"""Tables for people: the result of a run, and how each client fares."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pyro_pfedbayes.measures.registry import MEASURES


def counted(number: int, what: str) -> str:
    """A number and its noun: ``1 client``, ``2 clients``."""
    return f"{number} {what}" + ("" if number == 1 else "s")


def print_lines(console: Console, *lines: str) -> None:
    """Print text as it is, however long and whatever brackets are in it."""
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def plain_table(title: str) -> Table:
    """An empty table whose title is not read as markup."""
    return Table(title=plain_title(title), title_justify="left", box=box.SIMPLE, pad_edge=False)


def plain_title(text: str) -> Text:
    """A table's title that is not read as markup, as names of data and clients may look like some."""
    return Text(text, style="table.title")


@dataclass(frozen=True)
class _Layout:
    """How the measures of one kind of outcome are shown."""

    heading: str
    unit: str  # after ``selected`` and ``last`` in the head of the result's table
    best: str  # what the best figure on the test set is called
    further: tuple[str, ...]  # the other measures of the result's table
    by_client: tuple[str, ...]  # those of the table of clients
    by_client_heading: str  # of the first measure there, after PM or GM


def short_number(value: float | None) -> str:
    """A number of any size to four digits; a dash for one that is missing or not finite."""
    return "–" if value is None or not math.isfinite(value) else f"{value:.4g}"


def first_measure(values: Mapping[str, Any]) -> str:
    """The name of the first measure of a summary's column or a record: accuracy, or RMSE of numbers."""
    return "rmse" if any(name in values for name in ("rmse", "validation_rmse")) else "accuracy"


def result_table(summary: Mapping[str, Any]) -> Table:
    """The first measure of a summary, first as selected by validation examples; then the last round's others."""
    first = first_measure(summary["personal"])
    look = _LAYOUTS[first]
    selected = any(summary[key][first]["selected"] is not None for key in ("personal", "global"))
    order = ("selected", "last", "best") if selected else ("last", "best")
    size = f"{counted(summary['clients'], 'client')}, {counted(summary['rounds'], 'round')}"
    table = plain_table(f"{summary['algorithm']} on {summary['data']}, {summary['split']}, {size}")
    table.add_column(look.heading)
    for name in order:
        heading, style = f"{name}{look.unit}", "bold" if name == order[0] else ""
        if name == "best":
            heading, style = f"({look.best}{look.unit})", "dim"
        table.add_column(heading, justify="right", style=style)
    for measure in look.further:
        table.add_column(MEASURES[measure].short, justify="right")
    for name, key in (("personal models (PM)", "personal"), ("global model (GM)", "global")):
        column = summary[key]
        table.add_row(
            name,
            *(_shown(column[first][which], first) for which in order),
            *(_shown(column.get(measure), measure) for measure in look.further),
        )
    at_mean = summary["global"].get(f"mean_weights_{first}")
    if at_mean is not None:
        cells = [_shown(at_mean, first) if which == "last" else "" for which in order]
        table.add_row("GM at mean weights", *cells, *[""] * len(look.further))
    return table


def result_lines(summary: Mapping[str, Any], folder: str) -> list[str]:
    """What stands below the table."""
    seconds, lines = summary["seconds"], []
    first = first_measure(summary["personal"])
    if summary["personal"][first]["selected"] is not None:
        best = f"{_LAYOUTS[first].best}: the best on the test set"
        lines.append(f"selected: at the round that was best on validation examples; {best}")
    for client, count in summary["dropped"].items():
        rounds = counted(count, "round")
        lines.append(f"client {client} diverged in {rounds}; its updates were left out there")
    if summary.get("screened"):
        each = [f"client {i} in {counted(n, 'round')}" for i, n in summary["screened"].items()]
        lines.append(f"screening left uploads out of the average: {', '.join(each)}")
    elif "screened" in summary:
        lines.append("screening left no client out")
    spent = f"{seconds['train']:.1f} s of training, {seconds['evaluate']:.1f} s of evaluation"
    steps = f"{summary['gradient_steps']:,} gradient steps"
    return [*lines, f"{spent}, {steps}", f"everything is in {folder}"]


def client_table(rows: Sequence[Mapping[str, Any]], pooled: Mapping[str, Any], title: str) -> Table:
    """Per-client measures of the personal and the global models, and those of all examples together."""
    first = first_measure(pooled["personal"])
    look = _LAYOUTS[first]
    table = plain_table(title)
    table.add_column("client")
    table.add_column("examples", justify="right")
    for model in ("PM", "GM"):
        for measure in look.by_client:
            heading, style = MEASURES[measure].short, ""
            if measure == first:
                heading, style = f"{model} {look.by_client_heading}", "bold"
            table.add_column(heading, justify="right", style=style)

    def cells(row: Mapping[str, Any]) -> list[str]:
        return [
            _shown(row[key].get(measure), measure)
            for key in ("personal", "global")
            for measure in look.by_client
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


def _shown(value: float | None, measure: str) -> str:
    """A share in per cent, a number in the outcome's unit to four digits, others to three places."""
    unit = MEASURES[measure].unit
    if value is None or (unit != "%" and math.isinf(value)):
        return "–"
    if unit == "outcome":
        return short_number(value)
    return f"{100 * value:.1f}" if unit == "%" else f"{value:.3f}"


_LAYOUTS = {
    "accuracy": _Layout(
        heading="test accuracy",
        unit=" %",
        best="peak",
        further=("nll", "ece", "brier"),
        by_client=("accuracy", "nll", "ece"),
        by_client_heading="%",
    ),
    "rmse": _Layout(
        heading="test RMSE",
        unit="",
        best="least",
        further=("mae", "nll", "coverage90"),
        by_client=("rmse", "nll", "coverage90"),
        by_client_heading="RMSE",
    ),
}
