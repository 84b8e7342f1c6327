"""From a configuration to data, partition and model."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pyro_pfedbayes.data.clients import FederatedData
from pyro_pfedbayes.data.datasets import load_dataset
from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.experiments.config.registry import MODELS
from pyro_pfedbayes.experiments.config.resolve import resolve
from pyro_pfedbayes.experiments.config.sections import parse_config
from pyro_pfedbayes.experiments.runs.build import (
    build_data,
    build_experiment,
    build_model,
    fingerprint,
)
from pyro_pfedbayes.experiments.runs.inputs import InputRule, input_rule
from pyro_pfedbayes.models.bayesian import BayesianModel
from tests.experiments.helpers import tiny_config

CLASS_MODELS = ("mlp", "linear", "vgg", "logistic-regression", "ordinal")
NUMBER_MODELS = [name for name in MODELS if name not in CLASS_MODELS]


def own(path: Path, **data: Any) -> Any:
    return resolve(parse_config({"data": {"name": str(path), **data}})).data


def training_rows(data: FederatedData) -> torch.Tensor:
    return data.dataset.x[torch.cat([*data.partition.train, *data.partition.validation])]


def test_images_are_standardised_over_training_examples_by_two_numbers() -> None:
    plain, _ = build_data(resolve(tiny_config(data__scaling="plain")).data)
    data, rule = build_data(resolve(tiny_config()).data)
    assert torch.equal(plain.dataset.x, load_dataset("digits").x)
    rows = training_rows(data).double()
    assert float(rows.mean()) == pytest.approx(0, abs=1e-5)
    assert float(rows.std(correction=0)) == pytest.approx(1, abs=1e-5)
    assert abs(float(data.dataset.x.mean())) > 1e-4  # All examples have another mean.
    assert rule.loc is not None
    assert len(rule.loc) == 1


def test_tables_are_standardised_over_training_examples_by_column(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    # A column like a date in seconds, whose spread float32 could not hold; and a constant one.
    x = np.column_stack([rng.normal(size=90), 1.7e9 + rng.normal(size=90), np.full(90, 7.0)])
    np.savez(tmp_path / "d.npz", x=x, y=np.arange(90) % 3)
    data, rule = build_data(own(tmp_path / "d.npz"))
    rows = training_rows(data).double()
    assert torch.allclose(rows.mean(0), torch.zeros(3, dtype=torch.float64), atol=1e-5)
    assert rows.std(0, correction=0).tolist() == pytest.approx([1, 1, 0], abs=1e-5)
    again = rule.apply(x, "x")
    assert torch.allclose(again, data.dataset.x, atol=1e-4)
    plain, rule = build_data(own(tmp_path / "d.npz", scaling="plain"))
    assert torch.equal(plain.dataset.x, torch.from_numpy(x.astype(np.float32)))
    assert rule.loc is None


@pytest.mark.parametrize(
    ("data", "scheme", "clients"),
    [
        (
            {"scheme": "rotating", "clients": 4, "train_per_class": 5, "test_per_class": 5},
            "rotating",
            4,
        ),
        ({"scheme": "dirichlet", "clients": 3, "alpha": 0.2}, "dirichlet(alpha=0.2)", 3),
        ({"scheme": "quantity", "clients": 5}, "quantity(alpha=1)", 5),
    ],
)
def test_schemes_reach_the_partition(data: dict[str, Any], scheme: str, clients: int) -> None:
    dealt = build_data(resolve(parse_config({"data": data})).data)[0].partition
    assert (dealt.scheme, dealt.num_clients) == (scheme, clients)


def test_the_seed_of_the_data_can_stay_while_that_of_the_run_changes() -> None:
    def prints(**seeds: int) -> str:
        return fingerprint(build_data(resolve(tiny_config(**seeds)).data)[0])

    assert prints(run__seed=1) != prints(run__seed=2)
    assert prints(run__seed=1, data__seed=5) == prints(run__seed=2, data__seed=5)


def test_the_fingerprint_sees_labels_inputs_and_who_holds_what() -> None:
    data, _ = build_data(resolve(tiny_config()).data)
    dealt = data.partition
    unheld = tuple(index[1:] for index in dealt.validation)
    swapped = (dealt.train[1], dealt.train[0], *dealt.train[2:])
    changed = [
        dataclasses.replace(
            data, dataset=dataclasses.replace(data.dataset, x=data.dataset.x + 0.1)
        ),
        dataclasses.replace(
            data, dataset=dataclasses.replace(data.dataset, y=data.dataset.y.flip(0))
        ),
        dataclasses.replace(data, partition=dataclasses.replace(dealt, validation=unheld)),
        dataclasses.replace(data, partition=dataclasses.replace(dealt, train=swapped)),
    ]
    assert len({fingerprint(data), *map(fingerprint, changed)}) == 5


def test_networks_by_name() -> None:
    def built(name: str, shape: tuple[int, ...], **options: Any) -> dict[str, tuple[int, ...]]:
        model = build_model(parse_config({"model": {"name": name, **options}}), shape, 3)
        assert isinstance(model, BayesianModel)
        assert model.network(torch.zeros(2, *shape)).shape == (2, 3)
        return dict(model.weight_shapes)

    assert built("linear", (4,)) == {"head.weight": (3, 4), "head.bias": (3,)}
    assert built("mlp", (1, 2, 3), hidden=[7, 5])["fc2.weight"] == (5, 7)
    assert built("vgg", (2, 8, 8), config=[4, "M"])["conv1.weight"] == (4, 2, 3, 3)
    with pytest.raises(UserError, match="square images"):
        built("vgg", (4,))


def test_an_experiment_keeps_the_choices_it_made() -> None:
    config = build_experiment(tiny_config(run__device="auto", run__engine="auto")).config
    assert config.run.device != "auto"
    assert config.run.engine in ("eager", "traced", "compiled")
    again = build_experiment(config)
    assert again.config == config
    assert again.federation.engine_for(config.run.rounds).mode == config.run.engine


# -- how raw inputs come to the scale of the training data ------------------------------------------------


@pytest.mark.parametrize(
    "raw",
    [
        np.arange(4 * 6).reshape(4, 2, 3).astype(np.uint8) * 10,
        np.arange(4 * 18).reshape(4, 2, 3, 3).astype(np.int64),
        np.linspace(0, 1, 4 * 18).reshape(4, 3, 2, 3),
        np.linspace(-1, 1, 4 * 6).reshape(4, 2, 3),
        np.arange(4 * 6).reshape(4, 2, 3) % 2,
        np.arange(4 * 6).reshape(4, 6) * 10.0,
    ],
    ids=["uint8", "channels last", "unit floats", "signed floats", "binary", "table"],
)
@pytest.mark.parametrize("parts", [("",), ("_train", "_test")])
def test_the_rule_repeats_what_the_reader_did(
    tmp_path: Path, raw: np.ndarray, parts: tuple[str, ...]
) -> None:
    arrays: dict[str, Any] = {f"x{part}": raw for part in parts} | {
        f"y{part}": np.arange(4) % 2 for part in parts
    }
    np.savez(tmp_path / "d.npz", **arrays)
    dataset = load_dataset(tmp_path / "d.npz")
    rule = input_rule(dataset, str(tmp_path / "d.npz"))
    assert torch.equal(rule.apply(raw, "x"), dataset.x[:4])
    stored = InputRule.from_json(dataclasses.asdict(rule))
    assert torch.equal(stored.apply(raw[1:2], "x"), dataset.x[1:2])


def test_images_of_another_kind_than_the_training_ones_are_refused() -> None:
    integers = InputRule((1, 2, 2), top=255, multiply=1 / 127.5)
    unit, signed = InputRule((1, 2, 2), floats="unit"), InputRule((1, 2, 2), floats="signed")
    for rule, value, message in (
        (integers, np.full((1, 2, 2), 0.5), "give integers from 0 to 255"),
        (integers, np.full((1, 2, 2), 256), "held 0 to 255"),
        (unit, np.full((1, 2, 2), -0.5), "give numbers in \\[0, 1\\]"),
        (unit, np.full((1, 2, 2), 200, dtype=np.uint8), "give numbers in \\[0, 1\\]"),
        (signed, np.full((1, 2, 2), 1.5), "give floats in \\[-1, 1\\]"),
    ):
        with pytest.raises(UserError, match=message):
            rule.apply(value, "x")
    # All of one half is fine where only one meaning is possible.
    assert float(signed.apply(np.full((1, 2, 2), 0.5), "x").max()) == 0.5


@pytest.mark.parametrize("name", list(MODELS))
def test_every_built_in_model_leaves_unknown_outcomes_out_if_asked(name: str) -> None:
    numbers = name in NUMBER_MODELS
    shape = (1, 8, 8) if name == "vgg" else (4,)
    options = {"missing": "mask", **({"config": [4, "M"]} if name == "vgg" else {})}
    tree = {"model": {"name": name, **options}}
    model = build_model(parse_config(tree), shape, 0 if numbers else 3)
    x = torch.ones(2, *shape)
    y = torch.tensor([1.0, float("nan")]) if numbers else torch.tensor([1, -1])
    model.check_fits(x, y, "toy")
    del tree["model"]["missing"]
    plain = build_model(parse_config(tree), shape, 0 if numbers else 3)
    with pytest.raises(UserError, match="mask"):
        plain.check_fits(x, y, "toy")
