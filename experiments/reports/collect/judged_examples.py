"""The examples that each kind of model of a run is judged by, and what clients make of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pyro_pfedbayes.experiments.reports.collect.classes import (
    class_client_measures,
    class_model,
    rows_of_columns,
    whole,
)
from pyro_pfedbayes.experiments.reports.collect.numbers import (
    number_client_measures,
    number_fit,
    number_model,
    number_scores,
    rmse_intervals,
)
from pyro_pfedbayes.experiments.reports.files.run_files import Columns, Posterior
from pyro_pfedbayes.experiments.reports.schema import ClientRow, GainMap, ModelReport, NumberFit
from pyro_pfedbayes.measures.resampling import accuracy_interval

Array = NDArray[Any]


@dataclass(frozen=True)
class Rows:
    """Known outcomes that one kind of model is judged by, and its predictions of them."""

    model: str  # ``personal`` or ``global``
    columns: Columns
    y: Array
    owner: Array  # client of each
    rows: Array  # where they lie among all
    scores: dict[str, Array]  # of numbers, from draws
    broken: Array  # predictions of each client that cannot be used ``[N]``
    not_probabilities: Array  # of these, those that are numbers but no probabilities ``[N]``


def rows_of(stored: Posterior, model: str, columns: Columns, clients: int) -> Rows:
    """Known outcomes of clients whose predictions by ``model`` can all be used."""
    checked = columns if stored.is_class else {"mean": columns["mean"]}
    good, finite = whole(checked), whole({name: v for name, v in checked.items() if name != "p"})
    if stored.is_class:
        finite &= np.isfinite(columns["p"]).all(1)
    broken, not_probabilities = (
        np.bincount(stored.owner[bad], minlength=clients) for bad in (~good, ~good & finite)
    )
    rows = np.flatnonzero(stored.known & (broken[stored.owner] == 0))
    chosen = rows_of_columns(columns, rows)
    y = stored.y[rows].astype(np.int64 if stored.is_class else np.float64)
    scores: dict[str, Array] = {}
    if not stored.is_class and len(rows):
        outcomes, log_likelihood = _draws(stored, model, rows)
        scores = number_scores(
            outcomes, log_likelihood, y, chosen.get("log_density"), chosen, stored.draws
        )
    return Rows(model, chosen, y, stored.owner[rows], rows, scores, broken, not_probabilities)


def model_of(stored: Posterior, found: Rows) -> ModelReport | None:
    """Its measures; None without examples."""
    if not len(found.y):
        return None
    if stored.is_class:
        return class_model(found.columns, found.y, found.owner)
    return number_model(found.columns, found.y, found.owner, found.scores)


def fit_of(stored: Posterior, found: Rows) -> NumberFit | None:
    """How predicted numbers compare with those observed; None of classes, or without examples."""
    if stored.is_class or not len(found.y):
        return None
    outcomes = _draws(stored, found.model, found.rows)[0]
    return number_fit(found.columns, found.y, outcomes, stored.draws)


def client_rows(
    stored: Posterior,
    names: Sequence[str],
    train: Sequence[int] | None,
    dropped: Mapping[str, int],
    personal: Rows,
    global_: Rows | None,
    lead: Rows,
    gain: GainMap | None,
) -> list[ClientRow]:
    """A row a client, by number; intervals and broken predictions are those of ``lead``."""
    n = len(names)
    test = np.bincount(stored.owner, minlength=n)
    judged = np.bincount(stored.owner[stored.known], minlength=n)
    own = _by_client(stored, personal, n)
    others = None if global_ is None else _by_client(stored, global_, n)
    lower, upper = _ends(stored, lead, n)
    gains: dict[int, float] = {}
    if gain is not None and stored.gain is not None:
        gains = dict(zip(stored.gain["client"].tolist(), map(sum, gain.kl), strict=True))
    return [
        ClientRow(
            client=i,
            name=names[i],
            train=None if train is None else train[i],
            test=int(test[i]),
            judged=int(judged[i]),
            broken=int(lead.broken[i]),
            unsound=int(lead.not_probabilities[i]),
            personal=own[i],
            global_=None if others is None else others[i],
            lower=float(lower[i]),
            upper=float(upper[i]),
            gain=gains.get(i),
            dropped=int(dropped.get(str(i), 0)),
        )
        for i in range(n)
    ]


def _draws(stored: Posterior, model: str, rows: Array) -> tuple[Array | None, Array | None]:
    """Outcomes drawn and their log-likelihoods, which are stored of the personal models alone."""
    if model != "personal":
        return None, None
    parts = (stored.outcomes, stored.log_likelihood)
    outcomes, log_likelihood = (None if part is None else part[:, rows] for part in parts)
    return outcomes, log_likelihood


def _by_client(stored: Posterior, found: Rows, clients: int) -> list[dict[str, float]]:
    # By one sort rather than a look at all examples for each client.
    order = np.argsort(found.owner, kind="stable")
    ends = np.bincount(found.owner, minlength=clients).cumsum()
    measures = []
    with np.errstate(invalid="ignore"):
        for rows in np.split(order, ends[:-1]):
            columns = rows_of_columns(found.columns, rows)
            if stored.is_class:
                measures.append(class_client_measures(columns, found.y[rows]))
            else:
                scores = rows_of_columns(found.scores, rows)
                measures.append(number_client_measures(columns, found.y[rows], scores))
    return measures


def _ends(stored: Posterior, lead: Rows, clients: int) -> tuple[Array, Array]:
    """95 % intervals of each client's accuracy or RMSE."""
    if not stored.is_class:
        return rmse_intervals(lead.columns, lead.y, lead.owner, clients)
    right = lead.columns["p"].argmax(1) == lead.y
    counts = np.bincount(lead.owner[right], minlength=clients)
    total = np.bincount(lead.owner, minlength=clients)
    found = accuracy_interval(torch.from_numpy(counts), torch.from_numpy(total))
    return found.lower.numpy(), found.upper.numpy()
