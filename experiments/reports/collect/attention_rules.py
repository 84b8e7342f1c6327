"""Which clients need a person's attention, and why: rules that a reader can check."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Sequence

import torch

from pyro_pfedbayes.experiments.reports.files.invalid_predictions import invalid_predictions_text
from pyro_pfedbayes.experiments.reports.schema import ClientRow
from pyro_pfedbayes.experiments.runs.result_tables import counted
from pyro_pfedbayes.measures.resampling import accuracy_interval

FEW_JUDGED = 10
_FEW_TRAIN = 0.5  # of the median client's
_MORE = 1.5  # times the median client's entropy or error
_Z = 1.96


def with_attention_reasons(
    rows: Sequence[ClientRow], outcome: str, *, lead: str = "personal", both: bool = True
) -> tuple[ClientRow, ...]:
    """Add to each client, one a row, the reasons for which it needs attention.

    A client is compared with the median client: its accuracy is low if its whole 95 % interval lies below the median
    accuracy, its RMSE high if the interval lies above; it is very uncertain at 1.5 times the median entropy; it has
    few data at under half the median number. Confidence and the global model are compared beyond 1.96 standard errors.
    ``lead`` is the model that clients are judged by; ``both``: the global one serving a client better is a reason.
    """
    judged = [row for row in rows if row.judged and not row.broken]

    def median(values: list[float]) -> float:
        finite = [value for value in values if math.isfinite(value)]
        return statistics.median(finite) if len(finite) > 1 else math.nan

    usual = {
        name: median([row.measures(lead).get(name, math.nan) for row in judged])
        for name in ("accuracy", "entropy", "rmse", "sd")
    }
    usual["train"] = median([float(row.train) for row in rows if row.train is not None])
    rule = _class_reasons if outcome == "class" else _number_reasons
    found = []
    for row in rows:
        # The rules see the lead model as the client's own, and the global one only where it is another.
        own = dataclasses.replace(
            row,
            personal=row.measures(lead),
            global_=row.global_ if both and lead == "personal" else None,
        )
        found.append(dataclasses.replace(row, reasons=tuple(_common(own, usual, rule))))
    return tuple(found)


def by_attention(
    rows: Sequence[ClientRow], outcome: str, *, lead: str = "personal"
) -> tuple[ClientRow, ...]:
    """Clients with reasons first, and of them those with broken predictions; then by falling loss, the undefined last.

    The loss is the negative log-likelihood, of numbers the RMSE, of the model ``lead``.
    """

    def key(row: ClientRow) -> tuple[bool, bool, bool, float, int]:
        loss = row.measures(lead).get("nll" if outcome == "class" else "rmse", math.nan)
        missing = math.isnan(loss)
        return not row.reasons, not row.broken, missing, 0.0 if missing else -loss, row.client

    return tuple(sorted(rows, key=key))


def coverage_interval(inside: float, n: int) -> tuple[float, float]:
    """95 % interval (Jeffreys) of a share of ``n`` outcomes that lie inside.

    Example:
        >>> [round(end, 3) for end in coverage_interval(0.5, 10)]
        [0.224, 0.776]
    """
    found = accuracy_interval(torch.tensor(round(inside * n)), torch.tensor(n))
    return float(found.lower), float(found.upper)


def _common(
    row: ClientRow,
    usual: dict[str, float],
    rule: Callable[[ClientRow, dict[str, float]], list[str]],
) -> list[str]:
    found = []
    if row.dropped:
        found.append(f"its update diverged and was left out in {counted(row.dropped, 'round')}")
    if row.broken:
        found.append(
            f"{invalid_predictions_text(row.broken, row.unsound)}: its measures are not defined"
        )
    elif not row.judged:
        found.append(
            "no test examples: nothing tells how good its model is"
            if not row.test
            else "no test example has a known outcome: nothing tells how good its model is"
        )
    else:
        found += rule(row, usual)
        if row.judged < FEW_JUDGED:
            found.append(f"judged on {counted(row.judged, 'example')} only")
    if row.train is not None and row.train < _FEW_TRAIN * usual["train"]:
        found.append(f"few training data ({row.train:,}; median {usual['train']:,.0f})")
    return found


def _class_reasons(row: ClientRow, usual: dict[str, float]) -> list[str]:
    own, found = row.personal, []
    accuracy, n = own["accuracy"], row.judged
    if row.upper < usual["accuracy"]:
        found.append(
            f"low accuracy ({100 * accuracy:.1f} %; median {100 * usual['accuracy']:.1f} %)"
        )
    if own["entropy"] > _MORE * usual["entropy"] and own["entropy"] > 0.05:
        part = own["epistemic"] / own["entropy"]
        why = "more data would help" if part > 0.5 else "mostly noise in its data"
        # Of one set of weights nothing is epistemic, which says nothing on what data would do.
        told = "" if math.isnan(part) else f", {100 * part:.0f} % epistemic: {why}"
        found.append(f"very uncertain ({own['entropy']:.2f} nats{told})")
    error = math.sqrt(max(own["confidence"] * (1 - own["confidence"]), 1e-12) / n)
    if own["confidence"] - accuracy > max(_Z * error, 0.02):
        found.append(
            f"too sure of itself ({100 * own['confidence']:.0f} % sure, {100 * accuracy:.0f} % right)"
        )
    if row.global_ is not None:
        other = row.global_.get("accuracy", math.nan)
        spread = math.sqrt((accuracy * (1 - accuracy) + other * (1 - other) + 1e-12) / n)
        if other - accuracy > max(_Z * spread, 0.005):
            found.append(f"the global model serves it better ({100 * other:.1f} %)")
    return found


def _number_reasons(row: ClientRow, usual: dict[str, float]) -> list[str]:
    own, found = row.personal, []
    if row.lower > usual["rmse"] or own["rmse"] > _MORE * usual["rmse"]:
        found.append(f"large errors (RMSE {own['rmse']:.4g}; median {usual['rmse']:.4g})")
    if own["sd"] > _MORE * usual["sd"]:
        found.append(f"very uncertain (sd {own['sd']:.4g}; median {usual['sd']:.4g})")
    inside = own.get("coverage90", math.nan)
    if math.isfinite(inside) and coverage_interval(inside, row.judged)[1] < 0.9:
        found.append(f"intervals too narrow (90 % intervals hold {100 * inside:.0f} %)")
    if row.global_ is not None and row.global_.get("rmse", math.nan) < row.lower:
        found.append(f"the global model serves it better (RMSE {row.global_['rmse']:.4g})")
    return found
