"""The commands ``evaluate``, ``predict`` and ``list``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.experiments.cli.run import RunDir
from pyro_pfedbayes.experiments.config.registry import known

Draws = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Draws of the weights. Default: those of the run."),
]
Device = Annotated[
    str | None, typer.Option(metavar="NAME", help="auto, cpu or cuda. Default: that of the run.")
]
SHOWN = 10


def evaluate(
    folder: RunDir,
    draws: Draws = None,
    part: Annotated[
        str, typer.Option(metavar="PART", help="Examples to judge by: test or validation.")
    ] = "test",
    device: Device = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Show how each client fares with its personal and with the global model.

    Example: [dim]pfedbayes evaluate runs/digits-20250101-120000 --draws 100[/]
    """
    known("part", part, ["test", "validation"])
    from pyro_pfedbayes.experiments.runs.folder import RunFolder, json_text
    from pyro_pfedbayes.experiments.runs.lifecycle import reopen
    from pyro_pfedbayes.experiments.runs.result_tables import client_table, counted
    from pyro_pfedbayes.inference.federation.evaluation import measures

    experiment, state, _ = reopen(RunFolder.open(folder), device)
    federation, names = experiment.federation, experiment.data.partition.names
    personal, global_ = federation.predictions(state, part, draws=draws)
    if not len(personal.y):
        raise UserError(f"no client of {folder} has a {part} example")
    judged = personal.known
    if not bool(judged.any()):
        raise UserError(f"no {part} example of {folder} has a known outcome")
    # What has no known outcome cannot be judged.
    personal, global_ = personal.select(judged), global_.select(global_.known)
    models = {"personal": personal, "global": global_}
    by_client = {key: predictions.split() for key, predictions in models.items()}
    rows = [
        {
            "client": client,
            "name": names[client],
            "examples": len(own.y),
            **{key: measures(parts[client]) for key, parts in by_client.items()},
        }
        for client, own in by_client["personal"].items()
    ]
    pooled: dict[str, Any] = {"examples": len(personal.y)}
    pooled |= {key: measures(predictions) for key, predictions in models.items()}
    used = draws or federation.eval_draws
    if json:
        head = {"round": state.round, "part": part, "draws": used}
        typer.echo(json_text({**head, "clients": rows, "pooled": pooled}, indent=2))
        return
    from rich.console import Console

    title = f"{part} examples after round {state.round}, {counted(used, 'draw')}"
    Console(emoji=False).print(client_table(rows, pooled, title))


def predict(
    folder: RunDir,
    client: Annotated[
        str,
        typer.Option(
            metavar="I",
            help="Whose model: a client's name (its number, if it has none), or 'global'.",
        ),
    ],
    input: Annotated[
        Path,
        typer.Option(
            metavar="X.npz",
            help="Inputs like the training data, in an array x; columns that the model takes beside them by name.",
        ),
    ],
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write all predictions to a .npz or .csv.")
    ] = None,
    draws: Draws = None,
    device: Device = None,
) -> None:
    """Predict classes or numbers for new inputs, and say how sure that is.

    Inputs are raw, as the training data were: 0 to 255 for MNIST, 0 to 16 for digits, a table's own units. So are
    predicted numbers; entropies are in nats.

    Example: [dim]pfedbayes predict runs/mine --client 3 --input x.npz --output p.csv[/]
    """
    from pyro_pfedbayes.experiments.runs.folder import RunFolder
    from pyro_pfedbayes.experiments.runs.predict import predict_file
    from pyro_pfedbayes.experiments.runs.prediction_files import check_output, write_predictions

    if output is not None:
        check_output(output)
    found = predict_file(RunFolder.open(folder), client, input, draws=draws, device=device)
    from rich.console import Console

    out = Console(emoji=False)
    out.print(found.table(SHOWN))
    if len(found) > SHOWN:
        more = "" if output is not None else "; --output FILE.csv writes them all"
        out.print(f"and {len(found) - SHOWN:,} more{more}", markup=False, highlight=False)
    if output is not None:
        write_predictions(output, found)
        out.print(f"{len(found):,} predictions are in {output}", markup=False, highlight=False)


def list_names() -> None:
    """List methods, networks, data sets, presets and tables.

    Example: [dim]pfedbayes list[/]
    """
    from rich.console import Console

    from pyro_pfedbayes.experiments.config import registry
    from pyro_pfedbayes.experiments.runs.result_tables import list_table

    out = Console(emoji=False)
    groups = {
        "Methods (--algorithm)": {name: line for name, (*_, line) in registry.ALGORITHMS.items()},
        "Models (--model)": {
            **{name: line for name, (*_, line) in registry.MODELS.items()},
            "FILE.py:FUNCTION": "your own: a builder of a model, or a Pyro program of one client",
        },
        "Data sets (--data)": dict(registry.DATA),
        "Presets (pfedbayes run NAME)": {
            n: registry.preset_line(n) for n in registry.preset_names()
        },
        "Tables (pfedbayes table NAME)": {
            n: registry.preset_line(n, "table") for n in registry.table_names()
        },
    }
    for heading, rows in groups.items():
        typer.echo(heading)
        out.print(list_table(rows), highlight=False)
