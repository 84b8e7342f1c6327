"""What a report must not pass over: other runs' files, damage, one set of weights, what a method is not about."""

from __future__ import annotations

import dataclasses
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from pyro_pfedbayes.datatree.tree import load_datatree
from pyro_pfedbayes.experiments.reports.collect.attention_rules import with_attention_reasons
from pyro_pfedbayes.experiments.reports.collect.numbers import number_fit, number_scores
from pyro_pfedbayes.experiments.reports.collect.run import collect
from pyro_pfedbayes.experiments.reports.figures.clients import plot_entropy_split
from pyro_pfedbayes.experiments.reports.figures.curves import plot_risk_coverage
from pyro_pfedbayes.experiments.reports.figures.rounds import plot_gain_history, plot_history
from pyro_pfedbayes.experiments.reports.files.method_traits import models_of_method
from pyro_pfedbayes.experiments.reports.pages.headline import how_good, how_sure
from pyro_pfedbayes.experiments.reports.pages.run_page import report_page
from pyro_pfedbayes.experiments.reports.schema import Estimate, ReportData
from tests.experiments.helpers import Outcome, pfedbayes
from tests.experiments.reports.helpers import (
    add_groups,
    brief_summary,
    class_tree,
    number_tree,
    save,
    sharp,
    write_folder,
)
from tests.experiments.reports.pages.test_run_page import assert_self_contained, full_run

Y = np.tile([0, 1, 2, 0], 100)
OWNER = np.repeat([0, 1], 200)


def tree(attrs: dict[str, Any], right: float = 0.75) -> xr.DataTree:
    said = np.where(np.arange(len(Y)) < right * len(Y), Y, (Y + 1) % 3)
    found = class_tree(np.stack([sharp(said)] * 2), Y, OWNER)
    found.attrs.update(attrs)
    return found


# -- whose predictions ------------------------------------------------------------------------------------

OWN = {"method": "pfedbayes", "zeta": 1.0, "seed": 0, "rounds": 4, "data": "toy", "split": "mine"}


def test_the_runs_own_predictions_are_not_doubted(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "run", summary=brief_summary(clients=2))
    assert collect(save(folder, tree(OWN))).notes == ()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("method", "ditto"),
        ("zeta", 5.0),
        ("seed", 3),
        ("rounds", 2),
        ("data", "wine"),
        ("split", "yours"),
    ],
)
def test_predictions_of_another_run_are_told_of(tmp_path: Path, name: str, value: Any) -> None:
    folder = write_folder(tmp_path / "run", summary=brief_summary(clients=2))
    data = collect(save(folder, tree(OWN | {name: value})))
    (note,) = data.notes
    assert f"{name} {value:g}" in note if isinstance(value, float) else f"{name} {value}" in note
    assert "another run" in report_page(data)


def test_settings_are_held_against_predictions_without_a_summary(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "run", data="digits")
    notes = collect(save(folder, tree(OWN | {"data": "wine", "seed": 1}))).notes
    assert any("seed 1 (config.toml: 0), data wine (config.toml: digits)" in note for note in notes)


@pytest.mark.parametrize(("right", "doubted"), [(0.79, False), (0.81, True), (0.69, True)])
def test_an_accuracy_that_draws_cannot_explain_is_told_of(
    tmp_path: Path, right: float, doubted: bool
) -> None:
    folder = write_folder(tmp_path / "run", summary=brief_summary(0.75, clients=2))
    notes = collect(save(folder, tree(OWN, right))).notes
    assert bool(notes) == doubted
    assert (
        not doubted
        or f"an accuracy of {100 * right:.1f} %, but summary.json says 75.0 %" in notes[0]
    )


@pytest.mark.parametrize(("told", "doubted"), [(0.9, False), (0.7, True), (2.0, True)])
def test_an_rmse_that_draws_cannot_explain_is_told_of(
    tmp_path: Path, told: float, doubted: bool
) -> None:
    outcomes, owner = np.zeros((3, 40)) + np.array([[-1.0], [0.0], [1.0]]), np.repeat([0, 1], 20)
    column = {"rmse": {"last": told, "best": told, "selected": None}}
    summary = brief_summary(clients=2) | {"personal": column, "global": column}
    folder = write_folder(tmp_path / "run", summary=summary)
    found = collect(save(folder, number_tree(outcomes, np.ones(40), owner)))
    assert bool(found.notes) == doubted


def test_clients_without_predictions_are_told_of(
    finished: tuple[Path, Outcome], tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(finished[0], tmp_path / "copy"))
    assert collect(copy).notes == ()
    found = load_datatree(copy / "posterior.nc")
    kept = found.map_over_datasets(
        lambda group: (
            group.isel(observation=group["client_of"].to_numpy() != 2)
            if "observation" in group.dims
            else group
        )
    )
    notes = collect(save(copy, kept)).notes
    assert any("no predictions for 1 client with test examples" in note for note in notes)


# -- damage -----------------------------------------------------------------------------------------------


def test_a_damaged_file_is_a_warning_and_no_success(tmp_path: Path) -> None:
    folder = full_run(tmp_path / "run")
    good = pfedbayes("report", folder, "-o", tmp_path / "page.html")
    assert (good.code, good.err) == (0, "")
    file = folder / "posterior.nc"
    file.write_bytes(file.read_bytes()[:5000])
    outcome = pfedbayes("report", folder, "-o", tmp_path / "page.html")
    assert outcome.code == 1
    assert outcome.err.startswith(f"warning: {folder}: posterior.nc is damaged")
    assert outcome.err.count("\n") == 1
    assert_self_contained((tmp_path / "page.html").read_text())


@pytest.mark.parametrize(
    ("file", "text", "told"),
    [
        ("summary.json", "{", "summary.json is damaged ("),
        ("summary.json", "{}", "summary.json is damaged (it lacks personal)"),
        ("metrics.jsonl", "{half\n1\n", "lines 1, 2 of metrics.jsonl are damaged"),
    ],
)
def test_damage_that_leaves_the_page_whole_is_a_warning(
    tmp_path: Path, file: str, text: str, told: str
) -> None:
    folder = full_run(tmp_path / "run")
    (folder / file).write_text(text)
    outcome = pfedbayes("report", folder, "-o", tmp_path / "page.html")
    assert outcome.code == 0
    assert outcome.err.startswith(f"warning: {folder}: {told}")


def test_what_is_missing_is_a_warning(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "run")
    outcome = pfedbayes("report", folder, "-o", tmp_path / "page.html")
    assert outcome.code == 0
    assert "the run is not finished" in outcome.err
    assert "no posterior.nc" in outcome.err


def test_a_missing_variable_and_a_label_of_no_class_are_named(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "run", summary=brief_summary(clients=2))
    found = tree(OWN)
    stats = found["observation_stats"].to_dataset()
    found["observation_stats"] = xr.DataTree(stats.drop_vars("p"))
    told = collect(save(folder, found)).missing["predictions"]
    assert "posterior.nc" in told
    assert "observation_stats lacks the variable p" in told
    found = tree(OWN)
    found["observed_data"]["y"][7] = 42
    told = collect(save(folder, found)).missing["predictions"]
    assert "posterior.nc" in told
    assert "label 42 at row 7, but labels go from 0 to 2" in told


def test_optional_groups_that_are_damaged_are_told_of_and_the_rest_serves(tmp_path: Path) -> None:
    folder = full_run(tmp_path / "run")
    found = load_datatree(folder / "posterior.nc")
    for name, lost in (
        ("unseen_stats", "p"),
        ("validation_stats", "y"),
        ("global_stats", "epistemic"),
        ("information_gain", "kl"),
    ):
        found[name] = xr.DataTree(found[name].to_dataset().drop_vars(lost))
    data = collect(save(folder, found))
    assert len(data.damaged) == 4
    for part in ("unseen", "temperature", "global", "gain"):
        assert "posterior.nc is damaged: its group" in data.missing[part]
    assert data.personal is not None
    outcome = pfedbayes("report", folder, "-o", tmp_path / "page.html")
    assert outcome.code == 0
    assert outcome.err.count("warning: ") == 4


def test_broken_predictions_are_one_note_for_all_clients(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "run", summary=brief_summary(clients=2))
    found = tree(OWN)
    found["observation_stats"]["p"][[0, 1, 399]] = np.nan
    found["observation_stats"]["p"][398] = 0.7
    data = collect(save(folder, found))
    (note,) = data.notes
    assert "3 predictions are not numbers and 1 prediction is not a probability" in note
    assert "for clients 0, 1: their measures are not defined" in note
    reasons = {row.client: row.reasons[0] for row in data.clients}
    assert reasons[0] == "2 predictions are not numbers: its measures are not defined"
    assert "1 prediction is not a probability" in reasons[1]


@pytest.mark.parametrize(
    ("settings", "part", "told"),
    [
        ('foreign = "none"', "foreign", "run.foreign was none"),
        ('foreign = "auto"', "foreign", "was at hand"),
        ('foreign = "mnist"', "foreign", "run.foreign was mnist, but the run left it out"),
        ("", "foreign", "older version"),
        ("shifts = false", "corrupted", "run.shifts was false"),
        ("shifts = true", "corrupted", "no pictures"),
    ],
)
def test_why_a_part_is_not_there_fits_the_settings(
    tmp_path: Path, settings: str, part: str, told: str
) -> None:
    folder = write_folder(tmp_path / "run", summary=brief_summary(clients=2))
    with (folder / "config.toml").open("a") as file:
        file.write(settings + "\n")
    assert told in collect(save(folder, tree(OWN))).missing[part]


# -- one set of weights -----------------------------------------------------------------------------------


def point_run(path: Path, algorithm: str = "ditto", draws: int = 1) -> Path:
    """Eight examples told right at 0.9 by the personal models, and wrong by the global one."""
    y, owner = np.array([0, 1, 2, 0, 1, 2, 0, 1]), np.repeat([0, 1], 4)
    found = add_groups(
        class_tree(np.stack([sharp(y)] * draws), y, owner),
        global_=sharp((y + 1) % 3),
        unseen=(np.full((2, 3), 1 / 3), np.array([0, 1])),
        foreign=np.full((2, 2, 3), 1 / 3),
        corrupted=(np.full((1, 1, 2, 3), 1 / 3), y[[0, 4]], np.array([0, 1]), np.array([0, 4])),
    )
    for name in ("observation", "global", "unseen", "foreign", "corrupted"):
        group = found[f"{name}_stats"]
        group["epistemic"][:] = 0.0
        group["aleatoric"][:] = group["total"].to_numpy()
    folder = write_folder(path, algorithm=algorithm, summary=brief_summary(1.0, clients=2))
    return save(folder, found)


def test_one_set_of_weights_has_no_epistemic_part(tmp_path: Path) -> None:
    data = collect(point_run(tmp_path / "run"))
    assert data.point
    assert data.personal is not None
    assert data.corrupted is not None
    assert data.unseen is not None
    assert data.foreign is not None
    for name in ("epistemic", "aleatoric"):
        assert math.isnan(data.personal.measures[name].value)
        assert all(math.isnan(row.personal[name]) for row in data.clients)
    assert data.personal.measures["entropy"].value > 0
    for part in (data.unseen, data.foreign, data.corrupted):
        by_name = {score.name: score for score in part.scores}
        assert math.isnan(by_name["epistemic"].auroc.value)
        assert math.isnan(by_name["epistemic"].fpr95.value)
        assert by_name["total"].auroc.value == 1.0
    assert all(math.isnan(level.epistemic) for level in data.corrupted.levels)
    assert all(math.isnan(example.epistemic) for example in data.least_certain)
    text = assert_self_contained(report_page(data)).text
    assert "keeps one set of weights" in text
    assert "no information gain" in data.missing["gain"]
    assert "not stored" not in data.missing["gain"]


def test_two_draws_that_agree_are_not_one_set_of_weights(tmp_path: Path) -> None:
    data = collect(point_run(tmp_path / "run", draws=2))
    assert not data.point
    assert data.personal is not None
    assert data.personal.measures["epistemic"].value == 0.0


def test_one_draw_of_numbers_has_no_intervals_and_says_why(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    found = number_tree(rng.normal(size=(1, 30)), rng.normal(size=30), np.repeat([0, 1], 15))
    data = collect(save(write_folder(tmp_path / "run", algorithm="ditto"), found))
    assert data.point
    assert data.personal is not None
    assert data.numbers is not None
    assert math.isnan(data.personal.measures["crps"].value)
    assert math.isnan(data.personal.measures["coverage90"].value)
    assert data.numbers.levels == ()
    assert "one draw is stored" in data.missing["intervals"]
    assert data.missing["intervals"] in how_sure(data)
    assert (
        "not stored in this run"
        not in assert_self_contained(report_page(data)).text.split("Clients,")[0]
    )


# -- one estimator ----------------------------------------------------------------------------------------


def test_scores_over_all_draws_go_before_those_of_the_draws_kept() -> None:
    y, kept = np.zeros(2), np.zeros((19, 2))
    counted = {"crps": np.array([3.0, 5.0]), "below": np.array([0, 50]), "equal": np.array([0, 0])}
    found = number_scores(kept, None, y, counted=counted, draws=99)
    assert found["crps"].tolist() == [3.0, 5.0]
    assert found["inside"].tolist() == [0.0, 1.0]
    one = number_scores(kept, None, y, counted=counted, draws=1)
    assert np.isnan(one["crps"]).all()
    assert np.isnan(one["inside"]).all()


@pytest.mark.parametrize("draws", [19, 20, 30, 99])
def test_coverage_from_counts_is_exact_for_exchangeable_outcomes(draws: int) -> None:
    # The rank of an outcome among its draws is uniform on 0 ... K.
    below = np.arange(draws + 1)
    counted = {"crps": below * 1.0, "below": below, "equal": 0 * below}
    inside = number_scores(None, None, 0.0 * below, counted=counted, draws=draws)["inside"]
    assert inside.mean() == pytest.approx(0.9)
    columns = {**counted, "mean": 0.0 * below, "sd": 1.0 + 0 * below}
    fit = number_fit(columns, 0.0 * below, None, draws)
    assert fit.coverage[:5] == pytest.approx(fit.levels[:5])
    assert all(map(math.isnan, fit.width))


# -- verdicts ---------------------------------------------------------------------------------------------


def with_measures(data: ReportData, **changes: Estimate) -> ReportData:
    assert data.personal is not None
    model = dataclasses.replace(data.personal, measures={**data.personal.measures, **changes})
    return dataclasses.replace(data, personal=model)


def test_too_narrow_and_too_sure_are_said_beyond_chance_only(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    found = number_tree(rng.normal(size=(40, 60)), rng.normal(size=60), np.repeat([0, 1], 30))
    data = collect(save(write_folder(tmp_path / "n"), found))
    assert "too narrow" in how_sure(with_measures(data, coverage90=Estimate(0.8, 0.7, 0.89)))
    assert "too narrow" not in how_sure(with_measures(data, coverage90=Estimate(0.8, 0.7, 0.91)))
    assert "wider" in how_sure(with_measures(data, coverage90=Estimate(0.97, 0.93, 0.99)))
    data = collect(point_run(tmp_path / "c"))
    sure = {"confidence": Estimate(0.9)}
    assert "too sure" in how_sure(with_measures(data, accuracy=Estimate(0.8, 0.7, 0.89), **sure))
    assert "too sure" not in how_sure(
        with_measures(data, accuracy=Estimate(0.8, 0.7, 0.91), **sure)
    )


@pytest.mark.parametrize(("inside", "marked"), [(4, True), (7, False)])
def test_a_clients_intervals_are_too_narrow_beyond_chance_only(inside: int, marked: bool) -> None:
    # Of ten outcomes under seven inside exclude 90 % by Jeffreys' interval.
    from pyro_pfedbayes.experiments.reports.schema import ClientRow

    measures = {"rmse": 1.0, "sd": 1.0, "coverage90": inside / 10}
    rows = [ClientRow(i, str(i), 9, 10, 10, 0, measures, None, 0.9, 1.1) for i in (0, 1)]
    reasons = with_attention_reasons(rows, "number")[0].reasons
    assert any("too narrow" in reason for reason in reasons) == marked


# -- what a method is about -------------------------------------------------------------------------------


def test_a_method_says_what_it_is_about() -> None:
    def of(name: object) -> tuple[str, ...]:
        return models_of_method({"algorithm": {"name": name}})

    assert of("fedavg") == ("global",)
    assert of("fedper") == ("personal",)
    assert of("pfedbayes") == of("ditto") == ("personal", "global")
    assert of("of old") == of(3) == models_of_method({}) == ("personal", "global")


def test_the_model_that_a_method_is_about_leads(tmp_path: Path) -> None:
    data = collect(point_run(tmp_path / "run", "fedavg"))
    assert data.lead == "global"
    assert how_good(data).startswith(
        "On 8 test examples of 2 clients the global model is right in 0.0"
    )
    assert "personal" not in how_good(data)
    assert "It gives its answers" in how_sure(data)
    assert all("too sure of itself (90 % sure, 0 % right)" in row.reasons for row in data.clients)
    assert all(row.upper < 0.5 for row in data.clients)
    text = assert_self_contained(report_page(data)).text
    assert "personal models (not what the method is about)" in text
    assert "PM % (not what the method is about)" in text
    assert data.least_certain[0].predicted != data.least_certain[0].label


def test_a_method_without_a_global_model_is_not_measured_by_one(tmp_path: Path) -> None:
    data = collect(point_run(tmp_path / "run", "fedper"))
    assert data.lead == "personal"
    assert "global model" not in how_good(data)
    assert "global model (not what the method is about)" in report_page(data)
    reasons = [reason for row in data.clients for reason in row.reasons]
    assert not any("serves it better" in reason for reason in reasons)
    both = collect(point_run(tmp_path / "both"))
    assert "One global model for all is right in 0.0 %" in how_good(both)


# -- figures ----------------------------------------------------------------------------------------------


def test_one_evaluated_round_is_a_whole_round() -> None:
    records = [{"round": 7, "personal": {"nll": 0.4}, "information_gain": {"w": [1.0]}}]
    for figure in (plot_history(records, "nll", "NLL"), plot_gain_history(records)):
        assert figure.axes[0].get_xticks().tolist() == [7]


def test_the_legend_of_answering_only_when_sure_is_beside_the_curves(tmp_path: Path) -> None:
    data = collect(point_run(tmp_path / "run"))
    assert data.personal is not None
    assert data.personal.selective is not None
    figure = plot_risk_coverage({"personal": data.personal.selective})
    assert figure.axes[0].get_legend() is None
    assert len(figure.legends[0].get_texts()) == 1


def test_an_entropy_that_is_not_split_is_one_bar(tmp_path: Path) -> None:
    data = collect(point_run(tmp_path / "run"))
    bars = plot_entropy_split(data.clients).axes[0].patches
    assert len(bars) == 2
    assert all(bar.get_width() > 0 for bar in bars)
