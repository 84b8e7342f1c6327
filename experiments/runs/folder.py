"""A run's folder: what is in it, written so that nothing half-written is ever taken for whole.

``config.toml`` (resolved), ``partition.png``, ``model/`` (copies, if the model came from a file),
``metrics.jsonl`` (a line an evaluated round), ``checkpoint/``, and at the end ``posterior.nc`` and ``summary.json``.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pyro_pfedbayes.atomic_files import write_atomically
from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.experiments.config.sections import Config, parse_config
from pyro_pfedbayes.inference.federation.checkpoint import (
    load_checkpoint,
    save_checkpoint,
)
from pyro_pfedbayes.inference.federation.state import FederationState


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what goes wrong in writing ``path`` into a message that names it."""
    try:
        yield
    except OSError as problem:
        reason = problem.strerror or str(problem) or type(problem).__name__
        raise UserError(f"cannot write {path}: {reason}") from problem


def json_text(value: Any, indent: int | None = None) -> str:
    """JSON as the standard has it: numbers that are not finite become null."""

    def plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: plain(part) for key, part in value.items()}
        if isinstance(value, list | tuple):
            return [plain(part) for part in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return json.dumps(plain(value), indent=indent, allow_nan=False)


class RunFolder:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file = path / "config.toml"
        self.metrics = path / "metrics.jsonl"
        self.summary = path / "summary.json"
        self.posterior = path / "posterior.nc"
        self.picture = path / "partition.png"
        self.checkpoint = path / "checkpoint"
        self.model_folder = path / "model"

    @classmethod
    def create(
        cls,
        path: Path,
        config: Config,
        state: FederationState,
        meta: Mapping[str, Any],
        draw: Callable[[Path], None],
        model_files: Sequence[Path] = (),
    ) -> RunFolder:
        """Make the folder of a run that begins; if that fails, nothing of it stays.

        ``state`` is that before the first round, so that the run can be resumed from the start; ``model_files`` are a
        user's file with the model, and others from its folder, of which the run keeps copies.
        """
        cls.check_free(path)
        made = [p for p in (path, *path.parents) if not p.exists()]
        folder = cls(path)
        try:
            with writing(path):
                path.mkdir(parents=True, exist_ok=True)
            with writing(folder.config_file):
                write_atomically(folder.config_file, config.toml())
            with writing(folder.picture):
                draw(folder.picture)
            for file in model_files:
                copy = folder.model_folder / file.relative_to(model_files[0].parent)
                with writing(copy):
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(file, copy)
            folder.rewrite_metrics(())
            folder.save(state, meta)
        except BaseException:
            folder._discard(made)
            raise
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """The folder of a run that has begun."""
        folder = cls(path)
        if not folder.config_file.is_file():
            reason = "there is no config.toml in it" if path.is_dir() else "there is no such folder"
            raise UserError(f"{path} is not the folder of a run: {reason}")
        return folder

    @staticmethod
    def check_free(path: Path) -> None:
        """Refuse a folder that holds anything."""
        if not path.exists():
            return
        if not path.is_dir():
            raise UserError(f"{path} is a file; give a folder for the run")
        if RunFolder(path).config_file.exists():
            raise UserError(
                f"{path} holds a run already: `pfedbayes resume {path}` carries it on, or give another --out"
            )
        if any(path.iterdir()):
            raise UserError(f"{path} is not empty; give a new or an empty folder")

    @property
    def finished(self) -> bool:
        """Whether the last file of a run is there."""
        return self.summary.is_file()

    def config(self) -> Config:
        """Read ``config.toml``; a model from a file is the run's own copy of it."""
        try:
            tree = tomllib.loads(self.config_file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as problem:
            raise UserError(f"{self.config_file} is not readable TOML: {problem}") from problem
        model = tree.get("model")
        if isinstance(model, dict) and isinstance(model.get("name"), str):
            file, _, function = model["name"].rpartition(":")
            copy = self.model_folder / Path(file).name
            if file.endswith(".py") and copy.is_file():
                model["name"] = f"{copy}:{function}"
        return parse_config(tree, f"{self.config_file}: ")

    def load(self) -> tuple[FederationState, dict[str, Any]]:
        """The last checkpoint: state (on the CPU) and description."""
        try:
            state, meta = load_checkpoint(self.checkpoint)
            _check_form(state, meta)
        except UserError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as problem:
            raise UserError(
                f"checkpoint {self.checkpoint} is damaged: {type(problem).__name__} {problem}"
            ) from problem
        return state, meta

    def save(self, state: FederationState, meta: Mapping[str, Any]) -> None:
        """Replace the checkpoint; ``meta`` is ``Experiment.description()`` and how often each client was left out."""
        save_checkpoint(self.checkpoint, state, meta)

    def append_metrics(self, record: Mapping[str, Any]) -> None:
        """Add a line; if that fails half-way, the half is taken back."""
        with writing(self.metrics):
            size = self.metrics.stat().st_size if self.metrics.exists() else 0
            try:
                with self.metrics.open("a", encoding="utf-8") as file:
                    file.write(json_text(record) + "\n")
            except OSError:
                with contextlib.suppress(OSError):
                    os.truncate(self.metrics, size)
                raise

    def rewrite_metrics(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Replace all lines, so that those of rounds that will be run again do not double."""
        with writing(self.metrics):
            write_atomically(self.metrics, "".join(json_text(r) + "\n" for r in records))

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write ``summary.json``; a run whose folder holds it is finished."""
        with writing(self.summary):
            write_atomically(self.summary, json_text(summary, indent=2) + "\n")

    def _discard(self, made: list[Path]) -> None:
        for made_folder in (self.checkpoint, self.model_folder):
            shutil.rmtree(made_folder, ignore_errors=True)
        for file in (self.config_file, self.picture, self.metrics):
            file.unlink(missing_ok=True)
        for directory in made:
            with contextlib.suppress(OSError):
                directory.rmdir()


def _check_form(state: FederationState, meta: Any) -> None:
    """Raise TypeError or KeyError where JSON that parses is not what a run writes."""
    for count in ("round", "gradient_steps", "bytes_uploaded"):
        if not isinstance(getattr(state, count), int):
            raise TypeError(f"{count} must be an integer")
    for name in ("train", "evaluate"):
        float(state.seconds[name])
    for record in state.history:
        for model in ("personal", "global"):
            if not isinstance(record[model], dict):
                raise TypeError(f"a record of the history lacks {model}")
    if not state.server:
        raise KeyError("no server tensors")
    for part in ("config", "data", "dropped"):
        if not isinstance(meta[part], dict):
            raise TypeError(f"meta {part} must be an object")
