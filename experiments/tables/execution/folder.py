"""The folder of a table: which runs are there, and whether they are this table's.

``table.json`` (what was declared), ``runs/NAME/`` (a folder of a run each), ``failed/NAME.json`` (why one failed), and
the results.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyro_pfedbayes.atomic_files import write_atomically
from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.experiments.runs.folder import RunFolder, json_text, writing
from pyro_pfedbayes.experiments.runs.lock import LOCK
from pyro_pfedbayes.experiments.runs.result_tables import counted
from pyro_pfedbayes.experiments.tables.declaration.changes import changes
from pyro_pfedbayes.experiments.tables.declaration.plan import Plan

FORMAT = "pyro-pfedbayes table 1"


class TableFolder:
    """The files of one table; the folder may be missing or empty."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.index = path / "table.json"
        self.runs = path / "runs"
        self.failures = path / "failed"

    def claim(self, plan: Plan) -> None:
        """Make the folder this table's, or see that it is.

        A table may have grown (more seeds, methods, data, points): the runs that are there must be among its own.
        """
        self.check(plan)
        with writing(self.path):
            self.runs.mkdir(parents=True, exist_ok=True)
            self.failures.mkdir(exist_ok=True)
            declared = {"format": FORMAT, "table": _plain(plan)}
            write_atomically(self.index, json_text(declared, indent=1) + "\n")

    def check(self, plan: Plan) -> None:
        """See that the folder is this table's, or can become it; nothing is written."""
        if self.index.exists():
            before = self._read()
            foreign = sorted(self._names() - plan.jobs().keys())
            if foreign:
                found = changes(before, _plain(plan))
                what = "; ".join(found[:3]) or f"run {foreign[0]}"
                what += f"; and {len(found) - 3} more" if len(found) > 3 else ""
                runs = counted(len(foreign), "run")
                raise UserError(
                    f"{self.path} holds {runs} not of this table: {what}; put it back, or give another -o"
                )
        elif self.path.is_dir() and any(p.name != LOCK for p in self.path.iterdir()):
            raise UserError(
                f"{self.path} is not empty and not the folder of a table; give another -o"
            )

    def run(self, name: str) -> RunFolder:
        """The folder of a run, which may be missing."""
        return RunFolder(self.runs / name)

    def finished(self, name: str) -> bool:
        """Whether a run came to its end."""
        return self.run(name).finished

    def failure(self, name: str) -> str | None:
        """Why a run failed; None if it did not."""
        try:
            return str(json.loads(self._failure(name).read_text(encoding="utf-8"))["reason"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError):
            return "its reason cannot be read"

    def settled(self, name: str) -> bool:
        """Whether nothing is left to do for a run."""
        return self.finished(name) or self.failure(name) is not None

    def fail(self, name: str, reason: str) -> None:
        """Record why a run failed; its checkpoint is of no use then."""
        shutil.rmtree(self.run(name).checkpoint, ignore_errors=True)
        with writing(self._failure(name)):
            text = json_text({"run": name, "reason": reason}) + "\n"
            write_atomically(self._failure(name), text)

    def forget_failures(self) -> None:
        """Let failed runs be made anew."""
        for file in self.failures.glob("*.json"):
            shutil.rmtree(self.runs / file.stem, ignore_errors=True)
            file.unlink()

    def _failure(self, name: str) -> Path:
        return self.failures / f"{name}.json"

    def _names(self) -> set[str]:
        """Of all runs that have begun or failed."""
        found = {path.name for path in self.runs.glob("*")}
        found |= {path.stem for path in self.failures.glob("*")}
        return {name for name in found if not name.startswith(".")}

    def _read(self) -> Mapping[str, Any]:
        try:
            found = json.loads(self.index.read_text(encoding="utf-8"))
            table = found["table"] if found["format"] == FORMAT else None
        except (OSError, ValueError, KeyError, TypeError) as problem:
            raise UserError(f"{self.index} is damaged: {problem}") from None
        if not isinstance(table, dict):
            raise UserError(f"{self.index} is not of this version")
        return table


def _plain(plan: Plan) -> Mapping[str, Any]:
    """What a table declares, as JSON has it."""
    spec = plan.spec
    declared = {
        "table": spec.head.model_dump(),
        "tuning": spec.tuning.model_dump(),
        "data": {
            entry.label: entry.model_dump(exclude={"base", "sweep", "value"}) for entry in spec.data
        },
        "method": {
            "+".join([method.name, *(method.on or ())]): method.model_dump()
            for method in spec.methods
        },
        "sweep": {sweep.name: sweep.model_dump() for sweep in spec.sweeps},
    }
    found: Mapping[str, Any] = json.loads(json.dumps(declared, default=str))
    return found
