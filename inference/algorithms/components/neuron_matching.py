"""Matching of hidden neurons across networks by a Beta-Bernoulli process (PFNM; Yurochkin et al., ICML 2019).

A neuron of network j is a vector v of its bias and outgoing weights, and in the lowest layer of its incoming weights
too. It is a noisy copy, with precisions s_j, of one of the global neurons, which are drawn from N(mu0, sigma0^2).
Global neurons and who copies which are found one network at a time, by the Hungarian method.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

Array = NDArray[np.float64]
Places = NDArray[np.int64]
Layers = Sequence[tuple[Array, Array]]
"""Weights ``[out, in]`` and biases ``[out]`` of fully connected layers, the lowest first."""
POPULAR = 10
"""Popularity beyond this makes a global neuron no more attractive."""
BIAS_MEAN = 0.1
"""Prior mean of biases, as the authors initialise them; that of other weights is 0."""


@dataclass(frozen=True)
class PFNMSettings:
    """Of the process and of the search."""

    sigma: float = 1.0  # variance sigma^2 of a copy around its global neuron
    sigma0: float = 1.0  # variance sigma0^2 of global neurons
    gamma: float = 1.0  # mass of the process: the larger, the more global neurons
    sweeps: int = 3  # how often each network is matched anew after all have been matched once
    max_units: int = 700  # global neurons of a layer beyond which a network adds at most one more


@dataclass(frozen=True)
class Matched:
    """What matching finds."""

    layers: Layers  # the global network, J_l hidden neurons in layer l
    assignments: tuple[tuple[Places, ...], ...]
    """By hidden layer and network, each of its neurons' global one ``[L_l]``."""


@dataclass
class Atoms:
    """Global neurons under construction, ``[J, d]`` or ``[J]``, and their prior, ``[d]``."""

    prior_total: Array  # precision times mean of the prior
    prior: Array  # its precision
    total: Array  # sums of precisions times vectors
    precision: Array  # sums of precisions
    popularity: Places  # by how many networks each is copied

    def gains(
        self, vectors: Array, precision: Array, networks: int, settings: PFNMSettings
    ) -> Array:
        """What matching gains in log-probability (times two, but for the popularity, as in the authors' code).

        ``[L_j, J + new]``: for each neuron of a network, each global one, and each that may be added.
        """
        total, spread = vectors * precision, self.precision + precision
        # Of (g + s v)^2 / (G + s), expanded, so that it takes two products of matrices and no third dimension.
        existing = (
            total**2 @ (1 / spread).T
            + 2 * total @ (self.total / spread).T
            + (self.total**2 / spread - self.total**2 / self.precision).sum(1)
        )
        popular = np.minimum(self.popularity, POPULAR)
        existing = existing + np.log(popular / (networks - popular))
        new = (self.prior_total + total) ** 2 / (self.prior + precision)
        new = (new - self.prior_total**2 / self.prior).sum(1)
        count = min(len(vectors), max(settings.max_units - len(self.total), 1))
        # A later one of the new neurons is less likely.
        rank = 2 * np.log(np.arange(1, count + 1))
        added = new[:, None] + 2 * np.log(settings.gamma / networks) - rank
        return np.concatenate([existing, added], 1)

    def add(self, chosen: Places, totals: Array, precision: Array) -> Places:
        """Add a network's neurons to the global ones chosen; their places, new ones after the others."""
        old = len(self.total)
        new = chosen >= old
        count, places = int(new.sum()), chosen.astype(np.int64)
        places[new] = old + np.arange(count)
        self.total[places[~new]] += totals[~new]
        self.precision[places[~new]] += precision
        self.popularity[places[~new]] += 1
        self.total = np.concatenate([self.total, self.prior_total + totals[new]])
        self.precision = np.concatenate(
            [self.precision, np.tile(self.prior + precision, (count, 1))]
        )
        self.popularity = np.concatenate([self.popularity, np.ones(count, np.int64)])
        return places

    def remove(self, places: Places, totals: Array, precision: Array) -> Places:
        """Take a network's neurons away, and global ones that nobody copies any more; where the others move to."""
        self.total[places] -= totals
        self.precision[places] -= precision
        self.popularity[places] -= 1
        alive = self.popularity > 0
        self.total, self.precision = self.total[alive], self.precision[alive]
        self.popularity = self.popularity[alive]
        return alive.cumsum() - 1


def match_networks(
    networks: Sequence[Layers], shares: Array, settings: PFNMSettings, random: np.random.Generator
) -> Matched:
    """Match the hidden layers of J networks, from the top down, and average what is matched.

    They are of equal depth, inputs and classes, with at least one hidden layer each. Of all examples of a class a
    network has seen a share ``[J, C]``: the precision of its weights to the class is in proportion.
    """
    depth = len(networks[0]) - 1
    above: tuple[Places, ...] = ()
    found: list[Array] = []
    assignments: list[tuple[Places, ...]] = []
    for hidden in reversed(range(depth)):
        vectors, precisions = [], []
        for j, layers in enumerate(networks):
            (incoming, bias), (outgoing, _) = layers[hidden], layers[hidden + 1]
            outgoing, certainty = outgoing.T, shares[j] / settings.sigma
            if found:
                placed = np.zeros((len(outgoing), len(found[-1])))
                placed[:, above[j]] = outgoing
                outgoing, certainty = placed, np.full(len(found[-1]), 1 / settings.sigma)
            parts, lowest = [bias[:, None], outgoing], incoming.shape[1] if hidden == 0 else 0
            parts.append(incoming[:, :lowest])
            vectors.append(np.concatenate(parts, 1))
            ones = np.full(1 + lowest, 1 / settings.sigma)
            precisions.append(np.concatenate([ones[:1], certainty, ones[1:]]))
        prior_mean = np.zeros(vectors[0].shape[1])
        prior_mean[0] = BIAS_MEAN
        neurons, above = match_neurons(vectors, precisions, prior_mean, settings, random)
        found.append(neurons)
        assignments.append(above)
    return Matched(_assembled(found, networks, shares, settings), tuple(reversed(assignments)))


def match_neurons(
    vectors: Sequence[Array],
    precisions: Sequence[Array],
    prior_mean: Array,
    settings: PFNMSettings,
    random: np.random.Generator,
) -> tuple[Array, tuple[Places, ...]]:
    """Match the neurons of one layer, ``[L_j, d]`` of each network with precisions ``[d]``, prior mean ``[d]``.

    To posterior means of the global neurons ``[J, d]``, and for each network its neurons' global ones ``[L_j]``.
    """
    prior, size = np.full_like(prior_mean, 1 / settings.sigma0), len(prior_mean)
    empty = np.empty((0, size))
    atoms = Atoms(prior * prior_mean, prior, empty, empty.copy(), np.empty(0, np.int64))
    assigned: dict[int, Places] = {}
    schedule = sorted(range(len(vectors)), key=lambda j: -len(vectors[j]))
    schedule += [j for _ in range(settings.sweeps) for j in random.permutation(len(vectors))]
    for j in schedule:
        totals, precision = vectors[j] * precisions[j], precisions[j]
        if j in assigned:
            moved = atoms.remove(assigned.pop(j), totals, precision)
            assigned = {other: moved[places] for other, places in assigned.items()}
        chosen = np.arange(len(vectors[j]))
        if len(atoms.total):
            gain = atoms.gains(vectors[j], precision, len(vectors), settings)
            chosen = linear_sum_assignment(gain, maximize=True)[1]
        assigned[j] = atoms.add(chosen, totals, precision)
    return atoms.total / atoms.precision, tuple(assigned[j] for j in range(len(vectors)))


def _assembled(
    found: Sequence[Array], networks: Sequence[Layers], shares: Array, settings: PFNMSettings
) -> Layers:
    """Layers from global neurons of hidden layers (the top one first), and the posterior mean of the output bias."""
    certainty = shares / settings.sigma
    biases = np.stack([layers[-1][1] for layers in networks])
    prior = 1 / settings.sigma0
    head = (prior * BIAS_MEAN + (certainty * biases).sum(0)) / (prior + certainty.sum(0))
    inputs = networks[0][0][0].shape[1]
    lowest, biases_above = found[-1], [*(neurons[:, 0] for neurons in found[-2::-1]), head]
    layers = [(lowest[:, -inputs:], lowest[:, 0])]
    for neurons, bias in zip(reversed(found), biases_above, strict=True):
        end = neurons.shape[1] - (inputs if neurons is lowest else 0)
        layers.append((neurons[:, 1:end].T, bias))
    return layers
