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
    assignments: tuple[tuple[NDArray[np.int64], ...], ...]
    """By hidden layer and network, each of its neurons' global one, int64 ``[L_l]``."""


@dataclass
class _Atoms:
    """Global neurons under construction: sums of precisions times vectors, of precisions, and popularity."""

    total: Array
    precision: Array
    popularity: NDArray[np.int64]


def match_networks(
    networks: Sequence[Layers],
    shares: Array,
    settings: PFNMSettings,
    random: np.random.Generator,
) -> Matched:
    """Match the hidden layers of J networks, from the top down, and average what is matched.

    Args:
        networks: Of equal depth, inputs and classes, with at least one hidden layer each.
        shares: Of all examples of a class those that a network has seen, ``[J, C]``; the precision of its weights to
            the class is in proportion.
        settings: Of the process and of the search.
        random: Order of networks in the sweeps.

    Returns:
        Means of the global neurons, in a wider network, and who copies which.
    """
    depth = len(networks[0]) - 1
    above: tuple[NDArray[np.int64], ...] = ()
    width_above, found, assignments = 0, [], []
    for hidden in reversed(range(depth)):
        vectors, precisions = [], []
        for j, layers in enumerate(networks):
            outgoing = layers[hidden + 1][0].T
            if hidden == depth - 1:
                certainty = shares[j] / settings.sigma
            else:
                placed = np.zeros((len(outgoing), width_above))
                placed[:, above[j]] = outgoing
                outgoing, certainty = placed, np.full(width_above, 1 / settings.sigma)
            parts = [layers[hidden][1][:, None], outgoing]
            own = [np.full(1, 1 / settings.sigma), certainty]
            if hidden == 0:
                parts.append(layers[0][0])
                own.append(np.full(layers[0][0].shape[1], 1 / settings.sigma))
            vectors.append(np.concatenate(parts, 1))
            precisions.append(np.concatenate(own))
        prior_mean = np.zeros(vectors[0].shape[1])
        prior_mean[0] = BIAS_MEAN
        neurons, above = match_neurons(vectors, precisions, prior_mean, settings, random)
        found.append(neurons)
        assignments.append(above)
        width_above = len(neurons)
    return Matched(_assembled(found, networks, shares, settings), tuple(reversed(assignments)))


def match_neurons(
    vectors: Sequence[Array],
    precisions: Sequence[Array],
    prior_mean: Array,
    settings: PFNMSettings,
    random: np.random.Generator,
) -> tuple[Array, tuple[NDArray[np.int64], ...]]:
    """Match the neurons of one layer.

    Args:
        vectors: Of each network ``[L_j, d]``.
        precisions: Of each network's vectors ``[d]``.
        prior_mean: mu0 ``[d]``.
        settings: Of the process and of the search.
        random: Order of networks in the sweeps.

    Returns:
        Posterior means of the global neurons ``[J, d]``, and for each network its neurons' global ones ``[L_j]``.
    """
    order = sorted(range(len(vectors)), key=lambda j: -len(vectors[j]))
    prior = np.full_like(prior_mean, 1 / settings.sigma0)
    size = len(prior_mean)
    atoms = _Atoms(np.empty((0, size)), np.empty((0, size)), np.empty(0, np.int64))
    assigned: dict[int, NDArray[np.int64]] = {}
    schedule = order + [j for _ in range(settings.sweeps) for j in random.permutation(len(vectors))]
    for j in schedule:
        if j in assigned:
            _remove(atoms, assigned, j, vectors[j] * precisions[j], precisions[j])
        if len(atoms.total):
            gain = _gains(
                atoms, vectors[j], precisions[j], prior * prior_mean, prior, len(vectors), settings
            )
            _, chosen = linear_sum_assignment(gain, maximize=True)
        else:
            chosen = np.arange(len(vectors[j]))
        assigned[j] = _add(
            atoms, chosen, vectors[j] * precisions[j], precisions[j], prior * prior_mean, prior
        )
    return atoms.total / atoms.precision, tuple(assigned[j] for j in range(len(vectors)))


def _gains(
    atoms: _Atoms,
    vectors: Array,
    precision: Array,
    prior_total: Array,
    prior: Array,
    networks: int,
    settings: PFNMSettings,
) -> Array:
    """What matching gains in log-probability (times two, but for the popularity, as in the authors' code).

    Returns:
        ``[L_j, J + new]``: for each neuron of a network, each global one, and each that may be added.
    """
    total, spread = vectors * precision, atoms.precision + precision
    # Of (g + s v)^2 / (G + s), expanded, so that it takes two products of matrices and no third dimension.
    existing = (
        total**2 @ (1 / spread).T
        + 2 * total @ (atoms.total / spread).T
        + (atoms.total**2 / spread - atoms.total**2 / atoms.precision).sum(1)
    )
    popular = np.minimum(atoms.popularity, POPULAR)
    existing = existing + np.log(popular / (networks - popular))
    new = ((prior_total + total) ** 2 / (prior + precision) - prior_total**2 / prior).sum(1)
    count = min(len(vectors), max(settings.max_units - len(atoms.total), 1))
    # A later one of the new neurons is less likely.
    rank = 2 * np.log(np.arange(1, count + 1))
    added = new[:, None] + 2 * np.log(settings.gamma / networks) - rank
    return np.concatenate([existing, added], 1)


def _add(
    atoms: _Atoms,
    chosen: NDArray[np.int64],
    totals: Array,
    precision: Array,
    prior_total: Array,
    prior: Array,
) -> NDArray[np.int64]:
    """Add a network's neurons to the global ones chosen; return the places, counting new ones from the end."""
    old = len(atoms.total)
    new = chosen >= old
    places = chosen.astype(np.int64)
    places[new] = old + np.arange(int(new.sum()))
    atoms.total[places[~new]] += totals[~new]
    atoms.precision[places[~new]] += precision
    atoms.popularity[places[~new]] += 1
    added = int(new.sum())
    atoms.total = np.concatenate([atoms.total, prior_total + totals[new]])
    atoms.precision = np.concatenate([atoms.precision, np.tile(prior + precision, (added, 1))])
    atoms.popularity = np.concatenate([atoms.popularity, np.ones(added, np.int64)])
    return places


def _remove(
    atoms: _Atoms,
    assigned: dict[int, NDArray[np.int64]],
    j: int,
    totals: Array,
    precision: Array,
) -> None:
    """Take a network's neurons away, and global ones that nobody copies any more."""
    places = assigned.pop(j)
    atoms.total[places] -= totals
    atoms.precision[places] -= precision
    atoms.popularity[places] -= 1
    alive = atoms.popularity > 0
    moved = alive.cumsum() - 1
    for other in assigned:
        assigned[other] = moved[assigned[other]]
    atoms.total, atoms.precision = atoms.total[alive], atoms.precision[alive]
    atoms.popularity = atoms.popularity[alive]


def _assembled(
    found: Sequence[Array], networks: Sequence[Layers], shares: Array, settings: PFNMSettings
) -> Layers:
    """Layers from global neurons of hidden layers (the top one first), and the posterior mean of the output bias."""
    certainty = shares / settings.sigma
    biases = np.stack([layers[-1][1] for layers in networks])
    prior = 1 / settings.sigma0
    head = (prior * BIAS_MEAN + (certainty * biases).sum(0)) / (prior + certainty.sum(0))
    lowest = found[-1]
    inputs = networks[0][0][0].shape[1]
    layers = [(lowest[:, -inputs:], lowest[:, 0])]
    for neurons, next_neurons in zip(reversed(found), [*reversed(found[:-1]), None], strict=True):
        end = neurons.shape[1] - (inputs if neurons is lowest else 0)
        outgoing = neurons[:, 1:end].T
        layers.append((outgoing, head if next_neurons is None else next_neurons[:, 0]))
    return layers
