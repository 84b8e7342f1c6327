"""Tables that scikit-learn ships: what is loaded is what it holds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn import datasets

from pyro_pfedbayes.data.datasets import load_dataset
from pyro_pfedbayes.data.partitions.schemes import partition_column

RAW = {
    "diabetes": lambda: datasets.load_diabetes(scaled=False),
    "breast-cancer": datasets.load_breast_cancer,
    "wine": datasets.load_wine,
}


@pytest.mark.parametrize("name", RAW)
def test_tables_are_scikit_learns(name: str) -> None:
    bunch = RAW[name]()
    plain, data = load_dataset(name, standardise=False), load_dataset(name)
    assert np.array_equal(plain.x.numpy(), bunch.data.astype(np.float32))
    assert np.array_equal(plain.y.numpy(), bunch.target)
    assert plain.scaling is None
    assert torch.allclose(data.x.double().mean(0), torch.zeros(1, dtype=torch.float64), atol=1e-6)
    assert data.scaling is not None
    loc, scale = data.scaling
    assert torch.allclose(data.x.double() * scale + loc, plain.x.double(), rtol=1e-5, atol=1e-5)


def test_their_outcomes() -> None:
    assert load_dataset("diabetes").outcome == "number"
    assert load_dataset("wine").num_classes == 3
    for name in ("breast-cancer", "breast_cancer", "Breast-Cancer"):
        data = load_dataset(name)
        assert (data.name, data.classes) == ("breast-cancer", ("malignant", "benign"))


def test_diabetes_tells_patients_apart_by_sex_and_age() -> None:
    raw = RAW["diabetes"]()
    data = load_dataset("diabetes")
    sex = partition_column(data, "sex", validation=0.0, test_fraction=0.0)
    assert sex.names == ("sex 1", "sex 2")
    for code, index in enumerate(sex.train, start=1):
        assert set(raw.data[index, 1]) == {code}
    age = partition_column(data, "age_group", validation=0.0, test_fraction=0.0)
    ages = [raw.data[index, 0] for index in age.train]
    for name, held in zip(age.names, ages, strict=True):
        assert name == f"age {held.min():.0f}-{held.max():.0f}"
        assert 440 / 3 - 10 < len(held) < 440 / 3 + 10
    assert ages[0].max() < ages[1].min()
    assert ages[1].max() < ages[2].min()
