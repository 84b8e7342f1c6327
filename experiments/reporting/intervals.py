"""95 % intervals of pooled measures, at a price that does not grow beyond bounds with the number of examples."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from pyro_pfedbayes.experiments.reporting.data import Estimate
from pyro_pfedbayes.resampling import bootstrap

__all__ = ["drawn_over", "pooled_mean"]

RESAMPLES = 1_000
_ROWS = 40_000_000  # resampled examples beyond which whole clients are drawn instead


def drawn_over(owner: Tensor) -> Literal["examples", "clients", "both"]:
    """What intervals of examples that belong to ``owner`` ``[n]`` are drawn over.

    Clients, and examples within them; of very many examples whole clients only, which is as good where each client has
    many; examples if there is one client.
    """
    if len(torch.unique(owner)) < 2:
        return "examples"
    return "both" if len(owner) * RESAMPLES <= _ROWS else "clients"


def pooled_mean(
    values: Tensor, owner: Tensor, then: Callable[[float], float] = lambda value: value
) -> Estimate:
    """Mean of ``values [n]`` and its interval, both put through a growing function such as the root.

    Example:
        >>> pooled_mean(torch.tensor([4.0, 4.0]), torch.tensor([0, 1]), math.sqrt)
        Estimate(value=2.0, lower=2.0, upper=2.0)
    """
    if not len(values) or not bool(values.isfinite().all()):
        value = float(values.mean()) if len(values) else math.nan
        return Estimate(value if math.isnan(value) else then(value))
    over = drawn_over(owner)
    resamples = min(RESAMPLES, max(100, _ROWS // len(values))) if over == "examples" else RESAMPLES
    found = bootstrap(values, owner, over=over, resamples=resamples)
    ends = (dataclasses.astuple(found))[:3]
    return Estimate(*(end if math.isnan(end) else then(end) for end in ends))
