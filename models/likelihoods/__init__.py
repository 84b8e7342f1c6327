"""Likelihoods: how a network's outputs become the distribution of an observation."""

from pyro_pfedbayes.models.likelihoods.base import Likelihood, Missing, Outcome, check_exposure
from pyro_pfedbayes.models.likelihoods.categorical import (
    Bernoulli,
    Categorical,
    WeightedCategorical,
)
from pyro_pfedbayes.models.likelihoods.counts import NegativeBinomial, Poisson
from pyro_pfedbayes.models.likelihoods.normal import Normal, NormalMeanScale, StudentT
from pyro_pfedbayes.models.likelihoods.ordinal import Ordinal, ordinal_logits

__all__ = [
    "Bernoulli",
    "Categorical",
    "Likelihood",
    "Missing",
    "NegativeBinomial",
    "Normal",
    "NormalMeanScale",
    "Ordinal",
    "Outcome",
    "Poisson",
    "StudentT",
    "WeightedCategorical",
    "check_exposure",
    "ordinal_logits",
]
