"""Any set of measures, for every client and pooled over all: NaN where one is not defined."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.measures.calibration import (
    adaptive_calibration_error,
    classwise_calibration_error,
)
from pyro_pfedbayes.measures.entropy import entropy, max_probability_uncertainty
from pyro_pfedbayes.measures.registry import MEASURES
from pyro_pfedbayes.measures.scores import (
    accuracy,
    brier_score,
    expected_calibration_error,
    negative_log_likelihood,
)
from pyro_pfedbayes.measures.selective import accuracy_at_coverage, aurc, excess_aurc
from pyro_pfedbayes.measures.validation import labels, probabilities

Columns = Mapping[str, Tensor]
Measure = Callable[[Columns], float | Tensor]
"""A measure takes columns, one row an example, and returns one number; NaN where it is not defined."""


@dataclass(frozen=True)
class ClientMeasures:
    """Measures by client and pooled."""

    names: tuple[str, ...]  # names of the N clients
    count: Tensor  # examples of each that were judged, int64 ``[N]``
    by_client: Mapping[str, Tensor]
    """Each measure of each client, float64 ``[N]``; NaN where it is not defined."""
    pooled: Mapping[str, float]  # each measure of all examples together; NaN likewise


def measure_clients(
    measures: Mapping[str, Measure],
    columns: Columns,
    client: Tensor,
    *,
    clients: int | None = None,
    names: Sequence[str] | None = None,
    nan_ok: Collection[str] = (),
) -> ClientMeasures:
    """Evaluate measures for every client and pooled over all examples.

    Rows whose outcome, the column ``y``, is unknown (-1 if integers, NaN if not) are left out first. A client that is
    left without rows has NaN everywhere, and no measure is called for it.

    Args:
        measures: By name, each a function of the columns.
        columns: Tensors with one row an example, ``[n, …]``; draws must be turned to ``[n, K]``.
        client: Whose example it is, integers >= 0 ``[n]``.
        clients: Number N of clients; default the largest number that occurs, plus 1, or the number of names.
        names: Their names; default their numbers.
        nan_ok: Columns in which NaN is no mistake: the variance of a distribution that has none.

    Returns:
        The measures.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
        >>> columns = {"probs": probs, "y": torch.tensor([0, 1, 1])}
        >>> found = measure_clients(CLASS_MEASURES, columns, torch.tensor([0, 0, 2]))
        >>> found.by_client["accuracy"].tolist(), found.count.tolist()
        ([1.0, nan, 0.0], [2, 0, 1])
        >>> round(found.pooled["nll"], 4)
        0.4149
    """
    names = _checked(columns, client, clients, names)
    client = client.cpu()
    rows = _known(columns, client).nonzero()[:, 0]
    rows = rows[client[rows].argsort(stable=True)]
    _refuse_nan(columns, client, rows, names, nan_ok)
    count = torch.bincount(client[rows], minlength=len(names))
    ordered = {name: column[rows.to(column.device)] for name, column in columns.items()}
    by_client = {
        name: torch.full((len(names),), float("nan"), dtype=torch.float64) for name in measures
    }
    start = 0
    for place, size in enumerate(count.tolist()):
        part = {name: column[start : start + size] for name, column in ordered.items()}
        start += size
        for name, measure in measures.items() if size else ():
            by_client[name][place] = _evaluated(name, measure, part, f"client {names[place]}")
    pooled = {
        name: _evaluated(name, measure, ordered, "all clients") if start else float("nan")
        for name, measure in measures.items()
    }
    return ClientMeasures(names, count, by_client, pooled)


def class_scores(probs: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Each example's own part of the measures that are means: what bootstrap intervals are made from.

    Args:
        probs: Class probabilities ``[n, C]``.
        y: Labels ``[n]``.

    Returns:
        ``accuracy`` (1 if right), ``nll`` (-log p in nats) and ``brier``, float64 ``[n]`` each; their means are
        `accuracy`, `negative_log_likelihood` and `brier_score` of `pyro_pfedbayes.measures.scores`.

    Example:
        >>> scores = class_scores(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]))
        >>> scores["accuracy"].tolist(), scores["brier"]
        ([1.0, 0.0], tensor([0.0200, 0.7200], dtype=torch.float64))
    """
    probs = probabilities(probs)
    y = labels(y, probs)
    return {name: m.score(probs, y) for name, m in MEASURES.items() if m.score is not None}


def _right(c: Columns) -> Tensor:
    return c["probs"].argmax(-1) == c["y"]


def _doubt(c: Columns) -> Tensor:
    return max_probability_uncertainty(c["probs"])


def _selective(share: float) -> Measure:
    return lambda c: accuracy_at_coverage(_doubt(c), _right(c), (share,))[0]


CLASS_MEASURES: Mapping[str, Measure] = MappingProxyType(
    {
        "accuracy": lambda c: accuracy(c["probs"], c["y"]),
        "nll": lambda c: negative_log_likelihood(c["probs"], c["y"]),
        "brier": lambda c: brier_score(c["probs"], c["y"]),
        "ece": lambda c: expected_calibration_error(c["probs"], c["y"]),
        "adaptive_ece": lambda c: adaptive_calibration_error(c["probs"], c["y"]),
        "classwise_ece": lambda c: classwise_calibration_error(c["probs"], c["y"]),
        "entropy": lambda c: entropy(c["probs"]).mean(),
        "aurc": lambda c: aurc(_doubt(c), 1.0 - _right(c).double()),
        "excess_aurc": lambda c: excess_aurc(_doubt(c), 1.0 - _right(c).double()),
        "accuracy_at_80": _selective(0.8),
        "accuracy_at_90": _selective(0.9),
        "accuracy_at_95": _selective(0.95),
    }
)
"""What columns ``probs [n, C]`` and ``y [n]`` allow; the selective ones go by 1 - the largest probability."""


def _checked(
    columns: Columns, client: Tensor, clients: int | None, names: Sequence[str] | None
) -> tuple[str, ...]:
    """The clients' names, once everything has been looked over."""
    if client.ndim != 1 or client.is_floating_point() or client.dtype == torch.bool:
        raise UserError(f"client must hold integers [n], not {client.dtype} {list(client.shape)}")
    for name, column in columns.items():
        if column.ndim == 0 or len(column) != len(client):
            shown = list(column.shape)
            raise UserError(
                f"column {name!r} has shape {shown}; wanted {len(client)} rows, as client"
            )
    largest = int(client.max()) if len(client) else -1
    n = clients if clients is not None else len(names) if names is not None else largest + 1
    if names is not None and len(names) != n:
        raise UserError(f"{len(names)} names for {n} clients")
    if largest >= n or (len(client) and int(client.min()) < 0):
        wrong = largest if largest >= n else int(client.min())
        raise UserError(f"client {wrong} is not one of 0 to {n - 1}")
    return tuple(str(name) for name in (range(n) if names is None else names))


def _known(columns: Columns, client: Tensor) -> Tensor:
    y = columns.get("y")
    if y is None:
        return torch.ones_like(client, dtype=torch.bool)
    return (~y.isnan() if y.is_floating_point() else y != -1).cpu()


def _refuse_nan(
    columns: Columns,
    client: Tensor,
    rows: Tensor,
    names: Sequence[str],
    nan_ok: Collection[str],
) -> None:
    for name, column in columns.items():
        if name in nan_ok or not column.is_floating_point():
            continue
        flags = column.isnan().cpu()
        broken = (flags if flags.ndim == 1 else flags.flatten(1).any(-1))[rows]
        if bool(broken.any()):
            row = int(rows[broken].min())
            whose, more = names[int(client[row])], int(broken.sum()) - 1
            others = f", and {more} more" if more else ""
            raise UserError(f"{name!r} is NaN at row {row}, an example of client {whose}{others}")


def _evaluated(name: str, measure: Measure, part: Columns, whose: str) -> float:
    try:
        value = measure(part)
    except UserError as problem:
        raise UserError(f"{whose}, {name}: {problem}") from problem
    if isinstance(value, Tensor) and value.numel() != 1:
        raise UserError(f"measure {name!r} returned {list(value.shape)}; wanted one number")
    return float(value)
