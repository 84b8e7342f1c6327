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

from pyro_pfedbayes.atomic_files import write_atomically
from pyro_pfedbayes.experiments.runs.folder import writing
from pyro_pfedbayes.experiments.tables.declaration.spec import value_text
from pyro_pfedbayes.experiments.tables.execution.run_values import MODELS, SELECTORS, Key
from pyro_pfedbayes.experiments.tables.pages.document import RENDERERS
from pyro_pfedbayes.experiments.tables.pages.layout import lay_out
from pyro_pfedbayes.experiments.tables.results import CellResult, Results

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
    """Write the results of a table, as far as it is; files of before are replaced.

    Returns:
        ``results.csv``, ``differences.csv``, ``tuning.csv``, ``table.md``, ``table.html`` and ``table.tex``; and
        ``results.parquet`` if pyarrow is installed; and for each sweep and data set a figure in SVG and PDF.
    """
    rows = list(_result_rows(results))
    files: dict[str, str | bytes] = {
        "results.csv": _csv(_RESULTS, rows),
        "differences.csv": _csv(_DIFFERENCES, list(_difference_rows(results))),
        "tuning.csv": _csv(_TUNING, list(_tuning_rows(results))),
    }
    if importlib.util.find_spec("pyarrow") is not None:
        files["results.parquet"] = _parquet(rows)
    page = lay_out(results)
    for picture in page.pictures:
        files[f"{picture.stem}.svg"] = picture.curves.svg()
        files[f"{picture.stem}.pdf"] = picture.curves.pdf()
    files |= {f"table.{ending}": render(page) for ending, render in RENDERERS.items()}
    for name, content in files.items():
        with writing(folder / name):
            if isinstance(content, bytes):
                (folder / name).write_bytes(content)
            else:
                write_atomically(folder / name, content)
    return [folder / name for name in files]


def _result_rows(results: Results) -> Iterator[Row]:
    for result in results.cells:
        head = _head(result)
        if not result.runs:
            status = "open" if result.reason is None else "failed"
            yield head | {"status": status, "reason": result.reason}
        for run in result.runs:
            declared = {key: run.job.tree[key] for key in ("algorithm", "model")}
            own = {"seed": run.job.seed, "settings": json.dumps(declared), "reason": run.reason}
            row = head | own | {"status": run.status}
            if run.figures is None:
                yield row
                continue
            for name in ("seconds", "bytes_uploaded", "gradient_steps"):
                row[name] = getattr(run.figures, name)
            values = run.figures.values
            for key in sorted(values, key=lambda k: (MODELS.index(k[0]), SELECTORS.index(k[1]))):
                yield row | _named(key) | {"value": values[key]}


def _difference_rows(results: Results) -> Iterator[Row]:
    against = {"against": results.plan.spec.paired_with}
    for result in results.cells:
        for key in dict.fromkeys(key for figures in result.figures for key in figures.values):
            found = results.difference(result, key)
            if found is not None:
                yield _head(result) | against | _named(key) | vars(found)


def _tuning_rows(results: Results) -> Iterator[Row]:
    for result in results.cells:
        choice, first = result.choice, results.measure(result)
        for number, trial in enumerate(() if choice is None else choice.trials):
            assert choice is not None
            yield {
                **_head(result),
                **vars(trial),
                "point": json.dumps(result.cell.points[number]),
                "model": choice.model,
                "measure": None if first is None else f"validation_{first}",
                "chosen": json.dumps(number == choice.number),
            }


def _named(key: Key) -> dict[str, Any]:
    return dict(zip(("model", "selector", "measure"), key, strict=True))


def _head(result: CellResult) -> dict[str, Any]:
    entry, method = result.cell.entry, result.cell.method
    return {
        "data": entry.base if entry.split is None else entry.base.removesuffix(f"-{entry.split}"),
        "split": entry.split,
        "method": method.name,
        "algorithm": method.algorithm_name,
        "sweep": None if entry.sweep is None else entry.sweep.name,
        "at": None if entry.sweep is None else value_text(entry.value),
    }


def _csv(columns: Sequence[str], rows: Sequence[Row]) -> str:
    """A table; what is missing or not a number is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        values = [row.get(name) for name in columns]
        writer.writerow([None if isinstance(v, float) and math.isnan(v) else v for v in values])
    return text.getvalue()


def _parquet(rows: Sequence[Row]) -> bytes:
    table = importlib.import_module("pyarrow").table(
        {name: [row.get(name) for row in rows] for name in _RESULTS}
    )
    out = io.BytesIO()
    importlib.import_module("pyarrow.parquet").write_table(table, out)
    return out.getvalue()
