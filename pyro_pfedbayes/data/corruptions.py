"""Corrupting data on purpose: images at five strengths, labels, and whole clients.

Corrupted images show what a model says of inputs unlike those it learned from; corrupted training data of clients,
whether a federation notices. Everything is a function of its seed. The kinds and the idea of five strengths are those
of Hendrycks & Dietterich (2019); the strengths themselves are our own, chosen so that they mean about the same on
8 x 8 and on 28 x 28 images.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from pyro_pfedbayes.data.clients import FederatedData
from pyro_pfedbayes.errors import UserError, nearest
from pyro_pfedbayes.randomness import generator, seed_for

Limits = tuple[float, float]

IMAGE_CORRUPTIONS = ("noise", "blur", "rotation")
"""Kinds that corrupt images."""

CORRUPTIONS = ("labels", "few", *IMAGE_CORRUPTIONS)
"""Kinds that corrupt a client's training data."""

STRENGTHS: dict[str, tuple[float, ...]] = {
    "labels": (0.2, 0.4, 0.6, 0.8, 1.0),
    "few": (0.5, 0.2, 0.1, 0.05, 0.02),
    "noise": (0.1, 0.2, 0.3, 0.4, 0.5),
    "blur": (0.02, 0.04, 0.06, 0.08, 0.1),
    "rotation": (15.0, 30.0, 45.0, 60.0, 75.0),
}
"""Strengths 1 to 5: the share of labels that are shuffled; the share of examples that stay; the standard
deviation of the noise, from black (0) to white (1); that of the blur as a share of the image's width; degrees."""

_IMAGE = (-1.0, 1.0)
_SPAN_OF_A_COLUMN = 4.0
"""Standard deviations of a table's column that count as the way from black to white."""


def corrupt_images(
    x: Tensor, kind: str, strength: int, *, seed: int = 0, limits: Limits = _IMAGE
) -> Tensor:
    """Corrupt images in one of the three ways.

    Args:
        x: Images ``[n, C, H, W]``, any float type, any device.
        kind: ``"noise"``, ``"blur"`` or ``"rotation"``.
        strength: 1 (mild) to 5 (severe), see `STRENGTHS`.
        seed: Of what is random.
        limits: Black and white in the scale of ``x``, which results keep to: (-1, 1) of data sets, and for
            images that were standardised ``((-1 - loc) / scale, (1 - loc) / scale)``.

    Example:
        >>> x = torch.full((1, 1, 8, 8), -1.0)
        >>> x[..., 4] = 1.0
        >>> [round(float(corrupt_images(x, "blur", s).max()) + 1, 2) for s in (1, 3, 5)]
        [2.0, 1.63, 1.0]
    """
    _check_kind(kind, IMAGE_CORRUPTIONS, " of images")
    _check_images(x)
    if kind == "noise":
        return add_noise(x, strength, seed=seed, limits=limits)
    if kind == "blur":
        return blur(x, strength)
    return rotate(x, strength, seed=seed, limits=limits)


def add_noise(x: Tensor, strength: int, *, seed: int = 0, limits: Limits | None = _IMAGE) -> Tensor:
    """Add independent Gaussian noise to inputs ``x [n, *features]``, and clip what leaves the limits.

    Without limits x is a table ``[n, columns]``: nothing is clipped then, and the noise is 0.4 to 2 standard
    deviations of each column over x.
    """
    share = _amount("noise", strength)
    # Drawn on the CPU, so that all devices see the same images.
    noise = torch.randn(x.shape, generator=generator(seed, "noise"), dtype=torch.float32)
    noise = noise.to(x.device, x.dtype)
    if limits is None:
        if len(x) < 2:
            return x.clone()
        return x + share * _SPAN_OF_A_COLUMN * x.std(0) * noise
    low, high = _checked(limits)
    return (x + share * (high - low) * noise).clamp(low, high)


def blur(x: Tensor, strength: int) -> Tensor:
    """Average images ``[n, C, H, W]`` with a Gaussian window; beyond the border the edge goes on."""
    _check_images(x)
    channels, width = x.shape[1], x.shape[3]
    sd = _amount("blur", strength) * width
    radius = max(1, math.ceil(3 * sd))
    offsets = torch.arange(-radius, radius + 1, dtype=x.dtype, device=x.device)
    window = torch.exp(-0.5 * (offsets / sd).square())
    window = (window / window.sum()).expand(channels, 1, 1, -1)
    x = F.conv2d(F.pad(x, (radius, radius, 0, 0), mode="replicate"), window, groups=channels)
    x = F.pad(x, (0, 0, radius, radius), mode="replicate")
    return F.conv2d(x, window.transpose(2, 3), groups=channels)


def rotate(x: Tensor, strength: int, *, seed: int = 0, limits: Limits = _IMAGE) -> Tensor:
    """Turn each image ``[n, C, H, W]`` by 15 to 75 degrees, to the left or to the right as a coin says."""
    degrees = _amount("rotation", strength)
    coins = torch.randint(2, (len(x),), generator=generator(seed, "rotation")) * 2.0 - 1.0
    return rotated(x, degrees * coins, limits=limits)


def rotated(x: Tensor, degrees: Tensor, *, limits: Limits = _IMAGE) -> Tensor:
    """Turn images ``x [n, C, H, W]`` counterclockwise about their centre, each by its ``degrees [n]``.

    Interpolation is bilinear; the corners become black.

    Example:
        >>> x = torch.tensor([[[[0.0, 1.0], [0.0, 0.0]]]])
        >>> rotated(x, torch.tensor([90.0]), limits=(0.0, 1.0)).round(decimals=4).tolist()
        [[[[1.0, 0.0], [0.0, 0.0]]]]
    """
    _check_images(x)
    low, _ = _checked(limits)
    height, width = x.shape[2:]
    angle = torch.deg2rad(degrees.to(x.device, x.dtype))
    cos, sin, none = angle.cos(), angle.sin(), torch.zeros_like(angle)
    # In coordinates from -1 to 1 along either side, an oblong image turns with its sides' ratio.
    rows = [cos, -sin * height / width, none], [sin * width / height, cos, none]
    matrix = torch.stack([torch.stack(row, -1) for row in rows], 1)
    grid = F.affine_grid(matrix, list(x.shape), align_corners=False)
    image = F.grid_sample(x - low, grid, padding_mode="zeros", align_corners=False)
    return image + low


def shuffle_labels(y: Tensor, strength: int, *, seed: int = 0) -> Tensor:
    """Permute outcomes ``y [n]`` of some examples among them, so that how often each occurs stays the same.

    At strength 1 to 5, 20 to 100 % of the examples take part. Some get back the label that they had.

    Example:
        >>> y = torch.arange(10)
        >>> bool((shuffle_labels(y, 1) != y).sum() <= 2), shuffle_labels(y, 5).sort().values.equal(y)
        (True, True)
    """
    stream = generator(seed, "labels")
    chosen = torch.randperm(len(y), generator=stream)[: round(_amount("labels", strength) * len(y))]
    mixed = chosen[torch.randperm(len(chosen), generator=stream)]
    y = y.clone()
    y[chosen.to(y.device)] = y[mixed.to(y.device)]
    return y


def keep_few(index: Tensor, strength: int, *, seed: int = 0) -> Tensor:
    """Keep a random part of a client's examples ``index [n]``, at least one, in their order."""
    share = _amount("few", strength)
    if not len(index):
        return index
    order = torch.randperm(len(index), generator=generator(seed, "few"))
    return index[order[: max(1, round(share * len(index)))].sort().values]


def corrupt_clients(
    data: FederatedData,
    clients: Sequence[int],
    kind: str,
    strength: int,
    *,
    seed: int = 0,
    limits: Limits = _IMAGE,
) -> FederatedData:
    """Corrupt training and validation examples of some clients, in a copy; test examples stay as they are.

    Both come from the same source, so both are corrupted: a client whose labels are wrong has no right ones to
    check itself with. Kind ``"few"`` leaves all validation examples; a table has no ``"blur"`` and no
    ``"rotation"``. Each client has a stream of random numbers of its own. Limits are those of `corrupt_images`.

    Example:
        >>> from pyro_pfedbayes.data.datasets import load_dataset
        >>> from pyro_pfedbayes.data.partitions.schemes import partition_labels
        >>> digits = load_dataset("digits")
        >>> clean = FederatedData(digits, partition_labels(digits, 10, 5, 15, 15))
        >>> corrupted = corrupt_clients(clean, [3], "labels", 5)
        >>> [bool((corrupted.examples(i)[1] == clean.examples(i)[1]).all()) for i in (2, 3)]
        [True, False]
    """
    _check_kind(kind, CORRUPTIONS)
    data.check_clients(clients, " to corrupt")
    dataset, partition = data.dataset, data.partition
    if kind in ("blur", "rotation") and dataset.x.ndim != 4:
        raise UserError(f"{dataset.name} is a table: it has no {kind}; give labels, few or noise")
    train = list(partition.train)
    x, y = dataset.x.clone(), dataset.y.clone()
    for client in sorted(set(clients)):
        own = seed_for(seed, "corruption", client)
        index = torch.cat([partition.train[client], partition.validation[client]])
        if kind == "few":
            train[client] = keep_few(train[client], strength, seed=own)
        elif kind == "labels":
            y[index] = shuffle_labels(y[index], strength, seed=own)
        elif x.ndim == 4:
            x[index] = corrupt_images(x[index], kind, strength, seed=own, limits=limits)
        else:
            x[index] = add_noise(x[index], strength, seed=own, limits=None)
    partition = dataclasses.replace(partition, train=tuple(train))
    return FederatedData(dataclasses.replace(dataset, x=x, y=y), partition)


def _check_kind(kind: str, kinds: tuple[str, ...], of: str = "") -> None:
    if kind not in kinds:
        hint = nearest(kind, kinds)
        raise UserError(
            f"there is no corruption {kind!r}{of}{hint}; give one of {', '.join(kinds)}"
        )


def _amount(kind: str, strength: int) -> float:
    if isinstance(strength, bool) or strength not in range(1, 6):
        raise UserError(f"strength is {strength!r}; it must be a whole number from 1 to 5")
    return STRENGTHS[kind][int(strength) - 1]


def _check_images(x: Tensor) -> None:
    if x.ndim != 4 or not x.is_floating_point():
        raise UserError(f"images must be floats [n, C, H, W], not {x.dtype} {list(x.shape)}")


def _checked(limits: Limits) -> Limits:
    low, high = limits
    if not low < high:
        raise UserError(
            f"limits are {limits}; give the values of black and white, the lower one first"
        )
    return low, high
