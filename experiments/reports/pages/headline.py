"""The plain-language answer that a report opens with: how good, how sure, for whom it is bad."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pyro_pfedbayes.experiments.reports.collect.point_methods import POINT
from pyro_pfedbayes.experiments.reports.pages.html import amount, number, percent
from pyro_pfedbayes.experiments.reports.schema import (
    ClientRow,
    Estimate,
    ModelReport,
    ReportData,
)

_FAIR = 0.02  # a gap between confidence and accuracy that is worth no words
NAMED = 5
_WHO = {"personal": ("the personal models", "are"), "global": ("the global model", "is")}


def how_good(data: ReportData) -> str:
    """How often, or by how much, the models that the method is about are right."""
    led = data.led
    if led is None:
        return _from_summary(data)
    judged = sum(row.judged for row in data.clients if not row.broken)
    served = sum(1 for row in data.clients if row.judged and not row.broken)
    who, verb = _WHO[data.lead]
    on = f"On {amount(judged, 'test example')} of {amount(served, 'client')} {who} {verb}"
    own = led.measures
    other = data.global_ if data.lead == "personal" and "global" in data.about else None
    if data.outcome == "number":
        text = (
            f"{on} off by {number(own['rmse'].value)} (root mean squared error; "
            f"{_interval(own['rmse'], number)}) and by {number(own['mae'].value)} on average."
        )
        told = None if other is None else other.measures["rmse"]
        return text + ("" if told is None else f" The global model is off by {number(told.value)}.")
    accuracy = own["accuracy"]
    text = f"{on} right in {percent(accuracy.value)} % of cases"
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
    if data.led is None:
        return (
            "This run stored no predictions that can be used, so nothing more is known of how sure its models are."
            if data.clients
            else "This run stored no predictions, so nothing more is known of how sure its models are."
        )
    text = _sure_numbers(data, data.led) if data.outcome == "number" else _sure(data, data.led)
    return f"{text} {POINT}." if data.point else text


def _sure_numbers(data: ReportData, led: ModelReport) -> str:
    own, curve = led.measures, led.selective
    whose = "Their" if data.lead == "personal" else "Its"
    parts = [_coverage(whose, own.get("coverage90"), data)]
    if curve is not None and own["rmse"].value > 0 and math.isfinite(curve.at["80"].value):
        parts.append(
            f"Among the most certain 80 % of examples the error is {number(curve.at['80'].value)} "
            f"(all: {number(own['rmse'].value)})."
        )
    return " ".join(parts)


def _sure(data: ReportData, led: ModelReport) -> str:
    own, curve = led.measures, led.selective
    sure, right = own["confidence"].value, own["accuracy"].value
    many = data.lead == "personal"
    text = f"{'They give their' if many else 'It gives its'} answers a probability of {percent(sure)} % on average and "
    text += f"{'are' if many else 'is'} right in {percent(right)} %, {_fair(sure, own['accuracy'], many)} "
    text += f"(expected calibration error {percent(own['ece'].value)} %)."
    for fitted in data.temperature:
        if fitted.model == data.lead:
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


def _fair(sure: float, accuracy: Estimate, many: bool) -> str:
    gap = sure - accuracy.value
    if abs(gap) < _FAIR:
        return "which is fair"
    if accuracy.lower <= sure <= accuracy.upper:
        return "which is within the reach of chance"
    if gap > 0:
        return f"so {'they are' if many else 'it is'} too sure"
    return f"so {'they are better than they think' if many else 'it is better than it thinks'}"


def for_whom(data: ReportData) -> tuple[str, list[str]]:
    """For whom it is bad: a sentence, and a line a client, at most `NAMED`."""
    if not data.clients:
        return "Nothing is known of single clients.", []
    needy = [row for row in data.clients if row.reasons]
    if not needy:
        return _nobody(data.clients, data.outcome, data.lead), []
    count = f"{len(needy)} of {amount(len(data.clients), 'client')}"
    verb = "needs" if len(needy) == 1 else "need"
    lines = [f"client {row.name}: {'; '.join(row.reasons)}" for row in needy[:NAMED]]
    if len(needy) > NAMED:
        lines.append(f"and {len(needy) - NAMED} more, in the table of clients")
    return f"{count} {verb} attention:", lines


def _nobody(rows: Sequence[ClientRow], outcome: str | None, lead: str) -> str:
    first = "rmse" if outcome == "number" else "accuracy"
    values = [
        (row.measures(lead)[first], row.name)
        for row in rows
        if math.isfinite(row.measures(lead).get(first, math.nan))
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
    for key, (name, _) in _WHO.items():
        if key not in data.about:
            continue
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


def _coverage(whose: str, found: Estimate | None, data: ReportData) -> str:
    if found is None or not math.isfinite(found.value):
        why = data.missing.get("intervals", "90 % intervals are not defined (too few draws)")
        return f"How often intervals hold the outcome is not known: {why}."
    gap = found.value - 0.9
    if abs(gap) < _FAIR:
        verdict = "as they should"
    elif math.isnan(found.lower):
        verdict = "where 90 % would be right; nothing tells whether that is chance"
    elif found.lower <= 0.9 <= found.upper:
        verdict = "which is within the reach of chance"
    else:
        verdict = f"so they are {'too narrow' if gap < 0 else 'wider than need be'}"
    ends = f" ({_interval(found, percent, ' %')})" if math.isfinite(found.lower) else ""
    return f"{whose} 90 % intervals hold {percent(found.value)} % of the outcomes{ends}, {verdict}."


def _interval(found: Estimate, shown: object, unit: str = "") -> str:
    if not math.isfinite(found.lower) or not callable(shown):
        return "no interval: too few clients or examples"
    return f"95 % interval {shown(found.lower)} to {shown(found.upper)}{unit}"
