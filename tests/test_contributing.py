"""The diffs of CONTRIBUTING.md apply, and what is said to follow from them does."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SECTIONS = dict(
    re.findall(
        r"^## (A .*?)\n(.*?)(?=^## |\Z)",
        (ROOT / "CONTRIBUTING.md").read_text(),
        re.DOTALL | re.MULTILINE,
    )
)
LONGEST_DIFF = 40
"""Lines added or taken away."""


def block(heading: str, kind: str) -> str:
    return "".join(
        re.findall(rf"^```{kind}\n(.*?)^```", SECTIONS[heading], re.DOTALL | re.MULTILINE)
    )


def test_five_kinds_of_additions_are_shown() -> None:
    assert list(SECTIONS) == [
        "A method",
        "A likelihood",
        "A measure",
        "A data set",
        "A section of the report",
    ]


@pytest.mark.parametrize("heading", SECTIONS)
def test_a_diff_applies_and_does_what_it_says(heading: str, tmp_path: Path) -> None:
    for folder in ("pyro_pfedbayes", "models", "inference", "experiments"):
        shutil.copytree(
            ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__")
        )
    diff = block(heading, "diff")
    changed = [line for line in diff.splitlines() if re.match(r"[-+](?![-+]{2} )", line)]
    assert len(changed) < LONGEST_DIFF
    subprocess.run(["git", "apply", "-"], input=diff, text=True, cwd=tmp_path, check=True)
    # Without the finder of an editable install, Python imports the copy, which lies beside the script.
    begin = (
        "import sys\nsys.meta_path = [f for f in sys.meta_path if '__editable__' not in repr(f)]\n"
    )
    run_main = "from pyro_pfedbayes.experiments.cli.main import main\nmain()\n"
    (tmp_path / "script.py").write_text(begin + (block(heading, "python") or run_main))
    commands = block(heading, "sh") or "pfedbayes \n"
    script = commands.replace("pfedbayes ", f"{sys.executable} script.py ")
    outcome = subprocess.run(
        ["sh", "-e", "-c", script],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert outcome.returncode == 0, outcome.stderr
