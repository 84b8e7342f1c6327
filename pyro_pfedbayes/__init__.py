"""Personalized federated learning by variational Bayesian inference, as Pyro programs.

A client's belief is a Pyro model, the server is a Gaussian, a round is a handful of SVI steps and one
closed-form average.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyro_pfedbayes.calibration import (
        adaptive_calibration_error,
        apply_temperature,
        fit_temperature,
        reliability_curve,
    )
    from pyro_pfedbayes.clients import FederatedData
    from pyro_pfedbayes.datasets import Dataset, load_dataset
    from pyro_pfedbayes.datatree import load_datatree, save_datatree
    from pyro_pfedbayes.entropy import entropy_split
    from pyro_pfedbayes.errors import UserError
    from pyro_pfedbayes.experiments.registry import algorithm_class
    from pyro_pfedbayes.gaussian import MeanFieldGaussian, kl_divergence
    from pyro_pfedbayes.inference.algorithms.pfedbayes import PFedBayes
    from pyro_pfedbayes.inference.beliefs import SiteBelief
    from pyro_pfedbayes.inference.elbo import ClientELBO
    from pyro_pfedbayes.inference.federation import Federation, Result
    from pyro_pfedbayes.inference.guides import MeanFieldGuide
    from pyro_pfedbayes.inference.mcmc import nuts_draws
    from pyro_pfedbayes.inference.onboarding import onboard
    from pyro_pfedbayes.inference.posterior import to_datatree
    from pyro_pfedbayes.inference.predictive import posterior_predictive
    from pyro_pfedbayes.inference.quality import client_quality, plot_trace, trace_predictions
    from pyro_pfedbayes.inference.reparameterization import Flipout, LocalReparameterization
    from pyro_pfedbayes.models.bayesian import BayesianModel
    from pyro_pfedbayes.models.likelihoods import Categorical
    from pyro_pfedbayes.models.networks import mlp, vgg
    from pyro_pfedbayes.models.pretrained import pretrained
    from pyro_pfedbayes.models.program import ProgramModel
    from pyro_pfedbayes.models.roles import Private
    from pyro_pfedbayes.models.spec import DataSpec
    from pyro_pfedbayes.moments import MomentAccumulator, barycentre
    from pyro_pfedbayes.number_scores import central_interval, crps, interval_report, pit_values
    from pyro_pfedbayes.ood import auroc, fpr_at_tpr
    from pyro_pfedbayes.partition import (
        Partition,
        partition_column,
        partition_dirichlet,
        partition_labels,
        partition_quantity,
    )
    from pyro_pfedbayes.resampling import bootstrap, bootstrap_by_client
    from pyro_pfedbayes.selective import accuracy_at_coverage, aurc, risk_coverage
    from pyro_pfedbayes.uncertainty import (
        brier_score,
        expected_calibration_error,
        negative_log_likelihood,
    )

_here = Path(__file__).parent
if not (_here / "models").is_dir() and (_here.parent / "models" / "bayesian.py").is_file():
    # A checkout keeps the upper storeys beside this folder. Python started there finds this folder before
    # an installed package, and must then find them too.
    __path__.append(str(_here.parent))

_HOMES = {
    "BayesianModel": "models.bayesian",
    "Categorical": "models.likelihoods",
    "ClientELBO": "inference.elbo",
    "DataSpec": "models.spec",
    "Dataset": "datasets",
    "FederatedData": "clients",
    "Federation": "inference.federation",
    "Flipout": "inference.reparameterization",
    "LocalReparameterization": "inference.reparameterization",
    "MeanFieldGaussian": "gaussian",
    "MeanFieldGuide": "inference.guides",
    "MomentAccumulator": "moments",
    "PFedBayes": "inference.algorithms.pfedbayes",
    "Partition": "partition",
    "Private": "models.roles",
    "ProgramModel": "models.program",
    "Result": "inference.federation",
    "SiteBelief": "inference.beliefs",
    "UserError": "errors",
    "accuracy_at_coverage": "selective",
    "adaptive_calibration_error": "calibration",
    "algorithm_class": "experiments.registry",
    "apply_temperature": "calibration",
    "aurc": "selective",
    "auroc": "ood",
    "barycentre": "moments",
    "bootstrap": "resampling",
    "bootstrap_by_client": "resampling",
    "brier_score": "uncertainty",
    "central_interval": "number_scores",
    "client_quality": "inference.quality",
    "crps": "number_scores",
    "entropy_split": "entropy",
    "expected_calibration_error": "uncertainty",
    "fit_temperature": "calibration",
    "fpr_at_tpr": "ood",
    "interval_report": "number_scores",
    "kl_divergence": "gaussian",
    "load_dataset": "datasets",
    "load_datatree": "datatree",
    "mlp": "models.networks",
    "negative_log_likelihood": "uncertainty",
    "nuts_draws": "inference.mcmc",
    "onboard": "inference.onboarding",
    "partition_column": "partition",
    "partition_dirichlet": "partition",
    "partition_labels": "partition",
    "partition_quantity": "partition",
    "pit_values": "number_scores",
    "plot_trace": "inference.quality",
    "posterior_predictive": "inference.predictive",
    "pretrained": "models.pretrained",
    "reliability_curve": "calibration",
    "risk_coverage": "selective",
    "save_datatree": "datatree",
    "to_datatree": "inference.posterior",
    "trace_predictions": "inference.quality",
    "vgg": "models.networks",
}

# Families and likelihoods share names with distributions, so they stay in their modules.
_MODULES = {"families": "families", "likelihoods": "models.likelihoods"}

__all__ = [*sorted(_HOMES | _MODULES)]


def __getattr__(name: str) -> Any:
    """Import a public name from its module on first use (PEP 562)."""
    if name not in _HOMES and name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{_MODULES[name]}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
