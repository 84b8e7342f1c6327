"""The command ``report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pyro_pfedbayes.errors import UserError


def report(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR...", help="Folders of runs; several are compared.", show_default=False
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="The page. Default: report.html, or none with --json.",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print all numbers as JSON.")] = False,
) -> None:
    """Write a page on how good and how sure a run's models are, and for whom they are bad.

    The page is one HTML file that loads nothing from the network. Several runs are compared: methods by measures.
    A warning names a file that is missing or damaged; the exit code is 1 if damage leaves no predictions to report on.

    Example: [dim]pfedbayes report runs/mine -o mine.html[/]
    """
    from pyro_pfedbayes.experiments.reports.collect.run import collect, warnings_of
    from pyro_pfedbayes.experiments.reports.pages.render import check_page_path, write_page
    from pyro_pfedbayes.experiments.runs.folder import RunFolder, json_text

    page = output if output is not None or json else Path("report.html")
    if page is not None:
        check_page_path(page)
    seen: set[Path] = set()
    for folder in folders:
        RunFolder.open(folder)
        if folder.resolve() in seen:
            raise UserError(f"{folder} is given twice; name each run once")
        seen.add(folder.resolve())
    found = [collect(folder, reload=len(folders) == 1) for folder in folders]
    for data in found:
        for warning in warnings_of(data):
            typer.echo(f"warning: {data.folder}: {warning}", err=True)
    if len(found) == 1:
        from pyro_pfedbayes.experiments.reports.pages.run_page import report_page

        values = found[0].as_json()
        text = "" if page is None else report_page(found[0])
    else:
        from pyro_pfedbayes.experiments.reports.collect.comparison import compare
        from pyro_pfedbayes.experiments.reports.pages.comparison_page import (
            comparison_json,
            comparison_page,
        )

        compared = compare(found)
        values = comparison_json(compared, found)
        text = "" if page is None else comparison_page(compared, found)
    if page is not None:
        write_page(page, text)
    if json:
        typer.echo(json_text(values, indent=2))
    else:
        typer.echo(f"the report is in {page}")
    if any(data.damaged and data.personal is None for data in found):
        # The page was written, but a damaged file took from it what it is about.
        raise typer.Exit(1)
