"""Tables that come with the package. Nothing here imports PyTorch."""

from __future__ import annotations

from importlib import resources

from pyro_pfedbayes.experiments.config.registry import known

_FOLDER = "pyro_pfedbayes.experiments.presets.tables"


def table_names() -> list[str]:
    """Names of the tables, in alphabetical order."""
    names = (file.name for file in resources.files(_FOLDER).iterdir())
    return sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml"))


def table_text(name: str) -> str:
    """The TOML of a table."""
    known("table", name, table_names())
    return (resources.files(_FOLDER) / f"{name}.toml").read_text(encoding="utf-8")


def table_line(name: str) -> str:
    """What a table is about: the comment on its first line."""
    return table_text(name).splitlines()[0].lstrip("# ")
