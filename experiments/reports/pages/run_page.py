"""The page of one run."""

from __future__ import annotations

from pyro_pfedbayes.experiments.reports.pages.headline import for_whom, how_good, how_sure
from pyro_pfedbayes.experiments.reports.pages.html import (
    Section,
    amount,
    document,
    paragraph,
    prose,
)
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
from pyro_pfedbayes.experiments.reports.schema import ReportData

_DETECTION = "Classes never seen, other data, and damaged pictures"


def report_page(data: ReportData) -> str:
    """One self-contained HTML page of a run.

    Args:
        data: What `pyro_pfedbayes.experiments.reports.collect.run.collect` found.

    Returns:
        The page; it loads nothing from anywhere.
    """
    classes = data.outcome != "number"
    sections: list[Section] = [
        ("Measures", measures_section(data)),
        ("Clients, those in need first", clients_section(data)),
    ]
    if classes:
        sections.append(("Reliability and temperature", calibration_section(data)))
    else:
        sections.append(("Predictions and intervals", numbers_section(data)))
    sections += [
        ("Answering only when sure", selective_section(data)),
        ("Where the uncertainty comes from", entropy_section(data)),
    ]
    if classes:
        sections.append((_DETECTION, detection_section(data)))
    sections += [
        ("The least certain examples", examples_section(data)),
        ("What each client learnt for itself", gain_section(data)),
        ("Round by round", history_section(data)),
        ("Settings and versions", settings_section(data)),
    ]
    return document(run_title(data), _under(data), answer_block(data) + notes_block(data), sections)


def run_title(data: ReportData) -> str:
    """What was run, on what."""
    summary, settings = data.summary, data.settings
    method = summary.get("algorithm") or settings.get("algorithm", {}).get("name", "a run")
    name = summary.get("data") or settings.get("data", {}).get("name", "unknown data")
    return f"{method} on {name}"


def answer_block(data: ReportData) -> str:
    """How good, how sure, for whom it is bad."""
    whom, lines = for_whom(data)
    items = "".join(f"<li>{prose(line)}</li>" for line in lines)
    listed = f"<ul>{items}</ul>" if items else ""
    return (
        '<div class="answer">'
        f"<p><strong>How good?</strong> {prose(how_good(data))}</p>"
        f"<p><strong>How sure?</strong> {prose(how_sure(data))}</p>"
        f"<p><strong>For whom is it bad?</strong> {prose(whom)}</p>{listed}</div>"
    )


def notes_block(data: ReportData) -> str:
    """What a reader should know before believing the figures."""
    notes = list(data.notes)
    if data.finished and data.personal is None and "predictions" in data.missing:
        notes.append(data.missing["predictions"])
    if not notes:
        return ""
    return f'<div class="note" role="note">{"".join(paragraph(note) for note in notes)}</div>'


def _under(data: ReportData) -> str:
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
