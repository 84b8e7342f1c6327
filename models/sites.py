"""Finding the latent sites of a program, and the unconstrained coordinates they are learnt in."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.distributions import constraints
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.distributions import biject_to

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.models.settings import pyro_local
from pyro_pfedbayes.randomness import seed_for

OBSERVATION = "y"
"""Name of the observed site."""

PROTOTYPES = 31


@dataclass(frozen=True)
class Site:
    """One latent site."""

    shape: tuple[int, ...]  # of its value in unconstrained coordinates
    event_dim: int  # how many of these dimensions are one event; the others belong to plates
    # From unconstrained coordinates to its own; None for the identity
    transform: dist.transforms.Transform | None


def site_trace(program: Callable[..., Any], *args: Any) -> dict[str, dict[str, Any]]:
    """The sample sites of one run of a program, by name, without plates' own and without deterministic ones."""
    try:
        with pyro_local(), _NoParameters():
            trace = poutine.trace(program).get_trace(*args)
    except UserError as problem:
        raise UserError(plain_reason(problem)) from problem
    return {
        name: node
        for name, node in trace.nodes.items()
        if node["type"] == "sample" and not is_bookkeeping(node)
    }


def plain_reason(problem: Exception) -> str:
    """What a program raised, without the table of shapes that Pyro adds to it."""
    return str(problem).partition("Trace Shapes")[0].strip()


class _NoParameters(Messenger):  # type: ignore[misc]
    """Refuse ``pyro.param`` before it reaches Pyro's global store."""

    def _pyro_param(self, msg: dict[str, Any]) -> None:
        raise UserError(
            f"pyro.param {msg['name']!r} would not be learnt; make it a pyro.sample site, with role 'point' if it "
            "is to be one number"
        )


def is_bookkeeping(message: Mapping[str, Any]) -> bool:
    """Whether a sample site has no density: a plate's own, or ``pyro.deterministic``."""
    subsample = type(message["fn"]).__name__ == "_Subsample"
    return subsample or bool(message["infer"] and message["infer"].get("_deterministic"))


def find_sites(nodes: Mapping[str, Mapping[str, Any]]) -> dict[str, Site]:
    """The latent sites of a trace."""
    found: dict[str, Site] = {}
    for name, node in nodes.items():
        if name == OBSERVATION or node["is_observed"]:
            continue
        support = support_of(node["fn"])
        if support.is_discrete:
            raise UserError(
                f"site {name!r} is discrete ({type(_base(node['fn'])).__name__}); a variational posterior needs "
                "continuous sites: sum it out in the likelihood"
            )
        try:
            transform = biject_to(support)
        except NotImplementedError:
            raise UserError(
                f"site {name!r}: there is no transform to its support {support}; sample it from another family"
            ) from None
        value = node["value"]
        if is_real(support):
            found[name] = Site(tuple(value.shape), node["fn"].event_dim, None)
            continue
        free = transform.inv(value)
        extra = transform.domain.event_dim - transform.codomain.event_dim
        found[name] = Site(tuple(free.shape), node["fn"].event_dim + extra, transform)
    if not found:
        raise UserError(
            "the program samples no latent site: there is nothing to learn; give it a pyro.sample without obs"
        )
    return found


class HasSites:
    """What a model says about its latent sites."""

    sites: Mapping[str, Site]

    def transform(self, name: str) -> dist.transforms.Transform | None:
        """From unconstrained coordinates to a site's own; None for the identity."""
        return self.sites[name].transform

    def event_dim(self, name: str) -> int:
        """Dimensions of a site that are one event."""
        return self.sites[name].event_dim

    def constrain(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Site values from unconstrained coordinates."""
        sites = self.sites
        return {
            name: value if (transform := sites[name].transform) is None else transform(value)
            for name, value in values.items()
        }


def typical_values(
    program: Callable[..., Any], args: tuple[Any, ...], sites: Mapping[str, Site], seed: int
) -> dict[str, Tensor]:
    """Unconstrained coordinates of a typical draw from the program's own priors: their medians, coordinate-wise."""
    draws: dict[str, list[Tensor]] = {name: [] for name in sites}
    with seeded(seed_for(seed, "prototype")):
        for _ in range(PROTOTYPES):
            nodes = site_trace(program, *args)
            for name, site in sites.items():
                value = nodes[name]["value"]
                draws[name].append(value if site.transform is None else site.transform.inv(value))
    return {name: torch.stack(values).median(0).values.detach() for name, values in draws.items()}


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Let Pyro draw from a stream of its own; PyTorch's global one is left as it was."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
    with torch.random.fork_rng(devices=list(devices)):
        torch.manual_seed(seed)
        yield


def support_of(fn: Any) -> Any:
    """Where a distribution lives; a mixture lives where its components do."""
    inner, dims = fn, 0
    while isinstance(inner, dist.Independent):
        inner, dims = inner.base_dist, dims + inner.reinterpreted_batch_ndims
    if not isinstance(inner, dist.MixtureSameFamily):
        return fn.support
    support = inner._component_distribution.support
    return constraints.independent(support, dims) if dims else support


def _base(fn: Any) -> Any:
    while hasattr(fn, "base_dist"):
        fn = fn.base_dist
    return fn


def is_real(support: Any) -> bool:
    """Whether a constraint lets every real number pass."""
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    return support is constraints.real or support is constraints.real_vector
