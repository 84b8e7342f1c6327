"""A section of a table's file, read strictly and complained about in one line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.experiments.config.validation_messages import told

Settings = Mapping[str, Any]
_Percent = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Figure = _Percent | tuple[_Percent, _Percent]
"""An accuracy in percent, or one and its standard deviation."""
P = TypeVar("P", bound=BaseModel)


class Part(BaseModel):
    """A section: no other keys, no values of another type."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def read_part(kind: type[P], section: str, values: Any, where: str) -> P:
    """A section as its class has it.

    Args:
        kind: Of the section.
        section: Its name in the file.
        values: Its keys.
        where: How messages begin.
    """
    if not isinstance(values, Mapping):
        raise UserError(f"{where}'{section}' must be a section of keys, not {values!r}")
    if section in ("method", "sweep") and isinstance(values.get("name"), str):
        where = f"{where}{section} '{values['name']}': "
    try:
        return kind.model_validate_json(json.dumps(values, default=str))
    except ValidationError as error:
        raise UserError(f"{where}{_complaint(section, kind, error.errors()[0])}") from None


def _complaint(section: str, kind: type[BaseModel], detail: Any) -> str:
    if detail["type"] == "missing":
        *place, key = detail["loc"]
        inside = "".join(f".{part}" if isinstance(part, str) else f"[{part}]" for part in place)
        return f"[{section}]{inside} lacks the key '{key}'"
    return told(section, kind, detail)
