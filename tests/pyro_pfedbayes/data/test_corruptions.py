"""Corruptions are functions of their seed, act in the data's scale, and spoil only what they are told to."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from pyro_pfedbayes.data.clients import FederatedData
from pyro_pfedbayes.data.corruptions import (
    CORRUPTIONS,
    IMAGE_CORRUPTIONS,
    STRENGTHS,
    add_noise,
    blur,
    corrupt_clients,
    corrupt_images,
    keep_few,
    rotate,
    rotated,
    shuffle_labels,
)
from pyro_pfedbayes.data.datasets import load_dataset
from pyro_pfedbayes.data.partitions.schemes import partition_labels
from tests.helpers import message, toy_data


def images(n: int = 6, height: int = 8, width: int = 8, channels: int = 1) -> Tensor:
    stream = torch.Generator().manual_seed(0)
    return torch.rand(n, channels, height, width, generator=stream) * 2 - 1


@pytest.mark.parametrize("kind", IMAGE_CORRUPTIONS)
def test_images_are_a_function_of_the_seed_and_get_worse_with_strength(kind: str) -> None:
    x = images(64)
    before = x.clone()
    spoilt = [corrupt_images(x, kind, s, seed=3) for s in range(1, 6)]
    assert torch.equal(x, before)
    distances = [float((s - x).square().mean()) for s in spoilt]
    # Neighbouring pixels of these images are independent, so that a turn past 30 degrees loses all there is to lose.
    assert distances[0] > 0
    assert distances[:2] == sorted(distances[:2])
    if kind != "rotation":
        assert distances == sorted(distances)
    assert torch.equal(spoilt[2], corrupt_images(x, kind, 3, seed=3))
    assert torch.equal(spoilt[2], corrupt_images(x, kind, 3, seed=4)) == (kind == "blur")
    for s in spoilt:
        assert s.shape == x.shape
        assert s.dtype == x.dtype
        assert float(s.min()) >= -1 - 1e-6
        assert float(s.max()) <= 1 + 1e-6


@pytest.mark.parametrize("kind", IMAGE_CORRUPTIONS)
def test_images_in_another_scale_are_spoilt_alike(kind: str) -> None:
    """Standardised images with their own black and white are the standardised spoilt ones."""
    x, loc, scale = images(), -0.4, 0.6
    limits = ((-1 - loc) / scale, (1 - loc) / scale)
    for strength in (1, 5):
        plain = corrupt_images(x, kind, strength, seed=1)
        ours = corrupt_images((x - loc) / scale, kind, strength, seed=1, limits=limits)
        torch.testing.assert_close(ours * scale + loc, plain, atol=1e-5, rtol=0)


def test_noise_has_the_standard_deviation_it_says() -> None:
    grey = torch.zeros(400, 1, 8, 8)
    for strength, share in enumerate(STRENGTHS["noise"], 1):
        spread = add_noise(grey, strength, limits=(-3.0, 3.0)).abs()
        # Half of a normal distribution's numbers lie within 0.6745 standard deviations, clipped or not.
        assert float(spread.median()) == pytest.approx(0.6745 * share * 6, rel=0.03)
        assert float(spread.max()) <= 3
    table = torch.stack([torch.linspace(-1, 1, 5000), torch.linspace(-10, 10, 5000)], 1)
    added = add_noise(table, 3, limits=None) - table
    for column in (0, 1):
        wanted = 4 * 0.3 * float(table[:, column].std())
        assert float(added[:, column].std()) == pytest.approx(wanted, rel=0.05)
    assert torch.equal(add_noise(table[:1], 5, limits=None), table[:1])


def test_blur_is_the_gaussian_average_by_hand() -> None:
    x = torch.full((1, 2, 9, 20), -1.0)
    x[0, 1, 4, 10] = 1.0
    sd = 0.1 * 20
    grid = torch.arange(-6.0, 7)
    window = torch.exp(-0.5 * (grid / sd) ** 2)
    window /= window.sum()
    out = blur(x, 5)
    torch.testing.assert_close(out[0, 0], x[0, 0])  # channels do not mix, a flat image stays flat
    across = out[0, 1].sum(0) - out[0, 1].sum(0)[0]
    torch.testing.assert_close((across / across.sum())[4:17], window, atol=1e-5, rtol=1e-4)


def test_quarter_turns_are_exact_and_oblong_images_keep_their_angles() -> None:
    x = images(2, channels=3)
    turned = rotated(x, torch.tensor([90.0, 180.0]))
    torch.testing.assert_close(turned[0], x[0].rot90(1, (1, 2)), atol=1e-5, rtol=0)
    torch.testing.assert_close(turned[1], x[1].rot90(2, (1, 2)), atol=1e-5, rtol=0)
    # Bars along either side, turned by 45 degrees: as far to the side as up, in pixels.
    for upright, way in ((False, 1), (True, -1)):
        bar = torch.zeros(1, 1, 21, 41)
        bar[(..., slice(None), 20) if upright else (..., 10, slice(None))] = 1.0
        out = rotated(bar, torch.tensor([45.0]), limits=(0.0, 1.0))[0, 0]
        rows, columns = (out > 0.6).nonzero(as_tuple=True)
        assert (10 - rows).tolist() == (way * (columns - 20)).tolist()
        assert len(rows) > 10


def test_rotation_goes_both_ways_by_the_angle_it_says() -> None:
    x = images(1).expand(40, 1, 8, 8)
    out = rotate(x, 2, seed=0)
    ways = [rotated(x[:1], torch.tensor([a]))[0] for a in (30.0, -30.0)]
    hits = [sum(torch.equal(image, way) for image in out) for way in ways]
    assert sum(hits) == 40
    assert min(hits) >= 10


@pytest.mark.parametrize("strength", [1, 2, 3, 4, 5])
def test_labels_keep_their_frequencies_and_the_right_share_stays(strength: int) -> None:
    y = torch.arange(1000)
    out = shuffle_labels(y, strength, seed=strength)
    assert torch.equal(out.sort().values, y)
    moved = int((out != y).sum())
    # A random permutation has one fixed point on average.
    assert 0 <= 200 * strength - moved <= 8
    assert torch.equal(out, shuffle_labels(y, strength, seed=strength))
    assert not torch.equal(out, shuffle_labels(y, strength, seed=strength + 1))


def test_few_keeps_a_share_and_at_least_one() -> None:
    index = torch.arange(50, 250)
    sizes = [len(keep_few(index, s)) for s in range(1, 6)]
    assert sizes == [100, 40, 20, 10, 4]
    assert len(keep_few(index[:3], 5)) == 1
    assert len(keep_few(index[:0], 5)) == 0
    kept = keep_few(index, 3, seed=1)
    assert torch.equal(kept, kept.sort().values)
    assert set(kept.tolist()) <= set(index.tolist())


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_only_the_named_clients_learn_from_other_data(kind: str) -> None:
    digits = load_dataset("digits")
    clean = FederatedData(digits, partition_labels(digits, 10, 5, 15, 15, validation=0.2))
    x, y = digits.x.clone(), digits.y.clone()
    spoilt = corrupt_clients(clean, [2, 7], kind, 5, seed=1)
    assert torch.equal(digits.x, x)
    assert torch.equal(digits.y, y)
    for client in range(10):
        for part in ("train", "validation", "test"):
            a, b = clean.examples(client, part), spoilt.examples(client, part)
            same = len(a[1]) == len(b[1]) and all(
                torch.equal(u, v) for u, v in zip(a, b, strict=True)
            )
            touched = client in (2, 7) and part != "test" and (part, kind) != ("validation", "few")
            assert same != touched, (client, part)
    again = corrupt_clients(clean, [7], kind, 5, seed=1)
    for a, b in zip(again.examples(7), spoilt.examples(7), strict=True):
        assert torch.equal(a, b)  # a client's stream is its own


def test_a_table_can_have_noise_shuffled_outcomes_and_few_rows_only() -> None:
    data = toy_data((30, 30))
    noisy = corrupt_clients(data, [1], "noise", 5)
    assert not torch.equal(noisy.examples(1)[0], data.examples(1)[0])
    assert torch.equal(noisy.examples(0)[0], data.examples(0)[0])
    for kind in ("blur", "rotation"):
        assert "toy is a table" in message(corrupt_clients, data, [1], kind, 1)


def test_bad_input_is_told_in_one_line() -> None:
    x, data = images(), toy_data((30, 30))
    assert "did you mean 'blur'" in message(corrupt_images, x, "blurr", 1)
    assert "did you mean 'labels'" in message(corrupt_clients, data, [0], "label", 1)
    assert "no client 2" in message(corrupt_clients, data, [2], "labels", 1)
    for strength in (0, 6, 1.5, True):
        assert "from 1 to 5" in message(corrupt_images, x, "noise", strength)
    assert "[n, C, H, W]" in message(corrupt_images, x[:, 0], "noise", 1)
    assert "the lower one first" in message(rotate, x, 1, limits=(1.0, -1.0))
    assert math.isclose(float(blur(torch.ones(1, 1, 3, 3), 1).min()), 1.0, abs_tol=1e-6)
