"""The sections of a run's page on what is uncertain and why: HTML, whatever is missing."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from pyro_pfedbayes.experiments.reports.collect.point_methods import POINT
from pyro_pfedbayes.experiments.reports.figures.classes import (
    MODELS,
    MOST_CLIENTS,
    plot_entropy_split,
    plot_examples,
    plot_information_gain,
    plot_reliability,
    plot_risk_coverage,
)
from pyro_pfedbayes.experiments.reports.figures.numbers import (
    plot_interval_coverage,
    plot_pit,
    plot_predicted_observed,
)
from pyro_pfedbayes.experiments.reports.pages.html import (
    UNDEFINED,
    amount,
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
    GainMap,
    NumberFit,
    ReportData,
)


def calibration_section(data: ReportData) -> str:
    """Reliability diagram, and temperature scaling beside the raw figures."""
    found = models(data)
    if not found:
        return gone(data, "predictions")
    curves = {name: m.reliability for name, m in found.items() if m.reliability is not None}
    called = titles(data)
    errors = ", ".join(
        f"{called[name]} ECE {percent(model.measures['ece'].value)} %"
        for name, model in found.items()
    )
    text = figure_block(
        plot_reliability(curves, called),
        f"Reliability diagram: share of right answers against stated probability. {errors}.",
        "On the dotted line a stated probability comes true. Below it the model is too sure, above it not sure enough. "
        "Larger marks hold more examples.",
    )
    if not data.temperature:
        return text + paragraph(
            f"Temperature scaling: {data.missing.get('temperature', NOT_STORED)}.", "gone"
        )
    names = {"raw": "raw", "shared": "one T", "by_client": "T by client"}
    short = {"personal": "PM", "global": "GM"}
    rows = [
        [
            f"{short[fitted.model]}, {shown}",
            _temperature(fitted.shared, fitted.by_client, key),
            number(fitted.measures[key]["nll"]),
            percent(fitted.measures[key]["ece"], 2),
            percent(fitted.measures[key]["adaptive_ece"], 2),
        ]
        for fitted in data.temperature
        for key, shown in names.items()
    ]
    size = amount(data.temperature[0].validation, "validation example")
    caption = (
        "Temperature scaling p^(1/T) of personal models (PM) and the global one (GM), fitted on "
        f"{size}, judged on test examples. The most probable class, and so the accuracy, stays. "
        "Where a client's own T is not defined, the shared one serves."
    )
    aside = [short[model] for model in short if model not in data.about]
    caption += f" {aside[0]} is {NOT_ABOUT}." if aside else ""
    return side_by_side(text, table(caption, ["models", "T", "NLL", "ECE %", "adaptive"], rows))


def numbers_section(data: ReportData) -> str:
    """Predicted against observed, coverage of intervals, PIT."""
    fit = data.numbers
    if fit is None:
        return gone(data, "predictions")
    blocks = [
        figure_block(
            plot_predicted_observed(fit),
            f"Observed outcomes against predictions of {amount(len(fit.observed), 'test example')}.",
            "On the dotted line predictions are exact.",
        )
    ]
    if fit.levels:
        blocks += _interval_figures(fit, data.lead)
    text = side_by_side(*blocks)
    if not fit.levels:
        why = "intervals are not defined: there are no drawn outcomes that are numbers"
        return text + paragraph(sentence(data.missing.get("intervals", why)), "gone")
    rows = [
        [f"{100 * level:.0f} %", percent(inside), number(width)]
        for level, inside, width in zip(fit.levels, fit.coverage, fit.width, strict=True)
    ]
    caption = f"Central predictive intervals of the {MODELS[data.lead]}, from {amount(data.draws, 'draw')}"
    if data.kept_draws != data.draws:
        caption += f" (widths from {data.kept_draws:,})"
    caption += f". {DASH}"
    if "intervals" in data.missing:
        text += paragraph(sentence(data.missing["intervals"]), "gone")
    return text + table(caption, ["interval", "holds %", "mean width"], rows)


def selective_section(data: ReportData) -> str:
    """Risk-coverage, and the figures at 80, 90 and 95 % coverage."""
    found = {name: m for name, m in models(data).items() if m.selective is not None}
    if not found:
        return gone(data, "predictions")
    curves = {name: model.selective for name, model in found.items() if model.selective is not None}
    classes = data.outcome != "number"
    shown: Shown = percent if classes else number
    what = "accuracy %" if classes else "RMSE"
    # Of a good classifier the area is far below one per cent.
    area: Shown = (lambda value: percent(value, 2)) if classes else number
    unit = " %" if classes else ", squared units"
    called = titles(data)
    everything = {name: found[name].measures["accuracy" if classes else "rmse"] for name in curves}
    rows = [
        *(
            [f"{s} %", *(estimate(c.at[s], shown) for c in curves.values())]
            for s in ("80", "90", "95")
        ),
        ["100 %", *(estimate(value, shown) for value in everything.values())],
        [f"AURC{unit}", *(estimate(curve.aurc, area) for curve in curves.values())],
        [
            f"excess{unit}",
            *(estimate(curve.excess_aurc, area) for curve in curves.values()),
        ],
    ]
    by = "the largest probability" if classes else "the predictive standard deviation"
    best = "; ".join(
        f"{called[name]} {shown(curve.at['80'].value)} at 80 %, {shown(everything[name].value)} at 100 %"
        for name, curve in curves.items()
    )
    text = figure_block(
        plot_risk_coverage(curves, called, percent=classes),
        f"Error among the answered examples against the share answered. {what}: {best}.",
        f"Examples are answered from the most certain on, by {by}. A curve that rises only at the right shows an "
        "uncertainty that knows where the errors are.",
    )
    heads = [f"{what} at", *(called[name] for name in curves)]
    squared = "" if classes else " of the squared error, in squared units of the outcome"
    caption = (
        f"AURC: area under the curve{squared}, lower is better; excess: what a perfect order of the examples would "
        "save. In brackets 95 % intervals, as in the table of measures."
    )
    return side_by_side(text, table(caption, heads, rows))


def entropy_section(data: ReportData) -> str:
    """Aleatoric and epistemic parts by client, of the lead model."""
    if data.led is None or not data.clients:
        return gone(data, "predictions")
    outcome = data.outcome or "class"
    key = "entropy" if outcome == "class" else "sd"
    rows = sorted(
        (dataclasses.replace(row, personal=row.measures(data.lead)) for row in data.clients),
        key=lambda row: (
            -row.personal[key] if math.isfinite(row.personal.get(key, math.nan)) else math.inf
        ),
    )
    unit = "nats" if outcome == "class" else "units of the outcome"
    first = rows[0]
    parts = "" if data.point else " in two parts"
    alt = f"Uncertainty of {amount(min(len(rows), MOST_CLIENTS), 'client')}{parts}; the most uncertain is "
    alt += f"{first.name} with {number(first.personal.get(key))} {unit}."
    who = MODELS[data.lead]
    caption = (
        f"{who[0].upper()}{who[1:]} on the clients' own test examples, the most uncertain first."
    )
    if not data.point:
        caption += (
            " Aleatoric uncertainty is noise that no further data would remove; epistemic uncertainty is what the "
            "weights do not know yet."
        )
    more = "" if len(rows) <= MOST_CLIENTS else f" The first {MOST_CLIENTS} of {len(rows)}."
    figure = figure_block(plot_entropy_split(rows, outcome), alt, caption + more)
    return (paragraph(f"{POINT}.") if data.point else "") + figure


def examples_section(data: ReportData) -> str:
    """The least certain examples, as pictures if there are any, and as a table."""
    shown = data.least_certain
    if not shown:
        return gone(data, "least_certain")
    text = ""
    pictures = [example for example in shown if example.image is not None]
    if pictures:
        text += figure_block(
            plot_examples(pictures),
            "; ".join(f"example {e.index}: is {e.label}, said {e.predicted}" for e in pictures),
            f"The test examples of which the {MODELS[data.lead]} {'is' if data.lead == 'global' else 'are'} least "
            "certain.",
        )
    elif "data" in data.missing:
        text += paragraph(sentence(data.missing["data"]), "gone")
    classes = data.outcome != "number"
    heads = ["example", "client", "is", "said", *(["p"] if classes else [])]
    heads += ["entropy", "epistemic"] if classes else ["sd", "epistemic sd"]
    caption = "Examples by their place in the data set, from 0. " + (
        "p: probability of what was said; entropies in nats."
        if classes
        else "sd: in the outcome's units."
    )
    rows = [
        [
            str(e.index),
            e.client,
            e.label,
            e.predicted,
            *([number(e.probability)] if classes else []),
            number(e.uncertainty),
            number(e.epistemic),
        ]
        for e in shown
    ]
    return side_by_side(text, table(caption, heads, rows))


def gain_section(data: ReportData) -> str:
    """The map of information gain, clients by sites."""
    gain = data.gain
    if gain is None:
        return gone(data, "gain")
    totals = [sum(row) for row in gain.kl]
    order = sorted(
        range(len(totals)), key=lambda i: -totals[i] if math.isfinite(totals[i]) else math.inf
    )
    ordered = GainMap(
        tuple(gain.clients[i] for i in order), gain.sites, tuple(gain.kl[i] for i in order)
    )
    most, least = order[0], order[-1]
    alt = (
        f"Information gain of {amount(len(totals), 'client')} by {amount(len(gain.sites), 'site')}; most: "
        f"{gain.clients[most]} with {number(totals[most])} nats, least: {gain.clients[least]} with "
        f"{number(totals[least])}."
    )
    more = (
        "" if len(order) <= MOST_CLIENTS else f" The first {MOST_CLIENTS} of {len(order)} clients."
    )
    caption = (
        "KL(q^i‖w) in nats: how far a client's posterior moved from what all clients share, by part of the model. "
        f"The largest first.{more}"
    )
    return figure_block(plot_information_gain(ordered), alt, caption)


def _interval_figures(fit: NumberFit, lead: str) -> list[str]:
    told = ", ".join(
        f"{percent(inside)} % at {100 * level:.0f} %"
        for level, inside in zip(fit.levels, fit.coverage, strict=True)
    )
    return [
        figure_block(
            plot_interval_coverage(fit, MODELS[lead]),
            f"Share of outcomes inside central intervals: {told}.",
            "Below the dotted line intervals hold fewer outcomes than they should, above it more.",
        ),
        figure_block(
            plot_pit(fit),
            f"Histogram of the probability integral transform: {', '.join(map(str, fit.pit))}.",
            "Flat is calibrated; a bowl says that predictions are too narrow, a hump too wide, a slope that they are "
            "off. Between the dashed lines lie 95 % of the bars of calibrated predictions.",
        ),
    ]


def _temperature(shared: float, by_client: Mapping[str, float], key: str) -> str:
    if key == "raw":
        return "1"
    if key == "shared":
        return f"{number(shared)}{' (taken as 1)' if math.isnan(shared) else ''}"
    fitted = [value for value in by_client.values() if math.isfinite(value)]
    if not fitted:
        return UNDEFINED
    return f"{min(fitted):.2f} to {max(fitted):.2f}"
