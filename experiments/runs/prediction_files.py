"""Predictions for a file of inputs: as a table for people, and as an ``.npz`` or ``.csv``."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.table import Table
from rich.text import Text
from torch import Tensor

from pyro_pfedbayes.atomic_files import write_atomically
from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.experiments.runs.folder import writing
from pyro_pfedbayes.experiments.runs.result_tables import plain_table, short_number
from pyro_pfedbayes.inference.predictive.accumulators import NumberSummary

Array = NDArray[Any]


@dataclass(frozen=True)
class FilePredictions:
    """Posterior predictive of n inputs by the model ``who``."""

    who: str
    columns: Mapping[str, Array]  # of a ``.csv``, ``[n]`` each
    arrays: Mapping[str, Array]  # of an ``.npz``
    headings: Mapping[str, str]  # of the columns that the table for people shows
    cell: Callable[[float], str]  # how that table writes a number

    def __len__(self) -> int:
        """Number of inputs n."""
        return len(next(iter(self.columns.values())))

    def table(self, rows: int) -> Table:
        """The first rows, for people."""
        table = plain_table(self.who)
        table.add_column("row", justify="right")
        cells: list[Sequence[str | Text]] = []
        for name, heading in self.headings.items():
            values = self.columns[name][:rows].tolist()
            text = self.columns[name].dtype.kind == "U"
            cells.append([Text(v) for v in values] if text else [*map(self.cell, values)])
            style = "" if len(cells) > 1 else "bold"
            table.add_column(heading, style=style, justify="left" if text else "right")
        for number, row in enumerate(zip(*cells, strict=True)):
            table.add_row(str(number), *row)
        return table


def class_predictions(
    who: str, classes: Sequence[str], probs: Tensor, aleatoric: Tensor
) -> FilePredictions:
    """Predictions of classes by ``probs [n, C]``, averaged over draws, and the mean entropy ``[n]`` of the draws."""
    # Rounding may take it below 0; adding 0 turns -0 into 0.
    entropy = (-torch.xlogy(probs, probs).sum(-1)).clamp_min(0.0) + 0.0
    in_nats = {
        "entropy": entropy.numpy(),
        "aleatoric": aleatoric.numpy(),  # noise in the data
        # Mutual information of class and weights: what more data would remove.
        "epistemic": ((entropy - aleatoric).clamp_min(0.0) + 0.0).numpy(),
    }
    names, label = np.array(classes), probs.argmax(-1).numpy()
    columns = {"class": names[label], "probability": probs.max(-1).values.numpy(), **in_nats}
    by_class = {f"p({name})": probs[:, place].numpy() for place, name in enumerate(classes)}
    return FilePredictions(
        who,
        columns | by_class,
        {"probs": probs.numpy(), "classes": names, "label": label, **in_nats},
        {
            "class": "class",
            "probability": "probability",
            "entropy": "entropy (nats)",
            "epistemic": "of which epistemic",
        },
        "{:.3f}".format,
    )


def number_predictions(
    who: str, found: NumberSummary, scaling: tuple[float, float] | None
) -> FilePredictions:
    """Predictions of numbers in the data's units, by the (loc, scale) of standardised outcomes.

    The standard deviation is infinite or NaN where the likelihood has none.
    """
    loc, scale = (0.0, 1.0) if scaling is None else scaling

    def place(values: Tensor) -> Array:
        return (values.cpu().double() * scale + loc).float().numpy()

    def width(variance: Tensor) -> Array:
        return (variance.cpu().double().sqrt() * scale).float().numpy()

    columns = {
        "mean": place(found.mean),
        "sd": width(found.aleatoric + found.epistemic),
        "lower": place(found.lower),
        "upper": place(found.upper),
        "epistemic_sd": width(found.epistemic),  # what more data would remove
    }
    headings = dict(zip(columns, ("mean", "sd", "90 % from", "to", "epistemic sd"), strict=True))
    return FilePredictions(who, columns, columns, headings, short_number)


def check_output(path: Path) -> None:
    """Refuse a file that predictions could not be written to."""
    if path.suffix not in (".npz", ".csv"):
        raise UserError(f"--output {path}: give a name that ends in .npz or .csv")


def write_predictions(path: Path, found: FilePredictions) -> None:
    """Write all predictions, in one step.

    Of classes, an ``.npz`` holds ``probs [n, C]``, ``label``, ``entropy``, ``aleatoric``, ``epistemic`` ``[n]`` and
    ``classes``; of numbers ``mean``, ``sd``, ``lower``, ``upper`` (of the central 90 % interval) and ``epistemic_sd``,
    ``[n]``. A ``.csv`` holds the same, a row an input.
    """
    if path.suffix == ".npz":
        buffer = io.BytesIO()
        np.savez_compressed(buffer, allow_pickle=False, **found.arrays)
        content = buffer.getvalue()
    else:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["row", *found.columns])
        rows = zip(*(values.tolist() for values in found.columns.values()), strict=True)
        for number, row in enumerate(rows):
            writer.writerow([number, *(v if isinstance(v, str) else f"{v:.6g}" for v in row)])
        content = text.getvalue().encode()
    with writing(path):
        write_atomically(path, content)
