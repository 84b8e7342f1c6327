"""The sections of a run's page on measures, clients, rounds and settings; None where there is nothing to show."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from markupsafe import Markup

from pyro_pfedbayes.experiments.reports.figures.clients import plot_clients
from pyro_pfedbayes.experiments.reports.figures.rounds import plot_gain_history, plot_history
from pyro_pfedbayes.experiments.reports.figures.style import MOST_CLIENTS
from pyro_pfedbayes.experiments.reports.pages.formatting import (
    NOT_ABOUT,
    SHORT,
    UNDEFINED,
    Shown,
    estimate,
    first_measure,
    number,
    percent,
    shown_as,
    titles,
)
from pyro_pfedbayes.experiments.reports.pages.render import fragment
from pyro_pfedbayes.experiments.reports.schema import ReportData
from pyro_pfedbayes.measures.registry import MEASURES

_OVER = {
    "both": "95 % intervals: bootstrap over clients, and over examples within them.",
    "clients": "95 % intervals: bootstrap over clients, each with all its examples.",
    "examples": "95 % intervals: bootstrap over the examples of the only client.",
}
_ROUNDS = (("accuracy", "accuracy (%)"), ("nll", "NLL (nats)"), ("ece", "ECE (%)"))
_ROUNDS_NUMBERS = (
    ("rmse", "RMSE"),
    ("nll", "NLL (nats)"),
    ("coverage90", "in the 90 % interval (%)"),
)


def measures(data: ReportData) -> Markup | None:
    """All measures, over all examples together."""
    columns = [model.measures for model in data.models.values()]
    if not columns:
        return None
    rows = [
        [
            measure.title,
            *(estimate(own.get(name), shown_as(measure)) for own in columns),
            measure.gloss,
        ]
        for name, measure in MEASURES.items()
        if any(name in own for own in columns)
    ]
    names = [titles(data)[name] for name in data.models]
    over = _OVER.get(data.interval, "")
    return fragment("measures.html.jinja", data=data, names=names, rows=rows, over=over)


def clients(data: ReportData) -> Markup | None:
    """A row a client, those in need first, and a figure."""
    if not data.clients:
        return None
    columns = _client_columns(data)
    first, shown = first_measure(data.numeric)
    values = [row.measures(data.lead).get(first, math.nan) for row in data.clients]
    finite = [value for value in values if math.isfinite(value)]
    return fragment(
        "clients.html.jinja",
        data=data,
        columns=list(columns),
        rows=list(zip(*columns.values(), strict=True)),
        marked=[place for place, row in enumerate(data.clients) if row.reasons],
        shown=min(len(data.clients), MOST_CLIENTS),
        extremes=f"From {shown(min(finite))} to {shown(max(finite))}." if finite else "",
        other="global" if data.lead == "personal" else "personal",
        picture=plot_clients(data.clients, numeric=data.numeric, lead=data.lead),
    )


def history(data: ReportData) -> Markup | None:
    """Measures by round."""
    if not data.history:
        return None
    names, last = titles(data), data.history[-1]
    blocks = []
    for measure, label in _ROUNDS_NUMBERS if data.numeric else _ROUNDS:
        if all(record["personal"].get(measure) is None for record in data.history):
            continue
        column = last.get(data.lead)
        value = column.get(measure) if isinstance(column, Mapping) else None
        shown = percent(value) if "%" in label else number(value)
        alt = f"{label} by round; {names[data.lead]} at round {last['round']}: {shown}."
        picture = plot_history(data.history, measure, label, names)
        blocks.append((picture, alt, f"{label}, on test examples."))
    gains = [gain for record in data.history if (gain := record.get("information_gain"))]
    if gains:
        totals = sorted(map(sum, zip(*gains[-1].values(), strict=True)))
        median = number(totals[len(totals) // 2])
        alt = f"Information gain by round; a median client's is {median} nats at the end."
        caption = (
            "Information gain KL(q^i‖w), what clients learnt that the server's belief does not say."
        )
        blocks.append((plot_gain_history(data.history), alt, caption))
    return fragment("history.html.jinja", blocks=blocks)


def settings(data: ReportData) -> Markup:
    """What reproduces the run."""
    import tomli_w

    prefix = "version_"
    versions = data.summary.get("versions") or {
        key.removeprefix(prefix): value
        for key, value in data.attrs.items()
        if key.startswith(prefix)
    }
    circumstances = {
        key: data.summary[key] for key in ("device", "engine", "weights") if key in data.summary
    }
    try:
        settings = tomli_w.dumps(dict(data.settings))
    except (TypeError, ValueError):
        settings = json.dumps(data.settings, indent=2, default=str)
    rows = [[str(key), str(value)] for key, value in [*versions.items(), *circumstances.items()]]
    return fragment("settings.html.jinja", settings=settings, rows=rows)


def _client_columns(data: ReportData) -> dict[str, list[str]]:
    """Cells of all clients by heading."""
    rows, lead = data.clients, data.lead
    other = "global" if lead == "personal" else "personal"
    first, shown = first_measure(data.numeric)
    title, short = "RMSE" if data.numeric else "%", SHORT[lead]

    def cells(name: str, shown: Shown, model: str = lead) -> list[str]:
        return [shown(row.measures(model).get(name)) for row in rows]

    columns = {"client": [row.name for row in rows]}
    if any(row.train is not None for row in rows):
        columns["train"] = [UNDEFINED if row.train is None else f"{row.train:,}" for row in rows]
    columns["test"] = [f"{row.judged:,}" for row in rows]
    columns[f"{short} {title}"] = cells(first, shown)
    columns["95 % interval"] = [f"{shown(row.lower)} to {shown(row.upper)}" for row in rows]
    if data.global_ is not None:
        aside = "" if other in data.about else f" ({NOT_ABOUT})"
        columns[f"{SHORT[other]} {title}{aside}"] = cells(first, shown, other)
    columns[f"{short} NLL"] = cells("nll", number)
    if data.numeric:
        columns[f"{short} in 90 %"] = cells("coverage90", percent)
        columns |= {"sd": cells("sd", number), "CRPS": cells("crps", number)}
    else:
        columns[f"{short} ECE %"] = cells("ece", percent)
        columns |= {name: cells(name, number) for name in ("entropy", "epistemic")}
    if data.gain is not None:
        columns["gain, nats"] = [number(row.gain) for row in rows]
    if any(row.reasons for row in rows):
        columns["why it needs attention"] = ["; ".join(row.reasons) for row in rows]
    return columns
