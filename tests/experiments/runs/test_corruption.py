"""Spoilt clients by configuration: who, how, and that nothing else changes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pyro_pfedbayes.data.corruptions import corrupt_images
from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.experiments.config.resolve import refuse_unused_settings, resolve
from pyro_pfedbayes.experiments.config.sections import Config, parse_config
from pyro_pfedbayes.experiments.runs.build import build_data, fingerprint
from pyro_pfedbayes.randomness import seed_for


def config(**data: Any) -> Config:
    return resolve(parse_config({"data": {"name": "digits", "validation": 0.2, **data}}))


def test_without_the_setting_nothing_is_written_or_changed() -> None:
    plain = config()
    assert not [key for key in plain.tree()["data"] if "corrupt" in key]
    spoilt = config(corrupt_clients=[3])
    assert {k: v for k, v in spoilt.tree()["data"].items() if "corrupt" in k} == {
        "corrupt_clients": [3],
        "corruption": "labels",
        "corruption_strength": 5,
    }
    prints = [fingerprint(build_data(c.data)[0]) for c in (plain, spoilt, plain)]
    assert prints[0] == prints[2] != prints[1]


def test_a_spoilt_configuration_survives_its_file() -> None:
    import tomllib

    spoilt = config(corrupt_clients=[8, 3, 8], corruption="noise", corruption_strength=2)
    again = resolve(parse_config(tomllib.loads(spoilt.toml())))
    assert again.data == spoilt.data
    assert again.data.corrupt_clients == (3, 8)


@pytest.mark.parametrize("scaling", ["plain", "standard"])
def test_images_are_spoilt_between_their_own_black_and_white(scaling: str) -> None:
    """The scale is the clean data's, so the spoilt images are the scaled spoilt ones."""
    settings = {"corrupt_clients": [1], "corruption": "noise", "corruption_strength": 4}
    raw, _ = build_data(config(scaling="plain").data)
    clean, rule = build_data(config(scaling=scaling).data)
    spoilt, found = build_data(config(scaling=scaling, **settings).data)
    assert found == rule
    index = torch.cat([raw.partition.train[1], raw.partition.validation[1]])
    wanted = corrupt_images(raw.dataset.x[index], "noise", 4, seed=seed_for(0, "corruption", 1))
    torch.testing.assert_close(spoilt.dataset.x[index], rule.centred(wanted), atol=1e-4, rtol=1e-4)
    others = torch.ones(len(raw.dataset), dtype=torch.bool)
    others[index] = False
    assert torch.equal(spoilt.dataset.x[others], clean.dataset.x[others])
    assert torch.equal(spoilt.dataset.y, clean.dataset.y)


def complaint(**data: Any) -> str:
    with pytest.raises(UserError) as caught:
        build_data(config(**data).data)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_what_cannot_be_spoilt_is_told() -> None:
    assert "no client 10 to corrupt" in complaint(corrupt_clients=[10])
    assert "corrupt_clients" in complaint(corrupt_clients=[-1])
    assert "a list of clients' numbers" in complaint(corrupt_clients=3)
    assert "names no client" in complaint(corruption="labels")
    assert "names no client" in complaint(corruption_strength=2, corrupt_clients=[])
    assert "did you mean 'labels'" in complaint(corrupt_clients=[1], corruption="lables")
    assert "corruption_strength is 6" in complaint(corrupt_clients=[1], corruption_strength=6)
    assert "is a table" in complaint(name="wine", corrupt_clients=[0], corruption="blur")


def test_a_setting_that_is_not_idle_passes() -> None:
    refuse_unused_settings([("data.corrupt_clients", [1])], config(corrupt_clients=[1]))
