"""What is wrong with a configuration's values, in words."""

from __future__ import annotations

import typing
from typing import Any, Literal

from pydantic import BaseModel

from pyro_pfedbayes.errors import nearest

__all__ = ["told"]


def told(section: str, schema: type[BaseModel], detail: Any) -> str:
    """One of pydantic's findings in one line for people."""
    key, given = str(detail["loc"][0]), detail["input"]
    place = [part for part in detail["loc"][1:2] if isinstance(part, int)]
    name = f"{section}.{key}" + "".join(f"[{part}]" for part in place)
    if detail["type"] == "extra_forbidden":
        keys = [*schema.model_fields, *(["name"] if section in ("algorithm", "model") else [])]
        hint = nearest(key, keys)
        return f"unknown key '{name}'{hint}" + ("" if hint else f" (known: {', '.join(keys)})")
    field = schema.model_fields[key]
    if field.description is not None:
        return f"{name} is {given!r}; it must be {field.description}"
    if detail["type"] == "literal_error":
        options = [str(option) for option in _options(field.annotation)]
        return f"{name} is {given!r}{nearest(str(given), options)} (give {', '.join(options)})"
    return f"{name} is {given!r}; it must be {_wanted(detail)}"


def _wanted(detail: Any) -> str:
    limits = {
        "greater_than": "above {gt:g}",
        "greater_than_equal": "at least {ge:g}",
        "less_than": "below {lt:g}",
        "int_type": "an integer",
        "float_type": "a number",
        "finite_number": "a finite number",
        "string_type": "a text",
        "list_type": "a list",
    }
    kind = detail["type"]
    if kind in limits:
        return limits[kind].format(**detail.get("ctx", {}))
    return str(detail["msg"]).removeprefix("Input should be ")


def _options(annotation: Any) -> list[Any]:
    """The values of a ``Literal``, possibly one of ``Literal | None``."""
    found: list[Any] = []
    for branch in typing.get_args(annotation):
        found += _options(branch) if typing.get_origin(branch) is Literal else [branch]
    return [value for value in found if value is not type(None)]
