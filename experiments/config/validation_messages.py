"""What is wrong with a configuration's values, in words."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel

from pyro_pfedbayes.errors import nearest


def message_of(section: str, schema: type[BaseModel], detail: Any) -> str:
    """One of pydantic's findings in one line for people."""
    key, given = str(detail["loc"][0]), detail["input"]
    field = schema.model_fields.get(key)
    mapping = field is not None and field.description is None and _is_mapping(field.annotation)
    place = [part for part in detail["loc"][1:2] if isinstance(part, int) or mapping]
    name = f"{section}.{key}" + "".join(f"[{part}]" for part in place)
    if detail["type"] == "extra_forbidden" and len(detail["loc"]) > 1:
        return f"unknown key '{detail['loc'][-1]}' in {name}"
    if detail["type"] == "extra_forbidden":
        keys = [*schema.model_fields, *(["name"] if section in ("algorithm", "model") else [])]
        hint = nearest(key, keys)
        return f"unknown key '{name}'{hint}" + ("" if hint else f" (known: {', '.join(keys)})")
    assert field is not None
    if field.description is not None:
        return f"{name} is {given!r}; it must be {field.description}"
    if detail["type"] == "literal_error":
        options = [str(option) for option in _options(field.annotation)]
        return f"{name} is {given!r}{nearest(str(given), options)} (give {', '.join(options)})"
    wanted = str(detail["msg"]).removeprefix("Input should be ")
    if detail["type"] in _WANTED:
        wanted = _WANTED[detail["type"]].format(**detail.get("ctx", {}))
    return f"{name} is {given!r}; it must be {wanted}"


_WANTED = {
    "greater_than": "above {gt:g}",
    "greater_than_equal": "at least {ge:g}",
    "less_than": "below {lt:g}",
    "int_type": "an integer",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "a text",
    "list_type": "a list",
    "dict_type": "a section of keys and values",
    "mapping_type": "a section of keys and values",
}


def _options(annotation: Any) -> list[Any]:
    """The values of a ``Literal``, which may stand in a union or be the values of a mapping."""
    if typing.get_origin(annotation) is Literal:
        return list(typing.get_args(annotation))
    return [value for branch in typing.get_args(annotation) for value in _options(branch)]


def _is_mapping(annotation: Any) -> bool:
    """Whether values stand by name, possibly or none at all."""
    branches = (annotation, *typing.get_args(annotation))
    return any(typing.get_origin(branch) is Mapping for branch in branches)
