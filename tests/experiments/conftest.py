"""One finished tiny run that the tests share, to read from only."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.experiments.helpers import Outcome, pfedbayes, tiny_options


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome]:
    """Folder and terminal output of a tiny run."""
    path = tmp_path_factory.mktemp("runs") / "finished"
    return path, pfedbayes("run", "--out", path, *tiny_options())


@pytest.fixture
def run_copy(finished: tuple[Path, Outcome], tmp_path: Path) -> Path:
    """A copy of it to spoil."""
    return Path(shutil.copytree(finished[0], tmp_path / "copy"))
