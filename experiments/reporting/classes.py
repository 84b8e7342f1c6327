"""Numbers of a report whose outcomes are classes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_pfedbayes.calibration import (
    adaptive_calibration_error,
    apply_temperature,
    classwise_calibration_error,
    fit_temperature,
    reliability_curve,
)
from pyro_pfedbayes.client_measures import class_scores
from pyro_pfedbayes.entropy import max_probability_uncertainty
from pyro_pfedbayes.experiments.reporting.data import (
    Estimate,
    ModelReport,
    OodScore,
    Reliability,
    Selective,
    TemperatureReport,
    Unseen,
)
from pyro_pfedbayes.experiments.reporting.intervals import pooled_mean
from pyro_pfedbayes.experiments.reporting.reading import Columns
from pyro_pfedbayes.ood import auroc, fpr_at_tpr
from pyro_pfedbayes.selective import accuracy_at_coverage, excess_aurc, risk_coverage
from pyro_pfedbayes.uncertainty import expected_calibration_error, negative_log_likelihood

__all__ = [
    "class_client_measures",
    "class_model",
    "curve_points",
    "temperature_report",
    "unseen_report",
    "whole",
]

BINS = 15
SHARES = (0.8, 0.9, 0.95)
POINTS = 100
_ENTROPIES = {"entropy": "total", "aleatoric": "aleatoric", "epistemic": "epistemic"}
_SCORES = ("epistemic", "total", "max_probability")
Array = NDArray[Any]


def whole(columns: Columns) -> Array:
    """Which rows hold numbers throughout, and probabilities where that is what they should be: bool ``[n]``."""
    rows = np.ones(len(next(iter(columns.values()))), dtype=np.bool_)
    for values in columns.values():
        rows &= np.isfinite(values).reshape(len(values), -1).all(1)
    if "p" in columns:
        with np.errstate(invalid="ignore"):
            p = columns["p"]
            rows &= (p >= 0).all(1) & (np.abs(p.sum(1, dtype=np.float64) - 1) < 1e-3)
    return rows


def class_model(columns: Columns, y: Array, owner: Array) -> ModelReport:
    """Measures, reliability and risk-coverage of one kind of model.

    Args:
        columns: ``p [n, C]`` and entropies ``[n]``, whole rows only.
        y: Known labels ``[n]``.
        owner: Client of each ``[n]``.
    """
    probs, labels, whose = _tensor(columns["p"]), _tensor(y).long(), _tensor(owner)
    nothing = not len(labels)
    scores = class_scores(probs, labels)
    measures = {name: pooled_mean(values, whose) for name, values in scores.items()}
    for name, measure in (
        ("ece", expected_calibration_error),
        ("adaptive_ece", adaptive_calibration_error),
        ("classwise_ece", classwise_calibration_error),
    ):
        measures[name] = Estimate(math.nan if nothing else float(measure(probs, labels)))
    doubt = max_probability_uncertainty(probs)
    measures["confidence"] = Estimate(float((1 - doubt).mean()))
    for name, column in _ENTROPIES.items():
        measures[name] = Estimate(float(_tensor(columns[column]).double().mean()))
    curve = reliability_curve(probs, labels, BINS)
    return ModelReport(
        measures,
        Reliability(
            tuple(curve.edges.tolist()),
            tuple(curve.confidence.tolist()),
            tuple(curve.accuracy.tolist()),
            tuple(curve.count.tolist()),
        ),
        _selective(doubt, scores["accuracy"]),
    )


def class_client_measures(columns: Columns, y: Array) -> dict[str, float]:
    """Measures of one client's examples; NaN where there are none."""
    probs, labels = _tensor(columns["p"]), _tensor(y).long()
    found = {name: float(values.mean()) for name, values in class_scores(probs, labels).items()}
    ece = expected_calibration_error(probs, labels) if len(labels) else math.nan
    doubt = max_probability_uncertainty(probs)
    entropies = {
        name: float(_tensor(columns[column]).double().mean()) for name, column in _ENTROPIES.items()
    }
    return {**found, "ece": float(ece), "confidence": float((1 - doubt).mean()), **entropies}


def curve_points(coverage: Tensor, risk: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """At most `POINTS` points of a curve, evenly spread and the last among them."""
    places = np.unique(np.linspace(0, len(risk) - 1, min(POINTS, len(risk))).round().astype(int))
    return tuple(coverage[places].tolist()), tuple(risk[places].tolist())


def unseen_report(unseen: Columns, seen: Columns, owner: Array) -> Unseen | None:
    """How well scores tell unseen classes from seen ones, by the personal models.

    Args:
        unseen: Examples of unseen classes, whole rows only, with the ``owner`` whose model was asked.
        seen: The clients' own test examples, whole rows only.
        owner: Client of each of those.

    Returns:
        The report; None if there are no examples on either side.
    """
    clients = np.unique(unseen["owner"])
    inside = np.isin(owner, clients)
    if not len(clients) or not inside.any():
        return None
    found = []
    for name in _SCORES:
        out, own = _score(unseen, name), _score(seen, name)
        each = [
            auroc(own[_tensor(owner == client)], out[_tensor(unseen["owner"] == client)])
            for client in clients
        ]
        known = [value for value in each if not math.isnan(value)]
        mean = float(np.mean(known)) if known else math.nan
        within = own[_tensor(inside)]
        found.append(OodScore(name, auroc(within, out), fpr_at_tpr(within, out), mean))
    return Unseen(len(unseen["owner"]), len(clients), tuple(found))


def temperature_report(
    model: str, validation: Columns, test: Columns, y: Array, owner: Array
) -> TemperatureReport | None:
    """Temperature scaling, shared and by client.

    Args:
        model: ``personal`` or ``global``.
        validation: ``p``, ``y`` and ``owner`` of validation examples; rows that are not whole, or whose label is
            unknown, are left out.
        test: ``p [n, C]``, whole rows only.
        y: Known labels of those.
        owner: Client of each.

    Returns:
        The report; None if there is nothing to fit on or to judge by.
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


def _selective(doubt: Tensor, right: Tensor) -> Selective:
    curve = risk_coverage(doubt, 1 - right)
    at = accuracy_at_coverage(doubt, right, SHARES).tolist()
    coverage, risk = curve_points(curve.coverage, curve.risk)
    names: Mapping[str, float] = dict(zip(("80", "90", "95"), at, strict=True))
    return Selective(coverage, risk, names, float(curve.risk.mean()), excess_aurc(doubt, 1 - right))


def _score(columns: Columns, name: str) -> Tensor:
    if name == "max_probability":
        return max_probability_uncertainty(_tensor(columns["p"]))
    return _tensor(columns[name]).double()


def _tensor(values: Any) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values))
