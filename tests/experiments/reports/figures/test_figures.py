"""Figures: what they show is what they were given, without colour and without pyplot."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pyro_pfedbayes.experiments.reports.figures import clients as figures_clients
from pyro_pfedbayes.experiments.reports.figures import comparison as figures_comparison
from pyro_pfedbayes.experiments.reports.figures import curves as figures_curves
from pyro_pfedbayes.experiments.reports.figures import examples as figures_examples
from pyro_pfedbayes.experiments.reports.figures import out_of_distribution as figures_ood
from pyro_pfedbayes.experiments.reports.figures import predictions as figures_predictions
from pyro_pfedbayes.experiments.reports.figures import rounds as figures_rounds
from pyro_pfedbayes.experiments.reports.figures.style import MOST_CLIENTS
from pyro_pfedbayes.experiments.reports.pages.render import data_url
from pyro_pfedbayes.experiments.reports.schema import (
    ClientRow,
    Corrupted,
    Estimate,
    Example,
    GainMap,
    NumberFit,
    OodScore,
    Reliability,
    Selective,
    ShiftLevel,
)

CURVE = Reliability((0.0, 0.5, 1.0), (0.4, 0.8), (0.5, 0.7), (4, 6))
RISK = Selective((0.5, 1.0), (0.0, 0.2), {}, Estimate(0.1), Estimate(0.0))


def row(i: int, name: str = "a") -> ClientRow:
    measures = {"accuracy": 0.8, "aleatoric": 0.2, "epistemic": 0.1}
    return ClientRow(i, name, 9, 9, 9, 0, measures, {"accuracy": 0.7}, 0.6, 0.9)


def test_reliability_shows_the_bins_that_hold_something() -> None:
    empty = Reliability((0.0, 0.5, 1.0), (math.nan, 0.8), (math.nan, 0.7), (0, 6))
    figure = figures_curves.plot_reliability({"personal": CURVE, "global": empty})
    points = [np.asarray(c.get_offsets()).tolist() for c in figure.axes[0].collections]
    assert points == [[[0.4, 0.5], [0.8, 0.7]], [[0.8, 0.7]]]


def test_lines_differ_by_more_than_colour() -> None:
    figure = figures_curves.plot_risk_coverage({"personal": RISK, "global": RISK})
    one, other = figure.axes[0].lines[:2]
    assert one.get_linestyle() != other.get_linestyle()
    assert one.get_marker() != other.get_marker()
    assert list(one.get_ydata()) == [0.0, 20.0]


def test_detection_has_a_mark_and_an_interval_for_each_score() -> None:
    scores = [
        OodScore(name, Estimate(value, value - 0.1, value + 0.05), Estimate(0.3), 0.8)
        for name, value in (("epistemic", 0.9), ("total", 0.8), ("max_probability", 0.7))
    ]
    undefined = [OodScore("total", Estimate(math.nan), Estimate(math.nan), math.nan)]
    figure = figures_ood.plot_detection({"unseen": scores, "none": undefined})
    bars, marks = figure.axes[0].lines[0:6:2], figure.axes[0].lines[1:6:2]
    assert [list(mark.get_xdata()) for mark in marks] == [[0.9], [0.8], [0.7]]
    assert list(bars[0].get_xdata()) == pytest.approx([0.8, 0.95])
    assert len({mark.get_marker() for mark in marks}) == 3
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == ["unseen", "none"]
    assert len(figure.legends[0].get_texts()) == 3
    data_url(figure)


def test_damage_is_a_row_a_corruption_and_lines_differ_by_more_than_colour() -> None:
    levels = [
        ShiftLevel(kind, s, 9, 0.9 - s / 10, s / 20, s / 2, s / 4, {})
        for kind in ("noise", "blur")
        for s in (0, 1, 2)
    ]
    figure = figures_ood.plot_corruptions(Corrupted(9, 1, (), tuple(levels)))
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "noise",
        "noise",
        "blur",
        "blur",
    ]
    accuracy, ece = figure.axes[2].lines
    assert list(accuracy.get_ydata()) == pytest.approx([90.0, 80.0, 70.0])
    assert list(ece.get_xdata()) == [0, 1, 2]
    total, epistemic = figure.axes[3].lines
    assert list(total.get_ydata()) == [0.0, 0.5, 1.0]
    for one, other in ((accuracy, ece), (total, epistemic)):
        assert one.get_linestyle() != other.get_linestyle()
        assert one.get_marker() != other.get_marker()
    data_url(figures_ood.plot_corruptions(Corrupted(0, 0, (), ())))


def test_the_parts_of_the_entropy_differ_by_hatching() -> None:
    figure = figures_clients.plot_entropy_split([row(0), row(1)])
    bars = figure.axes[0].patches
    assert [bar.get_hatch() for bar in bars] == [None, None, "////", "////"]
    assert bars[2].get_x() == 0.2
    assert bars[2].get_width() == pytest.approx(0.1)


def test_many_clients_are_cut_and_names_are_no_formulas() -> None:
    rows = [row(i, "$\\q_" + "x" * 40) for i in range(80)]
    for figure in (figures_clients.plot_clients(rows), figures_clients.plot_entropy_split(rows)):
        assert len(figure.axes[0].get_yticklabels()) == MOST_CLIENTS
        assert data_url(figure).startswith("data:image/svg+xml;base64,")


def test_information_gain_shows_nats_and_undefined_cells() -> None:
    figure = figures_clients.plot_information_gain(
        GainMap(("a", "b"), ("w", "v"), ((1.5, math.nan), (0, 2)))
    )
    assert [text.get_text() for text in figure.axes[0].texts] == ["1.5", "–", "0", "2"]


def test_gain_history_has_the_median_client_and_the_sites() -> None:
    records = [
        {"round": 1},
        {"round": 2, "information_gain": {"w": [1.0, 2.0, 9.0], "v": [1.0, 1.0, 1.0]}},
        {"round": 4, "information_gain": {"w": [2.0, 3.0, 4.0], "v": [0.0, 5.0, 1.0]}},
    ]
    lines = figures_rounds.plot_gain_history(records).axes[0].lines
    assert [line.get_label() for line in lines] == ["median client", "median, w", "median, v"]
    assert [list(line.get_ydata()) for line in lines] == [[3.0, 5.0], [2.0, 3.0], [1.0, 1.0]]
    assert list(lines[0].get_xdata()) == [2, 4]
    assert not figures_rounds.plot_gain_history([{"round": 1}]).axes[0].lines


def test_history_leaves_out_what_is_not_there() -> None:
    records = [
        {"round": 1, "personal": {"accuracy": 0.5}, "global": {}},
        {"round": 2, "personal": {"accuracy": None}},
        {"round": 3, "personal": {"accuracy": 0.6}, "global": {"accuracy": 0.4}},
    ]
    lines = figures_rounds.plot_history(records, "accuracy", "accuracy (%)").axes[0].lines
    assert [list(line.get_xdata()) for line in lines] == [[1, 3], [3]]
    assert list(lines[0].get_ydata()) == [50.0, 60.0]


def test_examples_without_a_picture_are_left_out() -> None:
    seen = Example(1, "c", "a", "b", 0.5, 1.0, 0.1, image=[[0.0, 1.0]])
    colour = Example(1, "c", "a", "b", 0.5, 1.0, 0.1, image=[[[0.0, 1.0, 0.5]]])
    blind = Example(2, "c", "a", "b", 0.5, 1.0, 0.1)
    assert len(figures_examples.plot_examples([seen, blind, colour, seen, seen]).axes) == 4


def test_pit_band_is_that_of_a_binomial() -> None:
    fit = NumberFit((), (), (), pit=(50, 50))
    heights = sorted(
        float(line.get_ydata()[0]) for line in figures_predictions.plot_pit(fit).axes[0].lines
    )
    assert heights == pytest.approx([50 - 1.96 * 5, 50, 50 + 1.96 * 5])


def test_coverage_and_predictions_stand_undefined_numbers() -> None:
    fit = NumberFit(
        (1.0, 2.0), (1.0, 3.0), (math.inf, math.nan), (0.5, 0.95), (0.4, math.nan), (1, 2), (1,)
    )
    for plot in (
        figures_predictions.plot_predicted_observed,
        figures_curves.plot_interval_coverage,
    ):
        assert "base64" in data_url(plot(fit))


def test_comparison_shows_each_run_and_the_mean() -> None:
    axes = figures_comparison.plot_comparison(
        {"a": [0.8, 0.9, math.nan], "b": []}, "x", scale=100
    ).axes[0]
    assert list(axes.lines[0].get_xdata()) == [80.0, 90.0]
    assert float(axes.lines[1].get_xdata()[0]) == pytest.approx(85.0)
