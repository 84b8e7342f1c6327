"""The commands ``run``, ``resume`` and ``partition``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pyro_pfedbayes.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from pyro_pfedbayes.experiments.config.sections import Config

Source = Annotated[
    str | None,
    typer.Argument(
        metavar="PRESET | FILE.toml",
        help="What to run: a preset's name or a file. Default: the preset of --data, else 'digits'.",
        show_default=False,
    ),
]
Data = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="A name that `pfedbayes list` gives, or a path to .npz."),
]
DataDir = Annotated[
    str | None, typer.Option(metavar="DIR", help="Where downloaded data sets are, or go.")
]
Split = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="The paper's small, medium or large training sets."),
]
Clients = Annotated[int | None, typer.Option(metavar="N", help="Number of clients.")]
Seed = Annotated[int | None, typer.Option(metavar="N", help="Seed of everything random.")]
Device = Annotated[str | None, typer.Option(metavar="NAME", help="auto, cpu or cuda.")]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="SECTION.KEY=VALUE",
        help="Any value of the configuration, such as algorithm.zeta=2.0; may be repeated.",
    ),
]
RunDir = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a run.")]


def run(
    source: Source = None,
    data: Data = None,
    data_dir: DataDir = None,
    split: Split = None,
    algorithm: Annotated[
        str | None, typer.Option(metavar="NAME", help="Method; `pfedbayes list` names them.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="A model that `pfedbayes list` names, or your own: FILE.py:FUNCTION.",
        ),
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(metavar="N", help="Rounds of the whole run.")
    ] = None,
    clients: Clients = None,
    participation: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help="Clients drawn a round: a number (1 is one client), a fraction up to 1.0 (all), or all.",
        ),
    ] = None,
    seed: Seed = None,
    device: Device = None,
    out: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="New folder for the results. Default: runs/NAME-TIME."),
    ] = None,
    settings: Settings = None,
) -> None:
    """Train a federation and judge its personal and global models.

    Examples: [dim]pfedbayes run[/], [dim]pfedbayes run mnist-medium --rounds 50 --out mine[/],
    [dim]pfedbayes run --data patients.npz --set data.column=hospital[/]
    """
    from pyro_pfedbayes.experiments.config.sections import toml_value

    options = {
        "data.name": data,
        "data.dir": data_dir,
        "data.split": split,
        "algorithm.name": algorithm,
        "model.name": model,
        "run.rounds": rounds,
        "data.clients": clients,
        "run.participation": None if participation is None else toml_value(participation),
        "run.seed": seed,
        "run.device": device,
        "run.out": out,
    }
    config, label = _configure(source, options, settings)
    from pyro_pfedbayes.experiments.runs.build import build_experiment
    from pyro_pfedbayes.experiments.runs.folder import RunFolder
    from pyro_pfedbayes.experiments.runs.lifecycle import begin, default_folder
    from pyro_pfedbayes.experiments.runs.progress import make_progress

    path = default_folder(label) if config.run.out is None else Path(config.run.out).expanduser()
    RunFolder.check_free(path)
    console = _console()
    summary = begin(build_experiment(config), path, make_progress(console, _console(stderr=True)))
    _print_result(console, summary, path)


def resume(
    folder: RunDir,
    rounds: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Carry a run on from its last checkpoint; the result is that of a run that was never interrupted.

    Its settings are those it began with. Example: [dim]pfedbayes resume runs/digits-20250101-120000[/]
    """
    if rounds is not None:
        raise UserError(
            "resume takes no --rounds: learning rates and phases depend on the length of the whole run; "
            "begin a new run with the rounds you want"
        )
    from pyro_pfedbayes.experiments.runs.folder import RunFolder
    from pyro_pfedbayes.experiments.runs.lifecycle import carry_on
    from pyro_pfedbayes.experiments.runs.progress import make_progress

    run_folder = RunFolder.open(folder)
    if run_folder.finished:
        typer.echo(f"{folder} is finished; there is nothing to resume")
        return
    console = _console()
    summary = carry_on(run_folder, make_progress(console, _console(stderr=True)))
    _print_result(console, summary, folder)


def partition(
    source: Source = None,
    data: Data = None,
    data_dir: DataDir = None,
    split: Split = None,
    clients: Clients = None,
    seed: Seed = None,
    settings: Settings = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE.png", help="Also draw it; .pdf and .svg work as well."),
    ] = None,
) -> None:
    """Show which client would hold how many examples of which class (or which numbers), without training.

    Example: [dim]pfedbayes partition --data digits --set data.scheme=dirichlet --plot digits.png[/]
    """
    options = {
        "data.name": data,
        "data.dir": data_dir,
        "data.split": split,
        "data.clients": clients,
        "run.seed": seed,
    }
    if plot is not None and plot.suffix not in (".png", ".pdf", ".svg"):
        raise UserError(f"--plot {plot}: give a name that ends in .png, .pdf or .svg")
    config, _ = _configure(source, options, settings)
    from pyro_pfedbayes.experiments.runs.build import build_data

    examples, _ = build_data(config.data)
    dataset, dealt, console = examples.dataset, examples.partition, _console()
    console.print(dealt.table(dataset.raw_y, dataset.classes, width=console.width))
    if plot is not None:
        from pyro_pfedbayes.data.partitions.schemes import plot_partition
        from pyro_pfedbayes.experiments.runs.folder import writing

        figure = plot_partition(dealt, dataset)
        with writing(plot):
            figure.savefig(plot)
        typer.echo(f"drawn in {plot}")


def _configure(
    source: str | None, options: dict[str, Any], texts: list[str] | None
) -> tuple[Config, str]:
    """The resolved configuration of some options, and a short name for it."""
    from pyro_pfedbayes.experiments.config.resolve import refuse_unused_settings, resolve
    from pyro_pfedbayes.experiments.config.sections import (
        parse_config,
        parse_setting,
        read_source,
        with_settings,
    )

    settings = [parse_setting(text) for text in texts or []]
    settings += [(name, value) for name, value in options.items() if value is not None]
    found = read_source(source, settings)
    config = resolve(
        parse_config(with_settings(found.tree, settings), "" if found.preset else f"{source}: ")
    )
    refuse_unused_settings(settings, config)
    same_data = found.tree.get("data", {}).get("name", config.data.name) == config.data.name
    return config, found.label if same_data else Path(config.data.name).stem


def _print_result(console: Console, summary: dict[str, Any], folder: Path) -> None:
    from pyro_pfedbayes.experiments.runs.result_tables import (
        print_lines,
        result_lines,
        result_table,
    )

    console.print(result_table(summary))
    print_lines(console, *result_lines(summary, str(folder)))


def _console(stderr: bool = False) -> Console:
    from rich.console import Console

    return Console(stderr=stderr, emoji=False)
