"""The command ``pfedbayes``: its commands, and what becomes of errors.

Nothing here imports PyTorch: commands import what they need when they run.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import Annotated, Any, NoReturn

import typer

from pyro_pfedbayes.errors import Interrupted, UserError
from pyro_pfedbayes.experiments.cli import inspect, report, run, table

app = typer.Typer(
    name="pfedbayes",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Personalized federated learning by variational Bayesian inference.\n\n"
    "[dim]pfedbayes run[/] trains on the embedded digits; [dim]pfedbayes list[/] shows what else there is.",
)
# The base of typer's own errors, which it has no public name for.
_UsageError: type[Exception] = next(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"
)


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and stop.")] = False,
) -> None:
    if version:
        import importlib.metadata

        typer.echo(f"pfedbayes {importlib.metadata.version('pyro-pfedbayes')}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


for _command in (run.run, run.resume, inspect.evaluate, inspect.predict, run.partition):
    app.command()(_command)
app.command()(report.report)
app.command()(table.table)
app.command("list")(inspect.list_names)


@app.command("bench")
def _bench(
    steps: Annotated[int, typer.Option(min=1, help="Local steps of a round.")] = 20,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer repeats, steps only.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure the speed of training here.

    Example: [dim]pfedbayes bench --quick[/]
    """
    from pyro_pfedbayes.experiments.runs.bench import bench_command

    bench_command(steps=steps, quick=quick, as_json=json)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit: 0 well, 2 a mistake of the user's, 1 any other failure, 130 Ctrl-C."""
    # torch remarks here on a CUDA toolkit without a device, which is no news to whoever runs on the CPU.
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        code = _run(arguments)
    sys.exit(code)


def _run(arguments: Sequence[str] | None) -> int:
    try:
        code = app(arguments, prog_name="pfedbayes", standalone_mode=False)
        # typer turns Ctrl-C that nobody caught into this number.
        return _say("interrupted", 130) if code == 130 else int(code or 0)
    except Interrupted as stop:
        return _say(str(stop), 130)
    except UserError as problem:
        return _say(str(problem), 2)
    except _UsageError as problem:
        message = getattr(problem, "format_message", problem.__str__)()
        return _say(f"{message.rstrip('.')} (pfedbayes --help)", 2)
    except KeyboardInterrupt:
        return _say("interrupted", 130)
    except BrokenPipeError:
        # The reader has seen enough; Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as problem:
        what = f"{problem.filename}: " if problem.filename else ""
        return _say(f"{what}{problem.strerror or problem}", 1)
    except Exception as problem:
        return _report_bug(problem)


def _report_bug(problem: Exception) -> int:
    if isinstance(problem, MemoryError) or type(problem).__name__ == "OutOfMemoryError":
        return _say("out of memory; a smaller run.chunk or algorithm.batch_size helps", 1)
    requested = os.environ.get("PFEDBAYES_TRACEBACK", "").lower() in ("1", "true")
    if requested:
        traceback.print_exception(problem)
    where = "" if requested else "; PFEDBAYES_TRACEBACK=1 shows where"
    return _say(
        f"internal error: {type(problem).__name__}: {problem} (please report this{where})", 1
    )


def _say(message: str, code: int) -> int:
    print("pfedbayes: " + " ".join(message.split()), file=sys.stderr)
    return code


def _show_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    print(f"pfedbayes: warning: {' '.join(str(message).split())}", file=sys.stderr)


if __name__ == "__main__":
    main()
