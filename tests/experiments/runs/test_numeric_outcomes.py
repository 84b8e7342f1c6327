"""A run on numbers from its configuration to its reports, in the data's own units."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pyro_pfedbayes.data.partitions.text_tables import table_text
from pyro_pfedbayes.datatree.tree import load_datatree
from pyro_pfedbayes.experiments.runs.folder import RunFolder
from pyro_pfedbayes.experiments.runs.lifecycle import reopen
from pyro_pfedbayes.experiments.runs.prediction_files import number_predictions
from pyro_pfedbayes.experiments.runs.result_tables import client_table, result_lines, result_table
from pyro_pfedbayes.inference.predictive.accumulators import NumberSummary
from tests.experiments.helpers import Outcome, lines, pfedbayes, summary, without_seconds

LOC, SCALE, NOISE = 5_000.0, 800.0, 0.3
RUN = (
    *("--set", "data.column=site", "--set", "run.posterior_draws=30", "--device", "cpu"),
    *("--set", "algorithm.lr=0.05", "--set", "run.eval_every=5", "--rounds", "15"),
    *("--set", "run.eval_draws=40", "--set", "run.engine=eager", "--set", "data.validation=0.2"),
)


def outcomes(x: np.ndarray) -> np.ndarray:
    """What the inputs would give without noise."""
    slope: np.ndarray = x @ np.array([1.0, -0.5, 0.25])
    return LOC + SCALE * slope


MODELS = f"""
from pyro_pfedbayes.models.bayesian import BayesianModel
from pyro_pfedbayes.models.likelihoods import Normal, Poisson
from pyro_pfedbayes.models.networks import mlp

def regression(data):
    "A linear model of standardised outcomes with known noise."
    network = mlp([data.num_features, 1], seed=0)
    return BayesianModel(network, Normal({NOISE}, missing="mask"), rho=-3.0)

def counts(data):
    "Poisson counts, whose rate grows with the days observed."
    network = mlp([data.num_features, 1], seed=0)
    return BayesianModel(network, Poisson(exposure="days"), rho=-3.0)
"""


def model(folder: Path, name: str) -> tuple[str, str]:
    """A model file in ``folder``, and the option that names a model of it."""
    (folder / "mine.py").write_text(MODELS)
    return "--model", f"{folder / 'mine.py'}:{name}"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome]:
    """A finished run on standardised numbers, some of them missing."""
    folder = tmp_path_factory.mktemp("numbers")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(240, 3))
    y = outcomes(x) + SCALE * NOISE * rng.normal(size=240)
    y[::10] = np.nan
    site = np.array(["east", "north"])[np.arange(240) // 120]
    np.savez(folder / "d.npz", x=50 + 10 * x, y=y, site=site)
    run = ("run", "--data", folder / "d.npz", "--out", folder / "r", *model(folder, "regression"))
    return folder, pfedbayes(*run, *RUN, "--set", "data.target_scaling=standard")


def test_it_learns_in_its_own_units_and_tells_so(finished: tuple[Path, Outcome]) -> None:
    folder, outcome = finished
    assert (outcome.code, outcome.err) == (0, "")
    found = summary(folder / "r")
    for key in ("personal", "global"):
        # Noise of 240 and an outcome's spread of about 950: between the two, close to the noise.
        assert 0.8 * SCALE * NOISE < found[key]["rmse"]["selected"] < 1.6 * SCALE * NOISE
        assert found[key]["mae"] < found[key]["rmse"]["last"]
        assert 0.7 < found[key]["coverage90"] <= 1.0
        assert set(found[key]) >= {"rmse", "mae", "nll", "coverage90"}
    floor = math.log(SCALE * NOISE * math.sqrt(2 * math.pi)) + 0.5
    assert floor - 0.3 < found["personal"]["nll"] < floor + 1.0
    assert "test RMSE" in outcome.out
    assert "in 90 %" in outcome.out
    rounds = [line for line in outcome.out.splitlines() if line.startswith("round ")]
    assert rounds
    assert all("PM RMSE" in line and "GM RMSE" in line for line in rounds)
    assert "validation_rmse" in lines(folder / "r")[0]["personal"]


def test_evaluate_shows_each_client_by_its_known_outcomes(finished: tuple[Path, Outcome]) -> None:
    folder = finished[0] / "r"
    found = json.loads(pfedbayes("evaluate", folder, "--json").out)
    experiment, _, _ = reopen(RunFolder.open(folder))
    known = [
        int(experiment.data.dataset.known[index].sum()) for index in experiment.data.partition.test
    ]
    assert [row["examples"] for row in found["clients"]] == known
    assert found["pooled"]["examples"] == sum(known)
    assert found["pooled"]["personal"]["rmse"] == summary(folder)["personal"]["rmse"]["last"]
    squares = [row["examples"] * row["global"]["rmse"] ** 2 for row in found["clients"]]
    pooled = math.sqrt(sum(squares) / sum(known))
    assert pooled == pytest.approx(found["pooled"]["global"]["rmse"], rel=1e-6)
    shown = pfedbayes("evaluate", folder)
    assert "PM RMSE" in shown.out
    assert "GM RMSE" in shown.out
    rows = [line.split() for line in shown.out.splitlines()]
    (row,) = [row for row in rows if row[:1] == ["north"]]
    assert row[1] == str(known[1])
    assert float(row[2]) == pytest.approx(found["clients"][1]["personal"]["rmse"], rel=1e-3)


def test_the_tree_is_the_evaluations_in_the_datas_units(finished: tuple[Path, Outcome]) -> None:
    folder = finished[0] / "r"
    experiment, state, _ = reopen(RunFolder.open(folder))
    predictions, _ = experiment.federation.predictions(state, "test", draws=30)
    dataset = experiment.data.dataset
    assert dataset.target_scaling is not None
    loc, scale = dataset.target_scaling
    tree = load_datatree(folder / "posterior.nc")
    assert tree["posterior_predictive"].sizes["draw"] == 30
    stats = {name: np.asarray(tree["observation_stats"][name]) for name in ("mean", "epistemic")}
    assert np.allclose(stats["mean"], predictions.mean.numpy() * scale + loc, rtol=1e-5)
    assert np.allclose(stats["epistemic"], predictions.epistemic.numpy() * scale**2, rtol=1e-3)
    index = tree["constant_data"]["index"].to_numpy()
    with np.load(finished[0] / "d.npz") as raw:
        y = raw["y"][index]
    assert np.allclose(tree["observed_data"]["y"], y, rtol=1e-6, equal_nan=True)
    density = np.asarray(tree["log_likelihood"]["y"])[0]
    mixed = np.log(np.exp(density.astype(float)).mean(0))
    wanted = predictions.log_density.numpy() - math.log(scale)
    assert np.allclose(mixed, wanted, atol=1e-3, equal_nan=True)
    # Drawn outcomes scatter about the mean as their variances say: by 4 standard errors.
    drawn = np.asarray(tree["posterior_predictive"]["y"])[0]
    z = (drawn - stats["mean"]) / np.asarray(tree["observation_stats"]["sd"])
    assert float((z**2).mean()) == pytest.approx(1.0, abs=4 * math.sqrt(2 / z.size))


def test_predict_gives_means_and_intervals_in_raw_units(
    finished: tuple[Path, Outcome], tmp_path: Path
) -> None:
    x = np.random.default_rng(5).normal(size=(60, 3))
    np.savez(tmp_path / "x.npz", x=50 + 10 * x)
    common = ("predict", finished[0] / "r", "--input", tmp_path / "x.npz", "--draws", "200")
    outcome = pfedbayes(*common, "--client", "north", "--output", tmp_path / "p.npz")
    assert (outcome.code, outcome.err) == (0, "")
    with np.load(tmp_path / "p.npz") as found:
        parts = {name: found[name] for name in found.files}
    assert set(parts) == {"mean", "sd", "lower", "upper", "epistemic_sd"}
    assert np.abs(parts["mean"] - outcomes(x)).mean() < SCALE * NOISE
    scale = RunFolder.open(finished[0] / "r").load()[1]["data"]["inputs"]["target"][1]
    noise = scale * NOISE
    assert np.allclose(parts["sd"], np.sqrt(noise**2 + parts["epistemic_sd"] ** 2), rtol=1e-4)
    assert (parts["epistemic_sd"] > 0).all()
    # A Normal's central 90 % is 3.29 standard deviations wide; 200 draws know it to about a tenth.
    width = (parts["upper"] - parts["lower"]) / parts["sd"]
    assert float(width.mean()) == pytest.approx(3.29, rel=0.06)
    outcome = pfedbayes(*common, "--client", "north", "--output", tmp_path / "p.csv")
    with (tmp_path / "p.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["mean"]) for row in rows] == pytest.approx(parts["mean"].tolist(), rel=1e-5)
    assert list(rows[0]) == ["row", "mean", "sd", "lower", "upper", "epistemic_sd"]
    shown = [line.split() for line in outcome.out.splitlines()]
    (first,) = [row for row in shown if len(row) == 6 and row[0] == "0"]
    assert float(first[1]) == pytest.approx(parts["mean"][0], rel=1e-3)
    assert "and 50 more" in outcome.out
    assert pfedbayes(*common, "--client", "global").code == 0


def test_a_resumed_run_is_the_same_in_every_bit(
    finished: tuple[Path, Outcome], tmp_path: Path
) -> None:
    experiment, state, _ = reopen(RunFolder.open(finished[0] / "r"))
    again = experiment.federation.run(15)
    wanted = [without_seconds(record) for record in lines(finished[0] / "r")]
    assert [without_seconds(record) for record in again.history] == wanted
    assert again.state.round == state.round == 15


def test_missing_outcomes_of_a_part_are_told(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 3))
    site, y = np.arange(40) % 2, outcomes(x)
    parts = {"x_train": x, "y_train": y, "x_test": x, "y_test": np.full(40, np.nan)}
    np.savez(tmp_path / "d.npz", **parts, site_train=site, site_test=site)
    run = ("run", "--data", tmp_path / "d.npz", "--out", tmp_path / "r")
    options = (*model(tmp_path, "regression"), "--set", "data.target_scaling=standard")
    outcome = pfedbayes(*run, *RUN, *options, "--rounds", "3")
    assert outcome.code == 0, outcome.err
    assert summary(tmp_path / "r")["personal"]["rmse"]["last"] is None
    outcome = pfedbayes("evaluate", tmp_path / "r")
    assert outcome.code == 2
    assert "no test example" in outcome.err
    assert "has a known outcome" in outcome.err


def test_models_that_take_columns_want_them_for_predictions(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, days = rng.normal(size=(160, 2)), rng.uniform(1, 30, size=160)
    y = rng.poisson(days * np.exp(0.3 + 0.5 * x[:, 0]))
    np.savez(tmp_path / "d.npz", x=x, y=y, days=days, site=np.arange(160) % 2)
    run = ("run", "--data", tmp_path / "d.npz", "--out", tmp_path / "r")
    outcome = pfedbayes(*run, *model(tmp_path, "counts"), "--set", "data.target=number", *RUN)
    assert outcome.code == 0, outcome.err
    np.savez(tmp_path / "x.npz", x=np.zeros((2, 2)), days=[1.0, 10.0])
    common = ("predict", tmp_path / "r", "--client", "0", "--draws", "300", "--input")
    written = pfedbayes(*common, tmp_path / "x.npz", "--output", tmp_path / "p.npz")
    assert (written.code, written.err) == (0, "")
    with np.load(tmp_path / "p.npz") as found:
        # Ten times the days, ten times the count.
        assert found["mean"][1] / found["mean"][0] == pytest.approx(10.0, rel=1e-4)
        assert (found["lower"] == np.floor(found["lower"])).any()
    np.savez(tmp_path / "bare.npz", x=np.zeros((2, 2)))
    refused = pfedbayes(*common, tmp_path / "bare.npz")
    assert refused.code == 2
    assert "no array 'days' in it, which the model wants beside x" in refused.err


# -- tables -----------------------------------------------------------------------------------------------


def test_what_is_not_finite_is_a_dash() -> None:
    one = torch.ones(2)
    found = NumberSummary(
        mean=0 * one,
        aleatoric=torch.tensor([torch.inf, torch.nan]),
        epistemic=4 * one,
        log_density=one,
        lower=-one,
        upper=one,
        crps=one,
    )
    numbers = number_predictions("who", found, (10.0, 2.0))
    rows = [line.split() for line in table_text(numbers.table(5)).splitlines()]
    assert ["0", "10", "–", "8", "12", "4"] in rows
    assert ["1", "10", "–", "8", "12", "4"] in rows


def report(rmse: float | None) -> dict[str, Any]:
    figures = {"selected": rmse, "last": 1234.5678, "best": rmse}
    column = {"rmse": figures, "mae": 0.00012345, "nll": None, "coverage90": 0.875}
    head = {"algorithm": "a", "data": "d", "split": "s", "clients": 2, "rounds": 3, "dropped": {}}
    seconds = {"train": 1.0, "evaluate": 2.0}
    both = {"personal": column, "global": column | {"mean_weights_rmse": 7.0}}
    return {**head, **both, "seconds": seconds, "gradient_steps": 5}


def test_the_result_of_numbers_in_a_table() -> None:
    shown = table_text(result_table(report(99.0)))
    rows = [line.split() for line in shown.splitlines()]
    figures = ["99", "1235", "99", "0.0001234", "–", "87.5"]
    assert ["personal", "models", "(PM)", *figures] in rows
    assert ["GM", "at", "mean", "weights", "7"] in rows
    assert "%" not in next(line for line in shown.splitlines() if "RMSE" in line).split("NLL")[0]
    assert "least: the best on the test set" in result_lines(report(99.0), "f")[0]
    without = table_text(result_table(report(None)))
    assert "selected" not in without
    assert not any("selected" in line for line in result_lines(report(None), "f"))


def test_clients_of_numbers_in_a_table() -> None:
    own = {"rmse": 12.345, "mae": 1.0, "nll": math.inf, "coverage90": 0.5}
    row = {"name": "[x]", "examples": 7, "personal": own, "global": own | {"rmse": math.nan}}
    shown = table_text(client_table([row], row, "t"))
    assert "PM RMSE" in shown
    rows = [line.split() for line in shown.splitlines()]
    assert ["[x]", "7", "12.35", "–", "50.0", "–", "–", "50.0"] in rows
