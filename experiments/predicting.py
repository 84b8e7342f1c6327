"""Predictions for new inputs from a run's checkpoint; the training data are not needed."""

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

from pyro_pfedbayes.errors import UserError, nearest
from pyro_pfedbayes.experiments.build import build_model
from pyro_pfedbayes.experiments.inputs import InputRule, read_inputs
from pyro_pfedbayes.experiments.report import counted, plain_title
from pyro_pfedbayes.experiments.runfolder import RunFolder, writing
from pyro_pfedbayes.experiments.session import checked_state, compare_settings
from pyro_pfedbayes.gaussian import MeanFieldGaussian
from pyro_pfedbayes.inference.algorithms.base import Algorithm
from pyro_pfedbayes.inference.devices import resolve_device
from pyro_pfedbayes.inference.predictive import predictive_draws
from pyro_pfedbayes.inference.state import FederationState, gather_rows
from pyro_pfedbayes.models.bayesian import BayesianModel
from pyro_pfedbayes.randomness import generator

__all__ = ["FilePredictions", "check_output", "predict_file", "write_predictions"]

GLOBAL = "global"
_NAMED = 5


@dataclass(frozen=True)
class FilePredictions:
    """Posterior predictive of n inputs.

    Attributes:
        who: Whose model it is, in words.
        classes: Names of the C classes.
        probs: ``[n, C]``, averaged over draws.
        aleatoric: Mean over draws of the entropy, ``[n]`` in nats: noise in the data.
    """

    who: str
    classes: tuple[str, ...]
    probs: Tensor
    aleatoric: Tensor

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


def predict_file(
    folder: RunFolder,
    client: str,
    path: Path,
    *,
    draws: int | None = None,
    device: str | None = None,
) -> FilePredictions:
    """Predict the inputs of an ``.npz`` by one model of a run.

    Args:
        folder: The run.
        client: A client's name, its number if the clients have no names of their own, or ``"global"``.
        path: Inputs, raw, like the training data.
        draws: Draws of the weights; None for those of the run's evaluations.
        device: Where to compute; None for where the run did.

    Raises:
        UserError: No such client, inputs that do not fit, a damaged or foreign checkpoint.
    """
    config = folder.config()
    place = resolve_device(device or config.run.device)
    state, meta = folder.load()
    compare_settings(folder, config, meta)
    try:
        rule = InputRule.from_json(meta["data"]["inputs"])
        classes, names = tuple(meta["data"]["classes"]), tuple(meta["data"]["clients"])
    except (KeyError, TypeError) as problem:
        raise UserError(f"checkpoint {folder.checkpoint} is damaged: {problem}") from problem
    model = build_model(config, rule.shape, len(classes))
    model = model.with_prior(model.prior.to(place))
    state = checked_state(state, folder, config, model, len(names))
    number = None if client == GLOBAL else _client_number(client, names)
    x = read_inputs(path, rule).to(place)
    belief = _belief(config.algorithm, model, state, number)
    stream = generator(config.run.seed, "predictive", "alone", device=place)
    total, entropy, used = torch.zeros(()), torch.zeros(()), draws or config.run.eval_draws
    for step, probs in enumerate(predictive_draws(model, belief, x, used, stream)):
        entropy = _entropy(probs) if step == 0 else entropy.add_(_entropy(probs))
        total = probs if step == 0 else total.add_(probs)
    who = "global model" if number is None else f"personal model of client {names[number]}"
    return FilePredictions(
        f"{who} after round {state.round}, {counted(used, 'draw')}",
        classes,
        (total / used).cpu(),
        (entropy / used).cpu(),
    )


def check_output(path: Path) -> None:
    """Refuse a file that predictions could not be written to.

    Raises:
        UserError: Its name ends in neither ``.npz`` nor ``.csv``.
    """
    if path.suffix not in (".npz", ".csv"):
        raise UserError(f"--output {path}: give a name that ends in .npz or .csv")


def write_predictions(path: Path, found: FilePredictions) -> None:
    """Write all predictions, in one step.

    An ``.npz`` holds ``probs [n, C]``, ``label``, ``entropy``, ``aleatoric``, ``epistemic`` ``[n]`` and ``classes``; a
    ``.csv`` the same, a row an input.
    """
    columns = {
        "label": found.labels,
        "entropy": found.entropy,
        "aleatoric": found.aleatoric,
        "epistemic": found.epistemic,
    }
    if path.suffix == ".npz":
        buffer = io.BytesIO()
        arrays: dict[str, Any] = {name: values.numpy() for name, values in columns.items()}
        np.savez_compressed(
            buffer, probs=found.probs.numpy(), classes=np.array(found.classes), **arrays
        )
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


def _csv(found: FilePredictions) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    measures = ("probability", "entropy", "aleatoric", "epistemic")
    writer.writerow(["row", "class", *measures, *(f"p({name})" for name in found.classes)])
    values = torch.stack(
        [found.probs.max(-1).values, found.entropy, found.aleatoric, found.epistemic], 1
    )
    rows = torch.cat([values, found.probs], 1).tolist()
    for number, (label, row) in enumerate(zip(found.labels.tolist(), rows, strict=True)):
        writer.writerow([number, found.classes[label], *(f"{value:.6g}" for value in row)])
    return text.getvalue()


def _client_number(client: str, names: tuple[str, ...]) -> int:
    if client in names:
        return names.index(client)
    if names == tuple(str(i) for i in range(len(names))):
        # Such as 03 for 3.
        if client.isdecimal() and int(client) < len(names):
            return int(client)
        raise UserError(
            f"no client {client!r}: give a number from 0 to {len(names) - 1}, or 'global'"
        )
    # With names such as 10, 20, 30, a number could mean a name or a place.
    some = ", ".join(map(repr, names[:_NAMED])) + (", ..." if len(names) > _NAMED else "")
    raise UserError(
        f"no client {client!r}{nearest(client, names)} (give a name: {some}; or 'global')"
    )


def _belief(
    algorithm: Algorithm, model: BayesianModel, state: FederationState, client: int | None
) -> MeanFieldGaussian:
    if client is None:
        return algorithm.global_belief(model.layout, state.server)
    rows = gather_rows(algorithm, state.server, state.clients, [client], model.prior.device)
    return algorithm.personal_belief(model.layout, rows).client(0)


def _entropy(probs: Tensor) -> Tensor:
    # Rounding may take it below 0; adding 0 turns -0 into 0.
    return (-torch.xlogy(probs, probs).sum(-1)).clamp_min(0.0) + 0.0
