"""The sections of a run's page on what is uncertain and why; None where there is nothing to show."""

from __future__ import annotations

import dataclasses
import math

from markupsafe import Markup

from pyro_pfedbayes.experiments.reports.figures.clients import (
    plot_entropy_split,
    plot_information_gain,
)
from pyro_pfedbayes.experiments.reports.figures.curves import (
    plot_interval_coverage,
    plot_reliability,
    plot_risk_coverage,
)
from pyro_pfedbayes.experiments.reports.figures.examples import plot_examples
from pyro_pfedbayes.experiments.reports.figures.predictions import (
    plot_pit,
    plot_predicted_observed,
)
from pyro_pfedbayes.experiments.reports.figures.style import MODELS
from pyro_pfedbayes.experiments.reports.pages.formatting import (
    SHORT,
    UNDEFINED,
    estimate,
    first_measure,
    number,
    percent,
    percent_2,
    titles,
)
from pyro_pfedbayes.experiments.reports.pages.render import fragment
from pyro_pfedbayes.experiments.reports.schema import GainMap, ReportData, TemperatureReport


def calibration(data: ReportData) -> Markup | None:
    """Reliability diagram, and temperature scaling beside the raw figures."""
    if not data.models:
        return None
    curves = {name: m.reliability for name, m in data.models.items() if m.reliability is not None}
    rows = [
        [
            f"{SHORT[fitted.model]}, {name}",
            temperature,
            number(fitted.measures[key]["nll"]),
            percent_2(fitted.measures[key]["ece"]),
            percent_2(fitted.measures[key]["adaptive_ece"]),
        ]
        for fitted in data.temperature
        for key, name, temperature in _temperatures(fitted)
    ]
    called = titles(data)
    picture = plot_reliability(curves, called)
    return fragment("calibration.html.jinja", data=data, titles=called, picture=picture, rows=rows)


def numbers(data: ReportData) -> Markup | None:
    """Predicted against observed, coverage of intervals, PIT."""
    fit = data.numbers
    if fit is None:
        return None
    rows = [
        [f"{100 * level:.0f} %", percent(inside), number(width)]
        for level, inside, width in zip(fit.levels, fit.coverage, fit.width, strict=True)
    ]
    return fragment(
        "numbers.html.jinja",
        data=data,
        fit=fit,
        rows=rows,
        observed=plot_predicted_observed(fit),
        coverage=plot_interval_coverage(fit, MODELS[data.lead]) if rows else None,
        pit=plot_pit(fit) if rows else None,
    )


def selective(data: ReportData) -> Markup | None:
    """Risk-coverage, and the figures at 80, 90 and 95 % coverage."""
    curves = {name: m.selective for name, m in data.models.items() if m.selective is not None}
    if not curves:
        return None
    first, shown = first_measure(data.numeric)
    # Of a good classifier the area is far below one per cent.
    unit, area = (", squared units", number) if data.numeric else (" %", percent_2)
    called = titles(data)
    everything = {name: data.models[name].measures[first] for name in curves}
    rows = [
        *(
            [f"{s} %", *(estimate(c.at[s], shown) for c in curves.values())]
            for s in ("80", "90", "95")
        ),
        ["100 %", *(estimate(value, shown) for value in everything.values())],
        [f"AURC{unit}", *(estimate(curve.aurc, area) for curve in curves.values())],
        [f"excess{unit}", *(estimate(curve.excess_aurc, area) for curve in curves.values())],
    ]
    best = "; ".join(
        f"{called[name]} {shown(curve.at['80'].value)} at 80 %, {shown(everything[name].value)} at 100 %"
        for name, curve in curves.items()
    )
    return fragment(
        "selective.html.jinja",
        data=data,
        names=[called[name] for name in curves],
        rows=rows,
        best=best,
        what="RMSE" if data.numeric else "accuracy %",
        picture=plot_risk_coverage(curves, called, percent=not data.numeric),
    )


def entropy(data: ReportData) -> Markup | None:
    """Aleatoric and epistemic parts by client, of the lead model."""
    if data.led is None or not data.clients:
        return None
    key = "sd" if data.numeric else "entropy"
    rows = [dataclasses.replace(row, personal=row.measures(data.lead)) for row in data.clients]
    rows.sort(key=lambda row: _descending(row.personal.get(key, math.nan)))
    picture = plot_entropy_split(rows, numeric=data.numeric)
    return fragment("entropy.html.jinja", data=data, rows=rows, picture=picture)


def examples(data: ReportData) -> Markup | None:
    """The least certain examples, as pictures if there are any, and as a table."""
    if not data.least_certain:
        return None
    pictures = [example for example in data.least_certain if example.image is not None]
    alt = "; ".join(f"example {e.index}: is {e.label}, said {e.predicted}" for e in pictures)
    columns = ["example", "client", "is", "said"]
    columns += ["sd", "epistemic sd"] if data.numeric else ["p", "entropy", "epistemic"]
    rows = [
        [
            *(str(e.index), e.client, e.label, e.predicted),
            *(() if data.numeric else (number(e.probability),)),
            *(number(e.uncertainty), number(e.epistemic)),
        ]
        for e in data.least_certain
    ]
    picture = plot_examples(pictures) if pictures else None
    return fragment(
        "examples.html.jinja", data=data, picture=picture, alt=alt, columns=columns, rows=rows
    )


def gain(data: ReportData) -> Markup | None:
    """The map of information gain, clients by sites."""
    if data.gain is None:
        return None
    pairs = zip(data.gain.clients, data.gain.kl, strict=True)
    clients, kl = zip(*sorted(pairs, key=lambda pair: _descending(sum(pair[1]))), strict=True)
    gain = GainMap(clients, data.gain.sites, kl)
    picture = plot_information_gain(gain)
    return fragment("gain.html.jinja", gain=gain, totals=[sum(row) for row in kl], picture=picture)


def _descending(value: float) -> float:
    """A key that sorts the largest first, and what is not defined last."""
    return -value if math.isfinite(value) else math.inf


def _temperatures(fitted: TemperatureReport) -> list[tuple[str, str, str]]:
    """Key, name and text of the temperatures that were tried."""
    own = [value for value in fitted.by_client.values() if math.isfinite(value)]
    shared = f"{UNDEFINED} (taken as 1)" if math.isnan(fitted.shared) else number(fitted.shared)
    return [
        ("raw", "raw", "1"),
        ("shared", "one T", shared),
        ("by_client", "T by client", f"{min(own):.2f} to {max(own):.2f}" if own else UNDEFINED),
    ]
