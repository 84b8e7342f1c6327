"""Roles: which weights the clients share, which they keep, and which are no random variables at all."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import pyro.distributions as dist

from pyro_pfedbayes.errors import UserError, nearest

PriorSpec: TypeAlias = dist.TorchDistribution | Callable[[], dist.TorchDistribution]
"""A prior of one scalar weight: a distribution, or a function that returns one and may itself sample (hierarchical)."""


@dataclass(frozen=True)
class Role:
    """What becomes of a weight in a federation.

    ``"shared"``: the server's w is its prior, and q^i is sent to the server (the paper); ``"private"``: it has a prior
    of its own and never leaves the client; ``"point"``: one number, no distribution, averaged by the server, in
    personal rounds a client's own.
    """

    kind: Literal["shared", "private", "point"]
    prior: PriorSpec | None = None
    """Of a private weight of a network; None for ``Normal(0, 1)``, or for what the program itself says."""


def Private(prior: PriorSpec | None = None) -> Role:  # noqa: N802  (reads as the value it makes)
    """A private role with a prior of its own.

    Args:
        prior: Of each scalar weight. A distribution is a fixed prior; a function that samples further sites makes a
            hierarchical one: ``Private(lambda: dist.Normal(0.0, pyro.sample("tau", dist.HalfNormal(1.0))))``. Those
            sites are shared unless a pattern gives them another role.
    """
    return Role("private", prior)


def assign_roles(names: Iterable[str], roles: Mapping[str, Role | str] | None) -> dict[str, Role]:
    """The role of each site, by name pattern (``*``, ``?`` and ``[…]`` as in a shell); other sites are shared."""
    if roles is not None and not isinstance(roles, Mapping):
        raise UserError(
            f"roles is {roles!r}; give roles by name pattern, such as {{'head.*': 'private'}}"
        )
    names = list(names)
    owner: dict[str, str] = {}
    found = dict.fromkeys(names, Role("shared"))
    for pattern, given in (roles or {}).items():
        role = _role(given, pattern)
        matched = [name for name in names if fnmatch.fnmatchcase(name, pattern)]
        if not matched:
            known = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
            raise UserError(
                f"roles: pattern {pattern!r} matches no site{nearest(pattern, names)} (there are: {known})"
            )
        for name in matched:
            if name in owner:
                raise UserError(
                    f"roles: site {name!r} is matched by both {owner[name]!r} and {pattern!r}; leave one"
                )
            owner[name], found[name] = pattern, role
    return found


def _role(given: Role | str, pattern: str) -> Role:
    if isinstance(given, Role):
        return given
    kinds = ("shared", "private", "point")
    if given not in kinds:
        hint = nearest(str(given), kinds)
        raise UserError(
            f"roles: {pattern!r} is {given!r}{hint}; give one of {', '.join(kinds)}, or a Role"
        )
    return Role(given)  # type: ignore[arg-type]
