"""Numbers of a report whose outcomes are numbers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_pfedbayes.experiments.reports.collect.classes import SHARES, mean_of, selective_report
from pyro_pfedbayes.experiments.reports.collect.outcome_kind import OutcomeKind, Scores
from pyro_pfedbayes.experiments.reports.files.run_files import Columns
from pyro_pfedbayes.experiments.reports.schema import Estimate, ModelReport, NumberFit
from pyro_pfedbayes.experiments.reports.statistics.bootstrap_cells import selective_part
from pyro_pfedbayes.experiments.reports.statistics.intervals import (
    Ends,
    interval_ends,
    pooled_mean,
    shifted,
)
from pyro_pfedbayes.measures.interval_scores import (
    central_interval,
    crps,
    inside_from_ranks,
    interval_report,
    pit_from_ranks,
    pit_values,
)
from pyro_pfedbayes.measures.resampling import bootstrap_by_client

LEAST_DRAWS = 19
"""Draws that a 90 % interval needs."""
LEVELS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
_SHOWN = 2_000
_PIT_BINS = 10
_ROWS = 20_000_000
Array = NDArray[Any]


def number_scores(
    outcomes: Array | None,
    log_likelihood: Array | None,
    y: Array,
    log_density: Array | None = None,
    counted: Columns | None = None,
    draws: int = 0,
) -> dict[str, Array]:
    """What each example adds to measures that need draws, ``[n]`` each, as far as something tells.

    ``nll`` is minus the log of the mean density, ``crps`` without bias (NaN of 1 draw), ``inside`` 1 in the 90 %
    interval (NaN of less than `LEAST_DRAWS`). Where the ends of the interval would lie between two draws, ``inside`` is
    the mean of 0 or 1 for the wider and for the narrower interval, weighted so that 90 % is what outcomes exchangeable
    with the draws would give. ``counted`` (``crps``, and how many draws are ``below`` each outcome or ``equal``) goes
    before the drawn ``outcomes`` ``[K, n]``, which are stored of the personal models alone.
    """
    found: dict[str, Array] = {}
    counted = {} if counted is None else counted
    if log_density is not None:
        found["nll"] = -log_density.astype(np.float64)
    elif log_likelihood is not None:
        each = torch.from_numpy(log_likelihood).double()
        found["nll"] = (math.log(len(each)) - each.logsumexp(0)).numpy()
    nothing, usable = np.full(len(y), math.nan), _usable(outcomes, y)
    if "crps" in counted:
        # One estimator for the personal models and the global one, over all draws.
        found["crps"] = counted["crps"].astype(np.float64) if draws > 1 else nothing
    elif usable is not None:
        truth = torch.from_numpy(y).double()
        found["crps"] = crps(usable, truth).numpy() if len(usable) > 1 else nothing
    if {"below", "equal"} <= counted.keys():
        found["inside"] = _inside(counted, draws, 0.9)
    elif usable is not None:
        lower, upper = (end.numpy() for end in central_interval(usable, 0.9))
        inside = ((lower <= y) & (y <= upper)).astype(np.float64)
        found["inside"] = np.where(np.isnan(lower), math.nan, inside)
    return found


def _model(columns: Columns, y: Array, owner: Array, scores: Scores) -> ModelReport:
    """Measures of one kind of model, from ``mean`` and ``sd`` ``[n]`` of rows whose mean is a number."""
    whose = torch.from_numpy(owner)
    error = _error(columns, y)
    measures = {
        "rmse": pooled_mean(error.square(), whose, math.sqrt),
        "mae": pooled_mean(error.abs(), whose),
        "sd": pooled_mean(torch.from_numpy(columns["sd"].astype(np.float64)), whose),
    }
    for name, values in _named(scores).items():
        measures[name] = pooled_mean(torch.from_numpy(values), whose)
    doubt = torch.from_numpy(columns["sd"]).double()
    if bool(doubt.isnan().any()):
        return ModelReport(measures)
    squares = error.square()
    (ends,) = interval_ends([selective_part(doubt, squares, SHARES)], owner)
    return ModelReport(measures, None, selective_report(doubt, squares, ends, _root, torch.sqrt))


def _client(columns: Columns, y: Array, scores: Scores) -> dict[str, float]:
    """Measures of one client's examples; NaN where there are none. Units as the outcomes'."""
    error = _error(columns, y)
    return {
        "rmse": float(error.square().mean().sqrt()),
        "mae": float(error.abs().mean()),
        "bias": float(error.mean()),
        "sd": mean_of(columns["sd"]),
        "epistemic_sd": mean_of(np.sqrt(columns["epistemic"])),
        **{name: mean_of(values) for name, values in _named(scores).items()},
    }


def _named(scores: Scores) -> dict[str, Array]:
    """Scores of `number_scores` by the names of their measures."""
    names = {"nll": "nll", "crps": "crps", "coverage90": "inside"}
    return {name: scores[column] for name, column in names.items() if column in scores}


def _client_intervals(
    columns: Columns, y: Array, owner: Array, clients: int
) -> tuple[Array, Array]:
    """Bootstrap ends of each client's RMSE, ``[N]`` each."""
    squares = _error(columns, y).square()
    if not len(squares):
        return np.full(clients, math.nan), np.full(clients, math.nan)
    resamples = min(1_000, max(100, _ROWS // len(squares)))
    found = bootstrap_by_client(
        squares, torch.from_numpy(owner), clients=clients, resamples=resamples
    )
    return found.lower.sqrt().numpy(), found.upper.sqrt().numpy()


def number_fit(columns: Columns, y: Array, outcomes: Array | None, draws: int) -> NumberFit:
    """Predicted against observed, coverage of intervals, and the histogram of the PIT.

    Coverage and PIT are from the ranks ``below`` and ``equal`` where a file has them, widths from ``outcomes [K, n]``.
    """
    places = np.unique(np.linspace(0, len(y) - 1, min(_SHOWN, len(y))).round().astype(int))
    shown = (y[places], columns["mean"][places], columns["sd"][places])
    seen, predicted, sd = (tuple(values.astype(float).tolist()) for values in shown)
    usable = _usable(outcomes, y)
    ranked = {"below", "equal"} <= columns.keys()
    if not len(y) or draws < 2 or (usable is None and not ranked):
        return NumberFit(seen, predicted, sd)
    truth = torch.from_numpy(y).double()
    report = None if usable is None else interval_report(usable, truth, LEVELS)
    if ranked:
        below, equal = (torch.from_numpy(columns[name]) for name in ("below", "equal"))
        coverage = [mean_of(_inside(columns, draws, level)) for level in LEVELS]
        pit = pit_from_ranks(below, equal, draws, seed=0)
    else:
        assert usable is not None
        assert report is not None
        coverage, pit = report.coverage.tolist(), pit_values(usable, truth, seed=0)
    bars = torch.histc(pit[pit.isfinite()], _PIT_BINS, 0.0, 1.0)
    return NumberFit(
        seen,
        predicted,
        sd,
        LEVELS,
        tuple(coverage),
        tuple([math.nan] * len(LEVELS) if report is None else report.width.tolist()),
        tuple(int(count) for count in bars.tolist()),
    )


def _usable(outcomes: Array | None, y: Array) -> Tensor | None:
    """Drawn outcomes that are all numbers; None if they are not, or there are none."""
    if outcomes is None or not len(y) or not bool(np.isfinite(outcomes).all()):
        return None
    return torch.from_numpy(outcomes)


def _inside(counted: Columns, draws: int, level: float) -> Array:
    """Share of the interval at ``level`` that holds each outcome ``[n]``, see `number_scores`."""
    below, equal = (torch.from_numpy(counted[name]) for name in ("below", "equal"))
    wide = inside_from_ranks(below, equal, draws, level)
    place = (draws + 1) * (1 - level) / 2
    # Of the interval from the m-th lowest draw to the m-th highest the probability is 1 - 2 m / (draws + 1).
    narrower = 1 - 2 * (math.floor(place + 1e-9) + 1) / (draws + 1)
    share = max(place - math.floor(place + 1e-9), 0.0)
    if share < 1e-9 or narrower <= 0:
        return np.asarray(wide.numpy())
    narrow = inside_from_ranks(below, equal, draws, narrower)
    return np.asarray(((1 - share) * wide + share * narrow).numpy())


def _root(risk: float, ends: Ends) -> Estimate:
    """The RMSE of the answered, from the mean of their squared errors."""
    found = dataclasses.astuple(shifted(risk, ends, least=0.0))
    return Estimate(*(math.sqrt(end) if end > 0 else end for end in found))


def _error(columns: Columns, y: Array) -> Tensor:
    return torch.from_numpy(columns["mean"].astype(np.float64) - y.astype(np.float64))


def _described(
    columns: Columns, y: Any, row: int, classes: Sequence[str]
) -> tuple[str, str, float]:
    known = "unknown" if math.isnan(y) else f"{float(y):.4g}"
    return known, f"{float(columns['mean'][row]):.4g}", math.nan


def _scores(
    columns: Columns, y: Array, outcomes: Array | None, log_likelihood: Array | None, draws: int
) -> Scores:
    if not len(y):
        return {}
    density = columns.get("log_density")
    return number_scores(outcomes, log_likelihood, y, density, columns, draws)


NUMBERS = OutcomeKind(
    name="number",
    stored=np.float64,
    uncertainty="sd",
    required=lambda columns: {"mean": columns["mean"]},
    scores=_scores,
    model=_model,
    client=_client,
    client_intervals=_client_intervals,
    described=_described,
    epistemic=lambda variance: math.sqrt(max(variance, 0.0)),
)
