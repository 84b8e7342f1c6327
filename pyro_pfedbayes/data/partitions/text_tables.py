"""A partition as a small table of text: who holds how much of what."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence

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


def class_table(
    scheme: str,
    names: Sequence[str],
    classes: Sequence[str],
    train: Tensor,
    sizes: Mapping[str, Tensor],
    width: int,
) -> Table:
    """Training examples a client and class, ``train [N, C]``, then the clients' ``sizes [N]`` by part.

    Where the classes do not fit side by side in ``width`` columns of text, each client shows how many it
    holds, and those it has most of.
    """
    counts = torch.cat([train, train.sum(0, keepdim=True)])
    digits = [max(3, len(str(largest))) for largest in counts.amax(0).tolist()]
    used = [max(6 if len(names) <= MAX_ROWS else 8, *map(len, names))]
    used += [max(len(h), len(str(int(sizes[part].sum())))) for part, h in _HEADINGS.items()]
    # A space at either edge and one after each column.
    spare = width - 2 - sum(size + 1 for size in used)
    wide = sum(size + 1 for size in digits) > spare + 1
    table = _table(names, scheme, "training examples of each class", padding=0)
    if wide:
        table.add_column("classes", justify="right", no_wrap=True)
        table.add_column("most of", no_wrap=True, max_width=max(8, spare - 8))
    else:
        for name, size in zip(classes, digits, strict=True):
            table.add_column(Text(name[: max(size, 4)]), justify="right", no_wrap=True)
    _add_size_columns(table)

    def cells(client: int) -> list[str]:
        row = counts[client]
        if not wide:
            return [str(count or "·") for count in row.tolist()]
        most = row.argsort(descending=True, stable=True)[: int(row.count_nonzero())].tolist()
        return [str(len(most)), " ".join(classes[label] for label in most)]

    return _fill(table, names, sizes, cells, sizes_last=True)


def number_table(
    scheme: str, names: Sequence[str], train: Sequence[Tensor], sizes: Mapping[str, Tensor]
) -> Table:
    """The clients' ``sizes [N]`` by part, mean and standard deviation of training outcomes ``[n_i]``.

    Missing outcomes are NaN; they have a column if there are any.
    """
    outcomes = [*train, torch.cat(list(train))]
    missing = bool(outcomes[-1].isnan().any())
    table = _table(names, scheme, "training outcomes", padding=1)
    _add_size_columns(table)
    for heading in (*(("missing",) if missing else ()), "mean y", "± sd"):
        table.add_column(heading, justify="right", no_wrap=True)

    def cells(client: int) -> list[str]:
        known = outcomes[client][~outcomes[client].isnan()].double()
        row = [str(len(outcomes[client]) - len(known) or "·")] if missing else []
        if not len(known):
            return [*row, "–", "–"]
        return [*row, f"{float(known.mean()):.4g}", f"{float(known.std(correction=0)):.4g}"]

    return _fill(table, names, sizes, cells, sizes_last=False)


def table_text(table: Table, width: int = 100) -> str:
    """Render a table as plain text of at most ``width`` columns, without colour."""
    out = io.StringIO()
    Console(file=out, width=width, color_system=None, force_terminal=False).print(table)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def _table(names: Sequence[str], scheme: str, what: str, padding: int) -> Table:
    title = f"{len(names)} client{'s' if len(names) != 1 else ''}, {scheme}: {what}"
    title_text = Text(title, style="table.title")
    table = Table(title=title_text, title_justify="left", box=box.SIMPLE, padding=(0, padding))
    table.pad_edge = False
    table.add_column("client", no_wrap=True)
    return table


def _add_size_columns(table: Table) -> None:
    for heading in _HEADINGS.values():
        table.add_column(heading, justify="right", style="bold", no_wrap=True)


def _fill(
    table: Table,
    names: Sequence[str],
    sizes: Mapping[str, Tensor],
    cells: Callable[[int], list[str]],
    sizes_last: bool,
) -> Table:
    """Add a row a client (the first and last, if many), the sums, and the extremes of the sizes.

    ``cells`` gives what stands beside the sizes, for a client or, at -1, for all together.
    """
    totals = torch.stack([sizes[part] for part in _HEADINGS])  # [3, N]

    def add(name: str, values: Tensor, beside: Sequence[str]) -> None:
        numbers = [str(value) for value in values.tolist()]
        row = [*beside, *numbers] if sizes_last else [*numbers, *beside]
        table.add_row(*map(Text, (name, *row)))

    many = len(names) > MAX_ROWS
    for client, name in enumerate(names):
        if many and client == EDGE_ROWS:
            table.add_row(*["..."] * len(table.columns))
        if not many or not EDGE_ROWS <= client < len(names) - EDGE_ROWS:
            add(name, totals[:, client], cells(client))
    table.add_section()
    add("all", totals.sum(1), cells(-1))
    if many:
        blank = [""] * (len(table.columns) - 1 - len(totals))
        add("smallest", totals.amin(1), blank)
        add("largest", totals.amax(1), blank)
    return table
