"""The numbers of a report: exact where they can be counted by hand, and "not stored" where a run lacks them."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.experiments.reports.collect.attention_rules import (
    by_attention,
    with_attention_reasons,
)
from pyro_pfedbayes.experiments.reports.collect.numbers import number_scores
from pyro_pfedbayes.experiments.reports.collect.run import collect
from pyro_pfedbayes.experiments.reports.schema import ClientRow, ReportData
from tests.experiments.helpers import Outcome, summary
from tests.experiments.reports.helpers import (
    add_groups,
    brief_summary,
    class_tree,
    number_tree,
    save,
    sharp,
    write_folder,
)

Y = np.array([0, 1, 2, 0, 1, 2, 0, 1])
OWNER = np.array([0, 0, 0, 0, 1, 1, 1, 1])


def one_wrong(tmp_path: Path) -> Path:
    """Two clients of four examples, the second wrong once; a third without any."""
    said = Y.copy()
    said[5] = 0
    folder = write_folder(tmp_path / "run", summary=brief_summary(clients=3))
    return save(folder, class_tree(np.stack([sharp(said)] * 2), Y, OWNER))


def by_client(data: ReportData) -> dict[int, ClientRow]:
    return {row.client: row for row in data.clients}


# -- classes ----------------------------------------------------------------------------------------------


def test_pooled_measures_are_those_counted_by_hand(tmp_path: Path) -> None:
    found = collect(one_wrong(tmp_path)).personal
    assert found is not None
    nll = -(7 * math.log(0.9) + math.log(0.05)) / 8
    assert found.measures["accuracy"].value == 7 / 8
    assert found.measures["nll"].value == pytest.approx(nll, rel=1e-6)
    assert found.measures["confidence"].value == pytest.approx(0.9, rel=1e-6)
    assert found.measures["ece"].value == pytest.approx(0.9 - 7 / 8, abs=1e-6)
    assert found.reliability is not None
    assert sum(found.reliability.count) == 8
    assert found.reliability.accuracy[13] == 7 / 8


def test_clients_have_their_own_measures_and_no_test_examples_are_not_a_zero(
    tmp_path: Path,
) -> None:
    rows = by_client(collect(one_wrong(tmp_path)))
    assert [rows[i].personal["accuracy"] for i in (0, 1)] == [1.0, 0.75]
    assert rows[0].upper == 1.0
    assert math.isnan(rows[2].personal["accuracy"])
    assert math.isnan(rows[2].lower)
    assert "no test examples" in rows[2].reasons[0]


def test_equally_certain_examples_are_not_told_apart(tmp_path: Path) -> None:
    found = collect(one_wrong(tmp_path)).personal
    assert found is not None
    assert found.selective is not None
    at = {share: estimate.value for share, estimate in found.selective.at.items()}
    assert at == pytest.approx({"80": 7 / 8, "90": 7 / 8, "95": 7 / 8})
    assert found.selective.aurc.value == pytest.approx(1 / 8)


def test_groups_of_newer_versions_are_read(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "run", summary=brief_summary(clients=2))
    tree = class_tree(np.stack([sharp(Y)] * 2), Y, OWNER)
    wrong = sharp((Y + 1) % 3)
    add_groups(
        tree,
        global_=wrong,
        validation=(sharp([0, 0, 0, 0]), np.array([0, 0, 0, 1]), np.array([0, 0, 1, 1])),
        unseen=(np.full((2, 3), 1 / 3), np.array([0, 1])),
        kl=np.array([[1.0, 2.0], [3.0, 4.0]]),
    )
    data = collect(save(folder, tree))
    assert data.global_ is not None
    assert data.global_.measures["accuracy"].value == 0.0
    assert [row.global_ is not None and row.global_["accuracy"] for row in data.clients] == [0, 0]
    assert data.unseen is not None
    assert {score.name: score.auroc.value for score in data.unseen.scores} == {
        "epistemic": 1.0,
        "total": 1.0,
        "max_probability": 1.0,
    }
    assert data.gain is not None
    assert data.gain.sites == ("layer0", "layer1")
    assert {row.client: row.gain for row in data.clients} == {0: 3.0, 1: 7.0}
    (fitted,) = data.temperature
    # Three of four right at 0.9: p^(1/T) gives the right class 3/4 at best.
    assert fitted.shared == pytest.approx(math.log(18) / math.log(6), rel=1e-4)
    # Client 0 has all right: no temperature is best, and the shared one serves.
    assert math.isnan(fitted.by_client["0"])
    assert fitted.measures["raw"]["ece"] == pytest.approx(0.1, abs=1e-6)
    # Client 1 had one of two right, so its own temperature gives the right class 1/2.
    own = -(math.log(0.75) + math.log(0.5)) / 2
    assert fitted.measures["shared"]["nll"] == pytest.approx(-math.log(0.75), rel=1e-4)
    assert fitted.measures["by_client"]["nll"] == pytest.approx(own, rel=1e-4)


def test_missing_groups_are_not_stored_rather_than_nought(tmp_path: Path) -> None:
    data = collect(one_wrong(tmp_path))
    assert data.global_ is data.unseen is data.gain is data.foreign is data.corrupted is None
    assert data.temperature == ()
    for part in ("global", "unseen", "foreign", "corrupted", "gain", "temperature"):
        assert "not stored in this run" in data.missing[part]


def test_unknown_labels_are_not_judged(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "run", summary=brief_summary(clients=2))
    y = np.where(np.arange(8) == 1, -1, Y)
    data = collect(save(folder, class_tree(np.stack([sharp(Y)] * 2), y, OWNER)))
    assert by_client(data)[0].judged == 3
    assert by_client(data)[0].test == 4
    assert data.personal is not None
    assert data.personal.measures["accuracy"].value == 1.0


def test_predictions_that_are_no_numbers_undefine_their_client_and_are_told(
    tmp_path: Path,
) -> None:
    folder = write_folder(tmp_path / "run", summary=brief_summary(clients=2))
    tree = class_tree(np.stack([sharp(Y)] * 2), Y, OWNER)
    tree["observation_stats"]["p"][2] = np.nan
    data = collect(save(folder, tree))
    rows = by_client(data)
    assert rows[0].broken == 1
    assert math.isnan(rows[0].personal["accuracy"])
    assert rows[1].personal["accuracy"] == 1.0
    assert data.personal is not None
    assert data.personal.measures["accuracy"].value == 1.0
    assert "1 prediction is not a number, of the personal models for client 0" in data.notes[0]
    assert data.clients[0].client == 0


def test_all_predictions_broken_is_said(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "run", summary=brief_summary(clients=2))
    tree = class_tree(np.stack([sharp(Y)] * 2), Y, OWNER)
    tree["observation_stats"]["p"][:] = np.nan
    data = collect(save(folder, tree))
    assert data.personal is None
    assert "no test example has a known outcome" in data.missing["predictions"]
    assert data.missing["least_certain"] == "no prediction can be used"


def test_one_class_only(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "run", summary=brief_summary(clients=1))
    y = np.zeros(6, int)
    tree = class_tree(np.ones((2, 6, 1)), y, y)
    add_groups(tree, validation=(np.ones((3, 1)), np.zeros(3, int), np.zeros(3, int)))
    data = collect(save(folder, tree))
    assert data.personal is not None
    assert data.personal.measures["accuracy"].value == 1.0
    assert data.personal.measures["entropy"].value == 0.0
    assert math.isnan(data.temperature[0].shared)
    assert data.interval == "examples"


def test_least_certain_examples_come_first(tmp_path: Path) -> None:
    probs = np.stack([sharp([y], p)[0] for y, p in zip(Y, np.linspace(0.5, 0.95, 8), strict=True)])
    folder = write_folder(tmp_path / "run", summary=brief_summary(clients=2))
    data = collect(save(folder, class_tree(np.stack([probs] * 2), Y, OWNER)))
    assert [example.index for example in data.least_certain] == list(range(8))
    assert data.least_certain[0].probability == pytest.approx(0.5)


# -- numbers ----------------------------------------------------------------------------------------------


def test_numbers(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    outcomes = rng.normal(size=(99, 400))
    y = rng.normal(size=400)
    y[0] = np.nan
    owner = np.repeat(np.arange(2), 200)
    folder = write_folder(tmp_path / "run", summary=None)
    data = collect(save(folder, number_tree(outcomes, y, owner)))
    assert data.outcome == "number"
    assert data.personal is not None
    error = outcomes.mean(0)[1:] - y[1:]
    measures = data.personal.measures
    assert measures["rmse"].value == pytest.approx(np.sqrt((error**2).mean()), rel=1e-5)
    assert measures["nll"].value == pytest.approx(1.0)
    # y is exchangeable with the draws: 90 % ± three standard errors.
    assert measures["coverage90"].value == pytest.approx(0.9, abs=3 * math.sqrt(0.09 / 399))
    # E|x - y| - E|x - x'| / 2 of standard normals is 1 / sqrt(pi), one example's deviation about 0.4.
    assert measures["crps"].value == pytest.approx(1 / math.sqrt(math.pi), abs=3 * 0.4 / 20)
    assert data.numbers is not None
    assert sum(data.numbers.pit) == 399
    assert by_client(data)[0].judged == 199
    assert by_client(data)[1].lower < by_client(data)[1].personal["rmse"] < by_client(data)[1].upper


def test_few_draws_leave_intervals_undefined(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    tree = number_tree(rng.normal(size=(3, 10)), rng.normal(size=10), np.zeros(10, int))
    data = collect(save(write_folder(tmp_path / "run"), tree))
    assert data.personal is not None
    assert math.isnan(data.personal.measures["coverage90"].value)
    assert data.numbers is not None
    assert math.isnan(data.numbers.coverage[-1])


# -- folders ----------------------------------------------------------------------------------------------


def test_no_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not the folder of a run"):
        collect(tmp_path)


def test_without_predictions_the_summary_serves(tmp_path: Path) -> None:
    data = collect(write_folder(tmp_path / "run", summary=brief_summary()))
    assert data.personal is None
    assert data.outcome == "class"
    assert "no posterior.nc" in data.missing["predictions"]


@pytest.mark.parametrize("keep", [0, 100, 5000])
def test_a_damaged_file_is_told_of(tmp_path: Path, keep: int) -> None:
    folder = one_wrong(tmp_path)
    file = folder / "posterior.nc"
    file.write_bytes(file.read_bytes()[:keep])
    assert "posterior.nc" in collect(folder).missing["predictions"]


def test_another_versions_tree_is_told_of(tmp_path: Path) -> None:
    folder = one_wrong(tmp_path)
    tree = class_tree(np.stack([sharp(Y)] * 2), Y, OWNER)
    del tree["observation_stats"]
    save(folder, tree)
    assert "lacks the group observation_stats" in collect(folder).missing["predictions"]
    longer = add_groups(class_tree(np.stack([sharp(Y)] * 2), Y, OWNER))
    longer.attrs["version_pyro-pfedbayes"] = "99.0"
    save(folder, longer)
    assert any("version 99.0" in note for note in collect(folder).notes)


def test_damaged_metrics_and_summary_are_told_of(tmp_path: Path) -> None:
    folder = one_wrong(tmp_path)
    good = json.dumps({"round": 1, "personal": {}, "global": {}})
    (folder / "metrics.jsonl").write_text(f"{good}\n{{half")
    (folder / "summary.json").write_text("[]")
    data = collect(folder)
    assert len(data.history) == 1
    assert not data.finished
    assert any("line 2 of metrics.jsonl" in note for note in data.notes)
    assert any("summary.json is damaged" in note for note in data.notes)


def test_a_real_run_agrees_with_its_summary_and_loads_its_data_again(
    finished: tuple[Path, Outcome],
) -> None:
    data = collect(finished[0])
    assert data.personal is not None
    assert [row.train for row in data.clients] == [24] * 6
    assert data.least_certain[0].image is not None
    assert np.shape(data.least_certain[0].image) == (8, 8)
    # posterior.nc has 3 draws, the summary 2: the same examples, about the same figures.
    told = summary(finished[0])["personal"]["accuracy"]["last"]
    assert data.personal.measures["accuracy"].value == pytest.approx(told, abs=0.1)
    assert len(data.history) == 3


def test_pictures_are_the_data_sets_own(finished: tuple[Path, Outcome]) -> None:
    from sklearn.datasets import load_digits

    images = load_digits().images / 16
    for example in collect(finished[0]).least_certain[:3]:
        np.testing.assert_allclose(example.image, images[example.index], atol=2e-3)


def test_other_data_are_not_shown_as_the_runs(
    finished: tuple[Path, Outcome], tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(finished[0], tmp_path / "copy"))
    config = copy / "config.toml"
    config.write_text(
        config.read_text().replace("[data]\n", "[data]\n", 1).replace("seed = 0", "seed = 5")
    )
    data = collect(copy)
    assert "not what it was" in data.missing["data"]
    assert all(row.train is None for row in data.clients)
    assert all(example.image is None for example in data.least_certain)


def test_nothing_is_downloaded(
    finished: tuple[Path, Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a report must not use the network")

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    copy = Path(shutil.copytree(finished[0], tmp_path / "copy"))
    config = copy / "config.toml"
    text = config.read_text().replace('name = "digits"', f'name = "mnist"\ndir = "{tmp_path}"')
    config.write_text(text)
    assert "may not be downloaded" in collect(copy).missing["data"]


# -- who needs attention ----------------------------------------------------------------------------------


def row(client: int, accuracy: float = 0.9, **changes: object) -> ClientRow:
    personal = {"accuracy": accuracy, "nll": 1 - accuracy, "confidence": accuracy}
    personal |= {"entropy": 0.2, "epistemic": 0.1, "aleatoric": 0.1}
    personal |= changes.pop("personal", {})  # type: ignore[operator]
    base = ClientRow(
        client, str(client), 100, 100, 100, 0, personal, None, accuracy - 0.05, accuracy + 0.05
    )
    return dataclasses.replace(base, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("needy", "word"),
    [
        (row(3, 0.7), "low accuracy"),
        (row(3, personal={"entropy": 0.5, "epistemic": 0.4}), "more data would help"),
        (row(3, personal={"entropy": 0.5, "epistemic": 0.1}), "mostly noise"),
        (row(3, personal={"confidence": 0.99}), "too sure"),
        (row(3, train=40), "few training data (40; median 100)"),
        (row(3, judged=5), "judged on 5 examples only"),
        (row(3, dropped=2), "left out in 2 rounds"),
        (row(3, global_={"accuracy": 0.99}), "the global model serves it better (99.0 %)"),
    ],
)
def test_each_reason_is_found_and_named(needy: ClientRow, word: str) -> None:
    rows = with_attention_reasons([row(0), row(1), row(2), needy], "class")
    assert [bool(each.reasons) for each in rows] == [False, False, False, True]
    assert word in rows[3].reasons[0]
    assert by_attention(rows, "class")[0].client == 3


def test_without_reasons_the_worst_likelihood_comes_first_and_undefined_last() -> None:
    unknown = row(1, personal={"nll": math.nan})
    order = by_attention([row(0, 0.9), unknown, row(2, 0.8), row(3, 0.85)], "class")
    assert [each.client for each in order] == [2, 3, 0, 1]


def test_scores_of_draws_that_are_not_stored_come_from_their_counts() -> None:
    y = np.array([0.5, 3.0])
    draws = np.linspace(0.0, 2.0, 21)[:, None].repeat(2, 1)
    kept = number_scores(draws, None, y)
    counted = {
        "crps": kept["crps"],
        "below": (draws < y).sum(0),
        "equal": (draws == y).sum(0),
    }
    found = number_scores(None, None, y, counted=counted, draws=len(draws))
    assert found["inside"].tolist() == kept["inside"].tolist() == [1.0, 0.0]
    assert found["crps"].tolist() == kept["crps"].tolist()
    assert number_scores(None, None, y) == {}
