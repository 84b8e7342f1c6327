"""Tables for people: the result of a run, and how each client fares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

__all__ = [
    "client_rows",
    "client_table",
    "counted",
    "list_table",
    "plain_title",
    "result_lines",
    "result_table",
]

_MEASURES = ("accuracy", "nll", "ece")


def counted(number: int, what: str) -> str:
    """A number and its noun: ``1 client``, ``2 clients``."""
    return f"{number} {what}" + ("" if number == 1 else "s")


def plain_title(text: str) -> Text:
    """A table's title that is not read as markup, as names of data and clients may look like some."""
    return Text(text, style="table.title")


def result_table(summary: Mapping[str, Any]) -> Table:
    """Accuracies of a summary, the honest ones first, then the last round's NLL and ECE."""
    selected = any(
        summary[key]["accuracy"]["selected"] is not None for key in ("personal", "global")
    )
    order = ("selected", "last", "best") if selected else ("last", "best")
    headings = {"selected": "selected %", "last": "last %", "best": "(peak %)"}
    size = f"{counted(summary['clients'], 'client')}, {counted(summary['rounds'], 'round')}"
    title = f"{summary['algorithm']} on {summary['data']}, {summary['split']}, {size}"
    table = Table(title=plain_title(title), title_justify="left", box=box.SIMPLE, pad_edge=False)
    table.add_column("test accuracy")
    for name in order:
        style = {"best": "dim"}.get(name, "bold" if name == order[0] else "")
        table.add_column(headings[name], justify="right", style=style)
    for name in ("NLL", "ECE %", "Brier"):
        table.add_column(name, justify="right")
    for name, key in (("personal models (PM)", "personal"), ("global model (GM)", "global")):
        column = summary[key]
        table.add_row(
            name,
            *(_percent(column["accuracy"][which]) for which in order),
            _number(column.get("nll")),
            _percent(column.get("ece")),
            _number(column.get("brier")),
        )
    at_mean = summary["global"].get("mean_weights_accuracy")
    if at_mean is not None:
        cells = [_percent(at_mean) if which == "last" else "" for which in order]
        table.add_row("GM at mean weights", *cells, "", "", "")
    return table


def result_lines(summary: Mapping[str, Any], folder: str) -> list[str]:
    """What stands below the table."""
    seconds = summary["seconds"]
    lines = []
    if summary["personal"]["accuracy"]["selected"] is not None:
        lines.append(
            "selected: at the round that was best on validation examples; peak: the best on the test set"
        )
    for client, count in summary["dropped"].items():
        rounds = counted(count, "round")
        lines.append(f"client {client} diverged in {rounds}; its updates were left out there")
    spent = f"{seconds['train']:.1f} s of training, {seconds['evaluate']:.1f} s of evaluation"
    lines += [
        f"{spent}, {summary['gradient_steps']:,} gradient steps",
        f"everything is in {folder}",
    ]
    return lines


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
    table = Table(title=plain_title(title), title_justify="left", box=box.SIMPLE, pad_edge=False)
    table.add_column("client")
    table.add_column("examples", justify="right")
    for name in ("PM %", "NLL", "ECE %", "GM %", "NLL", "ECE %"):
        table.add_column(name, justify="right", style="bold" if name in ("PM %", "GM %") else "")
    for row in rows:
        table.add_row(Text(str(row["name"])), f"{row['examples']:,}", *_cells(row))
    table.add_section()
    table.add_row("all", f"{pooled['examples']:,}", *_cells(pooled))
    return table


def list_table(rows: Mapping[str, str]) -> Table:
    """Names and what they are, a line each."""
    table = Table(box=None, show_header=False, pad_edge=True, padding=(0, 2, 0, 1))
    table.add_column(style="bold", no_wrap=True, min_width=14)
    table.add_column()
    for name, line in rows.items():
        table.add_row(Text(name), Text(line))
    return table


def _cells(row: Mapping[str, Any]) -> list[str]:
    cells = []
    for key in ("personal", "global"):
        accuracy, nll, ece = (row[key].get(name) for name in _MEASURES)
        cells += [_percent(accuracy), _number(nll), _percent(ece)]
    return cells


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
