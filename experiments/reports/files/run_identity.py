"""Whether the predictions in a run's folder are the run's own."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pyro_pfedbayes.experiments.config.registry import DATA, canonical
from pyro_pfedbayes.experiments.reports.files.run_files import Posterior, RunFiles
from pyro_pfedbayes.experiments.reports.schema import ModelReport
from pyro_pfedbayes.experiments.runs.result_tables import counted

_POINTS = 0.05  # of accuracy that draws of the weights may make
_ERRORS = 0.25  # of the RMSE
_WHAT = {"personal": "personal models", "global": "global model"}


def identity_notes(
    run: RunFiles, stored: Posterior, models: Mapping[str, ModelReport | None], judged: int
) -> list[str]:
    """Why ``posterior.nc`` may be another run's, a note each.

    What it remembers of its run is held against ``config.toml`` and ``summary.json``; and its pooled accuracies (or
    RMSEs) against the summary's. These are from other draws of the weights on the same examples, which may move an
    accuracy by 5 points (or two standard errors, if more) and an RMSE by a quarter.
    """
    notes = []
    mismatches = [
        f"{name} {_shown(found)} ({file}: {_shown(wanted)})"
        for name, found, file, wanted in _claims(run, stored)
        if not _same(found, wanted)
    ]
    if mismatches:
        notes.append(
            f"posterior.nc seems to be another run's: it was made with {', '.join(mismatches)}; "
            "the figures below that are from its predictions may not be this run's"
        )
    for name, model in models.items():
        notes += [] if model is None else _far(run.summary, name, model, judged)
    clients = run.summary.get("clients")
    most = int(stored.owner.max(initial=-1)) + 1
    if isinstance(clients, int) and most > clients:
        notes.append(
            f"posterior.nc has predictions for client {most - 1}, but summary.json tells of "
            f"{counted(clients, 'client')}: it seems to be another run's"
        )
    return notes


def _claims(run: RunFiles, stored: Posterior) -> list[tuple[str, Any, str, Any]]:
    """Name, what ``posterior.nc`` says, and what another file says: where both say something."""
    settings, summary, attrs = run.settings, run.summary, stored.attrs
    sections = {
        name: value if isinstance(value := settings.get(name), Mapping) else {}
        for name in ("algorithm", "run", "data")
    }
    data = sections["data"].get("name")
    # The name of a file is not that of its data set.
    known = canonical(data) if isinstance(data, str) and canonical(data) in DATA else None
    config = {
        "method": sections["algorithm"].get("name"),
        "zeta": sections["algorithm"].get("zeta"),
        "seed": sections["run"].get("seed"),
        "rounds": sections["run"].get("rounds"),
        "data": known,
    }
    ended = {
        "method": summary.get("algorithm"),
        "seed": summary.get("seed"),
        "rounds": summary.get("rounds"),
        "data": summary.get("data"),
        "split": summary.get("split"),
    }
    found: dict[str, tuple[str, Any, str, Any]] = {}
    for file, values in (("summary.json", ended), ("config.toml", config)):
        for name, wanted in values.items():
            own = attrs.get(name)
            earlier = found.get(name)
            # One disagreement of a name is enough.
            if (
                own is not None
                and wanted is not None
                and (earlier is None or _same(earlier[1], earlier[3]))
            ):
                found[name] = (name, own, file, wanted)
    return list(found.values())


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, int | float) and isinstance(other, int | float):
        return math.isclose(one, other, rel_tol=1e-6)
    return str(one) == str(other)


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _far(summary: Mapping[str, Any], name: str, model: ModelReport, judged: int) -> list[str]:
    column = summary.get(name)
    for first in ("accuracy", "rmse"):
        summarized = column.get(first) if isinstance(column, Mapping) else None
        last = summarized.get("last") if isinstance(summarized, Mapping) else None
        if first not in model.measures or not isinstance(last, int | float) or not judged:
            continue
        value = model.measures[first].value
        if first == "accuracy":
            far = abs(value - last) > max(_POINTS, 2 * math.sqrt(0.25 / judged))
            shown = f"an accuracy of {100 * value:.1f} %", f"{100 * last:.1f} %"
        else:
            far = abs(value - last) > _ERRORS * last
            shown = f"an RMSE of {value:.4g}", f"{last:.4g}"
        if far:
            return [
                f"the predictions of the {_WHAT[name]} in posterior.nc have {shown[0]}, but summary.json says "
                f"{shown[1]}: further apart than draws of the weights explain, so one of them may be another run's"
            ]
    return []
