"""What a network computes before its last layer, for methods that compare examples by their features."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.inference.beliefs.points import point_layout
from pyro_pfedbayes.models.bayesian import BayesianModel
from pyro_pfedbayes.models.declared import DeclaredModel
from pyro_pfedbayes.models.likelihoods.base import ClassLikelihood


def sequential(model: DeclaredModel, method: str) -> nn.Sequential:
    """The network of a model of classes, if it is layers one after the other.

    Args:
        model: The declared model.
        method: Who asks, for the message.
    """
    network = model.network if isinstance(model, BayesianModel) else None
    if (
        not isinstance(network, nn.Sequential)
        or type(network).forward is not nn.Sequential.forward
        or not any(True for _ in network.parameters())
    ):
        kind = type(model).__name__ if network is None else type(network).__name__
        raise UserError(
            f"{method} needs a model whose network is an nn.Sequential of layers, such as mlp or vgg, not a {kind}"
        )
    if not (isinstance(model, BayesianModel) and isinstance(model.likelihood, ClassLikelihood)):
        raise UserError(f"{method} predicts classes; its likelihood must be one of classes")
    return network


def class_count(model: DeclaredModel, method: str) -> int:
    """The number of classes C."""
    sequential(model, method)
    assert isinstance(model, BayesianModel)
    assert isinstance(model.likelihood, ClassLikelihood)
    return model.likelihood.num_classes


def last_layer(model: DeclaredModel, method: str) -> tuple[str, ...]:
    """The sites of the last child with parameters: the head on the features."""
    network = sequential(model, method)
    name = list(network._modules)[_head(network)]
    return tuple(site for site in model.declaration.shapes if site.startswith(f"{name}."))


def features(model: DeclaredModel, values: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """What the last child with parameters is given, for the weights of one client.

    Args:
        model: A model that `sequential` takes.
        values: Its sites; others are ignored.
        x: Inputs ``[n, *features]``.

    Returns:
        ``[n, D]``, flattened.
    """
    network = sequential(model, "this method")
    assert isinstance(model, BayesianModel)
    body = network[: _head(network)]
    own = {**dict(model.constants.items()), **values}
    needed = {name: own[name] for name in _state(body)}
    out: Tensor = torch.func.functional_call(body, needed, (x,)) if len(body) else x
    return out.flatten(1)


def features_at(model: DeclaredModel, theta: Tensor, x: Tensor) -> Tensor:
    """The same at flat weights ``theta [P]``."""
    return features(model, model.constrain(point_layout(model).unflatten(theta)), x)


def feature_size(model: DeclaredModel, method: str) -> int:
    """The number of features D."""
    network = sequential(model, method)
    head = network[_head(network)]
    if not isinstance(head, nn.Linear):
        raise UserError(
            f"{method} needs a network whose last layer is an nn.Linear on its features, not a {type(head).__name__}"
        )
    return head.in_features


def _head(network: nn.Sequential) -> int:
    """The place of the last child with parameters."""
    return max(i for i, child in enumerate(network) if any(True for _ in child.parameters()))


def _state(module: nn.Module) -> list[str]:
    return [name for name, _ in (*module.named_parameters(), *module.named_buffers())]
