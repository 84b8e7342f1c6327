"""The command ``table``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pyro_pfedbayes.errors import Interrupted
from pyro_pfedbayes.experiments.cli.run import DataDir, Device

if TYPE_CHECKING:
    from rich.console import Console

    from pyro_pfedbayes.experiments.tables.execution.schedule import Schedule


def table(
    spec: Annotated[
        str,
        typer.Argument(
            metavar="TABLE | SPEC.toml", help="A table that `pfedbayes list` names, or a file."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="DIR", help="Folder of the table. Default: tables/NAME."
        ),
    ] = None,
    jobs: Annotated[
        int, typer.Option("--jobs", "-j", min=1, metavar="N", help="Runs side by side.")
    ] = 1,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show which runs there would be, and stop.")
    ] = False,
    retry: Annotated[bool, typer.Option("--retry", help="Make failed runs anew.")] = False,
    data_dir: DataDir = None,
    device: Device = None,
) -> None:
    """Run methods on data sets over seeds, tuned alike, and write the table.

    The same command carries a table on: finished runs stay, one that was stopped goes on where it stood.

    Example: [dim]pfedbayes table digits-quick -o tables/quick --jobs 2[/]
    """
    from rich.console import Console

    from pyro_pfedbayes.experiments.runs.folder import writing
    from pyro_pfedbayes.experiments.runs.lock import locked
    from pyro_pfedbayes.experiments.tables.declaration.plan import make_plan
    from pyro_pfedbayes.experiments.tables.declaration.reader import read_spec
    from pyro_pfedbayes.experiments.tables.execution.folder import TableFolder
    from pyro_pfedbayes.experiments.tables.execution.schedule import Schedule
    from pyro_pfedbayes.experiments.tables.execution.trial import try_out

    given = {"data.dir": data_dir, "run.device": device}
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    where = f"{spec}: " if spec.endswith(".toml") else f"table {spec}: "
    plan = make_plan(read_spec(spec), where, options)
    path = out if out is not None else Path("tables") / Path(spec).stem
    folder, console = TableFolder(path), Console(emoji=False)
    schedule = Schedule(plan, folder)
    with console.status("trying all methods out on their data"):
        skipped = try_out(schedule, where, retry=retry, download=not dry_run)
    if dry_run:
        folder.check(plan)
        _show_plan(schedule, skipped, console)
        return
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)
    with locked(path, wait=1.0):
        folder.claim(plan)
        if retry:
            folder.forget_failures()
        words = {"-o": out, "--data-dir": data_dir, "--device": device}
        words["--jobs"] = str(jobs) if jobs > 1 else None
        again = [f"{name} {value}" for name, value in words.items() if value is not None]
        hint = f"`{' '.join(['pfedbayes table', spec, *again])}` goes on"
        # Anew: the one above has seen the failures that are forgotten by now.
        _fill(Schedule(plan, folder), jobs, console, hint)


def _fill(schedule: Schedule, jobs: int, console: Console, hint: str) -> None:
    """Make the runs, write the results, and show the overview."""
    from pyro_pfedbayes.experiments.tables.execution.pool import Pool
    from pyro_pfedbayes.experiments.tables.execution.supervisor import make_runs
    from pyro_pfedbayes.experiments.tables.pages.files import write_files
    from pyro_pfedbayes.experiments.tables.results import collect

    def refresh() -> None:
        write_files(collect(schedule), schedule.folder.path)

    try:
        pool = Pool(jobs, schedule.plan.spec.head.keep_checkpoints)
        make_runs(schedule, pool, console, hint, refresh)
    except Interrupted:
        refresh()
        raise
    refresh()
    _show_results(schedule, console)


def _show_plan(schedule: Schedule, skipped: list[str], console: Console) -> None:
    from pyro_pfedbayes.experiments.runs.result_tables import counted, print_lines

    cells = schedule.plan.cells
    for cell in cells:
        tried = sum(map(len, cell.tuning))
        tuning = f"{counted(len(cell.points), 'point')} tried in {counted(tried, 'run')}, "
        text = f"{cell.entry.label} {cell.method.name}: {tuning if tried else ''}"
        first = cell.final[0]
        text += f"{counted(len(first), 'run')} of {counted(first[0].rounds, 'round')}"
        print_lines(console, text)
    runs = f"{counted(len(cells), 'cell')}, {counted(schedule.total(), 'run')}"
    print_lines(console, f"{runs}, {len(schedule.left())} of them still to be made", *skipped)


def _show_results(schedule: Schedule, console: Console) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from pyro_pfedbayes.experiments.runs.result_tables import plain_title, print_lines
    from pyro_pfedbayes.experiments.tables.pages.document import Heading, Sheet
    from pyro_pfedbayes.experiments.tables.pages.layout import lay_out
    from pyro_pfedbayes.experiments.tables.results import (
        collect,
        dropped_line,
        failures,
        lacking_line,
    )

    results = collect(schedule)
    for block in lay_out(results).blocks:
        if isinstance(block, Heading):
            break
        if isinstance(block, Sheet):
            # Not the table's own title, which would be wrapped to its width.
            console.print(plain_title(block.caption))
            shown = Table(box=box.SIMPLE, pad_edge=False)
            for number, heading in enumerate(block.columns):
                shown.add_column(Text(heading), justify="right" if number else "left")
            for row in block.rows:
                shown.add_row(*(Text(m.text, style="bold" if m.bold else "") for m in row))
            console.print(shown)
    found = failures(results, schedule.folder)
    dropped, lacking = dropped_line(found), lacking_line(found)
    files = f"everything is in {schedule.folder.path}: table.md, table.html, table.tex, results.csv"
    print_lines(console, *([] if dropped is None else [dropped]), files)
    if lacking is not None:
        typer.echo(f"pfedbayes: {lacking}", err=True)
        raise typer.Exit(1)
