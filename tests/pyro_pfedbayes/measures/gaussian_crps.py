"""The CRPS of a Gaussian mixture in closed form (Grimit et al. 2006, equation 4): what draws are held to."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def crps_gaussian_mixture(loc: Tensor, scale: Tensor, y: Tensor) -> Tensor:
    """Of the equal mixture of K Gaussians ``[K, n]`` at ``y [n]``; a scale of 0 is a point."""
    loc, scale, y = loc.double(), scale.double(), y.double()
    spread = sum(
        _mean_size(loc - m, torch.hypot(scale, s)).mean(0) for m, s in zip(loc, scale, strict=True)
    )
    return _mean_size(y - loc, scale).mean(0) - spread / (2 * len(loc))


def _mean_size(mean: Tensor, deviation: Tensor) -> Tensor:
    """The mean of |N(mean, deviation²)|."""
    safe = deviation.where(deviation > 0, torch.ones_like(deviation))
    z = mean / safe
    density = (-0.5 * z.square()).exp() / math.sqrt(2 * math.pi)
    size = 2 * safe * density + mean * torch.erf(z / math.sqrt(2))
    return size.where(deviation > 0, mean.abs())
