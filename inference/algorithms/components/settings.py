"""Limits of settings, declared with their types, and the check that every method makes of its own."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from pyro_pfedbayes.errors import UserError, nearest
from pyro_pfedbayes.families import ELEMENTWISE, MeanFieldNormal
from pyro_pfedbayes.inference.beliefs.sites import parameter_names
from pyro_pfedbayes.models.declared import DeclaredModel

Positive = Annotated[float, "(0, inf)"]
NonNegative = Annotated[float, "[0, inf)"]
Count = Annotated[int, 1]
"""A whole number from 1 on."""

_WORDS = {"(0, inf)": "be a positive number", "[0, inf)": "be a number >= 0"}


def check_settings(settings: Any) -> None:
    """Refuse settings of a dataclass outside the limits of their types; None is always inside.

    Limits are the values of a ``Literal``, an interval as the metadata of ``Annotated``, or a least value there, which
    also asks for a whole number from 1 on.
    """
    hints = get_type_hints(type(settings), include_extras=True)
    for field in (each.name for each in dataclasses.fields(settings)):
        value = getattr(settings, field)
        for limit in () if value is None else _limits(hints[field]):
            if isinstance(limit, tuple):
                if value not in limit:
                    known = f"{nearest(str(value), limit)}; give one of {', '.join(limit)}"
                    raise UserError(f"{field} is {value!r}{known}")
            elif isinstance(limit, str):
                if not _inside(value, limit):
                    words = _WORDS.get(limit, f"lie in {limit}")
                    raise UserError(f"{field} is {value}; it must {words}")
            elif value < limit:
                raise UserError(f"{field} is {value}; it must be at least {limit}")
            elif value >= 1 and value % 1 != 0:
                raise UserError(f"{field} is {value}; it must be a whole number")


def check_families(model: DeclaredModel, kinds: int, server_rule: str, screening: str) -> None:
    """Refuse families that the settings of pFedBayes cannot work with."""
    declared = model.declaration
    if not parameter_names(model):
        raise UserError(
            "every site is private: clients would learn nothing from each other; share at least one"
        )
    families = f"not server {declared.server.name!r} and guide {declared.guide.name!r}"
    elementwise = isinstance(declared.server, ELEMENTWISE)
    independent = elementwise and isinstance(declared.guide, MeanFieldNormal)
    if kinds > 1 and declared.shared.shapes and not independent:
        raise UserError(
            f"kinds is {kinds}, which needs families of independent weights, {families}; set kinds to 1"
        )
    for name, value, unfit, instead in (
        ("server_rule", server_rule, "gradient", "closed-form"),
        ("screening", screening, "information-gain", "held-out"),
    ):
        if value == unfit and not (declared.mean_field and declared.shared.shapes):
            raise UserError(
                f"{name} {value!r} needs shared weights and mean-field Gaussians, {families}; use {instead!r}"
            )


def _limits(hint: Any) -> list[Any]:
    """The metadata and the tuples of ``Literal`` values that a type is made of."""
    if get_origin(hint) is Literal:
        return [get_args(hint)]
    if get_origin(hint) is Annotated:
        return list(hint.__metadata__)
    return [limit for part in get_args(hint) for limit in _limits(part)]


def _inside(value: float, interval: str) -> bool:
    """Whether a number lies in an interval such as ``"[0, 1)"``."""
    low, high = map(float, interval[1:-1].split(","))
    above = value > low or (interval[0] == "[" and value == low)
    return above and (value < high or (interval[-1] == "]" and value == high))
