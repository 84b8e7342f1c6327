"""Networks whose weights the beliefs are about.

A network here is an ordinary ``torch.nn.Module`` and holds no belief: the weights that it is called with
come from a Pyro model. Its own parameters serve twice, as the names and shapes of the weights and as the
mean of the server's first Gaussian.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn

from pyro_pfedbayes.errors import UserError

VGG_SMALL: tuple[int | str, ...] = (16, "M", 32, "M", 64, "M", 128, "M", 128, "M")
"""Channel plan of the paper's CIFAR-10 network (Zhang et al. 2022, section 5.1); ``"M"`` is a max-pool."""


def mlp(sizes: Sequence[int], *, seed: int = 0) -> nn.Sequential:
    """Fully connected network with ReLU between its layers.

    Args:
        sizes: Units of the input, of each hidden layer and of the output; the paper's MNIST network
            is ``[784, 100, 10]``.
        seed: Seed of the initial weights (He et al. 2015 for ReLU layers, zero biases).

    Returns:
        A module from inputs ``[n, *features]`` (flattened to ``[n, sizes[0]]``) to outputs
        ``[n, sizes[-1]]``. Layers are named ``fc1``, ``fc2``, … and the last one ``head``.

    Raises:
        UserError: Fewer than two sizes, or a size below one.

    Example:
        >>> net = mlp([784, 100, 10])
        >>> sorted(name for name, _ in net.named_parameters())
        ['fc1.bias', 'fc1.weight', 'head.bias', 'head.weight']
        >>> net(torch.zeros(3, 1, 28, 28)).shape
        torch.Size([3, 10])
    """
    if len(sizes) < 2 or min(sizes) < 1:
        raise UserError(
            f"mlp: sizes {list(sizes)} must name at least an input and an output, all >= 1"
        )
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    for depth, (fan_in, fan_out) in enumerate(pairwise(sizes[:-1]), start=1):
        layers[f"fc{depth}"] = nn.Linear(fan_in, fan_out)
        layers[f"relu{depth}"] = nn.ReLU()
    layers["head"] = nn.Linear(sizes[-2], sizes[-1])
    return _he_initialised(nn.Sequential(layers), seed)


def vgg(
    config: Sequence[int | str] = VGG_SMALL,
    *,
    in_channels: int = 3,
    num_classes: int = 10,
    image_size: int = 32,
    seed: int = 0,
) -> nn.Sequential:
    """Convolutional network in the style of VGG (Simonyan & Zisserman 2014), without batch norm.

    Batch statistics would make one example's output depend on the others of its batch, which no
    likelihood of independent observations allows.

    Args:
        config: 3x3 convolutions by number of channels, and ``"M"`` for a 2x2 max-pool.
        in_channels: Channels of the images.
        num_classes: Outputs.
        image_size: Height and width of the images in pixels.
        seed: Seed of the initial weights.

    Returns:
        A module from images ``[n, in_channels, image_size, image_size]`` to outputs ``[n, num_classes]``.
        Layers are named ``conv1``, ``conv2``, … and the last one ``head``.

    Raises:
        UserError: An entry that is neither a positive number nor ``"M"``, or more pools than
            the image has halvings.

    Example:
        >>> vgg()(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    channels, size, depth = in_channels, image_size, 0
    for entry in config:
        if entry == "M":
            size //= 2
            if size < 1:
                raise UserError(
                    f"vgg: {list(config)} pools {image_size}x{image_size} images to nothing"
                )
            layers[f"pool{depth}"] = nn.MaxPool2d(2)
        elif isinstance(entry, int) and entry > 0:
            depth += 1
            layers[f"conv{depth}"] = nn.Conv2d(channels, entry, kernel_size=3, padding=1)
            layers[f"relu{depth}"] = nn.ReLU()
            channels = entry
        else:
            raise UserError(
                f"vgg: {entry!r} in {list(config)} is neither a number of channels nor 'M'"
            )
    layers["flatten"] = nn.Flatten()
    layers["head"] = nn.Linear(channels * size * size, num_classes)
    return _he_initialised(nn.Sequential(layers), seed)


def _he_initialised(network: nn.Sequential, seed: int) -> nn.Sequential:
    stream = torch.Generator().manual_seed(seed)
    for layer in network:
        if isinstance(layer, nn.Linear | nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu", generator=stream)
            assert layer.bias is not None
            nn.init.zeros_(layer.bias)
    return network
