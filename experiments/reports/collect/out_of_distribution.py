"""How well the personal models tell what is unlike their data: new classes, other data, damaged pictures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_pfedbayes.experiments.reports.collect.classes import mean_of, rows_of_columns, whole
from pyro_pfedbayes.experiments.reports.files.run_files import Columns
from pyro_pfedbayes.experiments.reports.files.tree_groups import CLASS_COLUMNS
from pyro_pfedbayes.experiments.reports.schema import (
    Corrupted,
    Foreign,
    OodScore,
    ShiftLevel,
    Unseen,
)
from pyro_pfedbayes.experiments.reports.statistics.bootstrap_cells import detection_part
from pyro_pfedbayes.experiments.reports.statistics.intervals import interval_ends, shifted
from pyro_pfedbayes.measures.detection import fpr_at_tpr
from pyro_pfedbayes.measures.entropy import max_probability_uncertainty
from pyro_pfedbayes.measures.scores import expected_calibration_error

SCORES = ("epistemic", "total", "max_probability")
Array = NDArray[Any]


def unseen_report(unseen: Columns, seen: Columns, owner: Array) -> Unseen | None:
    """How well scores tell unseen classes from the clients' own test examples; None without examples on a side."""
    rows = _whole_rows(unseen)
    scores = _scores(rows, seen, owner)
    if not scores:
        return None
    return Unseen(len(rows["owner"]), len(np.unique(rows["owner"])), scores)


def foreign_report(foreign: Columns, name: str, seen: Columns, owner: Array) -> Foreign | None:
    """The same of another data set's examples, put to every client; ``name`` is the data set's."""
    rows = _whole_rows(foreign)
    scores = _scores(rows, seen, owner)
    if not scores:
        return None
    clients = np.unique(foreign["owner"])
    return Foreign(name, len(foreign["owner"]) // len(clients), len(clients), scores)


def corrupted_report(
    corrupted: Columns, seen: Columns, y: Array, owner: Array, index: Array | None
) -> Corrupted | None:
    """The same of damaged test examples, and how accuracy, calibration and entropy change with the strength.

    Without ``index`` the examples as they are were all that there are.
    """
    rows = _whole_rows(corrupted)
    scores = _scores(rows, seen, owner)
    if not scores:
        return None
    pairs = np.unique(np.stack([corrupted["owner"], corrupted["index"]], 1), axis=0)
    same = _among(pairs, owner, index)
    clean = {name: seen[name][same] for name in CLASS_COLUMNS} | {"y": y[same]}
    inside = rows_of_columns(seen, np.isin(owner, np.unique(rows["owner"])))
    levels = []
    # In the order stored, that of the figures.
    for kind in dict.fromkeys(corrupted["corruption"].tolist()):
        levels.append(_level(kind, 0, clean, {}))
        mine = rows["corruption"] == kind
        for strength in np.unique(rows["strength"][mine]).tolist():
            part = rows_of_columns(rows, mine & (rows["strength"] == strength))
            found = {
                name: _auroc(_score(inside, name).numpy(), _score(part, name).numpy())
                for name in SCORES
            }
            levels.append(_level(kind, strength, part, found))
    return Corrupted(len(pairs), len(np.unique(pairs[:, 0])), scores, tuple(levels))


def _level(kind: str, strength: int, rows: Columns, found: Mapping[str, float]) -> ShiftLevel:
    known = rows["y"] >= 0
    probs, labels = torch.from_numpy(rows["p"][known]), torch.from_numpy(rows["y"][known]).long()
    any_known = len(labels) > 0
    return ShiftLevel(
        kind,
        strength,
        len(known),
        float((probs.argmax(-1) == labels).double().mean()) if any_known else math.nan,
        float(expected_calibration_error(probs, labels)) if any_known else math.nan,
        mean_of(rows["total"]),
        mean_of(rows["epistemic"]),
        dict(found),
    )


def _scores(outside: Columns, seen: Columns, owner: Array) -> tuple[OodScore, ...]:
    """Each score on the clients that have examples outside; none if there are none on either side."""
    clients = np.unique(outside["owner"])
    mine = np.isin(owner, clients)
    if not len(clients) or not mine.any():
        return ()
    inside, whose = rows_of_columns(seen, mine), owner[mine]
    pairs = [(_score(inside, name), _score(outside, name)) for name in SCORES]
    # A client's examples from inside and outside are drawn together.
    both, counts = np.concatenate([whose, outside["owner"]]), [len(whose), len(outside["owner"])]
    parts = [detection_part(*pair) for pair in pairs]
    ends = interval_ends(parts, both, np.repeat([0, 1], counts))
    found = []
    for name, (own, out), (area, rate) in zip(SCORES, pairs, ends, strict=True):
        found.append(
            OodScore(
                name,
                shifted(_auroc(own.numpy(), out.numpy()), area),
                shifted(fpr_at_tpr(own, out), rate),
                _client_mean(own.numpy(), whose, out.numpy(), outside["owner"]),
            )
        )
    return tuple(found)


def _client_mean(own: Array, own_owner: Array, out: Array, out_owner: Array) -> float:
    """Mean over clients of each one's own AUROC, where it is defined."""
    ins, outs = _by_client(own, own_owner), _by_client(out, out_owner)
    each = [_auroc(ins[client], outs[client]) for client in outs if client in ins]
    return float(np.mean(each)) if each else math.nan


def _by_client(values: Array, owner: Array) -> dict[int, Array]:
    order = np.argsort(owner, kind="stable")
    clients, starts = np.unique(owner[order], return_index=True)
    return dict(zip(clients.tolist(), np.split(values[order], starts[1:]), strict=True))


def _auroc(own: Array, out: Array) -> float:
    """`pyro_pfedbayes.measures.detection.auroc`, by two searches rather than a curve."""
    if not len(own) or not len(out):
        return math.nan
    ordered = np.sort(own)
    below = ordered.searchsorted(out, "left") + ordered.searchsorted(out, "right")
    return float(below.mean() / (2 * len(ordered)))


def _among(pairs: Array, owner: Array, index: Array | None) -> Array:
    """Which test examples are among pairs of owner and index ``[m, 2]``: bool ``[n]``; all of them if none can tell."""
    if index is None:
        return np.ones(len(owner), np.bool_)
    width = int(max(pairs[:, 1].max(), index.max(initial=0))) + 1
    return np.isin(owner * width + index, pairs[:, 0] * width + pairs[:, 1])


def _whole_rows(columns: Columns) -> dict[str, Array]:
    return rows_of_columns(columns, whole({name: columns[name] for name in CLASS_COLUMNS}))


def _score(columns: Columns, name: str) -> Tensor:
    if name == "max_probability":
        return max_probability_uncertainty(torch.from_numpy(columns["p"]))
    return torch.from_numpy(columns[name].astype(np.float64))
