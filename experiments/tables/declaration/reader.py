"""Reading a table's file into what it declares."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from pyro_pfedbayes.errors import UserError, nearest
from pyro_pfedbayes.experiments.config.registry import canonical, preset_text
from pyro_pfedbayes.experiments.config.validation_messages import message_of
from pyro_pfedbayes.experiments.tables.declaration.cross_checks import check_spec
from pyro_pfedbayes.experiments.tables.declaration.spec import (
    DataEntry,
    Head,
    Method,
    Spec,
    Sweep,
    Tuning,
)

P = TypeVar("P", bound=BaseModel)


def read_spec(given: str) -> Spec:
    """Read a table by the name of a preset, or from a file that ends in ``.toml``."""
    if not given.endswith(".toml"):
        if Path(given).exists():
            raise UserError(f"{given} is neither a table that is built in nor a .toml file")
        return parse_spec(tomllib.loads(preset_text(given, "table")), f"table {given}: ")
    try:
        tree = tomllib.loads(Path(given).read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as problem:
        raise UserError(f"{given} is not valid TOML: {problem}") from problem
    except (OSError, UnicodeDecodeError) as problem:
        reason = getattr(problem, "strerror", None) or "it is not UTF-8 text"
        raise UserError(f"cannot read {given}: {reason}") from problem
    return parse_spec(tree, f"{given}: ")


def parse_spec(tree: Mapping[str, Any], where: str = "") -> Spec:
    """Check what a file says, but for the settings of data, models and algorithms, which `make_plan` checks."""
    sections = ("table", "tuning", "data", "method", "sweep")
    for name in tree:
        if name not in sections:
            raise UserError(
                f"{where}unknown section '{name}'{nearest(name, sections)} "
                "(known: [table], [tuning], [[data]], [[method]], [[sweep]])"
            )
    spec = Spec(
        head=_part(Head, "table", tree.get("table", {}), where),
        tuning=_part(Tuning, "tuning", tree.get("tuning", {}), where),
        data=tuple(e for given in _list(tree, "data", where) for e in _entries(given, where)),
        methods=tuple(_part(Method, "method", m, where) for m in _list(tree, "method", where)),
        sweeps=tuple(_part(Sweep, "sweep", s, where) for s in _list(tree, "sweep", where)),
    )
    check_spec(spec, where)
    return spec


def _list(tree: Mapping[str, Any], name: str, where: str) -> list[Any]:
    values = tree.get(name, [])
    if not isinstance(values, list) or not (values or name == "sweep"):
        raise UserError(f"{where}give at least one [[{name}]]")
    return values


def _part(kind: type[P], section: str, values: Any, where: str) -> P:
    """A section as its class has it."""
    if not isinstance(values, Mapping):
        raise UserError(f"{where}'{section}' must be a section of keys, not {values!r}")
    if section in ("method", "sweep") and isinstance(values.get("name"), str):
        where = f"{where}{section} '{values['name']}': "
    try:
        return kind.model_validate_json(json.dumps(values, default=str))
    except ValidationError as error:
        detail = error.errors()[0]
        if detail["type"] != "missing":
            raise UserError(f"{where}{message_of(section, kind, detail)}") from None
        *place, key = detail["loc"]
        inside = "".join(f".{part}" if isinstance(part, str) else f"[{part}]" for part in place)
        raise UserError(f"{where}[{section}]{inside} lacks the key '{key}'") from None


def _entries(given: Any, where: str) -> list[DataEntry]:
    """A ``[[data]]``, an entry for each of its splits."""
    if not isinstance(given, Mapping):
        raise UserError(f"{where}'data' must be a section of keys, not {given!r}")
    settings = dict(given)
    label, splits = settings.pop("label", None), settings.pop("splits", None)
    model, name = settings.pop("model", {}), settings.get("name")
    if not isinstance(name, str):
        raise UserError(f"{where}a [[data]] lacks the key 'name'")
    where = f"{where}data '{name}': "
    if not isinstance(model, Mapping):
        raise UserError(f"{where}model is {model!r}; it must be a section of keys")
    if splits is not None and ("split" in settings or not isinstance(splits, list) or not splits):
        raise UserError(f"{where}give either split, or splits as a list of sizes")
    if label is not None and (not isinstance(label, str) or not label.strip()):
        raise UserError(f"{where}label is {label!r}; it must be a text")
    short = Path(name).stem if name.endswith(".npz") else canonical(name)
    found = []
    for split in [settings.get("split")] if splits is None else splits:
        own = settings if split is None else {**settings, "split": split}
        kind = split if split is not None else settings.get("scheme")
        parts = [short if label is None else label]
        if kind is not None and (label is None or splits is not None):
            parts.append(str(kind))
        place = "-".join(parts)
        entry = DataEntry.model_construct(
            label=place, base=place, name=short, split=split, settings=own, model=model
        )
        found.append(entry)
    return found
