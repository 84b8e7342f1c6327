"""One run of a table, brought to its end from wherever it stands."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pyro_pfedbayes.errors import Interrupted, UserError
from pyro_pfedbayes.experiments.config.resolve import resolve
from pyro_pfedbayes.experiments.config.sections import Tree, parse_config
from pyro_pfedbayes.experiments.runs.build import build_experiment
from pyro_pfedbayes.experiments.runs.folder import RunFolder
from pyro_pfedbayes.experiments.runs.lifecycle import begin, carry_on
from pyro_pfedbayes.experiments.runs.lock import InUse
from pyro_pfedbayes.experiments.runs.progress import Progress
from pyro_pfedbayes.inference.federation.checkpoint import INDEX

# What can be mended, and would make every further run fail as well.
_MENDABLE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)


@dataclass(frozen=True)
class Outcome:
    """How an attempt at a run ended: a run that failed would again; after ``"stop"`` the table cannot go on."""

    status: Literal["finished", "failed", "interrupted", "stop"]
    reason: str = ""


def bring_to_end(tree: Tree, path: Path, keep_checkpoint: bool) -> None:
    """Begin a run, or carry it on; do nothing if it is finished.

    Its progress is not shown: a table tells of whole runs, and a run's summary of clients that diverged. What was left
    by a process that was killed while it made the folder is cleared away.
    """
    folder = RunFolder(path)
    if not folder.finished:
        if (folder.checkpoint / INDEX).is_file():
            carry_on(folder, Progress())
        else:
            shutil.rmtree(path, ignore_errors=True)
            begin(build_experiment(resolve(parse_config(tree))), path, Progress(), picture=False)
    if not keep_checkpoint:
        shutil.rmtree(folder.checkpoint, ignore_errors=True)


def outcome_of(tree: Tree, path: Path, keep_checkpoint: bool) -> Outcome:
    """`bring_to_end`, with what goes wrong as a reason rather than raised."""
    try:
        bring_to_end(tree, path, keep_checkpoint)
    except (Interrupted, KeyboardInterrupt):
        return Outcome("interrupted")
    except Exception as problem:
        chain = list(_causes(problem))
        # The innermost message is the reason; the outer ones say what was saved where.
        mistakes = [str(link) for link in chain if isinstance(link, UserError)]
        kind = type(problem).__name__
        reason = " ".join((mistakes or [str(problem)])[-1].split()) or kind
        mendable = any(isinstance(e, OSError) and e.errno in _MENDABLE for e in chain)
        stop = mendable or isinstance(problem, InUse)
        return Outcome("stop" if stop else "failed", reason if mistakes else f"{kind}: {reason}")
    return Outcome("finished")


def _causes(problem: BaseException | None) -> Iterator[BaseException]:
    """An exception, what caused it, what caused that."""
    while problem is not None:
        yield problem
        problem = problem.__cause__
