"""Builders of models: the built-in ones by name, a user's own from a file, and the options that each takes."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import inspect
import sys
import traceback
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import BaseModel, ConfigDict, create_model

from pyro_pfedbayes.errors import UserError, nearest
from pyro_pfedbayes.experiments.config.registry import model_builder

Builder = Callable[..., Any]


class Section(BaseModel):
    """Keys and values of a configuration that are checked together."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def is_file(name: str) -> bool:
    """Whether a model's name means a function in a file: ``my_models.py:robust_mlp``."""
    return ".py" in name


def file_and_function(name: str) -> tuple[Path, str]:
    """The file, in full, and the function that a name means."""
    file, colon, function = name.rpartition(":")
    if not colon or not file.endswith(".py") or not function.isidentifier():
        raise UserError(
            f"model.name is {name!r}; give FILE.py:FUNCTION, or a name that is built in"
        )
    path = Path(file).expanduser().resolve()
    if not path.is_file():
        raise UserError(f"model.name is {name!r}, but there is no file {file}")
    return path, function


def builder(name: str) -> Builder:
    """The function behind a model's name.

    It takes a `DataSpec` and keyword options, and returns a model. A function in a user's file that takes ``x`` and
    ``y`` instead is a Pyro program of one client.
    """
    if not is_file(name):
        return model_builder(name)
    path, function = file_and_function(name)
    module = _imported(path)
    found = getattr(module, function, None)
    if not callable(found):
        own = [
            key
            for key, value in vars(module).items()
            if inspect.isfunction(value) and value.__module__ == module.__name__ and key[0] != "_"
        ]
        raise UserError(
            f"{path.name} has no function {function!r}{nearest(function, own)} "
            f"(it has: {', '.join(own) or 'none'})"
        )
    if not inspect.signature(found).parameters:
        raise UserError(
            f"{path.name}: {function} takes nothing; write def {function}(data, *, option=default) "
            f"that returns a model, or a program def {function}(x, y=None)"
        )
    return typing.cast(Builder, found)


def build(name: str, options: Mapping[str, Any], spec: Any) -> Any:
    """Make the model that a name (built in, or ``FILE.py:FUNCTION``) means, by its builder's options."""
    from pyro_pfedbayes.models.bayesian import BayesianModel
    from pyro_pfedbayes.models.program import ProgramModel

    make = builder(name)
    try:
        model = ProgramModel(make, spec) if _is_program(make) else make(spec, **options)
        if isinstance(model, ProgramModel) and not is_file(name):
            model.name = name
    except UserError:
        raise
    except Exception as problem:
        if not is_file(name):
            raise
        where = _where(problem, file_and_function(name)[0])
        raise UserError(f"model {name}: {where}") from problem
    if not isinstance(model, BayesianModel | ProgramModel):
        raise UserError(
            f"model {name} returned {type(model).__name__}; return a BayesianModel or a ProgramModel"
        )
    return model


@functools.lru_cache(maxsize=64)
def options_schema(name: str) -> type[Section]:
    """The keyword options of a model's builder."""
    make = builder(name)
    return create_model("Program", __base__=Section) if _is_program(make) else schema_of(make, 1)


def schema_of(make: Callable[..., Any], positional: int = 0) -> type[Section]:
    """What a function takes after some positional arguments, or the settings of a dataclass, as a section."""
    try:
        hints = typing.get_type_hints(make)
    except NameError:
        hints = {}
    fields: dict[str, Any] = {
        parameter.name: (
            hints.get(parameter.name, Any),
            ... if parameter.default is parameter.empty else parameter.default,
        )
        for parameter in list(inspect.signature(make).parameters.values())[positional:]
        if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    }
    return create_model(make.__name__, __base__=Section, **fields)


def own_files(name: str) -> list[Path]:
    """The user's file that a model's name means, and what it imports from its folder; none if the model is built in."""
    if not is_file(name):
        return []
    path, _ = file_and_function(name)
    _imported(path)
    files = [getattr(module, "__file__", None) or "" for module in list(sys.modules.values())]
    inside = {Path(f).resolve() for f in files if f.endswith(".py") and Path(f).is_file()}
    # A folder may be that of the whole project: only what lies right beside the file, or in packages there, goes along.
    return [path, *sorted(f for f in inside if path.parent in f.parents and f != path)]


def _is_program(make: Builder) -> bool:
    return list(inspect.signature(make).parameters)[:2] == ["x", "y"]


def _imported(path: Path) -> ModuleType:
    """Import a user's file once for each content it has."""
    digest = hashlib.sha256(str(path).encode() + path.read_bytes()).hexdigest()
    name = f"_pfedbayes_model_{digest[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # For what the file imports from beside it, and for dataclasses, which look their module up.
    sys.path.insert(0, str(path.parent))
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as problem:
        del sys.modules[name]
        raise UserError(f"cannot import {path}: {_where(problem, path)}") from problem
    finally:
        sys.path.remove(str(path.parent))
    return module


def _where(problem: Exception, path: Path) -> str:
    """What went wrong in a user's file, with its last line in it."""
    frames = traceback.extract_tb(problem.__traceback__)
    lines = [f"line {frame.lineno}: " for frame in frames if frame.filename == str(path)]
    # The message of a syntax error holds the line.
    at = "" if isinstance(problem, SyntaxError) else "".join(lines[-1:])
    return f"{at}{type(problem).__name__}: {problem}"
