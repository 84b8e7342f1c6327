"""Numbers from the configuration to the data: targets, their scale, defaults of embedded tables."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_pfedbayes.experiments.config.resolve import refuse_unused_settings, resolve
from pyro_pfedbayes.experiments.config.sections import parse_config
from pyro_pfedbayes.experiments.runs.build import build_data, fingerprint
from pyro_pfedbayes.experiments.runs.inputs import InputRule, read_inputs
from pyro_pfedbayes.experiments.runs.target_scaling import far_outcomes
from pyro_pfedbayes.models.program import ProgramModel
from pyro_pfedbayes.models.spec import DataSpec
from tests import point_problem
from tests.experiments.helpers import pfedbayes
from tests.helpers import message


def section(**data: Any) -> Any:
    return resolve(parse_config({"data": data})).data


def own(folder: Path, y: Any, **data: Any) -> Any:
    x = np.random.default_rng(0).normal(size=(len(y), 3))
    np.savez(folder / "d.npz", x=x, y=y, site=np.arange(len(y)) % 2)
    return section(name=str(folder / "d.npz"), scheme="column", column="site", **data)


# -- resolve ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"name": "diabetes"}, {"scheme": "column", "column": "sex", "target_scaling": "plain"}),
        ({"name": "diabetes", "column": "age_group"}, {"scheme": "column", "column": "age_group"}),
        ({"name": "diabetes", "scheme": "quantity"}, {"clients": 5, "alpha": 1.0, "column": None}),
        ({"name": "diabetes", "clients": 3}, {"scheme": "dirichlet", "clients": 3, "column": None}),
        ({"name": "Breast_Cancer"}, {"name": "breast-cancer", "scheme": "dirichlet", "clients": 5}),
        ({"name": "wine", "clients": 3}, {"scheme": "dirichlet", "clients": 3, "target": None}),
        ({"name": "digits"}, {"target": None, "target_scaling": None, "scheme": "blocks"}),
    ],
)
def test_defaults_of_named_data(given: dict[str, Any], wanted: dict[str, Any]) -> None:
    found = section(**given).model_dump()
    assert {key: found[key] for key in wanted} == wanted
    again = resolve(parse_config({"data": {k: v for k, v in found.items() if v is not None}}))
    assert again.data.model_dump() == found


def test_targets_of_own_data_are_open_until_they_are_read(tmp_path: Path) -> None:
    found = own(tmp_path, np.arange(20) % 2)
    assert (found.target, found.target_scaling) == ("auto", "plain")
    chosen = own(tmp_path, np.arange(20) % 2, target="number", target_scaling="standard")
    assert (chosen.target, chosen.target_scaling) == ("number", "standard")


def test_targets_of_named_data_are_what_they_are() -> None:
    assert "outcomes of wine are classes" in message(
        section, name="wine", target_scaling="standard"
    )
    config = resolve(parse_config({"data": {"name": "digits"}}))
    text = message(refuse_unused_settings, [("data.target", "number")], config)
    assert text == "data.target has no effect with data.name 'digits'; leave it out"
    words = message(parse_config, {"data": {"target": "numbers"}})
    assert "did you mean 'number'?" in words
    text = message(section, name="wine", scheme="blocks")
    assert "'blocks' on wine needs data.train_per_class" in text


# -- build ------------------------------------------------------------------------------------------------


def test_outcomes_are_standardised_over_what_clients_train_on(tmp_path: Path) -> None:
    y = np.random.default_rng(1).normal(250.0, 40.0, size=90)
    y[:10] = np.nan
    plain, rule = build_data(own(tmp_path, y))
    assert rule.target is None
    assert np.allclose(plain.dataset.y.numpy(), y, equal_nan=True)
    data, rule = build_data(own(tmp_path, y, target_scaling="standard"))
    index = torch.cat([*data.partition.train, *data.partition.validation])
    known = data.dataset.y[index][data.dataset.known[index]].double()
    assert float(known.mean()) == pytest.approx(0, abs=1e-6)
    assert float(known.std(correction=0)) == pytest.approx(1, abs=1e-6)
    assert rule.target == data.dataset.target_scaling
    assert np.allclose(data.dataset.raw_y.numpy(), y, equal_nan=True)
    # All outcomes have another mean.
    assert abs(float(data.dataset.y[data.dataset.known].mean())) > 1e-3
    assert InputRule.from_json(json.loads(json.dumps(dataclasses.asdict(rule)))) == rule


def test_a_constant_outcome_keeps_its_scale(tmp_path: Path) -> None:
    data, rule = build_data(own(tmp_path, np.full(20, 0.1), target_scaling="standard"))
    assert rule.target == pytest.approx((0.1, 1.0))
    assert float(data.dataset.y.abs().max()) < 1e-6


def test_what_cannot_be_standardised_is_refused(tmp_path: Path) -> None:
    text = message(build_data, own(tmp_path, np.arange(20) % 2, target_scaling="standard"))
    assert text.endswith("leave it out, or set data.target to 'number'")
    text = message(build_data, own(tmp_path, np.full(20, np.nan), target_scaling="standard"))
    assert "no outcome that a client trains on is known" in text
    words = message(build_data, own(tmp_path, np.arange(20) % 2).model_copy(update={"target": "x"}))
    assert "target is 'x'" in words


def test_counts_stay_counts(tmp_path: Path) -> None:
    y = np.random.default_rng(0).poisson(4.0, size=30)
    data, _ = build_data(own(tmp_path, y, target="number"))
    assert data.outcome == "number"
    assert np.array_equal(data.dataset.y.numpy(), y)


@pytest.mark.parametrize("name", ["diabetes", "breast-cancer", "wine"])
def test_embedded_tables_are_dealt_and_standardised_over_training_examples(name: str) -> None:
    from sklearn import datasets

    load = {
        "diabetes": lambda: datasets.load_diabetes(scaled=False),
        "breast-cancer": datasets.load_breast_cancer,
        "wine": datasets.load_wine,
    }[name]
    raw = load().data
    data, rule = build_data(section(name=name))
    index = torch.cat([*data.partition.train, *data.partition.validation])
    rows = data.dataset.x[index].double()
    assert float(rows.mean(0).abs().max()) < 1e-5
    assert torch.allclose(rows.std(0, correction=0), torch.ones(1).double(), atol=1e-5)
    assert torch.allclose(rule.apply(raw, "x"), data.dataset.x, atol=1e-4)
    plain, rule = build_data(section(name=name, scaling="plain"))
    assert np.array_equal(plain.dataset.x.numpy(), raw.astype(np.float32))
    assert torch.equal(rule.apply(raw, "x"), plain.dataset.x)
    assert all(len(index) for index in data.partition.train)


def test_the_fingerprint_sees_numbers_and_which_are_missing(tmp_path: Path) -> None:
    data, _ = build_data(own(tmp_path, np.linspace(0.0, 1.0, 20)))

    def having(y: torch.Tensor) -> str:
        return fingerprint(
            dataclasses.replace(data, dataset=dataclasses.replace(data.dataset, y=y))
        )

    y = data.dataset.y
    row = torch.arange(20)
    found = [
        y,
        y.where(row != 3, torch.nan),
        y.where(row != 4, torch.nan),
        y.where(row != 3, y[3] + 1e-6),
    ]
    assert len({having(each) for each in found}) == 4
    assert having(y.clone()) == fingerprint(data)


def test_the_partition_of_numbers_is_shown_in_their_own_units(tmp_path: Path) -> None:
    options = ("--set", "data.target_scaling=standard", "--plot", tmp_path / "p.png")
    outcome = pfedbayes("partition", "--data", "diabetes", *options)
    assert (outcome.code, outcome.err) == (0, "")
    rows = [line.split() for line in outcome.out.splitlines()]
    means = [float(row[-2]) for row in rows if row[:1] in (["sex"], ["all"])]
    assert len(means) == 3
    assert all(100 < mean < 200 for mean in means)
    assert (tmp_path / "p.png").stat().st_size > 5_000
    refused = pfedbayes("partition", "--data", "diabetes", *label_sizes())
    assert refused.code == 2
    assert "outcomes of diabetes are numbers; give dirichlet" in refused.err
    np.savez(tmp_path / "d.npz", x=np.zeros((9, 2)), y=np.arange(9) / 2)
    refused = pfedbayes("partition", "--data", tmp_path / "d.npz", *label_sizes())
    assert refused.code == 2
    assert "cannot deal by label; use dirichlet" in refused.err


def label_sizes() -> list[str]:
    settings = ("scheme=rotating", "train_per_class=5", "test_per_class=5")
    return [part for text in settings for part in ("--set", f"data.{text}")]


# -- inputs for prediction --------------------------------------------------------------------------------


def test_covariates_are_read_beside_the_inputs(tmp_path: Path) -> None:
    rule = InputRule((2,), loc=(1.0, 1.0), scale=(2.0, 2.0))
    np.savez(tmp_path / "x.npz", x=[[1.0, 3.0], [5.0, 1.0]], days=[30, 7], age=[50.0, 60.0])
    x = read_inputs(tmp_path / "x.npz", rule, ("days", "age"))
    assert x.tolist() == [[0, 1, 30, 50], [2, 0, 7, 60]]
    assert x.dtype == torch.float32
    assert read_inputs(tmp_path / "x.npz", rule).shape == (2, 2)


@pytest.mark.parametrize(
    ("days", "words"),
    [
        (None, "no array 'days' in it, which the model wants beside x; it holds x"),
        (np.ones(3), "days has shape [3] and type float64; wanted one number an input, [2]"),
        (np.array(["a", "b"]), "wanted one number an input"),
        (np.array([1.0, np.nan]), "days holds nan in row 1; wanted finite numbers"),
        (np.array([1e39, 1.0]), "days holds 1e+39 in row 0"),
    ],
)
def test_covariates_that_do_not_fit_are_refused(tmp_path: Path, days: Any, words: str) -> None:
    np.savez(tmp_path / "x.npz", x=np.zeros((2, 2)), **({} if days is None else {"days": days}))
    text = message(read_inputs, tmp_path / "x.npz", InputRule((2,)), ("days",))
    assert words in text
    assert text.startswith("x.npz: ")


def test_continuous_outcomes_far_from_where_models_begin_are_told_of() -> None:
    small = point_problem.data()

    def told(model: ProgramModel, **changes: Any) -> str:
        dataset = dataclasses.replace(small.dataset, **changes)
        return far_outcomes(model, dataclasses.replace(small, dataset=dataset))

    line, far = point_problem.model(), 100 * small.dataset.y
    assert told(line) == ""
    assert "mean 250 and standard deviation 86.6" in told(line, y=far)
    assert "data.target_scaling=standard" in told(line, y=far)
    assert told(line, y=far, target_scaling=(0.0, 1.0)) == ""
    assert told(ProgramModel(events, DataSpec((2,))), y=far) == ""


def events(x: torch.Tensor, y: torch.Tensor | None = None) -> None:
    """Counts of one rate."""
    rate = pyro.sample("rate", dist.LogNormal(0.0, 1.0))
    with pyro.plate("rows", len(x)):
        pyro.sample("y", dist.Poisson(rate.expand(len(x))), obs=y)
