"""Numbers of a report whose outcomes are classes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_pfedbayes.experiments.reports.collect.outcome_kind import OutcomeKind, Scores
from pyro_pfedbayes.experiments.reports.files.run_files import Columns
from pyro_pfedbayes.experiments.reports.schema import (
    Estimate,
    ModelReport,
    Reliability,
    Selective,
    TemperatureReport,
)
from pyro_pfedbayes.experiments.reports.statistics.bootstrap_cells import (
    calibration_part,
    classwise_part,
    means_part,
    selective_part,
)
from pyro_pfedbayes.experiments.reports.statistics.intervals import (
    Ends,
    interval_ends,
    pooled_mean,
    shifted,
)
from pyro_pfedbayes.measures.calibration import (
    adaptive_calibration_error,
    apply_temperature,
    classwise_calibration_error,
    fit_temperature,
    reliability_curve,
)
from pyro_pfedbayes.measures.entropy import max_probability_uncertainty
from pyro_pfedbayes.measures.registry import class_scores
from pyro_pfedbayes.measures.resampling import accuracy_interval
from pyro_pfedbayes.measures.scores import expected_calibration_error, negative_log_likelihood
from pyro_pfedbayes.measures.selective import excess_aurc, risk_coverage

BINS = 15
SHARES = (0.8, 0.9, 0.95)
POINTS = 100
_ERRORS: Mapping[str, Callable[[Tensor, Tensor], Tensor | float]] = {
    "ece": expected_calibration_error,
    "adaptive_ece": adaptive_calibration_error,
    "classwise_ece": classwise_calibration_error,
}
_ENTROPIES = {"entropy": "total", "aleatoric": "aleatoric", "epistemic": "epistemic"}
Array = NDArray[Any]


def finite_rows(columns: Columns) -> Array:
    """Which rows hold numbers throughout: bool ``[n]``."""
    rows = np.ones(len(next(iter(columns.values()))), dtype=np.bool_)
    for values in columns.values():
        rows &= np.isfinite(values).reshape(len(values), -1).all(1)
    return rows


def whole(columns: Columns) -> Array:
    """Which rows hold numbers throughout, and probabilities where that is what they should be: bool ``[n]``."""
    rows = finite_rows(columns)
    if "p" in columns:
        with np.errstate(invalid="ignore"):
            p = columns["p"]
            rows &= (p >= 0).all(1) & (np.abs(p.sum(1, dtype=np.float64) - 1) < 1e-3)
    return rows


def rows_of_columns(columns: Columns, rows: Array) -> dict[str, Array]:
    """Some rows of all columns, by index or mask."""
    return {name: values[rows] for name, values in columns.items()}


def mean_of(values: Array) -> float:
    """The mean in float64; NaN of nothing."""
    return float(values.astype(np.float64).mean()) if len(values) else math.nan


def _model(columns: Columns, y: Array, owner: Array, scores: Scores) -> ModelReport:
    """Measures and curves from whole rows of ``p [n, C]`` and entropies ``[n]``, with known labels."""
    probs, labels, whose = _tensor(columns["p"]), _tensor(y).long(), _tensor(owner)
    parts_of_means = class_scores(probs, labels)
    measures = {name: pooled_mean(values, whose) for name, values in parts_of_means.items()}
    doubt = max_probability_uncertainty(probs)
    means = {"confidence": 1 - doubt}
    means |= {name: _tensor(columns[column]).double() for name, column in _ENTROPIES.items()}
    parts = [
        means_part(list(means.values())),
        calibration_part(probs, labels, BINS),
        classwise_part(probs, labels, BINS),
        selective_part(doubt, 1 - parts_of_means["accuracy"], SHARES),
    ]
    of_means, of_errors, of_classes, of_curve = interval_ends(parts, owner)
    nothing = not len(labels)
    for (name, measure), ends in zip(_ERRORS.items(), [*of_errors, *of_classes], strict=True):
        value = math.nan if nothing else float(measure(probs, labels))
        measures[name] = shifted(value, ends, least=0.0)
    for (name, values), ends in zip(means.items(), of_means, strict=True):
        measures[name] = shifted(float(values.mean()), ends)
    curve = reliability_curve(probs, labels, BINS)
    return ModelReport(
        measures,
        Reliability(
            *(
                tuple(values.tolist())
                for values in (curve.edges, curve.confidence, curve.accuracy, curve.count)
            )
        ),
        selective_report(doubt, 1 - parts_of_means["accuracy"], of_curve, _accuracy),
    )


def _client(columns: Columns, y: Array, scores: Scores) -> dict[str, float]:
    """Measures of one client's examples; NaN where there are none."""
    probs, labels = _tensor(columns["p"]), _tensor(y).long()
    found = {name: float(values.mean()) for name, values in class_scores(probs, labels).items()}
    ece = expected_calibration_error(probs, labels) if len(labels) else math.nan
    doubt = max_probability_uncertainty(probs)
    entropies = {
        name: float(_tensor(columns[column]).double().mean()) for name, column in _ENTROPIES.items()
    }
    return {**found, "ece": float(ece), "confidence": float((1 - doubt).mean()), **entropies}


def temperature_report(
    model: str, validation: Columns, test: Columns, y: Array, owner: Array
) -> TemperatureReport | None:
    """Temperature scaling, shared and by client; None if there is nothing to fit on or to judge by.

    It is fitted on ``validation``, less rows that are not whole or whose label is unknown, and judged on ``test``.
    """
    rows = whole({"p": validation["p"]}) & (validation["y"] >= 0)
    p, labels, whose = (_tensor(validation[name][rows]) for name in ("p", "y", "owner"))
    if not len(labels) or not len(y):
        return None
    shared = fit_temperature(p, labels)
    fallback = 1.0 if math.isnan(shared) else shared
    probs, truth, places = _tensor(test["p"]), _tensor(y).long(), _tensor(owner)
    by_client = {int(c): fit_temperature(p[whose == c], labels[whose == c]) for c in whose.unique()}
    own = torch.empty_like(probs)
    for client in places.unique().tolist():
        fitted = by_client.get(client, math.nan)
        mine = places == client
        own[mine] = apply_temperature(probs[mine], fallback if math.isnan(fitted) else fitted)
    scaled = {"raw": probs, "shared": apply_temperature(probs, fallback), "by_client": own}
    return TemperatureReport(
        model,
        len(labels),
        shared,
        {str(client): value for client, value in by_client.items()},
        {name: _calibration(values, truth) for name, values in scaled.items()},
    )


def _calibration(probs: Tensor, y: Tensor) -> dict[str, float]:
    return {
        "nll": float(negative_log_likelihood(probs, y)),
        "ece": float(expected_calibration_error(probs, y)),
        "adaptive_ece": adaptive_calibration_error(probs, y),
    }


def selective_report(
    doubt: Tensor,
    cost: Tensor,
    ends: Sequence[Ends],
    at_share: Callable[[float, Ends], Estimate],
    shown: Callable[[Tensor], Tensor] = lambda risk: risk,
) -> Selective:
    """Risk by coverage: ``doubt`` ``[n]`` is higher where less sure, ``cost`` ``[n]`` each example's error.

    ``at_share`` reports the risk at a share of examples and its interval ends, ``shown`` turns risks into the curve's.
    """
    curve, n = risk_coverage(doubt, cost), len(cost)
    area, excess, *at_shares = ends
    at = {}
    for share, own in zip(SHARES, at_shares, strict=True):
        place = max(math.ceil(share * n - 1e-9), 1) - 1
        at[f"{round(100 * share)}"] = at_share(float(curve.risk[place]) if n else math.nan, own)
    return Selective(
        *_curve_points(curve.coverage, shown(curve.risk)),
        at,
        shifted(float(curve.risk.mean()), area),
        shifted(excess_aurc(doubt, cost), excess),
    )


def _curve_points(coverage: Tensor, risk: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """At most `POINTS` points of a curve, evenly spread and the last among them."""
    places = np.unique(np.linspace(0, len(risk) - 1, min(POINTS, len(risk))).round().astype(int))
    return tuple(coverage[places].tolist()), tuple(risk[places].tolist())


def _accuracy(risk: float, ends: Ends) -> Estimate:
    """The accuracy is high where the risk is low."""
    below, above = ends
    return Estimate(1.0 - risk, 1.0 - risk - above, 1.0 - risk - below)


def _tensor(values: Any) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values))


def _client_intervals(
    columns: Columns, y: Array, owner: Array, clients: int
) -> tuple[Array, Array]:
    """Bayesian ends of each client's accuracy."""
    right = np.bincount(owner[columns["p"].argmax(1) == y], minlength=clients)
    total = np.bincount(owner, minlength=clients)
    found = accuracy_interval(torch.from_numpy(right), torch.from_numpy(total))
    return found.lower.numpy(), found.upper.numpy()


def _described(
    columns: Columns, y: Any, row: int, classes: Sequence[str]
) -> tuple[str, str, float]:
    p, label = columns["p"][row], int(y)
    best = int(p.argmax())
    true = classes[label] if 0 <= label < len(classes) else "unknown"
    return true, classes[best], float(p[best])


CLASSES = OutcomeKind(
    name="class",
    stored=np.int64,
    uncertainty="total",
    required=lambda columns: columns,
    scores=lambda columns, y, outcomes, log_likelihood, draws: {},
    model=_model,
    client=_client,
    client_intervals=_client_intervals,
    described=_described,
)
