"""Predictions for a file of inputs: as a table for people, and as an ``.npz`` or ``.csv``."""

from __future__ import annotations

import csv
import io
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich import box
from rich.table import Table
from rich.text import Text
from torch import Tensor

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.experiments.runs.folder import writing
from pyro_pfedbayes.experiments.runs.result_tables import plain_title, short_number
from pyro_pfedbayes.inference.predictive.accumulators import NumberSummary


@dataclass(frozen=True)
class FilePredictions:
    """Posterior predictive of n inputs by the model ``who``: classes."""

    who: str
    classes: tuple[str, ...]
    probs: Tensor  # ``[n, C]``, averaged over draws
    aleatoric: Tensor  # mean over draws of the entropy, ``[n]`` in nats: noise in the data

    def __len__(self) -> int:
        """Number of inputs n."""
        return len(self.probs)

    @property
    def labels(self) -> Tensor:
        """Most probable class, ``[n]``."""
        return self.probs.argmax(-1)

    @property
    def entropy(self) -> Tensor:
        """Entropy of the averaged prediction, ``[n]`` in nats."""
        return _entropy(self.probs)

    @property
    def epistemic(self) -> Tensor:
        """Mutual information of class and weights, ``[n]`` in nats: what more data would remove."""
        return (self.entropy - self.aleatoric).clamp_min(0.0) + 0.0

    def table(self, rows: int) -> Table:
        """The first rows, for people."""
        table = Table(
            title=plain_title(self.who), title_justify="left", box=box.SIMPLE, pad_edge=False
        )
        table.add_column("row", justify="right")
        table.add_column("class", style="bold")
        for name in ("probability", "entropy (nats)", "of which epistemic"):
            table.add_column(name, justify="right")
        top = self.probs.max(-1).values
        for row in range(min(rows, len(self))):
            table.add_row(
                str(row),
                Text(self.classes[int(self.labels[row])]),
                *(f"{float(v[row]):.3f}" for v in (top, self.entropy, self.epistemic)),
            )
        return table


@dataclass(frozen=True)
class FileNumbers:
    """Posterior predictive of n inputs by the model ``who``: numbers in the data's own units, ``[n]`` each.

    ``sd`` is infinite or NaN where the likelihood has none; ``lower`` and ``upper`` end the central 90 % interval.
    """

    who: str
    mean: Tensor
    sd: Tensor
    epistemic_sd: Tensor  # over draws of the conditional mean: what more data would remove
    lower: Tensor
    upper: Tensor

    @classmethod
    def scaled(
        cls, who: str, found: NumberSummary, scaling: tuple[float, float] | None
    ) -> FileNumbers:
        """Bring predictions from the model's units to the data's, by the (loc, scale) of standardised outcomes."""
        loc, scale = (0.0, 1.0) if scaling is None else scaling

        def place(values: Tensor) -> Tensor:
            return (values.cpu().double() * scale + loc).float()

        def width(variance: Tensor) -> Tensor:
            return (variance.cpu().double().sqrt() * scale).float()

        return cls(
            who,
            place(found.mean),
            width(found.aleatoric + found.epistemic),
            width(found.epistemic),
            place(found.lower),
            place(found.upper),
        )

    def __len__(self) -> int:
        """Number of inputs n."""
        return len(self.mean)

    @property
    def columns(self) -> dict[str, Tensor]:
        """What a file holds, by name."""
        names = ("mean", "sd", "lower", "upper", "epistemic_sd")
        return {name: getattr(self, name) for name in names}

    def table(self, rows: int) -> Table:
        """The first rows, for people."""
        table = Table(
            title=plain_title(self.who), title_justify="left", box=box.SIMPLE, pad_edge=False
        )
        table.add_column("row", justify="right")
        table.add_column("mean", style="bold", justify="right")
        for name in ("sd", "90 % from", "to", "epistemic sd"):
            table.add_column(name, justify="right")
        for row in range(min(rows, len(self))):
            cells = (short_number(float(values[row])) for values in self.columns.values())
            table.add_row(str(row), *cells)
        return table


def check_output(path: Path) -> None:
    """Refuse a file that predictions could not be written to."""
    if path.suffix not in (".npz", ".csv"):
        raise UserError(f"--output {path}: give a name that ends in .npz or .csv")


def write_predictions(path: Path, found: FilePredictions | FileNumbers) -> None:
    """Write all predictions, in one step.

    Of classes, an ``.npz`` holds ``probs [n, C]``, ``label``, ``entropy``, ``aleatoric``, ``epistemic`` ``[n]`` and
    ``classes``; of numbers ``mean``, ``sd``, ``lower``, ``upper`` (of the central 90 % interval) and ``epistemic_sd``,
    ``[n]``. A ``.csv`` holds the same, a row an input.
    """
    if path.suffix == ".npz":
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **_arrays(found))
        content = buffer.getvalue()
    else:
        content = _csv(found).encode()
    temporary = path.with_name(f".{path.name}.tmp")
    with writing(path):
        try:
            temporary.write_bytes(content)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def _arrays(found: FilePredictions | FileNumbers) -> dict[str, Any]:
    if isinstance(found, FileNumbers):
        return {name: values.numpy() for name, values in found.columns.items()}
    return {
        "probs": found.probs.numpy(),
        "classes": np.array(found.classes),
        "label": found.labels.numpy(),
        "entropy": found.entropy.numpy(),
        "aleatoric": found.aleatoric.numpy(),
        "epistemic": found.epistemic.numpy(),
    }


def _csv(found: FilePredictions | FileNumbers) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if isinstance(found, FileNumbers):
        writer.writerow(["row", *found.columns])
        rows = torch.stack(list(found.columns.values()), 1).tolist()
        for number, row in enumerate(rows):
            writer.writerow([number, *(f"{value:.6g}" for value in row)])
        return text.getvalue()
    measures = ("probability", "entropy", "aleatoric", "epistemic")
    writer.writerow(["row", "class", *measures, *(f"p({name})" for name in found.classes)])
    values = torch.stack(
        [found.probs.max(-1).values, found.entropy, found.aleatoric, found.epistemic], 1
    )
    rows = torch.cat([values, found.probs], 1).tolist()
    for number, (label, row) in enumerate(zip(found.labels.tolist(), rows, strict=True)):
        writer.writerow([number, found.classes[label], *(f"{value:.6g}" for value in row)])
    return text.getvalue()


def _entropy(probs: Tensor) -> Tensor:
    # Rounding may take it below 0; adding 0 turns -0 into 0.
    return (-torch.xlogy(probs, probs).sum(-1)).clamp_min(0.0) + 0.0
