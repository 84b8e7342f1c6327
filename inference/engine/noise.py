"""The standard normal noise of reparameterized draws: where it comes from, and the handler that feeds it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyro.distributions as dist
import torch
from pyro.poutine.messenger import Messenger
from torch import Tensor

from pyro_pfedbayes.randomness import generator


class Noise(Messenger):  # type: ignore[misc]
    """Make ``Normal`` sites take the value ``loc + scale * eps`` with the eps given, differentiably.

    With it a run is a function of its noise: the same eps gives the same step, whoever draws it. Sites without
    an entry, observed sites and sites of another family are left alone.
    """

    def __init__(self, eps: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.eps = eps

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        if msg["is_observed"] or msg["done"] or msg["name"] not in self.eps:
            return
        base = msg["fn"]
        while isinstance(base, dist.Independent):
            base = base.base_dist
        if isinstance(base, dist.Normal):
            msg["value"] = base.loc + base.scale * self.eps[msg["name"]]
            msg["done"] = True


class NoiseStreams:
    """Noise of a cohort's steps, a stream a client and round, so that no client's noise depends on the others.

    A step takes ``draws`` K of ``width`` E numbers a client, multiplied by ``scale``, of the dtype and device of
    ``like``.
    """

    def __init__(
        self,
        seed: int,
        round: int,
        clients: Sequence[int],
        draws: int,
        *,
        width: int,
        like: Tensor,
        scale: float = 1.0,
    ) -> None:
        self._streams = [
            generator(seed, "noise", round, client, device=like.device) for client in clients
        ]
        self._buffer = like.new_empty(draws, len(clients), width)
        self._scale = scale

    def draw(self) -> Tensor:
        """The next noise ``[K, S, E]``; the following call overwrites it."""
        for row, stream in enumerate(self._streams):
            for one in self._buffer:
                torch.randn(one[row].shape, generator=stream, out=one[row])
        if self._scale != 1.0:
            self._buffer *= self._scale
        return self._buffer
