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


def layers_of(network: nn.Module) -> list[tuple[str, nn.Module]]:
    """The children with parameters."""
    children = network.named_children()
    return [(name, child) for name, child in children if next(child.parameters(), None) is not None]


def sequential(model: DeclaredModel, method: str) -> nn.Sequential:
    """The network of a model of classes, if it is layers one after the other; ``method`` names who needs it."""
    network = model.network if isinstance(model, BayesianModel) else None
    if (
        not isinstance(network, nn.Sequential)
        or type(network).forward is not nn.Sequential.forward
        or not layers_of(network)
    ):
        kind = type(model).__name__ if network is None else type(network).__name__
        raise UserError(
            f"{method} needs a model whose network is an nn.Sequential of layers, such as mlp or vgg, not a {kind}"
        )
    if not isinstance(getattr(model, "likelihood", None), ClassLikelihood):
        raise UserError(f"{method} predicts classes; its likelihood must be one of classes")
    return network


def class_count(model: DeclaredModel, method: str) -> int:
    """The number of classes C."""
    sequential(model, method)
    likelihood = getattr(model, "likelihood", None)
    assert isinstance(likelihood, ClassLikelihood)
    return likelihood.num_classes


def last_layer(model: DeclaredModel, method: str) -> tuple[str, ...]:
    """The sites of the last child with parameters: the head on the features."""
    name, _ = layers_of(sequential(model, method))[-1]
    return tuple(site for site in model.declaration.shapes if site.startswith(f"{name}."))


def feature_size(model: DeclaredModel, method: str) -> int:
    """The number of features D."""
    _, head = layers_of(sequential(model, method))[-1]
    if not isinstance(head, nn.Linear):
        raise UserError(
            f"{method} needs a network whose last layer is an nn.Linear on its features, not a {type(head).__name__}"
        )
    return head.in_features


def features(model: DeclaredModel, values: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """What the last child with parameters is given, flattened, ``[n, D]``.

    At the sites of one client among ``values``, for inputs ``[n, *features]``.
    """
    network = sequential(model, "this method")
    assert isinstance(model, BayesianModel)
    children = [name for name, _ in network.named_children()]
    body = network[: children.index(layers_of(network)[-1][0])]
    own = {**dict(model.constants.items()), **values}
    state = {name: own[name] for name, _ in (*body.named_parameters(), *body.named_buffers())}
    out: Tensor = torch.func.functional_call(body, state, (x,)) if len(body) else x
    return out.flatten(1)


def features_at(model: DeclaredModel, theta: Tensor, x: Tensor) -> Tensor:
    """The same at flat weights ``theta [P]``."""
    return features(model, model.constrain(point_layout(model).unflatten(theta)), x)
