"""The plain-language answer that a report opens with: how good, how sure, for whom it is bad."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pyro_pfedbayes.experiments.reporting.data import ClientRow, Estimate, ReportData
from pyro_pfedbayes.experiments.reporting.html import amount, number, percent

__all__ = ["for_whom", "how_good", "how_sure"]

_FAIR = 0.02  # a gap between confidence and accuracy that is worth no words
NAMED = 5


def how_good(data: ReportData) -> str:
    """How often, or by how much, the models are right."""
    if data.personal is None:
        return _from_summary(data)
    judged = sum(row.judged for row in data.clients if not row.broken)
    served = sum(1 for row in data.clients if row.judged and not row.broken)
    on = f"On {amount(judged, 'test example')} of {amount(served, 'client')}"
    own, other = data.personal.measures, data.global_
    if data.outcome == "number":
        text = (
            f"{on} the personal models are off by {number(own['rmse'].value)} (root mean squared error; "
            f"{_interval(own['rmse'], number)}) and by {number(own['mae'].value)} on average."
        )
        told = None if other is None else other.measures["rmse"]
        return text + ("" if told is None else f" The global model is off by {number(told.value)}.")
    accuracy = own["accuracy"]
    text = f"{on} the personal models are right in {percent(accuracy.value)} % of cases"
    text += f" ({_interval(accuracy, percent, ' %')})."
    if other is not None:
        shared = other.measures["accuracy"].value
        better = accuracy.value - shared
        verdict = (
            "about as often"
            if abs(better) < 0.001
            else f"{percent(abs(better))} points {'less' if better > 0 else 'more'} often"
        )
        text += f" One global model for all is right in {percent(shared)} %, {verdict}."
    return text


def how_sure(data: ReportData) -> str:
    """Whether stated probabilities, or intervals, can be believed, and what abstaining buys."""
    if data.personal is None:
        return (
            "This run stored no predictions, so nothing more is known of how sure its models are."
        )
    own, curve = data.personal.measures, data.personal.selective
    if data.outcome == "number":
        parts = [_coverage(own.get("coverage90"))]
        if curve is not None and own["rmse"].value > 0 and math.isfinite(curve.at["80"].value):
            parts.append(
                f"Among the most certain 80 % of examples the error is {number(curve.at['80'].value)} "
                f"(all: {number(own['rmse'].value)})."
            )
        return " ".join(parts)
    sure, right = own["confidence"].value, own["accuracy"].value
    gap = sure - right
    if abs(gap) < _FAIR:
        verdict = "which is fair"
    else:
        verdict = "so they are too sure" if gap > 0 else "so they are better than they think"
    text = (
        f"They give their answers a probability of {percent(sure)} % on average and are right in {percent(right)} %, "
        f"{verdict} (expected calibration error {percent(own['ece'].value)} %)."
    )
    for fitted in data.temperature:
        if fitted.model == "personal":
            text += (
                f" One temperature for all, fitted on validation examples, would make that "
                f"{percent(fitted.measures['shared']['ece'])} %."
            )
    if curve is not None and right < 1:
        text += (
            f" If the least certain 10 % of examples are left to a person, {percent(curve.at['90'].value)} % "
            "of the others are right."
        )
    return text


def for_whom(data: ReportData) -> tuple[str, list[str]]:
    """For whom it is bad: a sentence, and a line a client, at most `NAMED`."""
    if not data.clients:
        return "Nothing is known of single clients.", []
    needy = [row for row in data.clients if row.reasons]
    if not needy:
        return _nobody(data.clients, data.outcome), []
    count = f"{len(needy)} of {amount(len(data.clients), 'client')}"
    verb = "needs" if len(needy) == 1 else "need"
    lines = [f"client {row.name}: {'; '.join(row.reasons)}" for row in needy[:NAMED]]
    if len(needy) > NAMED:
        lines.append(f"and {len(needy) - NAMED} more, in the table of clients")
    return f"{count} {verb} attention:", lines


def _nobody(rows: Sequence[ClientRow], outcome: str | None) -> str:
    first = "rmse" if outcome == "number" else "accuracy"
    values = [
        (row.personal[first], row.name)
        for row in rows
        if math.isfinite(row.personal.get(first, math.nan))
    ]
    if not values:
        return "No client could be judged."
    text = "No client stands out"
    if len(values) > 1:
        worst = max(values) if first == "rmse" else min(values)
        told = f"RMSE {number(worst[0])}" if first == "rmse" else f"{percent(worst[0])} % right"
        text += f"; the worst is client {worst[1]} with {told}, within the reach of chance"
    return text + "."


def _from_summary(data: ReportData) -> str:
    told = []
    for key, name in (("personal", "the personal models"), ("global", "the global model")):
        column = data.summary.get(key, {})
        for first, unit in (("accuracy", " % right"), ("rmse", " RMSE")):
            values = column.get(first) if isinstance(column, dict) else None
            if isinstance(values, dict) and isinstance(values.get("last"), int | float):
                last = values["last"]
                shown = percent(last) if first == "accuracy" else number(last)
                told.append(f"{name}: {shown}{unit}")
    if not told:
        return "The run has no figures on test examples yet."
    return f"By the run's own summary, on all test examples together, {'; '.join(told)}."


def _coverage(found: Estimate | None) -> str:
    if found is None or not math.isfinite(found.value):
        return "How often the 90 % intervals hold the outcome is not defined here (too few draws)."
    gap = found.value - 0.9
    verdict = (
        "as they should" if abs(gap) < _FAIR else "too narrow" if gap < 0 else "wider than need be"
    )
    if verdict != "as they should":
        verdict = f"so they are {verdict}"
    return f"Their 90 % intervals hold {percent(found.value)} % of the outcomes, {verdict}."


def _interval(found: Estimate, shown: object, unit: str = "") -> str:
    if not math.isfinite(found.lower) or not callable(shown):
        return "no interval: too few clients or examples"
    return f"95 % interval {shown(found.lower)} to {shown(found.upper)}{unit}"
