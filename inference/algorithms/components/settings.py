"""Checks of a method's settings that every method needs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Literal, get_args, get_origin, get_type_hints

from pyro_pfedbayes.errors import UserError, nearest
from pyro_pfedbayes.families import ELEMENTWISE, MeanFieldNormal
from pyro_pfedbayes.inference.beliefs.sites import parameter_names
from pyro_pfedbayes.models.declared import DeclaredModel


def check_settings(
    settings: Any, *, positive: Iterable[str] = (), least: Mapping[str, int] | None = None
) -> None:
    """Check the fields of a dataclass of settings.

    Args:
        settings: The instance; fields declared as a ``Literal`` must hold one of its values.
        positive: Fields that must be finite and above 0, or None.
        least: Fields that must be at least so much, and whole numbers from 1 on.
    """
    for field in positive:
        value = getattr(settings, field)
        if value is not None and not 0 < value < float("inf"):
            raise UserError(f"{field} is {value}; it must be a positive number")
    for field, minimum in (least or {}).items():
        value = getattr(settings, field)
        if value is None:
            continue
        if value < minimum:
            raise UserError(f"{field} is {value}; it must be at least {minimum}")
        if value >= 1 and value != int(value):
            raise UserError(f"{field} is {value}; it must be a whole number")
    hints = get_type_hints(type(settings))
    for field in (each.name for each in dataclasses.fields(settings)):
        value, options = getattr(settings, field), _options(hints[field])
        if isinstance(value, str) and options and value not in options:
            raise UserError(
                f"{field} is {value!r}{nearest(value, options)}; give one of {', '.join(options)}"
            )


def check_families(model: DeclaredModel, kinds: int, server_rule: str, screening: str) -> None:
    """Check that a model's families are such as the settings of pFedBayes can work with."""
    declared = model.declaration
    independent = isinstance(declared.server, ELEMENTWISE) and isinstance(
        declared.guide, MeanFieldNormal
    )
    if not parameter_names(model):
        raise UserError(
            "every site is private: clients would learn nothing from each other; share at least one"
        )
    gradient = server_rule == "gradient"
    if kinds > 1 and declared.shared.shapes and not independent:
        raise UserError(
            f"kinds is {kinds}, which needs families of independent weights, not server "
            f"{declared.server.name!r} and guide {declared.guide.name!r}; set kinds to 1"
        )
    if gradient and not (declared.mean_field and declared.shared.shapes):
        raise UserError(
            "server_rule 'gradient' needs shared weights and mean-field Gaussians, not server "
            f"{declared.server.name!r} and guide {declared.guide.name!r}; use 'closed-form'"
        )
    if screening == "information-gain" and not (declared.mean_field and declared.shared.shapes):
        raise UserError(
            "screening 'information-gain' needs shared weights and mean-field Gaussians, not server "
            f"{declared.server.name!r} and guide {declared.guide.name!r}; use 'held-out'"
        )


def _options(hint: Any) -> tuple[Any, ...]:
    """The values of a ``Literal``, possibly one of ``Literal | None``."""
    found: list[Any] = []
    for part in get_args(hint):
        found += _options(part) if get_origin(part) is Literal else [part]
    return tuple(value for value in found if isinstance(value, str))
