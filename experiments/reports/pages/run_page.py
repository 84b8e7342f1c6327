"""The page of one run."""

from __future__ import annotations

from pyro_pfedbayes.experiments.reports.pages.formatting import amount
from pyro_pfedbayes.experiments.reports.pages.headline import for_whom, how_good, how_sure
from pyro_pfedbayes.experiments.reports.pages.render import fragment, render
from pyro_pfedbayes.experiments.reports.pages.sections import (
    clients_section,
    history_section,
    measures_section,
    settings_section,
)
from pyro_pfedbayes.experiments.reports.pages.sections_detection import detection_section
from pyro_pfedbayes.experiments.reports.pages.sections_uncertainty import (
    calibration_section,
    entropy_section,
    examples_section,
    gain_section,
    numbers_section,
    selective_section,
)
from pyro_pfedbayes.experiments.reports.schema import NOT_STORED, ReportData

_DETECTION = "Classes never seen, other data, and damaged pictures"
# Heading, content, and the part of the run without which there is none.
_SECTIONS = (
    ("Measures", measures_section, "predictions"),
    ("Clients, those in need first", clients_section, "clients"),
    ("Reliability and temperature", calibration_section, "predictions"),
    ("Predictions and intervals", numbers_section, "predictions"),
    ("Answering only when sure", selective_section, "predictions"),
    ("Where the uncertainty comes from", entropy_section, "predictions"),
    (_DETECTION, detection_section, "unseen"),
    ("The least certain examples", examples_section, "least_certain"),
    ("What each client learnt for itself", gain_section, "gain"),
    ("Round by round", history_section, "history"),
    ("Settings and versions", settings_section, "settings"),
)


def report_page(data: ReportData) -> str:
    """One self-contained HTML page of a run; it loads nothing from anywhere."""
    left_out = (calibration_section, detection_section) if data.numeric else (numbers_section,)
    sections = []
    for heading, section, part in _SECTIONS:
        if section not in left_out:
            reason = data.missing.get(part, NOT_STORED)
            content = section(data) or fragment("missing.html.jinja", reason=reason)
            sections.append((heading, content))
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
        sections=sections,
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
