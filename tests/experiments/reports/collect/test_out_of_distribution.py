"""Unlike examples in a report: counted by hand, absent without harm, on the page, in JSON and in comparisons."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import xarray as xr

from pyro_pfedbayes.datatree.tree import load_datatree
from pyro_pfedbayes.experiments.reports.collect.comparison import compare, run_measures
from pyro_pfedbayes.experiments.reports.collect.run import collect
from pyro_pfedbayes.experiments.reports.pages.comparison_page import comparison_page
from pyro_pfedbayes.experiments.reports.pages.run_page import report_page
from pyro_pfedbayes.experiments.reports.schema import Corrupted, ReportData
from pyro_pfedbayes.measures.detection import auroc, fpr_at_tpr
from tests.experiments.reports.helpers import (
    add_groups,
    brief_summary,
    class_tree,
    save,
    sharp,
    write_folder,
)

Y = np.array([0, 1, 2, 0, 1, 2, 0, 1])
OWNER = np.array([0, 0, 0, 0, 1, 1, 1, 1])


def run(path: Path, **groups: object) -> Path:
    """Two clients of four examples; the second is wrong at example 5, less sure at example 4."""
    said = np.where(np.arange(8) == 5, 0, Y)
    probs = sharp(said)
    probs[4] = sharp([1], 0.6)[0]
    tree = class_tree(np.stack([probs] * 2), Y, OWNER)
    add_groups(tree, **groups)  # type: ignore[arg-type]
    return save(write_folder(path, summary=brief_summary(clients=2)), tree)


def damaged() -> tuple[np.ndarray, ...]:
    """Examples 0 and 5 under two strengths of noise: right and wrong at 0.8, then nothing known."""
    p = np.stack([sharp([0, 0], 0.8), np.full((2, 3), 1 / 3)])[None]
    return p, np.array([0, 2]), np.array([0, 1]), np.array([0, 5])


def corrupted(data: ReportData) -> Corrupted:
    assert data.corrupted is not None
    return data.corrupted


def test_foreign_examples_are_told_from_the_clients_own(tmp_path: Path) -> None:
    foreign = np.stack(
        [np.full((2, 3), 1 / 3), np.stack([sharp([0], 0.7)[0], sharp([0], 0.95)[0]])]
    )
    found = collect(run(tmp_path / "run", foreign=foreign)).foreign
    assert found is not None
    assert (found.data, found.examples, found.clients) == ("shoes", 2, 2)
    own = torch.tensor([0.1] * 4 + [0.4] + [0.1] * 3, dtype=torch.float64)
    out = torch.tensor([2 / 3, 2 / 3, 0.3, 0.05], dtype=torch.float64)
    score = next(score for score in found.scores if score.name == "max_probability")
    assert score.auroc.value == pytest.approx(auroc(own, out))
    assert score.fpr95.value == pytest.approx(fpr_at_tpr(own, out))
    assert score.client_auroc == pytest.approx((1 + auroc(own[4:], out[2:])) / 2)
    assert score.auroc.lower <= score.auroc.value <= score.auroc.upper == 1.0


def test_levels_of_damage_are_those_counted_by_hand(tmp_path: Path) -> None:
    found = corrupted(collect(run(tmp_path / "run", corrupted=damaged())))
    assert (found.examples, found.clients) == (2, 2)
    plain, first, second = found.levels
    assert [level.strength for level in found.levels] == [0, 1, 2]
    # As they are, the same two examples: one right, one wrong, both at 0.9.
    assert (plain.examples, plain.accuracy) == (2, 0.5)
    assert plain.ece == pytest.approx(0.4, abs=1e-6)
    assert plain.auroc == {}
    assert first.accuracy == 0.5
    assert first.ece == pytest.approx(0.3, abs=1e-6)
    assert first.total == pytest.approx(-0.8 * math.log(0.8) - 0.2 * math.log(0.1), rel=1e-6)
    assert first.epistemic == pytest.approx(first.total / 2)
    # Of eight of the clients' own only example 4 (0.6) is less certain than 0.8.
    assert first.auroc["total"] == pytest.approx(7 / 8)
    assert second.auroc["max_probability"] == 1.0
    assert second.total == pytest.approx(math.log(3), rel=1e-6)


def test_damaged_predictions_that_are_no_numbers_and_unknown_labels_are_left_out(
    tmp_path: Path,
) -> None:
    p, _, client, index = damaged()
    p[0, 0, 1] = np.nan
    data = collect(run(tmp_path / "run", corrupted=(p, np.array([-1, 2]), client, index)))
    plain, first, second = corrupted(data).levels
    assert (first.examples, second.examples) == (1, 2)
    # Of the first strength only an example without a label is left.
    assert math.isnan(first.accuracy)
    assert math.isnan(first.ece)
    assert math.isfinite(first.total)
    assert plain.accuracy == 0.5
    assert "–" in report_page(data)
    p[:] = np.nan
    data = collect(run(tmp_path / "none", corrupted=(p, np.array([0, 2]), client, index)))
    assert data.corrupted is None
    assert "to tell apart" in data.missing["corrupted"]


def test_groups_of_another_form_are_not_stored_rather_than_an_error(tmp_path: Path) -> None:
    groups = {"foreign": np.full((2, 2, 3), 1 / 3), "corrupted": damaged()}
    folder = run(tmp_path / "run", **groups)
    tree = load_datatree(folder / "posterior.nc")
    foreign = tree["foreign_stats"].to_dataset().drop_vars("total")
    tree["foreign_stats"] = xr.DataTree(foreign)
    tree["corrupted_stats"] = xr.DataTree(tree["corrupted_stats"].to_dataset().isel(strength=0))
    data = collect(save(folder, tree))
    assert data.foreign is data.corrupted is None
    assert "group foreign_stats lacks the variable total" in data.missing["foreign"]
    assert "group corrupted_stats" in data.missing["corrupted"]
    assert len(data.damaged) == 2
    assert data.personal is not None
    page = report_page(data)
    assert page.count("Other data: posterior.nc is damaged") == 1
    assert page.count("Damaged pictures: posterior.nc is damaged") == 1


def test_without_predictions_all_three_have_one_reason(tmp_path: Path) -> None:
    data = collect(write_folder(tmp_path / "run", summary=brief_summary()))
    page = report_page(data)
    start = page.index('<h2 id="classes-never-seen')
    section = page[start : page.index("</section>", start)]
    assert section.count("The run stored no predictions") == 1


def test_the_page_and_the_json_tell_all_three(tmp_path: Path) -> None:
    groups = {"foreign": np.full((2, 2, 3), 1 / 3), "corrupted": damaged()}
    folder = run(tmp_path / "run", unseen=(np.full((2, 3), 1 / 3), np.array([0, 1])), **groups)
    data = collect(folder)
    page = report_page(data)
    for text in ("2 examples of shoes", "2 test examples of 2 clients", "noise 2", "as they are"):
        assert text in page
    assert "noise: accuracy 50.0 to 50.0 %" in page.replace("&nbsp;", " ")
    told = json.loads(json.dumps(data.as_json()))
    assert told["foreign"]["data"] == "shoes"
    assert set(told["unseen"]["scores"][0]["auroc"]) == {"value", "lower", "upper"}
    level = told["corrupted"]["levels"][1]
    assert (level["corruption"], level["strength"], level["accuracy"]) == ("noise", 1, 0.5)
    for name in ("ece", "adaptive_ece", "classwise_ece", "confidence", "entropy"):
        found = told["personal"]["measures"][name]
        assert found["lower"] <= found["value"] <= found["upper"], name
    selective = told["personal"]["selective"]
    for found in (*selective["at"].values(), selective["aurc"], selective["excess_aurc"]):
        assert found["lower"] <= found["value"] <= found["upper"]


def test_comparisons_have_a_row_for_each_score_of_each_kind(tmp_path: Path) -> None:
    groups = {
        "unseen": (np.full((2, 3), 1 / 3), np.array([0, 1])),
        "foreign": np.full((2, 2, 3), 1 / 3),
        "corrupted": damaged(),
    }
    first = collect(run(tmp_path / "a", **groups))
    settings = {**first.settings, "run": {**first.settings["run"], "seed": 1, "shifts": False}}
    other = dataclasses.replace(first, folder="b", settings=settings, corrupted=None)
    found = compare([first, other])
    # Another seed, and whether damaged examples were stored, are no other method.
    (group,) = found.groups
    for kind in ("unseen", "foreign", "corrupted"):
        for score in ("epistemic", "total", "max_probability"):
            assert f"{kind}_auroc_{score}" in group.spread
    assert group.spread["unseen_auroc_total"].runs == 2
    assert group.spread["corrupted_auroc_total"].runs == 1
    assert run_measures(first)["unseen_auroc_total"] == 1.0
    assert "AUROC unseen, total" in comparison_page(found, [first, other])
