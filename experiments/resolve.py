"""Filling in what a configuration leaves open, and dropping what has no effect in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.experiments.config import Config, DataSection, ModelSection
from pyro_pfedbayes.experiments.registry import DATA, known

__all__ = ["LABEL_SCHEMES", "refuse_idle_settings", "resolve"]

LABEL_SCHEMES = ("blocks", "rotating", "random")


def resolve(config: Config) -> Config:
    """Fill in defaults that depend on other values; keys that have no effect become None.

    Raises:
        UserError: An unknown data set, no such file, or a scheme that lacks a key it needs.
    """
    data = _resolved_data(config.data, config.run.seed)
    return dataclasses.replace(config, data=data, model=_resolved_model(config.model, data.name))


def refuse_idle_settings(settings: Iterable[tuple[str, Any]], resolved: Config) -> None:
    """Refuse what was asked for by option but has no effect, rather than pass over it in silence.

    Raises:
        UserError: Such a setting, by name.
    """
    tree = resolved.tree()
    for name, _ in settings:
        section, _, key = name.partition(".")
        if section in ("data", "model") and key not in tree[section]:
            within = (
                f"data.scheme '{resolved.data.scheme}'"
                if section == "data"
                else f"model.name '{resolved.model.name}'"
            )
            raise UserError(f"{name} has no effect with {within}; leave it out")


def _resolved_data(data: DataSection, seed: int) -> DataSection:
    own = data.name.endswith(".npz")
    # Paths are kept in full, so that a run can be resumed from another folder.
    name = str(Path(data.name).expanduser().resolve()) if own else _canonical(data.name)
    if own and not Path(name).is_file():
        raise UserError(f"no such file: {data.name}")
    scheme = data.scheme
    if scheme is None and data.column is not None:
        scheme = "column"
    scheme = scheme or ("dirichlet" if own else "blocks")
    found: dict[str, Any] = {
        "name": name,
        "dir": None if data.dir is None or own else str(Path(data.dir).expanduser().resolve()),
        "scheme": scheme,
        "validation": data.validation,
        "scaling": data.scaling,
        "seed": seed if data.seed is None else data.seed,
    }
    if scheme in LABEL_SCHEMES:
        found |= _label_sizes(data, name, own)
    else:
        found["test_fraction"] = 0.2 if data.test_fraction is None else data.test_fraction
        if scheme == "column":
            if data.column is None:
                raise UserError("data.scheme is 'column', but data.column does not say which one")
            found["column"] = data.column
        else:
            found["clients"] = data.clients or 10
            found["alpha"] = data.alpha or (0.5 if scheme == "dirichlet" else 1.0)
    return DataSection(**found)


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
            f"data.scheme '{data.scheme}' on your own data needs data.train_per_class and data.test_per_class"
        )
    if own or (complete and data.split is None):
        return found
    from pyro_pfedbayes.partition import paper_split

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


def _resolved_model(model: ModelSection, data: str) -> ModelSection:
    name = model.name or ("vgg" if data == "cifar10" else "mlp")
    hidden = config = None
    if name == "mlp":
        hidden = [100] if model.hidden is None else model.hidden
        if not hidden or min(hidden) < 1:
            raise UserError(
                f"model.hidden is {hidden}; give sizes >= 1, or model.name 'linear' for none"
            )
    if name == "vgg":
        from pyro_pfedbayes.models.networks import VGG_SMALL

        config = list(VGG_SMALL) if model.config is None else model.config
    return ModelSection(name=name, hidden=hidden, config=config, rho=model.rho)


def _canonical(name: str) -> str:
    """``Fashion-MNIST`` and ``CIFAR-10`` as they are called here."""
    short = name.lower().replace("-", "").replace("_", "").replace("fashion", "f")
    return short if short in DATA else known("data set", name, DATA)
