"""A partition as a small table of text: who holds how much of what."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor

MAX_ROWS = 16
"""A table shows all clients up to this number, otherwise the first and last few."""
EDGE_ROWS = 5
_HEADINGS = {"train": "train", "validation": "valid.", "test": "test"}


def partition_table(
    scheme: str,
    names: tuple[str, ...],
    classes: tuple[str, ...],
    train: Tensor,
    sizes: Mapping[str, Tensor],
    width: int = 100,
) -> Table:
    """Tabulate a partition: training examples a class (if those fit), then each part's size.

    Args:
        scheme: The title.
        names: Of the N clients.
        classes: Names of the C classes.
        train: Training examples a client and class, int64 ``[N, C]``.
        sizes: Examples a client, int64 ``[N]``, under ``train``, ``validation`` and ``test``; those
            without a known label included.
        width: Columns of text there are. Where the classes do not fit side by side, each client
            shows how many it holds, and those it has most of.
    """
    clients = len(names)
    totals = [sizes[part] for part in _HEADINGS]
    all_rows = [*train.tolist(), train.sum(0).tolist()]
    digits = [max(3, *(len(str(row[c])) for row in all_rows)) for c in range(len(classes))]
    few = clients <= MAX_ROWS
    taken = [max(6 if few else 8, *map(len, names), 0)]
    taken += [
        max(len(h), len(str(int(t.sum())))) for h, t in zip(_HEADINGS.values(), totals, strict=True)
    ]
    # A space at either edge and one after each column.
    spare = width - 2 - sum(size + 1 for size in taken)
    wide = sum(size + 1 for size in digits) > spare + 1
    table = Table(
        title=Text(
            f"{clients} client{'s' if clients != 1 else ''}, {scheme}: training examples of each class",
            style="table.title",
        ),
        title_justify="left",
        box=box.SIMPLE,
        padding=(0, 0),
        pad_edge=False,
    )
    table.add_column("client", no_wrap=True)
    if wide:
        table.add_column("classes", justify="right", no_wrap=True)
        table.add_column("most of", no_wrap=True, max_width=max(8, spare - 8))
    else:
        for name, size in zip(classes, digits, strict=True):
            table.add_column(Text(name[: max(size, 4)]), justify="right", no_wrap=True)
    for heading in _HEADINGS.values():
        table.add_column(heading, justify="right", style="bold", no_wrap=True)

    def cells(row: Tensor, sizes: list[int]) -> list[Text]:
        most = [classes[c] for c in row.argsort(descending=True, stable=True).tolist() if row[c]]
        labels = [str(len(most)), " ".join(most)] if wide else [str(c or "·") for c in row.tolist()]
        return [Text(cell) for cell in (*labels, *map(str, sizes))]

    shown = range(clients) if few else [*range(EDGE_ROWS), *range(clients - EDGE_ROWS, clients)]
    for place, client in enumerate(shown):
        if not few and place == EDGE_ROWS:
            table.add_row("...", *["..."] * (len(table.columns) - 1))
        table.add_row(Text(names[client]), *cells(train[client], [int(t[client]) for t in totals]))
    table.add_section()
    table.add_row("all", *cells(train.sum(0), [int(t.sum()) for t in totals]))
    if not few:
        blank = [""] * (len(table.columns) - 4)
        table.add_row("smallest", *blank, *(str(int(t.min())) for t in totals))
        table.add_row("largest", *blank, *(str(int(t.max())) for t in totals))
    return table


def table_text(table: Table, width: int = 100) -> str:
    """Render a table as plain text of at most ``width`` columns, without colour."""
    out = io.StringIO()
    Console(file=out, width=width, color_system=None, force_terminal=False).print(table)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def number_table(
    scheme: str,
    names: Sequence[str],
    train: Sequence[Tensor],
    sizes: Mapping[str, Tensor],
) -> Table:
    """Tabulate a partition: the size of each part, mean and standard deviation of training outcomes.

    Args:
        scheme: The title.
        names: Of the N clients.
        train: Training outcomes of each client, ``[n_i]``, NaN where missing.
        sizes: Examples a client, int64 ``[N]``, under ``train``, ``validation`` and ``test``.
    """
    clients = len(names)
    table = Table(
        title=Text(
            f"{clients} client{'s' if clients != 1 else ''}, {scheme}: training outcomes",
            style="table.title",
        ),
        title_justify="left",
        box=box.SIMPLE,
        pad_edge=False,
    )
    table.add_column("client", no_wrap=True)
    for heading in ("train", "valid.", "test"):
        table.add_column(heading, justify="right", style="bold", no_wrap=True)
    missing = any(bool(y.isnan().any()) for y in train)
    for heading in (*(("missing",) if missing else ()), "mean y", "± sd"):
        table.add_column(heading, justify="right", no_wrap=True)
    totals = [sizes[part] for part in ("train", "validation", "test")]

    def cells(counts: Sequence[int], y: Tensor) -> list[str]:
        known = y[~y.isnan()].double()
        moments = ["–", "–"]
        if len(known):
            moments = [f"{float(known.mean()):.4g}", f"{float(known.std(correction=0)):.4g}"]
        absent = [str(len(y) - len(known) or "·")] if missing else []
        return [*map(str, counts), *absent, *moments]

    few = clients <= MAX_ROWS
    shown = range(clients) if few else [*range(EDGE_ROWS), *range(clients - EDGE_ROWS, clients)]
    for place, client in enumerate(shown):
        if not few and place == EDGE_ROWS:
            table.add_row("...", *["..."] * (len(table.columns) - 1))
        table.add_row(Text(names[client]), *cells([int(t[client]) for t in totals], train[client]))
    table.add_section()
    table.add_row("all", *cells([int(t.sum()) for t in totals], torch.cat(list(train))))
    if not few:
        table.add_row("smallest", *(str(int(t.min())) for t in totals))
        table.add_row("largest", *(str(int(t.max())) for t in totals))
    return table
