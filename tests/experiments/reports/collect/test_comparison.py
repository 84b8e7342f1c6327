"""Comparisons of runs: groups, spreads, pairs by seed, tempering."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.experiments.reports.collect.comparison import compare, run_measures
from pyro_pfedbayes.experiments.reports.collect.run import collect
from pyro_pfedbayes.experiments.reports.pages.comparison_page import comparison_page
from pyro_pfedbayes.experiments.reports.schema import ReportData
from tests.experiments.helpers import pfedbayes
from tests.experiments.reports.helpers import (
    brief_summary,
    class_tree,
    number_tree,
    save,
    sharp,
    write_folder,
)
from tests.experiments.reports.pages.test_run_page import assert_self_contained


def run(
    path: Path, accuracy: float, seed: int, algorithm: str = "pfedbayes", zeta: float = 1.0
) -> Path:
    told = brief_summary(accuracy, algorithm=algorithm, seed=seed)
    return write_folder(path, seed=seed, algorithm=algorithm, zeta=zeta, summary=told)


def three_seeds(tmp_path: Path) -> list[Path]:
    ours = [run(tmp_path / f"a{s}", 0.9 + s / 100, s) for s in (0, 1, 2)]
    theirs = [run(tmp_path / f"b{s}", 0.8 + 2 * s / 100, s, "ditto") for s in (1, 2, 3)]
    return ours + theirs


def collected(folders: list[Path]) -> list[ReportData]:
    return [collect(folder, reload=False) for folder in folders]


def test_spread_over_seeds_and_pairs_by_seed(tmp_path: Path) -> None:
    found = compare(collected(three_seeds(tmp_path)))
    ours, theirs = found.groups
    assert ours.label == "pfedbayes on toy, mine"
    assert ours.spread["pm_accuracy"].mean == pytest.approx(0.91)
    assert ours.spread["pm_accuracy"].sd == pytest.approx(0.01)
    assert theirs.seeds == ("1", "2", "3")
    (difference,) = found.differences
    assert difference.seeds == ("1", "2")
    # 0.82 - 0.91 and 0.84 - 0.92.
    assert difference.spread["pm_accuracy"].mean == pytest.approx(-0.085)
    assert difference.spread["pm_accuracy"].sd == pytest.approx(np.std([0.09, 0.08], ddof=1))


def test_one_run_has_no_spread(tmp_path: Path) -> None:
    found = compare(collected([run(tmp_path / "a", 0.9, 0), run(tmp_path / "b", 0.8, 0, "fedavg")]))
    assert math.isnan(found.groups[0].spread["pm_accuracy"].sd)


def test_runs_of_one_name_are_told_apart_by_what_differs(tmp_path: Path) -> None:
    folders = [run(tmp_path / f"z{z}", 0.9 - z / 100, 0, zeta=z) for z in (1.0, 5.0)]
    found = compare(collected(folders))
    assert [group.label.rpartition("; ")[2] for group in found.groups] == ["zeta=1.0", "zeta=5.0"]
    assert [(zeta, round(accuracy, 6)) for zeta, accuracy, _ in found.tempering] == [
        (1.0, 0.89),
        (5.0, 0.85),
    ]
    page = assert_self_contained(comparison_page(found, collected(folders)))
    assert "Weight of the prior" in page.text


def test_predictions_go_before_the_summary(tmp_path: Path) -> None:
    y = np.array([0, 1, 2, 0])
    folder = run(tmp_path / "a", 0.5, 0)
    save(folder, class_tree(np.stack([sharp(y)] * 2), y, np.array([0, 0, 1, 1])))
    found = compare(collected([folder, run(tmp_path / "b", 0.5, 1)]))
    assert found.groups[0].values["pm_accuracy"] == (1.0, 0.5)
    assert found.groups[0].spread["pm_aurc"].runs == 1


def test_classes_and_numbers_are_not_compared(tmp_path: Path) -> None:
    numbers = save(
        write_folder(tmp_path / "n"), number_tree(np.zeros((3, 4)), np.ones(4), np.zeros(4, int))
    )
    with pytest.raises(UserError, match="compare runs of one kind"):
        compare(collected([run(tmp_path / "a", 0.9, 0), numbers]))


def test_the_command_compares(tmp_path: Path) -> None:
    folders, page = three_seeds(tmp_path), tmp_path / "page.html"
    outcome = pfedbayes("report", *folders, "-o", page, "--json")
    assert outcome.code == 0
    assert outcome.err.count("the run stored no predictions") == outcome.err.count("\n") == 6
    found = json.loads(outcome.out)
    assert [group["label"] for group in found["groups"]] == [
        "pfedbayes on toy, mine",
        "ditto on toy, mine",
    ]
    assert found["groups"][0]["spread"]["pm_accuracy"]["runs"] == 3
    assert len(found["runs"]) == 6
    text = assert_self_contained(page.read_text()).text
    assert "6 runs of 2 methods compared" in text
    assert "91.00 ± 1.00 (n 3)" in text
    assert "-8.50 ± 0.71 (n 2)" in text
    assert "seeds (list)" in text
    assert "Without predictions, so that only the figures of their summary are compared" in text


def test_methods_on_different_data_are_neither_ranked_nor_paired_across(tmp_path: Path) -> None:
    ours = run(tmp_path / "a", 0.9, 0)
    other = run(tmp_path / "b", 0.8, 0, "ditto")
    told = brief_summary(0.99, algorithm="ditto", seed=0, data="wine")
    elsewhere = write_folder(tmp_path / "c", algorithm="ditto", summary=told)
    told = brief_summary(0.95, seed=0, data="wine")
    beside = write_folder(tmp_path / "d", summary=told)
    reports = collected([ours, other, elsewhere, beside])
    found = compare(reports)
    assert [(d.label, d.against) for d in found.differences] == [
        ("ditto on toy, mine", "pfedbayes on toy, mine"),
        ("pfedbayes on wine, mine", "ditto on wine, mine"),
    ]
    text = assert_self_contained(comparison_page(found, reports)).text
    assert "The runs differ in their data (toy, mine, 4 clients; wine, mine, 4 clients)" in text
    first = text.index("best first: pfedbayes on toy, mine: 90.00; ditto on toy, mine: 80.00")
    second = text.index("best first: ditto on wine, mine: 99.00; pfedbayes on wine, mine: 95.00")
    assert first < second
    text = comparison_page(compare([reports[0], reports[2]]), [reports[0], reports[2]])
    assert "best first" not in text
    assert "No two methods on the same data" in text


def test_what_a_method_is_not_about_is_not_compared(tmp_path: Path) -> None:
    names = ("pfedbayes", "fedavg", "fedper", "of-old")
    reports = collected([run(tmp_path / name, 0.9, 0, name) for name in names])
    both, shared, own, unknown = (set(run_measures(report)) for report in reports)
    assert both == unknown
    assert {"pm_accuracy", "gm_accuracy"} <= both
    assert {name[:2] for name in shared} == {"gm"}
    assert {name[:2] for name in own} == {"pm"}


def test_unfinished_runs_and_few_seeds_are_told_of(tmp_path: Path) -> None:
    folders = [run(tmp_path / f"a{s}", 0.9 + s / 100, s) for s in (0, 1)]
    folders += [run(tmp_path / f"b{s}", 0.8 + s / 100, s, "ditto") for s in (0, 1)]
    reports = collected(folders)
    text = comparison_page(compare(reports), reports)
    assert "Of 2 runs that deviation is itself little more than a guess" in text
    reports = collected([*folders, write_folder(tmp_path / "half")])
    assert f"Not finished, or without a readable summary: {tmp_path / 'half'}" in comparison_page(
        compare(reports), reports
    )


def test_how_often_a_run_is_judged_makes_no_other_method(tmp_path: Path) -> None:
    first, second = run(tmp_path / "a", 0.9, 0), run(tmp_path / "b", 0.8, 1)
    config = second / "config.toml"
    config.write_text(config.read_text() + "eval_every = 3\nposterior_draws = 7\neval_draws = 9\n")
    reports = collected([first, second])
    assert reports[1].settings["run"]["eval_every"] == 3
    assert [group.seeds for group in compare(reports).groups] == [("0", "1")]
