"""The page of one run."""

from __future__ import annotations

from pyro_pfedbayes.experiments.reports.pages import detection, sections, uncertainty
from pyro_pfedbayes.experiments.reports.pages.formatting import amount
from pyro_pfedbayes.experiments.reports.pages.headline import for_whom, how_good, how_sure
from pyro_pfedbayes.experiments.reports.pages.render import fragment, render
from pyro_pfedbayes.experiments.reports.schema import NOT_STORED, ReportData

_DETECTION = "Classes never seen, other data, and damaged pictures"
# Heading, content, the part of the run without which there is none, and the outcomes that it is for.
_SECTIONS = (
    ("Measures", sections.measures, "predictions", "any"),
    ("Clients, those in need first", sections.clients, "clients", "any"),
    ("Reliability and temperature", uncertainty.calibration, "predictions", "class"),
    ("Predictions and intervals", uncertainty.numbers, "predictions", "number"),
    ("Answering only when sure", uncertainty.selective, "predictions", "any"),
    ("Where the uncertainty comes from", uncertainty.entropy, "predictions", "any"),
    (_DETECTION, detection.detection, "unseen", "class"),
    ("The least certain examples", uncertainty.examples, "least_certain", "any"),
    ("What each client learnt for itself", uncertainty.gain, "gain", "any"),
    ("Round by round", sections.history, "history", "any"),
    ("Settings and versions", sections.settings, "settings", "any"),
)


def report_page(data: ReportData) -> str:
    """One self-contained HTML page of a run; it loads nothing from anywhere."""
    shown = []
    for heading, section, part, outcome in _SECTIONS:
        if outcome in ("any", "number" if data.numeric else "class"):
            reason = data.missing.get(part, NOT_STORED)
            content = section(data) or fragment("missing.html.jinja", reason=reason)
            shown.append((heading, content))
    notes = list(data.notes)
    if data.finished and data.personal is None and "predictions" in data.missing:
        notes.append(data.missing["predictions"])
    whom, needy = for_whom(data)
    return render(
        "run.html.jinja",
        title=_title(data),
        subtitle=_subtitle(data),
        good=how_good(data),
        sure=how_sure(data),
        whom=whom,
        needy=needy,
        notes=notes,
        sections=shown,
    )


def _title(data: ReportData) -> str:
    """What was run, on what."""
    summary, settings = data.summary, data.settings
    method = summary.get("algorithm") or settings.get("algorithm", {}).get("name", "a run")
    name = summary.get("data") or settings.get("data", {}).get("name", "unknown data")
    return f"{method} on {name}"


def _subtitle(data: ReportData) -> str:
    summary, run = data.summary, data.settings.get("run", {})
    parts = [str(summary.get("split") or data.settings.get("data", {}).get("scheme", ""))]
    clients = summary.get("clients") or len(data.clients)
    if isinstance(clients, int) and clients:
        parts.append(amount(clients, "client"))
    rounds = summary.get("rounds") or run.get("rounds")
    if isinstance(rounds, int):
        parts.append(amount(rounds, "round") + ("" if data.finished else " planned"))
    parts.append(f"seed {summary.get('seed', run.get('seed', 'unknown'))}")
    if data.draws:
        parts.append(f"{amount(data.draws, 'draw')} of the weights")
    return ", ".join(part for part in parts if part) + f" ({data.folder})"
