"""What the builders of programs share: their checks, and the sites and the plate that most of them have.

All builders take features of any shape, flattened to p numbers (a table, if there is an exposure), and ``missing``:
``"mask"`` leaves out examples whose outcome is not known, ``"refuse"`` takes no such data. Scales of priors are those
of the first round; then the server's w takes the place of shared sites' priors.
"""

from __future__ import annotations

from typing import Literal

import pyro
import pyro.distributions as dist
from torch import Tensor

from pyro_pfedbayes.models.likelihoods.base import check_positive
from pyro_pfedbayes.models.spec import DataSpec


def check(data: DataSpec, outcome: Literal["class", "number"], model: str, **scales: float) -> int:
    """Check the outcome's kind and that scales are positive; returns the number of features p."""
    data.expect(outcome, model)
    check_positive(model, **scales)
    return data.num_features


def normal(name: str, scale: float, *shape: int) -> Tensor:
    """A site of independent Normal(0, scale²) numbers."""
    fn = dist.Normal(0.0, scale).expand(list(shape)).to_event(len(shape))
    value: Tensor = pyro.sample(name, fn)
    return value


def observe(fn: dist.TorchDistribution, y: Tensor | None) -> None:
    """The observation, one row of the data an outcome."""
    with pyro.plate("data", *fn.batch_shape):
        pyro.sample("y", fn, obs=y)
