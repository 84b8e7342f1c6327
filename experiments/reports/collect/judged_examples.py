"""The examples that each kind of model of a run is judged by, and what clients make of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyro_pfedbayes.experiments.reports.collect.classes import (
    CLASSES,
    finite_rows,
    rows_of_columns,
    whole,
)
from pyro_pfedbayes.experiments.reports.collect.numbers import NUMBERS, number_fit
from pyro_pfedbayes.experiments.reports.collect.outcome_kind import OutcomeKind, Scores
from pyro_pfedbayes.experiments.reports.files.run_files import Columns, Posterior
from pyro_pfedbayes.experiments.reports.schema import ClientRow, GainMap, ModelReport, NumberFit

Array = NDArray[Any]


@dataclass(frozen=True)
class Rows:
    """Known outcomes that one kind of model is judged by, and its predictions of them."""

    model: str  # ``personal`` or ``global``
    columns: Columns
    y: Array
    owner: Array  # client of each
    rows: Array  # where they lie among all
    scores: Scores
    broken: Array  # predictions of each client that cannot be used ``[N]``
    not_probabilities: Array  # of these, those that are numbers but no probabilities ``[N]``


def kind_of(stored: Posterior) -> OutcomeKind:
    """The kind of a run's outcomes."""
    return CLASSES if stored.is_class else NUMBERS


def rows_of(stored: Posterior, model: str, columns: Columns, clients: int) -> Rows:
    """Known outcomes of clients whose predictions by ``model`` can all be used."""
    kind = kind_of(stored)
    required = kind.required(columns)
    good, finite = whole(required), finite_rows(required)
    broken, not_probabilities = (
        np.bincount(stored.owner[bad], minlength=clients) for bad in (~good, ~good & finite)
    )
    rows = np.flatnonzero(stored.known & (broken[stored.owner] == 0))
    chosen, y = rows_of_columns(columns, rows), stored.y[rows].astype(kind.stored)
    scores = kind.scores(chosen, y, *_draws(stored, model, rows), stored.draws)
    return Rows(model, chosen, y, stored.owner[rows], rows, scores, broken, not_probabilities)


def model_of(stored: Posterior, found: Rows) -> ModelReport | None:
    """Its measures; None without examples."""
    if not len(found.y):
        return None
    return kind_of(stored).model(found.columns, found.y, found.owner, found.scores)


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
    lower, upper = kind_of(stored).client_intervals(lead.columns, lead.y, lead.owner, n)
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
    measured = kind_of(stored).client
    with np.errstate(invalid="ignore"):
        return [
            measured(
                rows_of_columns(found.columns, rows),
                found.y[rows],
                rows_of_columns(found.scores, rows),
            )
            for rows in np.split(order, ends[:-1])
        ]
