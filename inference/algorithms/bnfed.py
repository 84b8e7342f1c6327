"""BNFed, or PFNM (Yurochkin et al., ICML 2019): the server matches clients' hidden neurons before it averages them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.inference.algorithm import ClientUpdate, Cohort, Round, Tensors, Upload
from pyro_pfedbayes.inference.algorithms.components.features import (
    class_count,
    layers_of,
    sequential,
)
from pyro_pfedbayes.inference.algorithms.components.neuron_matching import (
    BIAS_MEAN,
    PFNMSettings,
    match_networks,
)
from pyro_pfedbayes.inference.algorithms.components.point import PointMethod
from pyro_pfedbayes.inference.algorithms.components.settings import Count, NonNegative, Positive
from pyro_pfedbayes.inference.beliefs.points import THETA, PointBelief, point_layout
from pyro_pfedbayes.inference.beliefs.sites import Belief
from pyro_pfedbayes.inference.engine.client_step import GradientEngine
from pyro_pfedbayes.inference.engine.point_descent import descend
from pyro_pfedbayes.inference.server.prefixed_state import prefixed, under
from pyro_pfedbayes.models.declared import DeclaredModel
from pyro_pfedbayes.randomness import generator, seed_for

COUNTS = "counts"
WIDE = "wide."
"""Before the names of the global network's weights."""
OWNER = "neurons."
"""Before a client's number: which global neurons it copies, of all hidden layers in a row."""
TRAINED = "trained"
"""1 of a client that has weights of its own."""
START_SCALE = 0.1


@dataclass(frozen=True)
class BNFed(PointMethod):
    """Settings of PFNM with communication; those of the process are the authors'.

    A round: client i trains its fully connected network and sends it with its class counts. The server matches hidden
    neurons (`match_networks`) and averages those that are matched into a global network, which is wider than the
    clients' where neurons have no match (at most ``max_units`` neurons, and few more, a layer). Each client receives
    back the global neurons that its own were matched to, and goes on with them; one that missed the last round goes on
    with its own. Clients train by plain gradient descent where the authors use Adam, and networks are matched from
    scratch in every round.
    """

    pull: NonNegative = 1e-6
    """Weight of (1/2)|v - received|^2 in local training, from the second round of a client on."""
    start: Literal["own", "common"] = "own"
    """``"own"``: each client begins with weights N(0, 0.1^2) and biases 0.1 of its own, as the authors do;
    ``"common"``: all begin with the model's."""
    sigma: Positive = 1.0  # variance of a client's neuron around the global one
    sigma0: Positive = 1.0  # variance of global neurons
    gamma: Positive = 1.0  # mass of the process: the larger, the wider the global network
    sweeps: Count = 3  # how often each client is matched anew in a round
    max_units: Count = 700
    """Neurons of a global layer beyond which a client adds at most one more."""

    name = "bnfed"
    models = ("global",)

    def init(self, model: DeclaredModel) -> Tensors:
        """The model's weights; there is no global network before clients have sent theirs."""
        _layer_names(model, self.name)
        return super().init(model)

    def client_init(self, model: DeclaredModel, server: Tensors, count: int) -> Tensors:
        """Not trained yet."""
        rows = super().client_init(model, server, count)
        return {**rows, TRAINED: server[THETA].new_zeros(count)}

    def client_update(
        self, engine: GradientEngine, server: Tensors, cohort: Cohort, at: Round
    ) -> ClientUpdate:
        """R steps from the neurons received."""
        model, layers = engine.model, _layer_names(engine.model, self.name)
        known = [OWNER + str(i) in server for i in cohort.clients]
        start = cohort.state[THETA].clone()
        for k, trained in enumerate(cohort.state[TRAINED].tolist()):
            if known[k] or not trained:
                start[k] = self._received(model, layers, server, cohort.clients[k], at)
        weight = self.pull * torch.tensor(known, device=start.device).to(start)[:, None]
        pull = (lambda v: weight * (v - start)) if self.pull and any(known) else None
        theta, loss = descend(engine, start, cohort.plan, self.descent(at), pull=pull)
        classes = class_count(model, self.name)
        labels = (cohort.examples(i, "train")[1] for i in cohort.clients)
        counts = torch.stack([torch.bincount(y[y >= 0], minlength=classes) for y in labels])
        state = {THETA: theta, TRAINED: torch.ones_like(loss)}
        return ClientUpdate(state, {THETA: theta, COUNTS: counts.to(theta)}, loss)

    def _received(
        self, model: DeclaredModel, layers: list[str], server: Tensors, client: int, at: Round
    ) -> Tensor:
        """What a client's training begins with, ``[P]``: its part of the global network, or its first weights."""
        layout, copied = point_layout(model), OWNER + str(client)
        first = layout.unflatten(server[THETA].clone())
        sites = [(f"{name}.weight", f"{name}.bias") for name in layers]
        if copied in server:
            widths = [len(first[bias]) for _, bias in sites[:-1]]
            places = [slice(None), *server[copied].split(widths), slice(None)]
            for (weight, bias), (before, after) in zip(sites, pairwise(places), strict=True):
                first[weight] = server[WIDE + weight][after][:, before]
                first[bias] = server[WIDE + bias][after]
        elif self.start == "own":
            stream = generator(at.seed, "first weights", client)
            for weight, bias in sites:
                drawn = START_SCALE * torch.randn(first[weight].shape, generator=stream)
                first[weight] = drawn.to(server[THETA])
                first[bias] = torch.full_like(first[bias], BIAS_MEAN)
        return layout.flatten(first)

    def server_update(
        self, model: DeclaredModel, server: Tensors, uploads: Iterable[Upload], at: Round
    ) -> Tensors:
        """Match the round's networks into a global one."""
        layers, layout = _layer_names(model, self.name), point_layout(model)
        sent = Upload.cat(list(uploads))
        theta, clients = sent.tensors[THETA], sent.clients
        counts = sent.tensors[COUNTS].double().cpu().numpy()
        shares = counts / np.maximum(counts.sum(0), 1)
        networks = [
            [(own[f"{n}.weight"].numpy(), own[f"{n}.bias"].numpy()) for n in layers]
            for own in map(layout.unflatten, theta.double().cpu())
        ]
        settings = PFNMSettings(self.sigma, self.sigma0, self.gamma, self.sweeps, self.max_units)
        random = np.random.default_rng(seed_for(at.seed, "matching", at.index))
        found = match_networks(networks, shares, settings, random)
        # Whoever does not take part copied neurons that are gone.
        after = {name: value for name, value in server.items() if not name.startswith(OWNER)}
        for name, (weight, bias) in zip(layers, found.layers, strict=True):
            after[f"{WIDE}{name}.weight"] = torch.from_numpy(weight.copy()).to(theta)
            after[f"{WIDE}{name}.bias"] = torch.from_numpy(bias.copy()).to(theta)
        for j, client in enumerate(clients):
            places = np.concatenate([by_network[j] for by_network in found.assignments])
            after[OWNER + str(client)] = torch.from_numpy(places).to(theta.device)
        return after

    def global_belief(self, model: DeclaredModel, server: Tensors) -> Belief:
        """The wide network; the sites themselves are the weights that clients began with."""
        return PointBelief(
            model, server[THETA], extras=prefixed(under(server, WIDE), WIDE), rule=self.predicted
        )

    def predicted(self, model: DeclaredModel, values: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """By the wide network."""
        return model.predict({**values, **under(values, WIDE)}, x)


def _layer_names(model: DeclaredModel, method: str) -> list[str]:
    """The fully connected layers, the lowest first."""
    layers = layers_of(sequential(model, method))
    for name, child in layers:
        if not isinstance(child, nn.Linear) or child.bias is None:
            raise UserError(
                f"{method} matches neurons of nn.Linear layers with biases, such as those of mlp; layer {name!r} is "
                + ("one without" if isinstance(child, nn.Linear) else f"a {type(child).__name__}")
            )
    if len(layers) < 2:
        raise UserError(f"{method} matches hidden neurons, and this network has none; use an mlp")
    sites = {f"{name}.{part}" for name, _ in layers for part in ("weight", "bias")}
    frozen = sites - set(model.declaration.shapes)
    if frozen:
        raise UserError(f"{method} trains all layers, but {min(frozen)!r} is frozen")
    return [name for name, _ in layers]
