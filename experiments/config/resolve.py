"""Filling in what a configuration leaves open, and dropping what has no effect in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.experiments.config.registry import DATA, NUMBERS, canonical, known
from pyro_pfedbayes.experiments.config.sections import Config, DataSection

LABEL_SCHEMES = ("blocks", "rotating", "random")
TABLES: Mapping[str, str | None] = {
    "diabetes": "sex",
    "breast-cancer": None,
    "wine": None,
}
"""Tables that come with scikit-learn, and the column that tells their clients apart unless another scheme is named."""


def resolve(config: Config) -> Config:
    """Fill in defaults that depend on other values; keys that have no effect become None."""
    return dataclasses.replace(config, data=_resolved_data(config.data, config.run.seed))


def refuse_unused_settings(settings: Iterable[tuple[str, Any]], resolved: Config) -> None:
    """Refuse an option that has no effect, rather than ignore it silently."""
    tree = resolved.tree()
    for name, _ in settings:
        section, _, key = name.partition(".")
        if section in ("data", "model") and key not in tree[section]:
            within = f"model.name '{resolved.model.name}'"
            if section == "data":
                about = "name" if key in ("target", "target_scaling") else "scheme"
                within = f"data.{about} '{getattr(resolved.data, about)}'"
            raise UserError(f"{name} has no effect with {within}; leave it out")


def _resolved_data(data: DataSection, seed: int) -> DataSection:
    own = data.name.endswith(".npz")
    name = _in_full(data.name) if own else known("data set", canonical(data.name), DATA)
    if own and not Path(name).is_file():
        raise UserError(f"no such file: {data.name}")
    scheme, column = data.scheme, data.column
    # A number of clients, or an alpha, asks for another way of dealing than by a column.
    if scheme is None and column is None and data.clients is None and data.alpha is None:
        column = TABLES.get(name)
    if scheme is None and column is not None:
        scheme = "column"
    table = own or name in TABLES
    scheme = scheme or ("dirichlet" if table else "blocks")
    found: dict[str, Any] = {
        "name": name,
        "dir": None if data.dir is None or own else _in_full(data.dir),
        "scheme": scheme,
        "validation": data.validation,
        "scaling": data.scaling,
        "seed": seed if data.seed is None else data.seed,
        **_targets(data, name, own),
        **_corruption(data),
    }
    if scheme in LABEL_SCHEMES:
        if name in NUMBERS:
            raise UserError(
                f"data.scheme '{scheme}' deals by label, but the outcomes of {name} are numbers; "
                "give dirichlet (over fifths of y), quantity or column"
            )
        found |= _label_sizes(data, name, table)
    else:
        found["test_fraction"] = 0.2 if data.test_fraction is None else data.test_fraction
        if scheme == "column":
            column = TABLES.get(name) if column is None else column
            if column is None:
                raise UserError("data.scheme is 'column', but data.column does not say which one")
            found["column"] = column
        else:
            found["clients"] = data.clients or (5 if name in TABLES else 10)
            found["alpha"] = data.alpha or (0.5 if scheme == "dirichlet" else 1.0)
    return DataSection(**found)


def _in_full(path: str) -> str:
    """A path by which a run can be resumed from another folder."""
    return str(Path(path).expanduser().resolve())


def _corruption(data: DataSection) -> dict[str, Any]:
    """Whose examples are to be corrupted, and how: nothing unless clients are named."""
    if not data.corrupt_clients:
        for key in ("corruption", "corruption_strength"):
            if getattr(data, key) is not None:
                raise UserError(
                    f"data.{key} is {getattr(data, key)!r}, but data.corrupt_clients names no client to corrupt"
                )
        return {}
    return {
        "corrupt_clients": tuple(sorted(set(data.corrupt_clients))),
        "corruption": data.corruption or "labels",
        "corruption_strength": data.corruption_strength or 5,
    }


def _targets(data: DataSection, name: str, own: bool) -> dict[str, Any]:
    """What outcomes are: open for a file until it is read, otherwise known by the data set's name."""
    scaling = {"target_scaling": data.target_scaling or "plain"}
    if own:
        return {"target": data.target or "auto", **scaling}
    if name in NUMBERS:
        return scaling
    if data.target_scaling == "standard":
        raise UserError(
            f"data.target_scaling is 'standard', but the outcomes of {name} are classes: leave it out"
        )
    return {}


def _label_sizes(data: DataSection, name: str, own: bool) -> dict[str, Any]:
    train, test = data.train_per_class, data.test_per_class
    found: dict[str, Any] = {
        "labels_per_client": data.labels_per_client or 5,
        "clients": data.clients or 10,
        "train_per_class": train,
        "test_per_class": test,
    }
    complete = train is not None and test is not None
    if own and not complete:
        raise UserError(
            f"data.scheme '{data.scheme}' on {data.name if name in TABLES else 'your own data'} "
            "needs data.train_per_class and data.test_per_class"
        )
    if own or (complete and data.split is None):
        return found
    from pyro_pfedbayes.data.partitions.schemes import paper_split

    split = data.split or "medium"
    clients, paper_train, paper_test = paper_split(name, split)
    if complete and (train, test) != (paper_train, paper_test):
        return found
    return found | {
        "split": split,
        "clients": data.clients or clients,
        "train_per_class": paper_train if train is None else train,
        "test_per_class": paper_test if test is None else test,
    }
