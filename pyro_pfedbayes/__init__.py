"""Personalized federated learning by variational Bayesian inference, as Pyro programs.

A client's belief is a Pyro model, the server is a Gaussian, a round is a handful of SVI steps and one
closed-form average.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyro_pfedbayes.data.clients import FederatedData
    from pyro_pfedbayes.data.datasets import Dataset, load_dataset
    from pyro_pfedbayes.data.partitions.schemes import (
        Partition,
        partition_column,
        partition_dirichlet,
        partition_labels,
        partition_quantity,
    )
    from pyro_pfedbayes.datatree.tree import load_datatree, save_datatree
    from pyro_pfedbayes.errors import UserError
    from pyro_pfedbayes.experiments.config.registry import algorithm_class
    from pyro_pfedbayes.gaussians.barycentre import MomentAccumulator, barycentre
    from pyro_pfedbayes.gaussians.mean_field import MeanFieldGaussian, kl_divergence
    from pyro_pfedbayes.inference.algorithms.pfedbayes import PFedBayes
    from pyro_pfedbayes.inference.beliefs.guides import MeanFieldGuide
    from pyro_pfedbayes.inference.beliefs.sites import SiteBelief
    from pyro_pfedbayes.inference.diagnostics.data_quality import (
        client_quality,
        plot_trace,
        trace_predictions,
    )
    from pyro_pfedbayes.inference.diagnostics.nuts import nuts_draws
    from pyro_pfedbayes.inference.federation.loop import Federation, Result
    from pyro_pfedbayes.inference.federation.onboarding import onboard
    from pyro_pfedbayes.inference.objective.elbo import ClientELBO
    from pyro_pfedbayes.inference.objective.handlers import Flipout, LocalReparameterization
    from pyro_pfedbayes.inference.posterior.tree import to_datatree
    from pyro_pfedbayes.inference.predictive.draws import posterior_predictive
    from pyro_pfedbayes.measures.calibration import (
        adaptive_calibration_error,
        apply_temperature,
        fit_temperature,
        reliability_curve,
    )
    from pyro_pfedbayes.measures.detection import auroc, fpr_at_tpr
    from pyro_pfedbayes.measures.entropy import entropy_split
    from pyro_pfedbayes.measures.interval_scores import (
        central_interval,
        crps,
        interval_report,
        pit_values,
    )
    from pyro_pfedbayes.measures.resampling import bootstrap, bootstrap_by_client
    from pyro_pfedbayes.measures.scores import (
        brier_score,
        expected_calibration_error,
        negative_log_likelihood,
    )
    from pyro_pfedbayes.measures.selective import accuracy_at_coverage, aurc, risk_coverage
    from pyro_pfedbayes.models.bayesian import BayesianModel
    from pyro_pfedbayes.models.likelihoods import Categorical
    from pyro_pfedbayes.models.networks import mlp, vgg
    from pyro_pfedbayes.models.pretrained import pretrained
    from pyro_pfedbayes.models.program import ProgramModel
    from pyro_pfedbayes.models.roles import Private
    from pyro_pfedbayes.models.spec import DataSpec

_here = Path(__file__).parent
if not (_here / "models").is_dir() and (_here.parent / "models" / "bayesian.py").is_file():
    # A checkout keeps the upper storeys beside this folder. Python started there finds this folder before
    # an installed package, and must then find them too.
    __path__.append(str(_here.parent))

_NAMES = {
    "data.clients": "FederatedData",
    "data.datasets": "Dataset load_dataset",
    "data.partitions.schemes": "Partition partition_column partition_dirichlet partition_labels partition_quantity",
    "datatree.tree": "load_datatree save_datatree",
    "errors": "UserError",
    "experiments.config.registry": "algorithm_class",
    "gaussians.barycentre": "MomentAccumulator barycentre",
    "gaussians.mean_field": "MeanFieldGaussian kl_divergence",
    "inference.algorithms.pfedbayes": "PFedBayes",
    "inference.beliefs.guides": "MeanFieldGuide",
    "inference.beliefs.sites": "SiteBelief",
    "inference.diagnostics.data_quality": "client_quality plot_trace trace_predictions",
    "inference.diagnostics.nuts": "nuts_draws",
    "inference.federation.loop": "Federation Result",
    "inference.federation.onboarding": "onboard",
    "inference.objective.elbo": "ClientELBO",
    "inference.objective.handlers": "Flipout LocalReparameterization",
    "inference.posterior.tree": "to_datatree",
    "inference.predictive.draws": "posterior_predictive",
    "measures.calibration": "adaptive_calibration_error apply_temperature fit_temperature reliability_curve",
    "measures.detection": "auroc fpr_at_tpr",
    "measures.entropy": "entropy_split",
    "measures.interval_scores": "central_interval crps interval_report pit_values",
    "measures.resampling": "bootstrap bootstrap_by_client",
    "measures.scores": "brier_score expected_calibration_error negative_log_likelihood",
    "measures.selective": "accuracy_at_coverage aurc risk_coverage",
    "models.bayesian": "BayesianModel",
    "models.likelihoods": "Categorical",
    "models.networks": "mlp vgg",
    "models.pretrained": "pretrained",
    "models.program": "ProgramModel",
    "models.roles": "Private",
    "models.spec": "DataSpec",
}
"""Public names, by the module that they live in."""
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}

# Families and likelihoods share names with distributions, so they stay in their modules.
_MODULES = {"families": "families", "likelihoods": "models.likelihoods"}

__all__ = [*sorted(_HOMES | _MODULES)]


def __getattr__(name: str) -> Any:
    """Import a public name from its module on first use (PEP 562)."""
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{_MODULES[name]}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
