"""Configurations: what wins, what is refused, and that files say the same as memory."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path
from typing import Any

import pytest

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.experiments.config.registry import preset_line, preset_names
from pyro_pfedbayes.experiments.config.resolve import refuse_unused_settings, resolve
from pyro_pfedbayes.experiments.config.sections import (
    parse_config,
    parse_setting,
    read_source,
    with_settings,
)
from pyro_pfedbayes.inference.algorithms.pfedbayes import PFedBayes
from tests.experiments.helpers import tiny_config


def test_every_field_of_the_algorithm_is_a_key() -> None:
    defaults = parse_config({})
    assert defaults.algorithm == PFedBayes()
    fields = {f.name for f in dataclasses.fields(PFedBayes)}
    # TOML has no word for None: what is None by default shows when it is set.
    given = {"personal_lr": 0.1, "kind_lr": 0.2, "personal_start": "own", "personal_rounds": 1}
    kept = tiny_config(**{f"algorithm__{k}": v for k, v in given.items()}).tree()["algorithm"]
    assert kept.keys() == fields | {"name"}


@pytest.mark.parametrize("name", preset_names())
def test_presets_are_right_and_say_what_they_run(name: str) -> None:
    config = resolve(parse_config(read_source(name).tree))
    assert name.split("-")[0] in (config.data.name, "personal", "global")
    if name.split("-")[-1] in ("small", "medium", "large"):
        assert name.split("-")[-1] == config.data.split
    config.algorithm.check(config.run.rounds, config.data.clients)
    assert len(preset_line(name)) > 15


def test_presets_are_listed_by_data_and_size() -> None:
    names = [name for name in preset_names() if name.count("-") == 1 and "quick" not in name]
    assert names[:4] == ["mnist-small", "mnist-medium", "mnist-large", "fmnist-small"]


@pytest.mark.parametrize(
    ("settings", "label"),
    [
        ({}, "digits"),
        ({"data.name": "mnist"}, "mnist-medium"),
        ({"data.name": "cifar10", "data.split": "large"}, "cifar10-large"),
        ({"data.name": "digits", "data.split": "small"}, "digits"),
        ({"data.name": "/some/where/mine.npz"}, "mine"),
    ],
)
def test_without_a_preset_the_data_choose_one(settings: dict[str, Any], label: str) -> None:
    assert read_source(None, settings.items()).label == label


@pytest.mark.parametrize(
    ("text", "setting"),
    [
        ("algorithm.zeta=0.5", ("algorithm.zeta", 0.5)),
        ("algorithm.zeta = 2", ("algorithm.zeta", 2)),
        ("data.name=mnist", ("data.name", "mnist")),
        ('data.name="a=b.npz"', ("data.name", "a=b.npz")),
        ("model.hidden=[5, 6]", ("model.hidden", [5, 6])),
        ("run.participation=all", ("run.participation", "all")),
    ],
)
def test_settings_are_read_as_toml_or_as_text(text: str, setting: tuple[str, Any]) -> None:
    assert parse_setting(text) == setting


@pytest.mark.parametrize("text", ["zeta=1", "algorithm.zeta", "a.b.c=1", ".x=1", "run.=1", "=1"])
def test_settings_of_another_form_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="give section"):
        parse_setting(text)


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"run": 3}, "'run' must be a section of keys, not 3"),
        ({"zeta": 2}, r"key 'zeta' stands outside a section; .* \[data\], .*\[run\]"),
        ({"run": {"seed": 2**63}}, r"run.seed is 9223372036854775808; .* from 0 to 2\*\*63 - 1"),
        ({"run": {"seed": -1}}, "run.seed is -1; it must be an integer from 0"),
        ({"data": {"seed": 10**22}}, "data.seed is 10000000000000000000000; it must be"),
        ({"run": {"participation": float("nan")}}, "run.participation is nan; .* up to 1.0"),
        ({"run": {"participation": 1.5}}, "run.participation is 1.5; it must be a number of"),
        ({"run": {"participation": True}}, "run.participation is True; it must be a number of"),
        ({"algorithm": {"zeta": "1"}}, "algorithm.zeta is '1'; it must be a number"),
        ({"algorithm": {"zeta": True}}, "algorithm.zeta is True; it must be a number"),
        (
            {"algorithm": {"local_steps": 1.5}},
            "algorithm.local_steps is 1.5; it must be an integer",
        ),
        ({"algorithm": {"start": "sever"}}, "did you mean 'server'\\? \\(give own, server\\)"),
        ({"algorithm": {"name": 3}}, "algorithm.name must be a text"),
        ({"model": {"hidden": 3}}, "model.hidden is 3; it must be a list"),
        ({"model": {"name": "vgg", "config": [1.5]}}, "model.config\\[0\\] is 1.5; it must be"),
        (
            {"model": {"roles": 3}},
            "model.roles is 3; it must be a section of keys and values",
        ),
        (
            {"model": {"roles": {"fc*": "pont"}}},
            "model.roles\\[fc\\*\\] is 'pont'; did you mean 'point'\\? \\(give shared, private, point\\)",
        ),
        ({"data": {"alpha": 0}}, "data.alpha is 0; it must be above 0"),
        ({"data": {"validation": 1.0}}, "data.validation is 1.0; it must be below 1"),
        ({"data": {"column": [1]}}, "it must be the name or the index of a column"),
        ({"run": {"chunk": 0}}, "run.chunk is 0; it must be at least 1"),
        ({"run": {"xyzw": 0}}, "unknown key 'run.xyzw' \\(known: rounds, "),
        (
            {"run": {"seed": "1", "rounds": 0, "chunk": 0, "eval_every": -1}},
            "run.rounds is 0.*; run.seed is '1'.*; run.chunk is 0.* \\(and 1 more\\)",
        ),
    ],
)
def test_wrong_values_are_told_in_one_line(tree: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as problem:
        parse_config(tree, "f.toml: ")
    assert str(problem.value).startswith("f.toml: ")
    assert "\n" not in str(problem.value)


@pytest.mark.parametrize("text", ["1", "1.0", "0.5", "7"])
def test_a_number_of_clients_and_a_fraction_stay_apart(text: str) -> None:
    name, value = parse_setting(f"run.participation={text}")
    config = parse_config(with_settings({}, [(name, value)]))
    kept = parse_config(tomllib.loads(config.toml())).run.participation
    assert repr(config.run.participation) == repr(kept) == text


def test_the_largest_seed_is_one() -> None:
    assert parse_config({"run": {"seed": 2**63 - 1}}).run.seed == 2**63 - 1


def test_a_configuration_survives_its_file() -> None:
    config = resolve(tiny_config(algorithm__personal_lr=0.1, run__participation="all"))
    again = parse_config(tomllib.loads(config.toml()))
    assert again == config
    assert resolve(again) == config


def test_another_algorithm_drops_settings_it_does_not_know() -> None:
    tree = {"algorithm": {"name": "old", "zeta": 2.0, "momentum": 0.9}}
    assert with_settings(tree, [("algorithm.name", "pfedbayes")]) == {
        "algorithm": {"name": "pfedbayes", "zeta": 2.0}
    }
    assert tree["algorithm"]["momentum"] == 0.9


def test_the_papers_split_fills_in_clients_and_sizes() -> None:
    data = resolve(parse_config({"data": {"name": "CIFAR-10", "split": "large"}})).data
    assert (data.name, data.clients, data.train_per_class, data.test_per_class) == (
        *("cifar10", 20, 450),
        150,
    )
    assert resolve(parse_config({"data": {"name": "cifar10"}})).model.name == "vgg"
    fewer = resolve(
        parse_config({"data": {"name": "mnist", "clients": 4, "test_per_class": 9}})
    ).data
    assert (fewer.split, fewer.clients, fewer.train_per_class, fewer.test_per_class) == (
        *("medium", 4, 200),
        9,
    )


@pytest.mark.parametrize(
    ("data", "scheme", "absent"),
    [
        ({"scheme": "dirichlet", "split": "small"}, "dirichlet", "split"),
        ({"column": "site"}, "column", "clients"),
        ({"scheme": "quantity"}, "quantity", "labels_per_client"),
        ({"scheme": "rotating", "test_fraction": 0.3}, "rotating", "test_fraction"),
        ({"train_per_class": 4, "test_per_class": 4, "split": "small"}, "blocks", "split"),
    ],
)
def test_keys_without_effect_are_dropped_or_refused_if_asked_for(
    data: dict[str, Any], scheme: str, absent: str
) -> None:
    config = resolve(parse_config({"data": data}))
    assert config.data.scheme == scheme
    assert absent not in config.tree()["data"]
    with pytest.raises(UserError, match=f"data.{absent} has no effect"):
        refuse_unused_settings([(f"data.{absent}", 3)], config)


def test_own_data_default_to_a_dirichlet_split_and_a_full_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.npz").touch()
    monkeypatch.chdir(tmp_path)
    data = resolve(parse_config({"data": {"name": "mine.npz"}})).data
    assert (data.name, data.scheme, data.alpha, data.clients) == (
        *(str(tmp_path / "mine.npz"), "dirichlet"),
        *(0.5, 10),
    )
