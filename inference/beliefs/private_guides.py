"""Guides of private sites: what never leaves a client may have any of Pyro's AutoGuides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

import torch
from pyro import poutine
from pyro.infer.autoguide import AutoLaplaceApproximation
from torch import Tensor, nn

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.inference.beliefs.site_substitution import SiteSubstitution
from pyro_pfedbayes.inference.objective.replayed_noise import ReplayedNoise
from pyro_pfedbayes.models.declared import DeclaredModel
from pyro_pfedbayes.models.settings import pyro_local
from pyro_pfedbayes.models.sites import seeded

PRIVATE = "private."
"""How the names of private parameters begin; what begins so is never uploaded."""


class PrivateAutoGuide:
    """A Pyro AutoGuide of the private sites ``names`` as a function of flat parameters, so that clients can be stacked.

    ``make`` makes it, such as the class ``AutoMultivariateNormal``, from ``model``, which runs the private sites in
    unconstrained coordinates on inputs that are nobody's: an AutoGuide remembers the first batch it sees.
    """

    def __init__(self, make: Any, model: Any, names: list[str]) -> None:
        only = poutine.block(model, expose=names)
        try:
            with pyro_local(), seeded(0):
                self.guide: nn.Module = make(only)
                if not isinstance(self.guide, nn.Module):
                    raise UserError(
                        f"private_guide made a {type(self.guide).__name__}; give an AutoGuide class"
                    )
                if isinstance(self.guide, AutoLaplaceApproximation):
                    raise UserError(
                        "private_guide: AutoLaplaceApproximation is a point until a second fit, which a "
                        "federation does not make; use AutoMultivariateNormal"
                    )
                self.guide()
        except UserError:
            raise
        except Exception as problem:
            raise UserError(
                f"private_guide: {getattr(make, '__name__', make)} cannot guide {', '.join(names)}: {problem}"
            ) from problem
        self._names = names
        self._start = {k: p.detach().clone() for k, p in self.guide.named_parameters()}
        if not self._start:
            raise UserError(
                f"private_guide: {getattr(make, '__name__', make)} has no parameters to learn"
            )
        self._keys = {PRIVATE + k.replace("_unconstrained", ""): k for k in self._start}

    def start(self) -> dict[str, Tensor]:
        """Initial parameters by name, flat."""
        return {name: self._start[k].reshape(-1).clone() for name, k in self._keys.items()}

    def sample(self, params: Mapping[str, Tensor]) -> None:
        """Run the guide with parameters given, flat, of one client."""
        tensors = {k: params[name].reshape(self._start[k].shape) for name, k in self._keys.items()}
        torch.func.functional_call(self.guide, tensors, ())

    def values(
        self, params: Mapping[str, Tensor], noise: Tensor | None
    ) -> tuple[dict[str, Tensor], int]:
        """A draw of the private sites, in unconstrained coordinates, and how much noise it took.

        Noise None is zeros, which gives a Gaussian guide's mean.
        """
        with pyro_local(), torch.no_grad(), ReplayedNoise(noise) as replayed:
            trace = poutine.trace(self.sample).get_trace(params)
        return {name: trace.nodes[name]["value"] for name in self._names}, replayed.used


_GUIDES: WeakKeyDictionary[Any, PrivateAutoGuide] = WeakKeyDictionary()


def private_guide(model: DeclaredModel) -> PrivateAutoGuide | None:
    """The AutoGuide that a model declares for its private sites, made once; None if it declares none."""
    declared = model.declaration
    if declared.private_guide is None:
        return None
    if model not in _GUIDES:
        names = list(declared.private.shapes)
        given = {k: v for k, v in model.start.loc.items() if k not in names}

        def unconstrained() -> None:
            one = next(iter(model.start.loc.values())).new_ones(())
            with SiteSubstitution(model, given, one, one, None):
                model.sites_program()

        _GUIDES[model] = PrivateAutoGuide(declared.private_guide, unconstrained, names)
    return _GUIDES[model]
