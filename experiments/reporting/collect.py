"""From a run's folder to the numbers of its report."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.experiments.report import counted, first_measure
from pyro_pfedbayes.experiments.reporting.again import Again, load_again, picture
from pyro_pfedbayes.experiments.reporting.classes import (
    class_client_measures,
    class_model,
    temperature_report,
    whole,
)
from pyro_pfedbayes.experiments.reporting.collect_ood import detection
from pyro_pfedbayes.experiments.reporting.data import (
    NOT_STORED,
    ClientRow,
    Example,
    GainMap,
    ModelReport,
    NumberFit,
    ReportData,
    TemperatureReport,
)
from pyro_pfedbayes.experiments.reporting.intervals import drawn_over
from pyro_pfedbayes.experiments.reporting.needs import by_need, with_reasons
from pyro_pfedbayes.experiments.reporting.numbers import (
    number_client_measures,
    number_fit,
    number_model,
    number_scores,
    rmse_intervals,
)
from pyro_pfedbayes.experiments.reporting.reading import Columns, Posterior, RunFiles, read_run
from pyro_pfedbayes.resampling import accuracy_interval

__all__ = ["SHOWN_EXAMPLES", "collect"]

SHOWN_EXAMPLES = 12
Array = NDArray[Any]
_NO_TEMPERATURE = f"{NOT_STORED}: it is of an older version, or has no validation examples"


def collect(path: Path, *, again: bool = True) -> ReportData:
    """Collect all numbers of a run's report.

    Args:
        path: The run's folder.
        again: Whether to load the data set once more, for numbers of training examples and for pictures.

    Returns:
        The numbers; what is missing or damaged is told of in ``missing`` and ``notes``.

    Raises:
        UserError: There is no run in the folder, or its ``config.toml`` is damaged.
    """
    run = read_run(path)
    missing: dict[str, str] = {}
    notes = _notes(run)
    data = _again(run, missing) if again else None
    report = ReportData(
        folder=str(path),
        outcome=_outcome(run),
        finished=bool(run.summary),
        summary=run.summary,
        settings=run.settings,
        history=run.history,
    )
    if not run.history:
        missing["history"] = run.problems.get("metrics.jsonl", "no round has been evaluated yet")
    if run.posterior is None:
        reason = run.problems["posterior.nc"]
        missing |= dict.fromkeys(("predictions", "clients", "gain"), reason)
        missing |= dict.fromkeys(("unseen", "foreign", "corrupted"), reason)
        missing |= dict.fromkeys(("global", "temperature", "least_certain"), reason)
    else:
        report = _judged(report, run, run.posterior, data, missing, notes)
    return dataclasses.replace(report, missing=missing, notes=tuple(notes))


@dataclass(frozen=True)
class _Rows:
    """Examples that one kind of model is judged by.

    Attributes:
        columns: Its predictions.
        y: Known outcomes.
        owner: Their clients.
        rows: Where they lie among all.
        scores: Of numbers, from draws.
        broken: Predictions of each client that are no numbers ``[N]``.
    """

    columns: Columns
    y: Array
    owner: Array
    rows: Array
    scores: dict[str, Array]
    broken: Array


def _judged(
    report: ReportData,
    run: RunFiles,
    stored: Posterior,
    data: Again | None,
    missing: dict[str, str],
    notes: list[str],
) -> ReportData:
    names = _client_names(run, stored, data)
    personal = _rows(stored, stored.personal, len(names), draws=True)
    global_ = None
    if stored.global_ is None:
        missing["global"] = NOT_STORED
    else:
        global_ = _rows(stored, stored.global_, len(names), draws=False)
    _tell_broken("personal models", personal, names, notes)
    if global_ is not None:
        _tell_broken("global model", global_, names, notes)
    if not len(personal.y):
        missing["predictions"] = (
            "no test example has a known outcome and a prediction that is a number"
        )
    gain = _gain(stored, names, missing)
    rows = _client_rows(run, stored, data, names, personal, global_, gain)
    outcome: Literal["class", "number"] = "class" if stored.is_class else "number"
    over = drawn_over(torch.from_numpy(personal.owner)) if len(personal.y) else ""
    found = detection(stored, personal.columns, personal.y, personal.owner, personal.rows, missing)
    return dataclasses.replace(
        report,
        outcome=outcome,
        attrs=stored.attrs,
        draws=stored.draws,
        kept_draws=stored.kept,
        classes=stored.classes,
        personal=_model(stored, personal),
        global_=None if global_ is None else _model(stored, global_),
        interval=over,
        clients=by_need(with_reasons(rows, outcome), outcome),
        unseen=found.unseen,
        foreign=found.foreign,
        corrupted=found.corrupted,
        temperature=_temperatures(stored, {"personal": personal, "global": global_}, missing),
        gain=gain,
        least_certain=_least_certain(stored, names, data, missing),
        numbers=_fit(stored, personal),
    )


def _rows(stored: Posterior, columns: Columns, clients: int, *, draws: bool) -> _Rows:
    """Known outcomes of clients whose predictions are all numbers."""
    known = stored.y >= 0 if stored.is_class else np.isfinite(stored.y)
    good = whole(columns) if stored.is_class else whole({"mean": columns["mean"]})
    broken = np.bincount(stored.owner[~good], minlength=clients)
    rows = np.flatnonzero(known & (broken[stored.owner] == 0))
    chosen = {name: values[rows] for name, values in columns.items()}
    y = stored.y[rows].astype(np.int64 if stored.is_class else np.float64)
    scores: dict[str, Array] = {}
    if not stored.is_class and len(rows):
        outcomes, log_likelihood = _draws(stored, rows) if draws else (None, None)
        scores = number_scores(
            outcomes, log_likelihood, y, chosen.get("log_density"), chosen, stored.draws
        )
    return _Rows(chosen, y, stored.owner[rows], rows, scores, broken)


def _draws(stored: Posterior, rows: Array) -> tuple[Array | None, Array | None]:
    parts = (stored.outcomes, stored.log_likelihood)
    outcomes, log_likelihood = (None if part is None else part[:, rows] for part in parts)
    return outcomes, log_likelihood


def _model(stored: Posterior, found: _Rows) -> ModelReport | None:
    if not len(found.y):
        return None
    if stored.is_class:
        return class_model(found.columns, found.y, found.owner)
    return number_model(found.columns, found.y, found.owner, found.scores)


def _fit(stored: Posterior, personal: _Rows) -> NumberFit | None:
    if stored.is_class or not len(personal.y):
        return None
    return number_fit(personal.columns, personal.y, _draws(stored, personal.rows)[0])


def _client_rows(
    run: RunFiles,
    stored: Posterior,
    data: Again | None,
    names: tuple[str, ...],
    personal: _Rows,
    global_: _Rows | None,
    gain: GainMap | None,
) -> list[ClientRow]:
    n = len(names)
    known = stored.y >= 0 if stored.is_class else np.isfinite(stored.y)
    test = np.bincount(stored.owner, minlength=n)
    judged = np.bincount(stored.owner[known], minlength=n)
    own = _by_client(stored, personal, n)
    others = None if global_ is None else _by_client(stored, global_, n)
    lower, upper = _ends(stored, personal, n)
    gains: dict[int, float] = {}
    if gain is not None and stored.gain is not None:
        gains = dict(zip(stored.gain["client"].tolist(), map(sum, gain.kl), strict=True))
    dropped = run.summary.get("dropped", {})
    return [
        ClientRow(
            client=i,
            name=names[i],
            train=None if data is None else data.train[i],
            test=int(test[i]),
            judged=int(judged[i]),
            broken=int(personal.broken[i]),
            personal=own[i],
            global_=None if others is None else others[i],
            lower=float(lower[i]),
            upper=float(upper[i]),
            gain=gains.get(i),
            dropped=int(dropped.get(str(i), 0)),
        )
        for i in range(n)
    ]


def _by_client(stored: Posterior, found: _Rows, clients: int) -> list[dict[str, float]]:
    # By one sort rather than a look at all examples for each client.
    order = np.argsort(found.owner, kind="stable")
    ends = np.bincount(found.owner, minlength=clients).cumsum()
    measures = []
    with np.errstate(invalid="ignore"):
        for rows in np.split(order, ends[:-1]):
            columns = {name: values[rows] for name, values in found.columns.items()}
            if stored.is_class:
                measures.append(class_client_measures(columns, found.y[rows]))
            else:
                scores = {name: values[rows] for name, values in found.scores.items()}
                measures.append(number_client_measures(columns, found.y[rows], scores))
    return measures


def _ends(stored: Posterior, personal: _Rows, clients: int) -> tuple[Array, Array]:
    """95 % intervals of each client's accuracy or RMSE."""
    if not stored.is_class:
        return rmse_intervals(personal.columns, personal.y, personal.owner, clients)
    right = personal.columns["p"].argmax(1) == personal.y
    counts = np.bincount(personal.owner[right], minlength=clients)
    total = np.bincount(personal.owner, minlength=clients)
    found = accuracy_interval(torch.from_numpy(counts), torch.from_numpy(total))
    return found.lower.numpy(), found.upper.numpy()


def _temperatures(
    stored: Posterior, models: Mapping[str, _Rows | None], missing: dict[str, str]
) -> tuple[TemperatureReport, ...]:
    found = []
    for name, validation in stored.validation.items():
        model = models.get(name)
        if model is not None:
            fitted = temperature_report(name, validation, model.columns, model.y, model.owner)
            found += [] if fitted is None else [fitted]
    if not found and stored.is_class:
        missing["temperature"] = _NO_TEMPERATURE
    return tuple(found)


def _gain(stored: Posterior, names: tuple[str, ...], missing: dict[str, str]) -> GainMap | None:
    found = stored.gain
    if found is None or not found["kl"].size:
        missing["gain"] = NOT_STORED
        return None
    clients = tuple(names[i] if 0 <= i < len(names) else str(i) for i in found["client"].tolist())
    kl = tuple(tuple(row) for row in found["kl"].astype(float).tolist())
    return GainMap(clients, tuple(found["site"].tolist()), kl)


def _least_certain(
    stored: Posterior, names: tuple[str, ...], data: Again | None, missing: dict[str, str]
) -> tuple[Example, ...]:
    columns = stored.personal
    doubt = columns["total" if stored.is_class else "sd"].astype(np.float64)
    good = (
        whole(columns) if stored.is_class else whole({"mean": columns["mean"]}) & ~np.isnan(doubt)
    )
    if not good.any():
        missing["least_certain"] = "no prediction is a number"
        return ()
    order = np.argsort(np.where(good, -doubt, math.inf), kind="stable")
    rows = order[: min(SHOWN_EXAMPLES, int(good.sum()))].tolist()
    index = np.arange(len(stored.y)) if stored.index is None else stored.index
    found = []
    for row in rows:
        label, predicted, probability = _told(stored, row)
        epistemic = float(columns["epistemic"][row])
        place = int(index[row])
        found.append(
            Example(
                index=place,
                client=names[stored.owner[row]],
                label=label,
                predicted=predicted,
                probability=probability,
                uncertainty=float(doubt[row]),
                epistemic=epistemic if stored.is_class else math.sqrt(max(epistemic, 0.0)),
                image=None if data is None or stored.index is None else picture(data, place),
            )
        )
    return tuple(found)


def _told(stored: Posterior, row: int) -> tuple[str, str, float]:
    """Outcome, prediction and its probability."""
    if stored.is_class:
        p, label = stored.personal["p"][row], int(stored.y[row])
        best = int(p.argmax())
        true = stored.classes[label] if 0 <= label < len(stored.classes) else "unknown"
        return true, stored.classes[best], float(p[best])
    y = float(stored.y[row])
    mean = float(stored.personal["mean"][row])
    return "unknown" if math.isnan(y) else f"{y:.4g}", f"{mean:.4g}", math.nan


def _client_names(run: RunFiles, stored: Posterior, data: Again | None) -> tuple[str, ...]:
    if data is not None:
        return data.names
    told = run.summary.get("clients", run.settings.get("data", {}).get("clients"))
    seen = [*stored.owner.tolist(), *stored.names]
    clients = max([told if isinstance(told, int) else 0, *(int(i) + 1 for i in set(seen))])
    return tuple(stored.names.get(i, str(i)) for i in range(clients))


def _again(run: RunFiles, missing: dict[str, str]) -> Again | None:
    try:
        return load_again(run)
    except UserError as problem:
        missing["data"] = f"the data set could not be loaded again ({problem})"
    except Exception as problem:  # a file of another version may hold anything
        told = f"{type(problem).__name__}: {problem}"
        missing["data"] = f"the data set could not be loaded again ({told})"
    return None


def _outcome(run: RunFiles) -> Literal["class", "number"] | None:
    values = run.summary.get("personal") or (run.history[-1]["personal"] if run.history else None)
    if not isinstance(values, Mapping):
        return None
    return "number" if first_measure(values) == "rmse" else "class"


def _tell_broken(what: str, found: _Rows, names: tuple[str, ...], notes: list[str]) -> None:
    for client in np.flatnonzero(found.broken).tolist():
        broken = int(found.broken[client])
        what_is = f"{counted(broken, 'prediction')} of the {what} for client {names[client]}"
        verb = "is not a number" if broken == 1 else "are not numbers"
        notes.append(
            f"{what_is} {verb}: its measures are not defined, and measures of all clients together leave it out"
        )


def _notes(run: RunFiles) -> list[str]:
    notes = [
        run.problems[file] for file in ("summary.json", "metrics.jsonl") if file in run.problems
    ]
    if run.posterior is not None:
        made = run.posterior.attrs.get("version_pyro-pfedbayes")
        here = importlib.metadata.version("pyro-pfedbayes")
        if made is not None and made != here:
            notes.append(f"the run was made by version {made}; this report is by version {here}")
    return notes
