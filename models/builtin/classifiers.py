"""Beliefs about classes: networks with a categorical likelihood, and logistic regression as a program.

Builders of networks take ``rho`` (every weight's standard deviation is ``softplus(rho)`` in the beginning), ``weights``
(a file with a ``state_dict`` to begin at, see `pretrained`; None for a random start, He et al. 2015), and ``roles``:
which weights are ``"private"`` or a ``"point"``, by name pattern, such as ``{"fc*": "point"}`` for a body without
uncertainty or ``{"head.*": "private"}`` for heads that stay with clients. The others are shared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import pyro.distributions as dist
import torch
from torch import Tensor, nn

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.models.bayesian import BayesianModel
from pyro_pfedbayes.models.builtin.parts import check, normal, observe
from pyro_pfedbayes.models.likelihoods import Categorical
from pyro_pfedbayes.models.likelihoods.base import Missing
from pyro_pfedbayes.models.networks import VGG_SMALL, mlp, vgg
from pyro_pfedbayes.models.pretrained import pretrained
from pyro_pfedbayes.models.program import ProgramModel
from pyro_pfedbayes.models.spec import DataSpec
from pyro_pfedbayes.models.weights import PAPER_RHO

__all__ = ["linear_classifier", "logistic_regression", "mlp_classifier", "vgg_classifier"]

RoleName = Literal["shared", "private", "point"]


def mlp_classifier(
    data: DataSpec,
    *,
    hidden: Sequence[int] = (100,),
    rho: float = PAPER_RHO,
    weights: str | None = None,
    roles: Mapping[str, RoleName] | None = None,
    missing: Missing = "refuse",
) -> BayesianModel:
    """A class depends on the features through a fully connected network whose every weight is uncertain.

    ``θ ~ w,  y ~ Categorical(softmax(mlp(x; θ)))`` (Zhang et al. 2022, section 2). ``hidden`` are the units of each
    hidden layer.

    Example:
        >>> mlp_classifier(DataSpec((1, 28, 28), num_classes=10)).prior.num_weights
        79510
    """
    data.expect("class", "mlp")
    network = mlp([data.num_features, *hidden, data.num_classes], seed=data.seed)
    return _classifier(data, network, rho, weights, roles, missing)


def linear_classifier(
    data: DataSpec, *, rho: float = PAPER_RHO, missing: Missing = "refuse"
) -> BayesianModel:
    """The log-odds of classes are linear in the features.

    ``W, b ~ w,  y ~ Categorical(softmax(W x + b))``. All weights are shared.

    Example:
        >>> linear_classifier(DataSpec((4,), num_classes=3)).weight_shapes
        {'head.weight': (3, 4), 'head.bias': (3,)}
    """
    data.expect("class", "linear")
    return mlp_classifier(data, hidden=(), rho=rho, missing=missing)


def vgg_classifier(
    data: DataSpec,
    *,
    config: Sequence[int | str] = VGG_SMALL,
    rho: float = PAPER_RHO,
    weights: str | None = None,
    roles: Mapping[str, RoleName] | None = None,
    missing: Missing = "refuse",
) -> BayesianModel:
    """A class depends on a picture through small filters that look the same everywhere in it.

    ``θ ~ w,  y ~ Categorical(softmax(vgg(x; θ)))`` (Zhang et al. 2022, section 5.1). Inputs are square images
    ``(channels, size, size)``; ``config`` holds convolutions by number of channels, and ``"M"`` for a max-pool.

    Example:
        >>> model = vgg_classifier(DataSpec((3, 32, 32), num_classes=10))
        >>> model.weight_shapes["conv1.weight"]
        (16, 3, 3, 3)
    """
    data.expect("class", "vgg")
    shape = data.feature_shape
    if len(shape) != 3 or shape[1] != shape[2]:
        raise UserError(f"model vgg wants square images; the inputs have shape {list(shape)}")
    network = vgg(
        config,
        in_channels=shape[0],
        num_classes=data.num_classes,
        image_size=shape[1],
        seed=data.seed,
    )
    return _classifier(data, network, rho, weights, roles, missing)


def _classifier(
    data: DataSpec,
    network: nn.Module,
    rho: float,
    weights: str | None,
    roles: Mapping[str, RoleName] | None,
    missing: Missing,
) -> BayesianModel:
    network = network if weights is None else pretrained(network, weights)
    likelihood = Categorical(data.num_classes, missing=missing)
    return BayesianModel(network, likelihood, rho=rho, roles=roles)


def logistic_regression(
    data: DataSpec, *, prior_scale: float = 1.0, missing: Missing = "refuse"
) -> ProgramModel:
    """Each feature moves the log-odds of a class against class 0 by a fixed amount.

    ``log p(y = c | x) - log p(y = 0 | x) = a_c + b_c · x,  a_c, b_cj ~ Normal(0, prior_scale²),  c = 1 … C - 1``

    Sites ``intercept`` [C - 1] and ``slopes`` [C - 1, p] are shared. Class 0 has none: a constant added to all classes
    would change nothing. ``prior_scale`` is in log-odds a unit of the feature.

    Example:
        >>> logistic_regression(DataSpec((4,), num_classes=3)).declaration.shapes
        {'intercept': (2,), 'slopes': (2, 4)}
    """
    features = check(data, "class", "logistic-regression", prior_scale=prior_scale)
    free = data.num_classes - 1

    def logistic(x: Tensor, y: Tensor | None = None) -> None:
        intercept = normal("intercept", prior_scale, free)
        slopes = normal("slopes", prior_scale, free, features)
        log_odds = intercept + x.flatten(1) @ slopes.T
        logits = torch.cat([torch.zeros_like(log_odds[:, :1]), log_odds], -1)
        observe(dist.Categorical(logits=logits), y)

    return ProgramModel(logistic, data, missing=missing)
