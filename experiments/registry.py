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
    "NUMBERS",
    "algorithm_class",
    "canonical",
    "default_model",
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

MODELS: Mapping[str, tuple[str, str, str]] = {
    "mlp": (
        "pyro_pfedbayes.models.classifiers",
        "mlp_classifier",
        "fully connected, ReLU; sizes of its layers: model.hidden",
    ),
    "linear": (
        "pyro_pfedbayes.models.classifiers",
        "linear_classifier",
        "one linear layer",
    ),
    "vgg": (
        "pyro_pfedbayes.models.classifiers",
        "vgg_classifier",
        "convolutional, no batch norm; its plan: model.config",
    ),
    "logistic-regression": (
        "pyro_pfedbayes.models.classifiers",
        "logistic_regression",
        "log-odds of classes, linear in the features",
    ),
    "ordinal": (
        "pyro_pfedbayes.models.ordinal",
        "ordinal_regression",
        "classes in an order: cumulative logits",
    ),
    "linear-regression": (
        "pyro_pfedbayes.models.regression",
        "linear_regression",
        "a number, linear in the features",
    ),
    "student-t": (
        "pyro_pfedbayes.models.regression",
        "student_t_regression",
        "the same with outliers",
    ),
    "robust-mlp": (
        "pyro_pfedbayes.models.regression",
        "robust_mlp",
        "a network with Student-t outcomes",
    ),
    "heteroscedastic": (
        "pyro_pfedbayes.models.regression",
        "heteroscedastic_regression",
        "a network for mean and noise of a number",
    ),
    "poisson": (
        "pyro_pfedbayes.models.counts",
        "poisson_regression",
        "counts, with an exposure if there is one",
    ),
    "negative-binomial": (
        "pyro_pfedbayes.models.counts",
        "negative_binomial_regression",
        "counts that vary more than Poisson's",
    ),
    "noise-scale": (
        "pyro_pfedbayes.models.hierarchical",
        "client_noise",
        "regression, each client with noise of its own size",
    ),
    "random-intercept": (
        "pyro_pfedbayes.models.hierarchical",
        "random_intercept",
        "regression, each client with an intercept of its own",
    ),
    "horseshoe": (
        "pyro_pfedbayes.models.hierarchical",
        "horseshoe_regression",
        "regression in which few features matter",
    ),
}
"""Module, builder, and a line, by name."""

DATA: Mapping[str, str] = {
    "digits": "1,797 handwritten digits, 8 x 8, embedded",
    "diabetes": "442 patients, 10 columns, a number: diabetes a year later; embedded",
    "breast-cancer": "569 biopsies, 30 columns, 2 classes; embedded",
    "wine": "178 wines, 13 columns, 3 classes; embedded",
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


NUMBERS = ("diabetes",)
"""Named data sets whose outcome is a number."""


def canonical(name: str) -> str:
    """``Fashion-MNIST``, ``CIFAR-10`` and ``breast_cancer`` as they are called here; another name as it is."""

    def short(name: str) -> str:
        return name.lower().replace("-", "").replace("_", "").replace("fashion", "f")

    by_short = {short(known_name): known_name for known_name in DATA}
    return by_short.get(short(name), name)


def default_model(data: Mapping[str, Any]) -> str:
    """The model that goes with section ``data`` where none is named."""
    name = canonical(str(data.get("name", "digits")))
    if name in NUMBERS or data.get("target") == "number":
        return "linear-regression"
    return "vgg" if name == "cifar10" else "mlp"


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
