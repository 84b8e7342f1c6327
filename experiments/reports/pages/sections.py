"""The sections of a run's page on measures, clients, rounds and settings: HTML, whatever is missing."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence

from pyro_pfedbayes.experiments.reports.figures.classes import (
    MOST_CLIENTS,
    plot_clients,
    plot_gain_history,
    plot_history,
)
from pyro_pfedbayes.experiments.reports.pages.html import (
    UNDEFINED,
    amount,
    escaped,
    figure_block,
    number,
    paragraph,
    percent,
    side_by_side,
    table,
)
from pyro_pfedbayes.experiments.reports.pages.section_helpers import (
    DASH,
    NOT_ABOUT,
    Shown,
    estimate,
    gone,
    models,
    sentence,
    titles,
)
from pyro_pfedbayes.experiments.reports.schema import (
    NOT_STORED,
    ClientRow,
    ReportData,
)
from pyro_pfedbayes.measures.registry import MEASURES

_SHORT = {"personal": "PM", "global": "GM"}
_FEW = 4  # clients from which a bootstrap over clients begins to tell
_OVER = {
    "both": "95 % intervals: bootstrap over clients, and over examples within them.",
    "clients": "95 % intervals: bootstrap over clients, each with all its examples.",
    "examples": "95 % intervals: bootstrap over the examples of the only client.",
}


def measures_section(data: ReportData) -> str:
    """All measures, over all examples together."""
    found = models(data)
    if not found:
        return gone(data, "predictions")
    names = [name for name in MEASURES if any(name in model.measures for model in found.values())]
    rows = []
    for name in names:
        measure = MEASURES[name]
        shown = percent if measure.percent else number
        cells = [estimate(model.measures.get(name), shown) for model in found.values()]
        rows.append([measure.title, *cells, measure.gloss])
    heads = ["measure", *(titles(data)[name] for name in found), ""]
    judged = sum(row.judged for row in data.clients if not row.broken)
    over = _OVER.get(data.interval, "")
    served = sum(1 for row in data.clients if row.judged and not row.broken)
    if 1 < served < _FEW:
        over += f" There are {served} clients only, and so the intervals are too narrow."
    caption = f"{amount(judged, 'test example')} with a known outcome. {over} {DASH}"
    text = table(caption, heads, rows, text=[len(heads) - 1])
    if "intervals" in data.missing:
        text += paragraph(sentence(data.missing["intervals"]), "gone")
    if data.global_ is None:
        text += paragraph(f"The global model: {data.missing.get('global', NOT_STORED)}.", "gone")
    return text


def clients_section(data: ReportData) -> str:
    """A row a client, those in need first, and a figure."""
    if not data.clients:
        return gone(data, "clients")
    outcome = data.outcome or "class"
    columns = _client_columns(data)
    rows = [[row.name, *(cell(row) for _, cell in columns)] for row in data.clients]
    heads = ["client", *(heading for heading, _ in columns)]
    first = "accuracy" if outcome == "class" else "RMSE"
    caption = (
        "Clients with a reason for attention (marked !) first, then by falling "
        f"{'NLL' if outcome == 'class' else 'RMSE'}. PM: its personal model, GM: the global model. {DASH}"
    )
    marked = [place for place, row in enumerate(data.clients) if row.reasons]
    text = table(caption, heads, rows, text=[len(heads) - 1] if marked else [], marked=marked)
    shown = min(len(data.clients), MOST_CLIENTS)
    which = "" if shown == len(data.clients) else f" The first {shown} of the table."
    figure = figure_block(
        plot_clients(data.clients, outcome, lead=data.lead),
        f"{first} of {amount(shown, 'client')}. {_extremes(data.clients, outcome, data.lead)}",
        f"{first[0].upper()}{first[1:]} of each client on its own test examples: {_marks(data)}.{which}",
    )
    why = paragraph(
        "Reasons compare a client with the median client: its whole 95 % interval lies on the bad side of the median, "
        "its entropy (or sd) is above 1.5 times the median, or it has under half the median's training data. Beside "
        "that: more confidence than accuracy, 90 % intervals that hold fewer outcomes than chance explains, or a "
        "global model that serves it better, beyond 1.96 standard errors. Of many clients, some are marked by chance."
    )
    return side_by_side(figure, f"<div>{why}</div>") + text


def history_section(data: ReportData) -> str:
    """Measures by round."""
    if not data.history:
        return gone(data, "history")
    classes = data.outcome != "number"
    shown = (
        [("accuracy", "accuracy (%)"), ("nll", "NLL (nats)"), ("ece", "ECE (%)")]
        if classes
        else [("rmse", "RMSE"), ("nll", "NLL (nats)"), ("coverage90", "in the 90 % interval (%)")]
    )
    last = data.history[-1]
    blocks = []
    for measure, label in shown:
        if not any(record["personal"].get(measure) is not None for record in data.history):
            continue
        column = last.get(data.lead)
        value = column.get(measure) if isinstance(column, Mapping) else None
        scaled = percent(value) if "%" in label else number(value)
        alt = f"{label} by round; {titles(data)[data.lead]} at round {last['round']}: {scaled}."
        blocks.append(
            figure_block(
                plot_history(data.history, measure, label, titles(data)),
                alt,
                f"{label}, on test examples.",
            )
        )
    told = [r["information_gain"] for r in data.history if r.get("information_gain")]
    if told:
        totals = sorted(map(sum, zip(*told[-1].values(), strict=True)))
        alt = f"Information gain by round; a median client's is {number(totals[len(totals) // 2])} nats at the end."
        blocks.append(
            figure_block(
                plot_gain_history(data.history),
                alt,
                "Information gain KL(q^i‖w), what clients learnt that the server's belief does not say.",
            )
        )
    return side_by_side(*blocks)


def settings_section(data: ReportData) -> str:
    """What reproduces the run."""
    versions = data.summary.get("versions") or {
        key.removeprefix("version_"): value
        for key, value in data.attrs.items()
        if key.startswith("version_")
    }
    rows = [[str(name), str(version)] for name, version in versions.items()]
    rows += [
        [key, str(data.summary[key])]
        for key in ("device", "engine", "weights")
        if key in data.summary
    ]
    text = paragraph("These settings, saved as run.toml, reproduce the run: pfedbayes run run.toml")
    text += f"<pre>{escaped(_toml(data.settings))}</pre>"
    if rows:
        text += table("Versions and circumstances of the run", ["what", "value"], rows)
    return text


def _client_columns(data: ReportData) -> list[tuple[str, Callable[[ClientRow], str]]]:
    """Headings and cells after the client's name."""

    def cell(model: str, name: str, shown: Shown) -> Callable[[ClientRow], str]:
        return lambda row: shown(row.measures(model).get(name))

    classes, lead = data.outcome != "number", data.lead
    other = "global" if lead == "personal" else "personal"
    short = _SHORT[lead]
    first, shown = ("accuracy", percent) if classes else ("rmse", number)
    title = "%" if classes else "RMSE"
    columns: list[tuple[str, Callable[[ClientRow], str]]] = []
    if any(row.train is not None for row in data.clients):
        columns.append(("train", lambda row: UNDEFINED if row.train is None else f"{row.train:,}"))
    columns.append(("test", lambda row: f"{row.judged:,}"))
    columns.append((f"{short} {title}", cell(lead, first, shown)))
    columns.append(("95 % interval", lambda row: f"{shown(row.lower)} to {shown(row.upper)}"))
    if data.global_ is not None:
        aside = "" if other in data.about else f" ({NOT_ABOUT})"
        columns.append((f"{_SHORT[other]} {title}{aside}", cell(other, first, shown)))
    columns.append((f"{short} NLL", cell(lead, "nll", number)))
    if classes:
        columns += [
            (f"{short} ECE %", cell(lead, "ece", percent)),
            ("entropy", cell(lead, "entropy", number)),
            ("epistemic", cell(lead, "epistemic", number)),
        ]
    else:
        columns += [
            (f"{short} in 90 %", cell(lead, "coverage90", percent)),
            ("sd", cell(lead, "sd", number)),
            ("CRPS", cell(lead, "crps", number)),
        ]
    if data.gain is not None:
        columns.append(("gain, nats", lambda row: number(row.gain)))
    if any(row.reasons for row in data.clients):
        columns.append(("why it needs attention", lambda row: "; ".join(row.reasons)))
    return columns


def _marks(data: ReportData) -> str:
    """What the marks of the figure of clients mean."""
    what = {"personal": "dot, personal model", "global": "square, the global model"}
    text = f"{what[data.lead]} with its 95 % interval"
    if data.global_ is None:
        return text
    other = "global" if data.lead == "personal" else "personal"
    return f"{text}; {what[other]}" + ("" if other in data.about else f" ({NOT_ABOUT})")


def _extremes(rows: Sequence[ClientRow], outcome: str, lead: str) -> str:
    first, shown = ("accuracy", percent) if outcome == "class" else ("rmse", number)
    values = [row.measures(lead).get(first, math.nan) for row in rows]
    finite = [value for value in values if math.isfinite(value)]
    return f"From {shown(min(finite))} to {shown(max(finite))}." if finite else ""


def _toml(settings: Mapping[str, object]) -> str:
    import tomli_w

    try:
        return tomli_w.dumps(dict(settings))
    except (TypeError, ValueError):
        return json.dumps(settings, indent=2, default=str)
