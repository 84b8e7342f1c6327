"""What a table writes: tidy CSV files, one row a figure, and the page in three forms."""

from __future__ import annotations

import csv
import importlib
import importlib.util
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pyro_pfedbayes.experiments.runs.folder import writing
from pyro_pfedbayes.experiments.tables.declaration.plan import Job
from pyro_pfedbayes.experiments.tables.declaration.sweeps import value_text
from pyro_pfedbayes.experiments.tables.execution.run_values import MODELS, SELECTORS
from pyro_pfedbayes.experiments.tables.pages.document import Picture
from pyro_pfedbayes.experiments.tables.pages.layout import lay_out
from pyro_pfedbayes.experiments.tables.pages.renderers import RENDERERS
from pyro_pfedbayes.experiments.tables.results.collect import CellResult, Results, RunResult
from pyro_pfedbayes.inference.federation.checkpoint import write_atomically

Row = Mapping[str, Any]
_RESULTS = (
    *("data", "split", "method", "algorithm", "seed", "settings", "selector", "model", "measure"),
    *("value", "seconds", "bytes_uploaded", "gradient_steps", "status", "reason", "sweep", "at"),
)
_DIFFERENCES = (
    *("data", "split", "method", "against", "selector", "model", "measure", "seeds"),
    *("mean", "lower", "upper", "sweep", "at"),
)
_TUNING = (
    *("data", "split", "method", "algorithm", "point", "model", "measure", "value", "nll"),
    *("chosen", "reason", "sweep", "at"),
)


def write_files(results: Results, folder: Path) -> list[Path]:
    """Write the results of a table, as far as it is.

    Args:
        results: What was found.
        folder: Where the files go; those of before are replaced.

    Returns:
        ``results.csv``, ``differences.csv``, ``tuning.csv``, ``table.md``, ``table.html`` and ``table.tex``; and
        ``results.parquet`` if pyarrow is installed; and for each sweep and data set a figure in SVG and PDF.
    """
    rows = list(_result_rows(results))
    written = [
        _csv(folder / "results.csv", _RESULTS, rows),
        _csv(folder / "differences.csv", _DIFFERENCES, list(_difference_rows(results))),
        _csv(folder / "tuning.csv", _TUNING, list(_tuning_rows(results))),
    ]
    if importlib.util.find_spec("pyarrow") is not None:
        written.append(_parquet(folder / "results.parquet", rows))
    page = lay_out(results)
    for block in page.blocks:
        if isinstance(block, Picture):
            written.append(_bytes(folder / f"{block.stem}.svg", block.curves.svg()))
            written.append(_bytes(folder / f"{block.stem}.pdf", block.curves.pdf()))
    for ending, render in RENDERERS.items():
        written.append(_text(folder / f"table.{ending}", render(page)))
    return written


def _result_rows(results: Results) -> Iterator[Row]:
    for result in results.cells:
        head = _head(result)
        if not result.runs:
            status = "open" if result.reason is None else "failed"
            yield head | {"status": status, "reason": result.reason}
        for run in result.runs:
            own = head | {
                "seed": run.job.seed,
                "settings": _settings(run.job),
                "status": run.status,
                "reason": run.reason,
            }
            yield from _run_rows(run, own)


def _run_rows(run: RunResult, head: Row) -> Iterator[Row]:
    figures = run.figures
    if figures is None:
        yield head
        return
    cost = {
        "seconds": figures.seconds,
        "bytes_uploaded": figures.bytes_uploaded,
        "gradient_steps": figures.gradient_steps,
    }
    for model in MODELS:
        for selector in SELECTORS:
            for measure, value in figures.values.get((model, selector), {}).items():
                where = {"selector": selector, "model": model, "measure": measure}
                yield {**head, **cost, **where, "value": value}


def _difference_rows(results: Results) -> Iterator[Row]:
    against = results.plan.spec.paired_with
    for result in results.cells:
        names = {
            (model, selector, measure): None
            for figures in result.figures
            for (model, selector), found in figures.values.items()
            for measure in found
        }
        for model, selector, measure in names:
            found = results.difference(result, model, selector, measure)
            if found is not None:
                yield _head(result) | {
                    "against": against,
                    **{"selector": selector, "model": model, "measure": measure},
                    **{"mean": found.mean, "lower": found.lower, "upper": found.upper},
                    "seeds": found.seeds,
                }


def _tuning_rows(results: Results) -> Iterator[Row]:
    for result in results.cells:
        choice, first = result.choice, results.measure(result)
        for trial in choice.trials if choice is not None else ():
            assert choice is not None
            yield _head(result) | {
                "point": json.dumps(result.cell.points[trial.number]),
                "model": choice.model,
                "measure": None if first is None else f"validation_{first}",
                "value": trial.value,
                "nll": trial.nll,
                "chosen": trial.number == choice.number,
                "reason": trial.reason,
            }


def _head(result: CellResult) -> dict[str, Any]:
    entry, method = result.cell.entry, result.cell.method
    swept = (
        {}
        if entry.swept is None
        else {"sweep": entry.swept.sweep.name, "at": value_text(entry.swept.value)}
    )
    return {
        **swept,
        "data": entry.base if entry.split is None else entry.base.removesuffix(f"-{entry.split}"),
        "split": entry.split,
        "method": method.name,
        "algorithm": method.algorithm_name,
    }


def _settings(job: Job) -> str:
    """What was declared for a run's method and model."""
    return json.dumps({"algorithm": job.tree["algorithm"], "model": job.tree["model"]})


def _csv(path: Path, columns: Sequence[str], rows: Sequence[Row]) -> Path:
    """A table; what is missing or not a number is empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _plain(row.get(name)) for name in columns})
    return _text(path, text.getvalue())


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "" if math.isnan(value) else str(value)
    return str(value).lower() if isinstance(value, bool) else value


def _parquet(path: Path, rows: Sequence[Row]) -> Path:
    columns = {name: [row.get(name) for row in rows] for name in _RESULTS}
    table = importlib.import_module("pyarrow").table(columns)
    with writing(path):
        importlib.import_module("pyarrow.parquet").write_table(table, path)
    return path


def _bytes(path: Path, content: bytes) -> Path:
    with writing(path):
        path.write_bytes(content)
    return path


def _text(path: Path, text: str) -> Path:
    with writing(path):
        write_atomically(path, text)
    return path
