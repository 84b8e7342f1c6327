"""Checks of a method's settings that every method needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, get_args, get_type_hints

from pyro_pfedbayes.errors import UserError, nearest

__all__ = ["check_settings"]


def check_settings(
    settings: Any, *, positive: Iterable[str] = (), least: Mapping[str, int] | None = None
) -> None:
    """Check the fields of a dataclass of settings.

    Args:
        settings: The instance; fields declared as a ``Literal`` must hold one of its values.
        positive: Fields that must be finite and above 0, or None.
        least: Fields that must be at least so much, and whole numbers from 1 on.

    Raises:
        UserError: A setting out of range, named with the range.
    """
    for field in positive:
        value = getattr(settings, field)
        if value is not None and not 0 < value < float("inf"):
            raise UserError(f"{field} is {value}; it must be a positive number")
    for field, minimum in (least or {}).items():
        value = getattr(settings, field)
        if value < minimum:
            raise UserError(f"{field} is {value}; it must be at least {minimum}")
        if value >= 1 and value != int(value):
            raise UserError(f"{field} is {value}; it must be a whole number")
    for field, hint in get_type_hints(type(settings)).items():
        value, options = getattr(settings, field), get_args(hint)
        if isinstance(value, str) and value not in options:
            raise UserError(
                f"{field} is {value!r}{nearest(value, options)}; give one of {', '.join(options)}"
            )
