"""From a run's folder to the numbers of its report."""

from __future__ import annotations

import dataclasses
import importlib.metadata
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.experiments.reports.collect.attention_rules import (
    by_attention,
    with_attention_reasons,
)
from pyro_pfedbayes.experiments.reports.collect.classes import temperature_report
from pyro_pfedbayes.experiments.reports.collect.judged_examples import (
    Rows,
    client_rows,
    fit_of,
    kind_of,
    model_of,
    rows_of,
)
from pyro_pfedbayes.experiments.reports.collect.least_certain import SHOWN_EXAMPLES, least_certain
from pyro_pfedbayes.experiments.reports.collect.numbers import LEAST_DRAWS
from pyro_pfedbayes.experiments.reports.collect.point_methods import (
    POINT_GAIN,
    undefine_client,
    undefine_split,
)
from pyro_pfedbayes.experiments.reports.collect.stored_detection import detection
from pyro_pfedbayes.experiments.reports.files.dataset_reload import ReloadedData, reload_dataset
from pyro_pfedbayes.experiments.reports.files.invalid_predictions import note_invalid_predictions
from pyro_pfedbayes.experiments.reports.files.method_traits import models_of_method
from pyro_pfedbayes.experiments.reports.files.run_files import Posterior, RunFiles, read_run
from pyro_pfedbayes.experiments.reports.files.run_identity import identity_notes
from pyro_pfedbayes.experiments.reports.schema import (
    NOT_STORED,
    GainMap,
    ReportData,
    TemperatureReport,
)
from pyro_pfedbayes.experiments.reports.statistics.intervals import drawn_over
from pyro_pfedbayes.experiments.runs.result_tables import counted, first_measure

__all__ = ["SHOWN_EXAMPLES", "collect", "warnings_of"]

_NO_TEMPERATURE = f"{NOT_STORED}: it is of an older version, or has no validation examples"
_FOR_CLASSES = "temperatures are for classes, and the outcomes are numbers"
_NO_GAIN = (
    f"{NOT_STORED}: it is of an older version, or its method has no KL(q^i‖w) of a client's belief"
)


def collect(path: Path, *, reload: bool = True) -> ReportData:
    """All numbers of a run's report; ``missing`` and ``notes`` tell what is missing or damaged.

    ``reload``: load the data set once more, for numbers of training examples and for pictures.
    """
    run = read_run(path)
    missing: dict[str, str] = {}
    notes = _notes(run)
    data = _reloaded(run, missing) if reload else None
    report = ReportData(
        folder=str(path),
        outcome=_outcome(run),
        finished=bool(run.summary),
        summary=run.summary,
        settings=run.settings,
        history=run.history,
        about=models_of_method(run.settings),
        damaged=tuple(run.problems[name] for name in run.damaged),
        absent=tuple(told for name, told in run.problems.items() if name not in run.damaged),
    )
    if not run.history:
        missing["history"] = run.problems.get("metrics.jsonl", "no round has been evaluated yet")
    if run.posterior is None:
        reason = run.problems["posterior.nc"]
        missing |= dict.fromkeys(("predictions", "clients"), reason)
        missing["gain"] = f"the information gain of each client is in posterior.nc, but {reason}"
        missing |= dict.fromkeys(("unseen", "foreign", "corrupted"), reason)
        missing |= dict.fromkeys(("global", "temperature", "least_certain"), reason)
    else:
        report = _judged(report, run, run.posterior, data, missing, notes)
    return dataclasses.replace(report, missing=missing, notes=tuple(notes))


def warnings_of(data: ReportData) -> tuple[str, ...]:
    """What is damaged in a run's folder, and what is not there, a line each."""
    return (*data.damaged, *data.absent)


def _judged(
    report: ReportData,
    run: RunFiles,
    stored: Posterior,
    data: ReloadedData | None,
    missing: dict[str, str],
    notes: list[str],
) -> ReportData:
    names = _client_names(run, stored, data)
    personal, global_ = _both(run, stored, names, missing, notes)
    lead = global_ if report.about == ("global",) and global_ is not None else personal
    gain = _gain(run, stored, names, missing)
    outcome = kind_of(stored).name
    found: dict[str, Any] = dict(detection(stored, run.settings, personal, missing))
    columns = stored.personal if lead is personal else stored.global_
    made = dataclasses.replace(
        report,
        outcome=outcome,
        attrs=stored.attrs,
        draws=stored.draws,
        kept_draws=stored.kept,
        classes=stored.classes,
        personal=model_of(stored, personal),
        global_=None if global_ is None else model_of(stored, global_),
        interval=drawn_over(torch.from_numpy(personal.owner)) if len(personal.y) else "",
        point=stored.is_point,
        temperature=_temperatures(run, stored, {"personal": personal, "global": global_}, missing),
        gain=gain,
        least_certain=least_certain(stored, columns or stored.personal, names, data, missing),
        numbers=fit_of(stored, lead),
        **found,
    )
    _tell_draws(made, missing)
    notes += _identity_notes(run, made, stored, data, (personal, global_))
    train, dropped = None if data is None else data.train, run.summary.get("dropped", {})
    rows = client_rows(stored, names, train, dropped, personal, global_, lead, gain)
    if made.point:
        made, rows = undefine_split(made), [undefine_client(row) for row in rows]
        missing["gain"] = POINT_GAIN
    reasons = with_attention_reasons(rows, outcome, lead=lead.model, both=len(report.about) == 2)
    return dataclasses.replace(made, clients=by_attention(reasons, outcome, lead=lead.model))


def _both(
    run: RunFiles,
    stored: Posterior,
    names: tuple[str, ...],
    missing: dict[str, str],
    notes: list[str],
) -> tuple[Rows, Rows | None]:
    """What the personal models and the global one are judged by."""
    personal = rows_of(stored, "personal", stored.personal, len(names))
    note_invalid_predictions(
        "personal models", personal.broken, personal.not_probabilities, names, notes
    )
    if not len(personal.y):
        missing["predictions"] = (
            "no test example has a known outcome and a prediction that can be used"
        )
    if stored.global_ is None:
        missing["global"] = run.problems.get("global_stats", NOT_STORED)
        return personal, None
    global_ = rows_of(stored, "global", stored.global_, len(names))
    note_invalid_predictions(
        "global model", global_.broken, global_.not_probabilities, names, notes
    )
    return personal, global_


def _identity_notes(
    run: RunFiles,
    made: ReportData,
    stored: Posterior,
    data: ReloadedData | None,
    rows: tuple[Rows, Rows | None],
) -> list[str]:
    """Why the predictions may not be the run's own, or not all of them."""
    # The summary counts all clients, so figures that leave some out are not held against it.
    personal, global_ = (found is not None and not found.broken.any() for found in rows)
    compared = {
        "personal": made.personal if personal else None,
        "global": made.global_ if global_ else None,
    }
    notes = identity_notes(run, stored, compared, len(rows[0].y))
    if data is not None:
        there = set(np.unique(stored.owner).tolist())
        lost = [i for i, size in enumerate(data.test) if size and i not in there]
        if lost:
            who = ", ".join(data.names[i] for i in lost[:10]) + (", …" if len(lost) > 10 else "")
            notes.append(
                f"posterior.nc has no predictions for {counted(len(lost), 'client')} with test examples ({who}): they "
                "are left out of all figures"
            )
    return notes


def _tell_draws(made: ReportData, missing: dict[str, str]) -> None:
    """Say why intervals of numbers are not defined."""
    if made.outcome != "number" or made.draws >= LEAST_DRAWS:
        return
    stored = "one draw is stored" if made.draws == 1 else f"{made.draws} draws are stored"
    why = ", for the method keeps one set of weights" if made.point else ""
    also = "; PIT and CRPS need 2" if made.draws < 2 else ""
    missing["intervals"] = (
        f"90 % intervals are not defined: {stored}{why}, and they need {LEAST_DRAWS}{also}"
    )


def _temperatures(
    run: RunFiles, stored: Posterior, models: Mapping[str, Rows | None], missing: dict[str, str]
) -> tuple[TemperatureReport, ...]:
    found = []
    for name, validation in stored.validation.items():
        model = models.get(name)
        if model is not None:
            fitted = temperature_report(name, validation, model.columns, model.y, model.owner)
            found += [] if fitted is None else [fitted]
    if not found:
        missing["temperature"] = _NO_TEMPERATURE if stored.is_class else _FOR_CLASSES
        for group in ("validation_stats", "global_validation_stats"):
            missing["temperature"] = run.problems.get(group, missing["temperature"])
    return tuple(found)


def _gain(
    run: RunFiles, stored: Posterior, names: tuple[str, ...], missing: dict[str, str]
) -> GainMap | None:
    found = stored.gain
    if found is None or not found["kl"].size:
        missing["gain"] = run.problems.get("information_gain", _NO_GAIN)
        return None
    clients = tuple(names[i] if 0 <= i < len(names) else str(i) for i in found["client"].tolist())
    kl = tuple(tuple(row) for row in found["kl"].astype(float).tolist())
    return GainMap(clients, tuple(found["site"].tolist()), kl)


def _client_names(run: RunFiles, stored: Posterior, data: ReloadedData | None) -> tuple[str, ...]:
    if data is not None:
        return data.names
    told = run.summary.get("clients", run.settings.get("data", {}).get("clients"))
    seen = [*stored.owner.tolist(), *stored.names]
    clients = max([told if isinstance(told, int) else 0, *(int(i) + 1 for i in set(seen))])
    return tuple(stored.names.get(i, str(i)) for i in range(clients))


def _reloaded(run: RunFiles, missing: dict[str, str]) -> ReloadedData | None:
    try:
        return reload_dataset(run)
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


def _notes(run: RunFiles) -> list[str]:
    notes = [told for file, told in run.problems.items() if file != "posterior.nc"]
    if run.posterior is not None:
        made = run.posterior.attrs.get("version_pyro-pfedbayes")
        here = importlib.metadata.version("pyro-pfedbayes")
        if made is not None and made != here:
            notes.append(f"the run was made by version {made}; this report is by version {here}")
    return notes
