"""Tables that scikit-learn ships: diabetes (a number to predict), breast cancer and wine (classes)."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_pfedbayes.data.arrays import table_inputs

TABLES: tuple[str, ...] = ("diabetes", "breast-cancer", "wine")
"""Their names here."""


def load_table(name: str, standardise: bool = True) -> dict[str, Any]:
    """The arguments of a ``Dataset``, all but its name, from a table that scikit-learn carries.

    Example:
        >>> parts = load_table("diabetes", standardise=False)
        >>> parts["x"].shape, parts["y"][:2].tolist(), parts["column_values"]["sex"]
        (torch.Size([442, 10]), [151.0, 75.0], ('sex 1', 'sex 2'))
    """
    module = importlib.import_module("sklearn.datasets")
    if name == "diabetes":
        bunch = module.load_diabetes(scaled=False)
    else:
        bunch = {"breast-cancer": module.load_breast_cancer, "wine": module.load_wine}[name]()
    raw = np.asarray(bunch.data, dtype=np.float64)
    x, scaling = table_inputs(raw, name, len(raw) if standardise else None)
    parts: dict[str, Any] = {"x": x, "scaling": scaling, "classes": ()}
    if name != "diabetes":
        y = torch.as_tensor(bunch.target, dtype=torch.int64)
        return parts | {"y": y, "classes": tuple(str(label) for label in bunch.target_names)}
    columns, texts = _diabetes_columns(raw, list(bunch.feature_names))
    y = torch.as_tensor(bunch.target, dtype=torch.float32)
    return parts | {"y": y, "columns": columns, "column_values": texts}


def _diabetes_columns(
    raw: NDArray[np.float64], features: list[str]
) -> tuple[dict[str, Tensor], dict[str, tuple[str, ...]]]:
    """Columns that tell patients apart: ``sex`` as coded, and ``age_group``, thirds of age in years."""
    age, sex = (raw[:, features.index(name)].astype(np.int64) for name in ("age", "sex"))
    codes, which = np.unique(sex, return_inverse=True)
    third = np.searchsorted(np.quantile(age, [1 / 3, 2 / 3]), age, side="left")
    spans = [(int(age[third == k].min()), int(age[third == k].max())) for k in range(3)]
    return (
        {"sex": torch.from_numpy(which), "age_group": torch.from_numpy(third)},
        {
            # What 1 and 2 stand for, the source does not say.
            "sex": tuple(f"sex {code}" for code in codes),
            "age_group": tuple(f"age {low}-{high}" for low, high in spans),
        },
    )
