"""The plain-language answer that a report opens with: how good, how sure, for whom it is bad."""

from __future__ import annotations

import math

from pyro_pfedbayes.experiments.reports.collect.point_methods import POINT
from pyro_pfedbayes.experiments.reports.figures.style import MODELS
from pyro_pfedbayes.experiments.reports.pages.formatting import (
    amount,
    first_measure,
    interval,
    number,
    percent,
)
from pyro_pfedbayes.experiments.reports.schema import Estimate, ModelReport, ReportData

_FAIR = 0.02  # a gap between confidence and accuracy that is worth no words
NAMED = 5


def how_good(data: ReportData) -> str:
    """How often, or by how much, the models that the method is about are right."""
    if data.led is None:
        return _from_summary(data)
    verb = "are" if data.lead == "personal" else "is"
    clients, examples = amount(len(data.served), "client"), amount(data.judged, "test example")
    on = f"On {examples} of {clients} the {MODELS[data.lead]} {verb}"
    own = data.led.measures
    other = data.global_ if data.lead == "personal" and "global" in data.about else None
    if data.numeric:
        text = (
            f"{on} off by {number(own['rmse'].value)} (root mean squared error; "
            f"{interval(own['rmse'], number)}) and by {number(own['mae'].value)} on average."
        )
        if other is not None:
            text += f" The global model is off by {number(other.measures['rmse'].value)}."
        return text
    accuracy = own["accuracy"]
    text = (
        f"{on} right in {percent(accuracy.value)} % of cases ({interval(accuracy, percent, ' %')})."
    )
    if other is not None:
        shared = other.measures["accuracy"].value
        better = accuracy.value - shared
        verdict = f"{percent(abs(better))} points {'less' if better > 0 else 'more'} often"
        if abs(better) < 0.001:
            verdict = "about as often"
        text += f" One global model for all is right in {percent(shared)} %, {verdict}."
    return text


def how_sure(data: ReportData) -> str:
    """Whether stated probabilities, or intervals, can be believed, and what abstaining buys."""
    if data.led is None:
        usable = " that can be used" if data.clients else ""
        return f"This run stored no predictions{usable}, so nothing more is known of how sure its models are."
    text = _sure_numbers(data, data.led) if data.numeric else _sure_classes(data, data.led)
    return f"{text} {POINT}." if data.point else text


def for_whom(data: ReportData) -> tuple[str, list[str]]:
    """For whom it is bad: a sentence, and a line a client, at most `NAMED`."""
    if not data.clients:
        return "Nothing is known of single clients.", []
    needy = [row for row in data.clients if row.reasons]
    if not needy:
        return _nobody(data), []
    lines = [f"client {row.name}: {'; '.join(row.reasons)}" for row in needy[:NAMED]]
    if len(needy) > NAMED:
        lines.append(f"and {len(needy) - NAMED} more, in the table of clients")
    verb = "needs" if len(needy) == 1 else "need"
    return f"{len(needy)} of {amount(len(data.clients), 'client')} {verb} attention:", lines


def _sure_numbers(data: ReportData, led: ModelReport) -> str:
    own, curve = led.measures, led.selective
    text = _coverage(data, own.get("coverage90"))
    if curve is not None and own["rmse"].value > 0 and math.isfinite(curve.at["80"].value):
        text += (
            f" Among the most certain 80 % of examples the error is {number(curve.at['80'].value)} "
            f"(all: {number(own['rmse'].value)})."
        )
    return text


def _sure_classes(data: ReportData, led: ModelReport) -> str:
    own, curve = led.measures, led.selective
    sure, right = own["confidence"].value, own["accuracy"].value
    many = data.lead == "personal"
    text = (
        f"{'They give their' if many else 'It gives its'} answers a probability of {percent(sure)} % on average and "
        f"{'are' if many else 'is'} right in {percent(right)} %, {_fair(sure, own['accuracy'], many)} "
        f"(expected calibration error {percent(own['ece'].value)} %)."
    )
    for fitted in data.temperature:
        if fitted.model == data.lead:
            text += (
                " One temperature for all, fitted on validation examples, would make that "
                f"{percent(fitted.measures['shared']['ece'])} %."
            )
    if curve is not None and right < 1:
        text += (
            f" If the least certain 10 % of examples are left to a person, {percent(curve.at['90'].value)} % "
            "of the others are right."
        )
    return text


def _fair(sure: float, accuracy: Estimate, many: bool) -> str:
    if abs(sure - accuracy.value) < _FAIR:
        return "which is fair"
    if accuracy.lower <= sure <= accuracy.upper:
        return "which is within the reach of chance"
    if sure > accuracy.value:
        return f"so {'they are' if many else 'it is'} too sure"
    return f"so {'they are better than they think' if many else 'it is better than it thinks'}"


def _nobody(data: ReportData) -> str:
    first, shown = first_measure(data.numeric)
    values = [
        (value, row.name)
        for row in data.clients
        if math.isfinite(value := row.measures(data.lead).get(first, math.nan))
    ]
    if not values:
        return "No client could be judged."
    if len(values) == 1:
        return "No client stands out."
    worst, name = (max if data.numeric else min)(values)
    figure = f"RMSE {shown(worst)}" if data.numeric else f"{shown(worst)} % right"
    return f"No client stands out; the worst is client {name} with {figure}, within the reach of chance."


def _from_summary(data: ReportData) -> str:
    figures = []
    for key in data.about:
        column = data.summary.get(key, {})
        for first, shown, unit in (("accuracy", percent, " % right"), ("rmse", number, " RMSE")):
            values = column.get(first) if isinstance(column, dict) else None
            if isinstance(values, dict) and isinstance(values.get("last"), int | float):
                figures.append(f"the {MODELS[key]}: {shown(values['last'])}{unit}")
    if not figures:
        return "The run has no figures on test examples yet."
    return f"By the run's own summary, on all test examples together, {'; '.join(figures)}."


def _coverage(data: ReportData, found: Estimate | None) -> str:
    if found is None or not math.isfinite(found.value):
        why = data.missing.get("intervals", "90 % intervals are not defined (too few draws)")
        return f"How often intervals hold the outcome is not known: {why}."
    if abs(found.value - 0.9) < _FAIR:
        verdict = "as they should"
    elif math.isnan(found.lower):
        verdict = "where 90 % would be right; nothing tells whether that is chance"
    elif found.lower <= 0.9 <= found.upper:
        verdict = "which is within the reach of chance"
    else:
        verdict = f"so they are {'too narrow' if found.value < 0.9 else 'wider than need be'}"
    ends = f" ({interval(found, percent, ' %')})" if math.isfinite(found.lower) else ""
    whose = "Their" if data.lead == "personal" else "Its"
    return f"{whose} 90 % intervals hold {percent(found.value)} % of the outcomes{ends}, {verdict}."
