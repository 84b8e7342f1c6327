"""The evidence lower bound, computing only what the loss reads and saying what each client's share is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.distributions.util import scale_and_mask
from pyro.infer import TraceMeanField_ELBO
from pyro.poutine.trace_struct import Trace
from torch import Tensor

from pyro_pfedbayes.families.divergence import divergence
from pyro_pfedbayes.models.sites import is_bookkeeping


class ClientELBO(TraceMeanField_ELBO):  # type: ignore[misc]
    """``TraceMeanField_ELBO`` that returns one loss a client and skips unused log-densities.

    Pyro's own class computes the log-density of every weight under model and guide and then discards it wherever
    the KL divergence is closed. Here it is not computed. The loss and its gradients are equal; sites without a
    closed form fall back to one Monte Carlo term, as in Pyro.

    Use it as Pyro's: ``ClientELBO()(model, guide)`` or in ``pyro.infer.SVI``. `client_losses` needs every site in
    the ``client`` plate.
    """

    def client_losses(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> Tensor:
        """Negative ELBO of each client, ``[N]`` in nats, averaged over ``num_particles`` draws."""
        losses: list[Any] = [
            sum(_terms(model, guide, args, kwargs)) for _ in range(self.num_particles)
        ]
        total: Tensor = sum(losses)
        return total / self.num_particles if self.num_particles > 1 else total

    def total_loss(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> Tensor:
        """Negative ELBO of one draw, everything summed, a scalar in nats; for the program of one client."""
        terms = [term.sum() for term in _terms(model, guide, args, kwargs)]
        return torch.stack(terms).sum()

    def differentiable_loss(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> Tensor:
        """Negative ELBO summed over clients, a scalar in nats."""
        return self.client_losses(model, guide, *args, **kwargs).sum()

    def loss(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> float:
        """Negative ELBO summed over clients, without gradients."""
        with torch.no_grad():
            return float(self.differentiable_loss(model, guide, *args, **kwargs))

    def loss_and_grads(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> float:
        """Negative ELBO summed over clients; its gradients are added to the parameters' ``.grad``."""
        loss = self.differentiable_loss(model, guide, *args, **kwargs)
        if loss.requires_grad:
            loss.backward()
        return float(loss.detach())


def _terms(
    model: Any, guide: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Iterator[Tensor]:
    """What adds up to the negative ELBO of one draw, a term a site, each with its batch shape."""
    guide_trace = poutine.trace(guide).get_trace(*args, **kwargs)
    model_trace = poutine.trace(poutine.replay(model, trace=guide_trace)).get_trace(*args, **kwargs)
    validate = pyro.settings.get("validate_infer")
    for name, site in model_trace.nodes.items():
        if not _is_random(site):
            continue
        if site["is_observed"]:
            yield -_log_prob(model_trace, name)
        elif validate and name not in guide_trace.nodes:
            raise ValueError(f"site {name!r} is in the model and not in the guide")
        else:
            yield _divergence(model_trace, guide_trace, name)
    for name, site in guide_trace.nodes.items():
        if _is_random(site) and name not in model_trace.nodes:
            yield _log_prob(guide_trace, name)


def _divergence(model_trace: Trace, guide_trace: Trace, name: str) -> Tensor:
    q, p = guide_trace.nodes[name], model_trace.nodes[name]
    try:
        closed = divergence(q["fn"], p["fn"])
    except NotImplementedError:
        return _log_prob(guide_trace, name) - _log_prob(model_trace, name)
    term: Tensor = scale_and_mask(closed, q["scale"], q["mask"])
    return term


def _log_prob(trace: Trace, name: str) -> Tensor:
    trace.compute_log_prob(lambda candidate, _: candidate == name)
    return trace.nodes[name]["log_prob"]  # type: ignore[no-any-return]


def _is_random(site: Any) -> bool:
    return site["type"] == "sample" and not is_bookkeeping(site)
