"""What can be named in a configuration: algorithms, networks, presets, each with a line about it.

Nothing here imports PyTorch: listing names must be quick.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from importlib import resources
from typing import Any

from pyro_pfedbayes.errors import UserError, nearest

ALGORITHMS: Mapping[str, tuple[str, str]] = {
    "pfedbayes": (
        "pfedbayes:PFedBayes",
        "personalized variational Bayes (Zhang et al., ICML 2022)",
    ),
    "fedavg": ("fedavg:FedAvg", "averaged weights (McMahan et al., AISTATS 2017)"),
    "fedavg-ft": (
        "fedavg_ft:FedAvgFineTuned",
        "FedAvg, then each client trains on with its own examples",
    ),
    "local": ("local:Local", "no communication: each client alone"),
    "fedprox": ("fedprox:FedProx", "FedAvg held near the common weights (Li et al., MLSys 2020)"),
    "per-fedavg": (
        "per_fedavg:PerFedAvg",
        "weights one gradient step away from good personal ones (Fallah et al., NeurIPS 2020)",
    ),
    "pfedme": ("pfedme:PFedMe", "personal weights by Moreau envelopes (Dinh et al., NeurIPS 2020)"),
    "heurfedamp": (
        "heurfedamp:HeurFedAMP",
        "clients attend to those alike (Huang et al., AAAI 2021)",
    ),
    "ditto": ("ditto:Ditto", "FedAvg and personal weights pulled to it (Li et al., ICML 2021)"),
    "fedper": ("fedper:FedPer", "common body, own heads (Arivazhagan et al., 2019)"),
    "fedrep": ("fedrep:FedRep", "heads and common body in turns (Collins et al., ICML 2021)"),
    "lg-fedavg": ("lg_fedavg:LGFedAvg", "own low layers, common top (Liang et al., 2020)"),
    "mocha": ("mocha:Mocha", "multi-task learning (after Smith et al., NeurIPS 2017)"),
    "pfedvem": ("pfedvem:PFedVEM", "Bayesian heads around a common mean (Zhu et al., ICML 2023)"),
    "local-bayes": (
        "local_bayes:LocalBayes",
        "Bayes by Backprop, each client alone (Blundell et al., ICML 2015)",
    ),
    "oracle-cluster": (
        "oracle_cluster:OracleCluster",
        "one FedAvg for clients of the same classes: a bound, not a method",
    ),
    "bnfed": ("bnfed:BNFed", "matched neurons, averaged (Yurochkin et al., ICML 2019)"),
    "pfedgp": ("pfedgp:PFedGP", "own GPs on common features (Achituve et al., NeurIPS 2021)"),
    "knn-per": ("knn_per:KNNPer", "FedAvg and nearest examples (Marfoq et al., ICML 2022)"),
    "cd2-pfed": ("cd2_pfed:CD2PFed", "private channels in all layers (Shen et al., CVPR 2022)"),
    "fedtgp": ("fedtgp:FedTGP", "class prototypes, no weights (Zhang et al., AAAI 2024)"),
}
"""The dataclass of settings in ``inference/algorithms/``, and a line, by name."""

MODELS: Mapping[str, tuple[str, str]] = {
    "mlp": (
        "classifiers:mlp_classifier",
        "fully connected, ReLU; sizes of its layers: model.hidden",
    ),
    "linear": ("classifiers:linear_classifier", "one linear layer"),
    "vgg": ("classifiers:vgg_classifier", "convolutional, no batch norm; its plan: model.config"),
    "logistic-regression": (
        "classifiers:logistic_regression",
        "log-odds of classes, linear in the features",
    ),
    "ordinal": ("ordinal:ordinal_regression", "classes in an order: cumulative logits"),
    "linear-regression": ("regression:linear_regression", "a number, linear in the features"),
    "student-t": ("regression:student_t_regression", "the same with outliers"),
    "robust-mlp": ("regression:robust_mlp", "a network with Student-t outcomes"),
    "heteroscedastic": (
        "regression:heteroscedastic_regression",
        "a network for mean and noise of a number",
    ),
    "poisson": ("counts:poisson_regression", "counts, with an exposure if there is one"),
    "negative-binomial": (
        "counts:negative_binomial_regression",
        "counts that vary more than Poisson's",
    ),
    "noise-scale": (
        "hierarchical:client_noise",
        "regression, each client with noise of its own size",
    ),
    "random-intercept": (
        "hierarchical:random_intercept",
        "regression, each client with an intercept of its own",
    ),
    "horseshoe": ("hierarchical:horseshoe_regression", "regression in which few features matter"),
}
"""The builder in ``models/builtin/``, and a line, by name."""

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

_PRESETS = {
    "preset": "pyro_pfedbayes.experiments.presets",
    "table": "pyro_pfedbayes.experiments.presets.tables",
}


def known(what: str, name: str, options: Mapping[str, Any] | list[str]) -> str:
    """Return ``name`` if it is among ``options``."""
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
    """The dataclass of an algorithm's settings, imported on demand."""
    place, _ = ALGORITHMS[known("algorithm", name, ALGORITHMS)]
    found: type[Any] = _imported(f"pyro_pfedbayes.inference.algorithms.{place}")
    return found


def model_builder(name: str) -> Callable[..., Any]:
    """The function that builds a built-in model, imported on demand."""
    place, _ = MODELS[known("model", name, MODELS)]
    found: Callable[..., Any] = _imported(f"pyro_pfedbayes.models.builtin.{place}")
    return found


def preset_names() -> list[str]:
    """Names of the presets, those of one data set together, small to large."""
    return sorted(_toml_files("preset"), key=_order)


def table_names() -> list[str]:
    """Names of the tables that are ready, in alphabetical order."""
    return sorted(_toml_files("table"))


def preset_text(name: str, kind: str = "preset") -> str:
    """The TOML of a preset or a table."""
    known(kind, name, table_names() if kind == "table" else preset_names())
    return (resources.files(_PRESETS[kind]) / f"{name}.toml").read_text(encoding="utf-8")


def preset_line(name: str, kind: str = "preset") -> str:
    """What a preset or a table runs: the comment on its first line."""
    return preset_text(name, kind).splitlines()[0].lstrip("# ")


def _toml_files(kind: str) -> list[str]:
    files = [file.name for file in resources.files(_PRESETS[kind]).iterdir()]
    return [name.removesuffix(".toml") for name in files if name.endswith(".toml")]


def _imported(place: str) -> Any:
    module, _, attribute = place.partition(":")
    return getattr(importlib.import_module(module), attribute)


def _order(name: str) -> tuple[int, int, str]:
    data, _, size = name.partition("-")
    sizes = ("", "small", "medium", "large")
    return (
        list(DATA).index(data) if data in DATA else len(DATA),
        sizes.index(size) if size in sizes else len(sizes),
        name,
    )
