"""Ordered classes, by a cumulative logit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.models.likelihoods.base import ClassLikelihood, check_positive


def ordinal_logits(location: Tensor, cutpoints: Tensor) -> Tensor:
    """Log-probabilities of ordered classes under the cumulative logit model (McCullagh 1980).

    ``P(y <= c) = 1 / (1 + exp(-(cut_c - f)))``. A class between two cutpoints a < b has the difference of two such
    values, here as ``log σ(b - f) + log σ(f - a) + log(1 - exp(a - b))``, which keeps its precision where both are
    nearly 0 or 1.

    Args:
        location: f ``[..., n]``.
        cutpoints: Increasing, ``[..., C - 1]``; leading dimensions broadcast with those of ``location``.

    Returns:
        ``[..., n, C]``, in nats.

    Example:
        >>> ordinal_logits(torch.zeros(1), torch.tensor([-1.0, 1.0])).exp()
        tensor([[0.2689, 0.4621, 0.2689]])
    """
    cutpoints = cutpoints[..., None, :]
    below = F.logsigmoid(cutpoints - location[..., None])
    above = F.logsigmoid(location[..., None] - cutpoints)
    gaps = torch.log(-torch.expm1(cutpoints[..., :-1] - cutpoints[..., 1:]))
    between = below[..., 1:] + above[..., :-1] + gaps
    return torch.cat([below[..., :1], between, above[..., -1:]], -1)


@dataclass(frozen=True)
class Ordinal(ClassLikelihood):
    """One of ordered classes, such as grades; the network's one output is a score, cut by fixed points.

    ``P(y <= c | f) = 1 / (1 + exp(-(cut_c - f))),  c = 0 … C - 2``

    One score for all classes: the odds of exceeding a class grow by the same factor at every cutpoint (proportional
    odds). For cutpoints that are learnt, see ``pyro_pfedbayes.models.builtin.ordinal``.

    Args:
        num_classes: C, at least 2.
        cutpoints: C - 1 increasing numbers; None for evenly spaced ones, centred at 0.
        spacing: Distance of evenly spaced cutpoints.
        missing: ``"refuse"`` or ``"mask"`` labels of -1.

    Example:
        >>> Ordinal(4).cuts
        (-1.0, 0.0, 1.0)
        >>> Ordinal(3, cutpoints=(-1.0, 1.0)).predict(torch.zeros(1, 1))
        tensor([[0.2689, 0.4621, 0.2689]])
    """

    cutpoints: Sequence[float] | None = field(default=None, kw_only=True)
    spacing: float = field(default=1.0, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("Ordinal", spacing=self.spacing)
        if self.cutpoints is None:
            return
        cuts = tuple(float(cut) for cut in self.cutpoints)
        increasing = all(a < b for a, b in pairwise((float("-inf"), *cuts, float("inf"))))
        if len(cuts) != self.num_classes - 1 or not increasing:
            raise UserError(
                f"Ordinal: cutpoints are {cuts}; {self.num_classes} classes want "
                f"{self.num_classes - 1} finite, increasing numbers"
            )
        # A list would make a frozen object that can change, and that cannot be hashed.
        object.__setattr__(self, "cutpoints", cuts)

    @property
    def cuts(self) -> tuple[float, ...]:
        """The C - 1 cutpoints."""
        if self.cutpoints is not None:
            return tuple(self.cutpoints)
        middle = (self.num_classes - 2) / 2
        return tuple(self.spacing * (c - middle) for c in range(self.num_classes - 1))

    def logits(self, outputs: Tensor) -> Tensor:
        """Log-probabilities ``[..., n, C]``."""
        cuts = torch.tensor(self.cuts, dtype=outputs.dtype, device=outputs.device)
        return ordinal_logits(outputs[..., 0], cuts)

    def predict(self, outputs: Tensor, exposure: Tensor | None = None) -> Tensor:
        """Class probabilities ``[..., n, C]``."""
        return self.logits(outputs).exp()
