from itertools import pairwise

import numpy as np
import pytest

from pyro_pfedbayes.inference.algorithms.components.neuron_matching import (
    BIAS_MEAN,
    Atoms,
    Layers,
    PFNMSettings,
    match_networks,
    match_neurons,
)

FLAT = PFNMSettings(sigma0=1e10)
"""A prior that says nothing: global neurons are plain averages."""


def network(widths: tuple[int, ...], seed: int = 0) -> Layers:
    random = np.random.default_rng(seed)
    return [
        (random.normal(size=(after, before)), random.normal(size=after))
        for before, after in pairwise(widths)
    ]


def permuted(layers: Layers, orders: list[np.ndarray]) -> Layers:
    """The same function with the neurons of hidden layers in other orders."""
    inputs = [np.arange(layers[0][0].shape[1]), *orders]
    outputs = [*orders, np.arange(len(layers[-1][1]))]
    return [
        (weight[after][:, before], bias[after])
        for (weight, bias), before, after in zip(layers, inputs, outputs, strict=True)
    ]


def forward(layers: Layers, x: np.ndarray) -> np.ndarray:
    for weight, bias in layers[:-1]:
        x = np.maximum(x @ weight.T + bias, 0)
    return x @ layers[-1][0].T + layers[-1][1]


@pytest.mark.parametrize("widths", [(4, 6, 3), (4, 6, 5, 3)])
def test_permuted_copies_of_a_network_are_matched_back_to_it(widths: tuple[int, ...]) -> None:
    whole, random = network(widths), np.random.default_rng(1)
    orders = [[random.permutation(width) for width in widths[1:-1]] for _ in range(4)]
    copies = [permuted(whole, order) for order in orders]
    shares = np.full((4, 3), 0.25)
    found = match_networks(copies, shares, FLAT, random)
    x = random.normal(size=(20, 4))
    np.testing.assert_allclose(forward(found.layers, x), forward(whole, x), atol=1e-6)
    for layer, places in enumerate(found.assignments):
        assert len(found.layers[layer][1]) == widths[layer + 1]
        # Neuron k of copy j is neuron orders[j][k] of the whole.
        for j in range(4):
            back = np.empty_like(orders[j][layer])
            back[orders[j][layer]] = places[j]
            first = np.empty_like(orders[0][layer])
            first[orders[0][layer]] = places[0]
            assert (back == first).all()


def test_global_neuron_is_the_posterior_mean_by_hand() -> None:
    """Two networks of one neuron alike: (s0 mu0 + s v1 + s v2) / (s0 + 2 s), outgoing by the shares of classes."""
    one = [
        (np.array([[2.0, 4.0]]), np.array([1.0])),
        (np.array([[3.0], [1.0]]), np.array([0.5, 2.0])),
    ]
    two = [
        (np.array([[2.2, 4.4]]), np.array([1.2])),
        (np.array([[3.3], [9.0]]), np.array([0.7, 8.0])),
    ]
    shares = np.array([[0.75, 1.0], [0.25, 0.0]])
    settings = PFNMSettings(sigma=0.5, sigma0=2.0)
    found = match_networks([one, two], shares, settings, np.random.default_rng(0))
    assert [places.tolist() for places in found.assignments[0]] == [[0], [0]]
    (incoming, bias), (outgoing, head) = found.layers
    np.testing.assert_allclose(incoming[0], [2 * 4.2 / 4.5, 2 * 8.4 / 4.5])
    np.testing.assert_allclose(bias, (0.5 * BIAS_MEAN + 2 * 2.2) / 4.5)
    # Class 1 was seen by the first network only: the weight 9 counts for nothing.
    first = 1.5 * 3.0 + 0.5 * 3.3
    np.testing.assert_allclose(outgoing[:, 0], [first / 2.5, 2.0 / 2.5])
    np.testing.assert_allclose(
        head, [(0.05 + 1.5 * 0.5 + 0.5 * 0.7) / 2.5, (0.05 + 2.0 * 2.0) / 2.5]
    )


def test_gains_by_hand() -> None:
    vectors, precision = np.array([[1.0, 3.0], [-1.0, 0.0]]), np.array([1.0, 0.5])
    atoms = Atoms(
        *(np.array([0.1, 0.0]), np.array([1.0, 1.0])),
        *(np.array([[2.0, 1.0]]), np.array([[2.0, 2.0]]), np.array([2])),
    )
    gain = atoms.gains(vectors, precision, 5, PFNMSettings(gamma=2.0))
    assert gain.shape == (2, 3)
    existing = (2 + 1) ** 2 / 3 + (1 + 1.5) ** 2 / 2.5 - 4 / 2 - 1 / 2 + np.log(2 / 3)
    new = (0.1 + 1) ** 2 / 2 + 1.5**2 / 1.5 - 0.01 + 2 * np.log(2 / 5)
    np.testing.assert_allclose(gain[0], [existing, new, new - 2 * np.log(2)])


def test_strangers_widen_the_network_and_the_cap_holds() -> None:
    a, b = np.eye(3) * 50, -np.eye(3) * 50
    precisions, prior = [np.ones(3), np.ones(3)], np.zeros(3)
    found, places = match_neurons([a, b], precisions, prior, FLAT, np.random.default_rng(0))
    assert len(found) == 6
    assert not set(places[0]) & set(places[1])
    capped = PFNMSettings(sigma0=1e10, max_units=3)
    narrow, _ = match_neurons([a, b], precisions, prior, capped, np.random.default_rng(0))
    assert len(narrow) == 4


def test_every_neuron_of_a_network_has_a_global_one_of_its_own() -> None:
    random = np.random.default_rng(5)
    vectors = [random.normal(size=(width, 4)) for width in (5, 7, 3)]
    found, places = match_neurons(
        vectors, [np.ones(4)] * 3, np.zeros(4), PFNMSettings(sweeps=4), random
    )
    assert [len(set(p.tolist())) for p in places] == [5, 7, 3]
    assert set(np.concatenate(places)) == set(range(len(found)))
    # Sums kept while matching are those of the final assignment.
    total, precision = np.zeros_like(found), np.ones_like(found)
    for own, at in zip(vectors, places, strict=True):
        total[at] += own
        precision[at] += 1
    np.testing.assert_allclose(found, total / precision)
