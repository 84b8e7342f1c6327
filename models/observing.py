"""What a program says about observations: the distribution at site ``y``, and what kind of thing it is over."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.poutine.messenger import Messenger
from torch import Tensor

from pyro_pfedbayes.models.declared import Outcome
from pyro_pfedbayes.models.sites import OBSERVATION, site_trace

__all__ = ["Unmasked", "class_probabilities", "observed", "outcome_of"]

MAX_CLASSES = 1_000


def observed(
    program: Callable[..., Any], values: Mapping[str, Tensor], x: Tensor
) -> dist.TorchDistribution:
    """The distribution at site ``y`` when a program runs with some of its sites given.

    Args:
        program: ``program(x, y)``.
        values: Of sites, in their own coordinates; the others are drawn.
        x: Inputs ``[n, *features]``.
    """
    given = poutine.condition(program, data=dict(values)) if values else program
    fn: dist.TorchDistribution = site_trace(given, x, None)[OBSERVATION]["fn"]
    return fn


class Unmasked(Messenger):  # type: ignore[misc]
    """Let only some rows of the observation count.

    Args:
        known: True for those ``[b]``.
    """

    def __init__(self, known: Tensor) -> None:
        super().__init__()
        self._known = known

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        if msg["name"] == OBSERVATION:
            msg["mask"] = self._known if msg["mask"] is None else self._known & msg["mask"]


def outcome_of(fn: dist.TorchDistribution) -> Outcome:
    """Whether a distribution is over classes 0 … C - 1 or over numbers."""
    if not fn.has_enumerate_support:
        return "number"
    support = fn.enumerate_support(expand=False).reshape(-1)
    plain = torch.arange(len(support), dtype=support.dtype)
    return "class" if len(support) <= MAX_CLASSES and torch.equal(support, plain) else "number"


def class_probabilities(fn: dist.TorchDistribution) -> Tensor:
    """Probabilities ``[..., n, C]`` of classes 0 … C - 1 under a distribution with batch shape ``[..., n]``."""
    if isinstance(fn, dist.Categorical):
        # A plate expands what its rows share; callers may add to what they get in place.
        probs: Tensor = fn.probs.contiguous()
        return probs
    by_class: Tensor = fn.log_prob(fn.enumerate_support(expand=True)).exp()
    return by_class.movedim(0, -1)
