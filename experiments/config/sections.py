"""Configurations: sections, where they come from, and what is wrong with them in one line.

Later sources win: defaults, then a preset or a TOML file, then ``--set`` and the options.
"""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError

from pyro_pfedbayes.errors import UserError, nearest
from pyro_pfedbayes.experiments.config.model_files import (
    Section,
    file_and_function,
    is_file,
    options_schema,
    schema_of,
)
from pyro_pfedbayes.experiments.config.registry import (
    MODELS,
    algorithm_class,
    default_model,
    known,
    preset_names,
    preset_text,
)
from pyro_pfedbayes.experiments.config.validation_messages import message_of

Tree = dict[str, dict[str, Any]]
"""A configuration as TOML has it: values by key by section."""


# What a random generator and an attribute of a netCDF file both hold.
Seed = Annotated[int, Field(ge=0, lt=2**63)]
_SEEDS = "an integer from 0 to 2**63 - 1"
Participation = (
    Annotated[int, Field(ge=1)]
    | Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
    | Literal["all"]
)
"""1 is one client, 1.0 is all of them."""


class DataSection(Section):
    """Which examples, and who holds them. None: the default that goes with the rest, see `resolve`."""

    name: str = "digits"
    dir: str | None = None
    split: Literal["small", "medium", "large"] | None = None
    scheme: Literal["blocks", "rotating", "random", "dirichlet", "quantity", "column"] | None = None
    clients: int | None = Field(None, ge=1)
    labels_per_client: int | None = Field(None, ge=1)
    train_per_class: int | None = Field(None, ge=1)
    test_per_class: int | None = Field(None, ge=0)
    alpha: float | None = Field(None, gt=0)
    column: str | int | None = Field(None, description="the name or the index of a column")
    test_fraction: float | None = Field(None, ge=0, lt=1)
    validation: float = Field(0.1, ge=0, lt=1)
    scaling: Literal["plain", "standard"] = "standard"
    target: Literal["auto", "class", "number"] | None = None
    target_scaling: Literal["plain", "standard"] | None = None
    seed: Seed | None = Field(None, description=_SEEDS)
    corrupt_clients: tuple[Annotated[int, Field(ge=0)], ...] | None = Field(
        None, description="a list of clients' numbers, such as [7, 8, 9]"
    )
    corruption: Literal["labels", "few", "noise", "blur", "rotation"] | None = None
    corruption_strength: int | None = Field(None, ge=1, le=5)


@dataclass(frozen=True)
class ModelSection:
    """Which model, and all options of its builder; a file's path is in full."""

    name: str
    options: Mapping[str, Any]


class RunSection(Section):
    """How long, where, and what is written when."""

    rounds: int = Field(100, ge=1)
    participation: Participation = Field(
        "all", description="a number of clients, a fraction up to 1.0, or 'all'"
    )
    seed: Seed = Field(0, description=_SEEDS)
    device: str = "auto"
    engine: str = "auto"
    chunk: int = Field(32, ge=1)
    eval_every: int = Field(10, ge=0)
    eval_draws: int = Field(20, ge=1)
    checkpoint_every: int = Field(10, ge=1)
    posterior_draws: int = Field(20, ge=0)
    foreign: Literal["auto", "none", "digits", "mnist", "fmnist", "cifar10"] = "auto"
    shifts: bool = True
    out: str | None = None


@dataclass(frozen=True)
class Config:
    """A whole configuration, checked; ``algorithm`` is an instance of the dataclass of its settings."""

    data: DataSection
    model: ModelSection
    algorithm: Any
    run: RunSection

    def tree(self) -> Tree:
        """All values by section and key; those that are None are left out, as TOML has no word for them."""
        sections: Tree = {
            "data": self.data.model_dump(),
            "model": {"name": self.model.name, **self.model.options},
            "algorithm": {"name": self.algorithm.name, **dataclasses.asdict(self.algorithm)},
            "run": self.run.model_dump(exclude={"out"}),
        }
        given = {s: {k: v for k, v in d.items() if v is not None} for s, d in sections.items()}
        # Through JSON, so that it equals what comes back from a file: lists, not tuples.
        found: Tree = json.loads(json.dumps(given))
        return found

    def toml(self) -> str:
        """The text of a configuration file that says the same."""
        import tomli_w

        return tomli_w.dumps(self.tree())


@dataclass(frozen=True)
class Source:
    """Where a configuration begins: a preset or a file, its label for folders and reports, and its values."""

    label: str
    preset: bool
    tree: Tree


def read_source(given: str | None, settings: Iterable[tuple[str, Any]] = ()) -> Source:
    """Read a preset, or a file that ends in ``.toml``.

    Without a name it is the preset that goes with the data set named in ``settings``, ``digits`` if none is.
    """
    if given is None:
        return _default_source(dict(settings))
    if not given.endswith(".toml"):
        if Path(given).exists():
            raise UserError(f"{given} is neither a preset nor a file that ends in .toml")
        return Source(given, True, _toml(preset_text(given), f"preset {given}"))
    try:
        text = Path(given).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        reason = getattr(problem, "strerror", None) or "it is not UTF-8 text"
        raise UserError(f"cannot read {given}: {reason}") from problem
    tree = _toml(text, given)
    _check_sections(tree, f"{given}: ")
    return Source(Path(given).stem, False, tree)


def with_settings(
    tree: Mapping[str, Mapping[str, Any]], settings: Iterable[tuple[str, Any]]
) -> Tree:
    """A copy of ``tree`` with pairs of ``section.key`` and value laid over it.

    Another ``algorithm.name`` or ``model.name`` drops the old one's settings that it does not know.
    """
    out = {section: dict(values) for section, values in tree.items()}
    # Names first, so that what is set beside a name is meant for it.
    for name, value in sorted(settings, key=lambda pair: not pair[0].endswith(".name")):
        section, _, key = name.partition(".")
        before = out.get(section, {})
        if name in _SCHEMAS and isinstance(value, str) and value != before.get("name"):
            fields = _SCHEMAS[name](value).model_fields
            out[section] = {k: v for k, v in before.items() if k in fields}
        out.setdefault(section, {})[key] = value
    return out


def parse_setting(text: str) -> tuple[str, Any]:
    """Take ``section.key=value`` apart; the value is read as TOML, or else as a bare text.

    Example:
        >>> parse_setting("algorithm.zeta=0.5"), parse_setting("data.name=mnist")
        (('algorithm.zeta', 0.5), ('data.name', 'mnist'))
    """
    name, equals, value = text.partition("=")
    name, value = name.strip(), value.strip()
    parts = name.split(".")
    if not equals or len(parts) != 2 or not all(parts):
        raise UserError(f"--set {text}: give section.key=value, such as --set algorithm.zeta=1.0")
    _check_sections({parts[0]: {}}, f"--set {text}: ")
    return name, toml_value(value)


def toml_value(text: str) -> Any:
    """A value as TOML would read it; text that is not TOML stands for itself."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def parse_config(tree: Mapping[str, Any], where: str = "") -> Config:
    """Check a configuration; messages begin with ``where``, such as ``"mine.toml: "``."""
    _check_sections(tree, where)
    algorithm, settings = _name_and_options(tree, "algorithm", "pfedbayes", where)
    kind = algorithm_class(algorithm)
    default = default_model(tree.get("data", {}))
    model, options = _name_and_options(tree, "model", default, where)
    if is_file(model):
        model = "{}:{}".format(*file_and_function(model))
    else:
        known("model", model, MODELS)
    schemas: dict[str, tuple[type[BaseModel], Any]] = {
        "data": (DataSection, tree.get("data", {})),
        "model": (options_schema(model), options),
        "algorithm": (settings_schema(algorithm), settings),
        "run": (RunSection, tree.get("run", {})),
    }
    problems: list[str] = []
    checked: dict[str, Any] = {}
    for section, (schema, values) in schemas.items():
        try:
            # As JSON, strict: 1 may stand for 1.0, but neither "1" nor true for 1.
            checked[section] = schema.model_validate_json(json.dumps(values, default=str))
        except ValidationError as error:
            # A union reports all its branches, and a list its entries: one line a key will do.
            by_key = {
                str(d["loc"][0]): message_of(section, schema, d) for d in reversed(error.errors())
            }
            problems += reversed(by_key.values())
    if problems:
        more = f" (and {len(problems) - 3} more)" if len(problems) > 3 else ""
        raise UserError(f"{where}" + "; ".join(problems[:3]) + more)
    checked["model"] = ModelSection(model, checked["model"].model_dump())
    try:
        checked["algorithm"] = kind(**dict(checked["algorithm"]))
    except UserError as problem:
        raise UserError(f"{where}algorithm: {problem}") from None
    return Config(**checked)


def settings_schema(algorithm: str) -> type[Section]:
    """The settings of an algorithm as a section, so that new ones appear by themselves."""
    return schema_of(algorithm_class(algorithm))


_SECTIONS = ("data", "model", "algorithm", "run")
_SCHEMAS: Mapping[str, Callable[[str], type[Section]]] = {
    "algorithm.name": settings_schema,
    "model.name": options_schema,
}


def _name_and_options(
    tree: Mapping[str, Any], section: str, default: str, where: str
) -> tuple[str, dict[str, Any]]:
    """What a section's key ``name`` says, and the other keys."""
    options = dict(tree.get(section, {}))
    name = options.pop("name", default)
    if not isinstance(name, str):
        raise UserError(f"{where}{section}.name must be a text, not {name!r}")
    return name, options


def _default_source(settings: Mapping[str, Any]) -> Source:
    data = settings.get("data.name", "digits")
    split = settings.get("data.split", "medium")
    presets = preset_names()
    for name in (f"{data}-{split}", str(data)):
        if name in presets:
            return read_source(name)
    return Source(Path(str(data)).stem, True, {})


def _toml(text: str, where: str) -> Tree:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise UserError(f"{where} is not valid TOML: {problem}") from problem


def _check_sections(tree: Mapping[str, Any], where: str) -> None:
    """Raise UserError unless all values are those of known sections."""
    for section, values in tree.items():
        mapping = isinstance(values, Mapping)
        if section not in _SECTIONS and not mapping:
            names = ", ".join(f"[{name}]" for name in _SECTIONS)
            raise UserError(
                f"{where}key '{section}' stands outside a section; put it below one of {names}"
            )
        if section not in _SECTIONS:
            hint = nearest(section, _SECTIONS)
            raise UserError(
                f"{where}unknown section '{section}'{hint} (known: {', '.join(_SECTIONS)})"
            )
        if not mapping:
            raise UserError(f"{where}'{section}' must be a section of keys, not {values!r}")
