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

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.experiments.runs.folder import RunFolder, json_text, writing
from pyro_pfedbayes.experiments.runs.lock import LOCK
from pyro_pfedbayes.experiments.runs.result_tables import counted
from pyro_pfedbayes.experiments.tables.declaration.changes import changes
from pyro_pfedbayes.experiments.tables.declaration.plan import Plan
from pyro_pfedbayes.inference.federation.checkpoint import write_atomically

FORMAT = "pyro-pfedbayes table 1"


class TableFolder:
    """The files of one table.

    Args:
        path: The folder; missing, empty, or of a table.
    """

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
            write_atomically(
                self.index, json_text({"format": FORMAT, "table": _plain(plan)}, indent=1) + "\n"
            )

    def check(self, plan: Plan) -> None:
        """See that the folder is this table's, or can become it; nothing is written."""
        if self.index.exists():
            before = self._read()
            foreign = sorted(self.names() - plan.jobs().keys())
            if foreign:
                told = changes(before, _plain(plan))
                what = "; ".join(told[:3]) or f"run {foreign[0]}"
                what += f"; and {len(told) - 3} more" if len(told) > 3 else ""
                runs = counted(len(foreign), "run")
                raise UserError(
                    f"{self.path} holds {runs} not of this table: {what}; put it back, or give another -o"
                )
        elif self.path.is_dir() and any(p.name != LOCK for p in self.path.iterdir()):
            raise UserError(
                f"{self.path} is not empty and not the folder of a table; give another -o"
            )

    def names(self) -> set[str]:
        """Names of all runs that have begun or failed."""
        begun = {p.name for p in self.runs.iterdir()} if self.runs.is_dir() else set()
        failed = {p.stem for p in self.failures.iterdir()} if self.failures.is_dir() else set()
        return {name for name in begun | failed if not name.startswith(".")}

    def run(self, name: str) -> RunFolder:
        """The folder of a run, which may be missing."""
        return RunFolder(self.runs / name)

    def finished(self, name: str) -> bool:
        """Whether a run came to its end."""
        return self.run(name).finished

    def failure(self, name: str) -> str | None:
        """Why a run failed; None if it did not."""
        try:
            found = json.loads((self.failures / f"{name}.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            return "its reason cannot be read"
        return str(found["reason"]) if isinstance(found, dict) and "reason" in found else "unknown"

    def settled(self, name: str) -> bool:
        """Whether nothing is left to do for a run."""
        return self.finished(name) or self.failure(name) is not None

    def fail(self, name: str, reason: str) -> None:
        """Remember why a run failed; its checkpoint is of no use then."""
        shutil.rmtree(self.run(name).checkpoint, ignore_errors=True)
        file = self.failures / f"{name}.json"
        with writing(file):
            write_atomically(file, json_text({"run": name, "reason": reason}) + "\n")

    def forget_failures(self) -> int:
        """Let failed runs be made anew; return how many there were."""
        found = list(self.failures.glob("*.json"))
        for file in found:
            shutil.rmtree(self.runs / file.stem, ignore_errors=True)
            file.unlink(missing_ok=True)
        return len(found)

    def _read(self) -> Mapping[str, Any]:
        try:
            found = json.loads(self.index.read_text(encoding="utf-8"))
            table = found["table"] if found["format"] == FORMAT else None
        except (OSError, ValueError, KeyError, TypeError) as problem:
            raise UserError(f"{self.index} is damaged: {problem}") from None
        if not isinstance(table, dict):
            raise UserError(f"{self.index} is not of this version")
        return table


def _plain(plan: Plan) -> dict[str, Any]:
    """What a table declares, as JSON has it."""
    spec = plan.spec
    found: dict[str, Any] = json.loads(
        json.dumps(
            {
                "table": spec.head.model_dump(),
                "tuning": spec.tuning.model_dump(),
                "data": {entry.label: entry.model_dump(exclude={"swept"}) for entry in spec.data},
                "method": {
                    "+".join([method.name, *(method.on or ())]): method.model_dump()
                    for method in spec.methods
                },
                "sweep": {sweep.name: sweep.model_dump() for sweep in spec.sweeps},
            },
            default=str,
        )
    )
    return found
