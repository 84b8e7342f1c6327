"""What can be named in a configuration: algorithms, networks, presets, each with a line about it.

Nothing here imports PyTorch: listing names must be quick.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from importlib import resources
from typing import Any

from pyro_pfedbayes.errors import UserError, nearest

__all__ = [
    "ALGORITHMS",
    "DATA",
    "MODELS",
    "algorithm_class",
    "known",
    "preset_line",
    "preset_names",
    "preset_text",
]

ALGORITHMS: Mapping[str, tuple[str, str, str]] = {
    "pfedbayes": (
        "pyro_pfedbayes.inference.algorithms.pfedbayes",
        "PFedBayes",
        "personalized variational Bayes (Zhang et al., ICML 2022)",
    ),
}
"""Module, dataclass of settings, and a line, by name."""

MODELS: Mapping[str, str] = {
    "mlp": "fully connected, ReLU; sizes of its layers: model.hidden",
    "linear": "one linear layer: Bayesian logistic regression",
    "vgg": "convolutional, no batch norm; its plan: model.config",
}

DATA: Mapping[str, str] = {
    "digits": "1,797 handwritten digits, 8 x 8, embedded",
    "mnist": "70,000 handwritten digits, 28 x 28",
    "fmnist": "Fashion-MNIST: 70,000 pictures of clothes, 28 x 28",
    "cifar10": "60,000 colour photographs of ten things, 32 x 32",
    "FILE.npz": "your own: arrays x, y, and any that tell clients apart",
}

_PRESETS = "pyro_pfedbayes.experiments.presets"


def known(what: str, name: str, options: Mapping[str, Any] | list[str]) -> str:
    """Return ``name`` if it is among ``options``.

    Raises:
        UserError: It is not; the nearest right one is named.
    """
    if name in options:
        return name
    listed = ", ".join(options)
    raise UserError(f"unknown {what} '{name}'{nearest(name, options)} (known: {listed})")


def algorithm_class(name: str) -> type[Any]:
    """The dataclass of an algorithm's settings, imported on demand.

    Raises:
        UserError: There is no such algorithm.
    """
    module, attribute, _ = ALGORITHMS[known("algorithm", name, ALGORITHMS)]
    found: type[Any] = getattr(importlib.import_module(module), attribute)
    return found


def preset_names() -> list[str]:
    """Names of the presets, those of one data set together, small to large."""
    stems = [
        file.name.removesuffix(".toml")
        for file in resources.files(_PRESETS).iterdir()
        if file.name.endswith(".toml")
    ]
    return sorted(stems, key=_order)


def preset_text(name: str) -> str:
    """The TOML of a preset.

    Raises:
        UserError: There is no such preset.
    """
    known("preset", name, preset_names())
    return (resources.files(_PRESETS) / f"{name}.toml").read_text(encoding="utf-8")


def preset_line(name: str) -> str:
    """What a preset runs: the comment on its first line."""
    return preset_text(name).splitlines()[0].lstrip("# ")


def _order(name: str) -> tuple[int, int, str]:
    data, _, size = name.partition("-")
    sizes = ("", "small", "medium", "large")
    return (
        list(DATA).index(data) if data in DATA else len(DATA),
        sizes.index(size) if size in sizes else len(sizes),
        name,
    )
