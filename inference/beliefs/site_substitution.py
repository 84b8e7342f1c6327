"""The handler that runs a client's program in the coordinates and with the scales of the engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyro.distributions as dist
from pyro.poutine.messenger import Messenger
from torch import Tensor

from pyro_pfedbayes.inference.objective.estimators import LayerNoise
from pyro_pfedbayes.models.declared import DeclaredModel
from pyro_pfedbayes.models.sites import OBSERVATION, is_bookkeeping


class SiteSubstitution(Messenger):  # type: ignore[misc]
    """Run a client's program in unconstrained coordinates, with some of its sites given.

    Sites take the unconstrained values ``given`` and are no random variables of the program any more; log-densities of
    other latent sites are multiplied by ``zeta``, the log-likelihood of the rows in ``mask [b]`` by ``data_scale``;
    ``layers`` learns which values weights have (None for plain draws).
    """

    def __init__(
        self,
        model: DeclaredModel,
        given: Mapping[str, Tensor],
        zeta: Tensor,
        data_scale: Tensor,
        mask: Tensor | None,
        layers: LayerNoise | None = None,
    ) -> None:
        super().__init__()
        self._model, self._given = model, given
        self._zeta, self._data_scale, self._mask = zeta, data_scale, mask
        self._layers = layers

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        name = msg["name"]
        if _foreign(msg):
            return
        if self._layers is not None:
            self._layers.see_parameters(msg["fn"])
        if msg["is_observed"]:
            msg["scale"] = msg["scale"] * self._data_scale
            if self._mask is not None:
                msg["mask"] = self._mask if msg["mask"] is None else self._mask & msg["mask"]
            return
        if name in self._given:
            msg["value"] = self._own(name, self._given[name])
            # Hidden from every handler outside: the density is accounted for where the value came from.
            msg["done"] = msg["stop"] = True
            return
        transform = self._model.transform(name)
        if transform is not None:
            msg["fn"] = dist.TransformedDistribution(msg["fn"], transform.inv)
        msg["scale"] = msg["scale"] * self._zeta

    def _pyro_post_sample(self, msg: dict[str, Any]) -> None:
        # A trace outside has recorded the unconstrained value by now; the program sees the site's own.
        if not msg["is_observed"] and not msg["stop"] and not _foreign(msg):
            msg["value"] = self._own(msg["name"], msg["value"])

    def _own(self, name: str, free: Tensor) -> Tensor:
        transform = self._model.transform(name)
        if transform is not None:
            value: Tensor = transform(free)
            return value
        if self._layers is not None:
            self._layers.register(name, free)
        return free


def _foreign(msg: Mapping[str, Any]) -> bool:
    """Whether a message has no density here: bookkeeping, or an observation that is drawn."""
    drawn = msg["name"] == OBSERVATION and not msg["is_observed"]
    return drawn or is_bookkeeping(msg)
