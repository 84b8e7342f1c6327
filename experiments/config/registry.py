"""What can be named in a configuration: algorithms, networks, presets, each with a line about it.

Nothing here imports PyTorch: listing names must be quick.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from importlib import resources
from typing import Any

from pyro_pfedbayes.errors import UserError, nearest

ALGORITHMS: Mapping[str, tuple[str, str, str]] = {
    "pfedbayes": (
        "pyro_pfedbayes.inference.algorithms.pfedbayes",
        "PFedBayes",
        "personalized variational Bayes (Zhang et al., ICML 2022)",
    ),
    "fedavg": (
        "pyro_pfedbayes.inference.algorithms.fedavg",
        "FedAvg",
        "averaged weights (McMahan et al., AISTATS 2017)",
    ),
    "fedavg-ft": (
        "pyro_pfedbayes.inference.algorithms.fedavg_ft",
        "FedAvgFineTuned",
        "FedAvg, then each client trains on with its own examples",
    ),
    "local": (
        "pyro_pfedbayes.inference.algorithms.local",
        "Local",
        "no communication: each client alone",
    ),
    "fedprox": (
        "pyro_pfedbayes.inference.algorithms.fedprox",
        "FedProx",
        "FedAvg held near the common weights (Li et al., MLSys 2020)",
    ),
    "per-fedavg": (
        "pyro_pfedbayes.inference.algorithms.per_fedavg",
        "PerFedAvg",
        "weights one gradient step away from good personal ones (Fallah et al., NeurIPS 2020)",
    ),
    "pfedme": (
        "pyro_pfedbayes.inference.algorithms.pfedme",
        "PFedMe",
        "personal weights by Moreau envelopes (Dinh et al., NeurIPS 2020)",
    ),
    "heurfedamp": (
        "pyro_pfedbayes.inference.algorithms.heurfedamp",
        "HeurFedAMP",
        "clients attend to those alike (Huang et al., AAAI 2021)",
    ),
    "ditto": (
        "pyro_pfedbayes.inference.algorithms.ditto",
        "Ditto",
        "FedAvg and personal weights pulled to it (Li et al., ICML 2021)",
    ),
    "fedper": (
        "pyro_pfedbayes.inference.algorithms.fedper",
        "FedPer",
        "common body, own heads (Arivazhagan et al., 2019)",
    ),
    "fedrep": (
        "pyro_pfedbayes.inference.algorithms.fedrep",
        "FedRep",
        "heads and common body in turns (Collins et al., ICML 2021)",
    ),
    "lg-fedavg": (
        "pyro_pfedbayes.inference.algorithms.lg_fedavg",
        "LGFedAvg",
        "own low layers, common top (Liang et al., 2020)",
    ),
    "mocha": (
        "pyro_pfedbayes.inference.algorithms.mocha",
        "Mocha",
        "multi-task learning (after Smith et al., NeurIPS 2017)",
    ),
    "pfedvem": (
        "pyro_pfedbayes.inference.algorithms.pfedvem",
        "PFedVEM",
        "Bayesian heads around a common mean (Zhu et al., ICML 2023)",
    ),
    "local-bayes": (
        "pyro_pfedbayes.inference.algorithms.local_bayes",
        "LocalBayes",
        "Bayes by Backprop, each client alone (Blundell et al., ICML 2015)",
    ),
    "oracle-cluster": (
        "pyro_pfedbayes.inference.algorithms.oracle_cluster",
        "OracleCluster",
        "one FedAvg for clients of the same classes: a bound, not a method",
    ),
    "bnfed": (
        "pyro_pfedbayes.inference.algorithms.bnfed",
        "BNFed",
        "matched neurons, averaged (Yurochkin et al., ICML 2019)",
    ),
    "pfedgp": (
        "pyro_pfedbayes.inference.algorithms.pfedgp",
        "PFedGP",
        "own GPs on common features (Achituve et al., NeurIPS 2021)",
    ),
    "knn-per": (
        "pyro_pfedbayes.inference.algorithms.knn_per",
        "KNNPer",
        "FedAvg and nearest examples (Marfoq et al., ICML 2022)",
    ),
    "cd2-pfed": (
        "pyro_pfedbayes.inference.algorithms.cd2_pfed",
        "CD2PFed",
        "private channels in all layers (Shen et al., CVPR 2022)",
    ),
    "fedtgp": (
        "pyro_pfedbayes.inference.algorithms.fedtgp",
        "FedTGP",
        "class prototypes, no weights (Zhang et al., AAAI 2024)",
    ),
}
"""Module, dataclass of settings, and a line, by name."""

MODELS: Mapping[str, tuple[str, str, str]] = {
    "mlp": (
        "pyro_pfedbayes.models.builtin.classifiers",
        "mlp_classifier",
        "fully connected, ReLU; sizes of its layers: model.hidden",
    ),
    "linear": (
        "pyro_pfedbayes.models.builtin.classifiers",
        "linear_classifier",
        "one linear layer",
    ),
    "vgg": (
        "pyro_pfedbayes.models.builtin.classifiers",
        "vgg_classifier",
        "convolutional, no batch norm; its plan: model.config",
    ),
    "logistic-regression": (
        "pyro_pfedbayes.models.builtin.classifiers",
        "logistic_regression",
        "log-odds of classes, linear in the features",
    ),
    "ordinal": (
        "pyro_pfedbayes.models.builtin.ordinal",
        "ordinal_regression",
        "classes in an order: cumulative logits",
    ),
    "linear-regression": (
        "pyro_pfedbayes.models.builtin.regression",
        "linear_regression",
        "a number, linear in the features",
    ),
    "student-t": (
        "pyro_pfedbayes.models.builtin.regression",
        "student_t_regression",
        "the same with outliers",
    ),
    "robust-mlp": (
        "pyro_pfedbayes.models.builtin.regression",
        "robust_mlp",
        "a network with Student-t outcomes",
    ),
    "heteroscedastic": (
        "pyro_pfedbayes.models.builtin.regression",
        "heteroscedastic_regression",
        "a network for mean and noise of a number",
    ),
    "poisson": (
        "pyro_pfedbayes.models.builtin.counts",
        "poisson_regression",
        "counts, with an exposure if there is one",
    ),
    "negative-binomial": (
        "pyro_pfedbayes.models.builtin.counts",
        "negative_binomial_regression",
        "counts that vary more than Poisson's",
    ),
    "noise-scale": (
        "pyro_pfedbayes.models.builtin.hierarchical",
        "client_noise",
        "regression, each client with noise of its own size",
    ),
    "random-intercept": (
        "pyro_pfedbayes.models.builtin.hierarchical",
        "random_intercept",
        "regression, each client with an intercept of its own",
    ),
    "horseshoe": (
        "pyro_pfedbayes.models.builtin.hierarchical",
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
    """The TOML of a preset."""
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
