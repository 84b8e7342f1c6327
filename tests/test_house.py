"""Rules of the house: imports go downward, docstring examples run, public names exist."""

from __future__ import annotations

import ast
import doctest
import importlib
import re
import runpy
import subprocess
import sys
import tomllib
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import pyro_pfedbayes

ROOT = Path(__file__).parent.parent
STOREYS = {"pyro_pfedbayes": 0, "models": 1, "inference": 2, "experiments": 3}
LONG_LISTS = {"algorithms", "likelihoods"}
"""A method or a likelihood a file: these folders may show more than twelve."""
MOST_ROOMS = 12


def module_of(path: Path) -> tuple[str, ...]:
    """The dotted name of a source file, as parts."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts[:-1] if parts[-1] == "__init__" else parts
    return parts if parts[0] == "pyro_pfedbayes" else ("pyro_pfedbayes", *parts)


MODULES = {module_of(path): path for top in STOREYS for path in sorted((ROOT / top).rglob("*.py"))}
NAMES = sorted(".".join(module) for module in MODULES)


def imported(path: Path) -> list[str]:
    """Dotted names that a file imports anywhere in it, each with the name taken from it."""
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def resolved(name: str) -> tuple[str, ...]:
    """The module of ours that an imported name lies in; () if it is none of ours."""
    parts = tuple(name.split("."))
    while parts and parts not in MODULES:
        parts = parts[:-1]
    return parts


def arrows() -> dict[tuple[str, ...], dict[str, set[str]]]:
    """Within each folder: which of its rooms imports which other one."""
    found: dict[tuple[str, ...], dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for module, path in MODULES.items():
        for name in imported(path):
            target = resolved(name)
            if len(module) < 2 or len(target) < 2:
                continue  # the package itself names everything, lazily
            shared = 0
            while shared < min(len(module), len(target)) and module[shared] == target[shared]:
                shared += 1
            if shared < min(len(module), len(target)):
                found[module[:shared]][module[shared]].add(target[shared])
    return found


ARROWS = arrows()
FOLDERS = sorted({module[:depth] for module in MODULES for depth in range(1, len(module))})


@pytest.mark.parametrize("path", MODULES.values(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_downward_and_by_the_full_name(path: Path) -> None:
    own = STOREYS[path.relative_to(ROOT).parts[0]]
    lazy = path == ROOT / "pyro_pfedbayes" / "__init__.py"
    for name in imported(path):
        parts = name.split(".")
        assert parts[0] not in ("models", "inference", "experiments"), name
        if parts[0] == "pyro_pfedbayes" and not lazy:
            target = STOREYS.get(parts[1], 0) if len(parts) > 1 else 0
            assert target <= own, f"{path.name} climbs to {name}"


@pytest.mark.parametrize("folder", FOLDERS, ids=".".join)
def test_rooms_of_a_folder_import_each_other_in_no_circle(folder: tuple[str, ...]) -> None:
    try:
        TopologicalSorter(ARROWS.get(folder, {})).prepare()
    except CycleError as circle:
        pytest.fail(f"{'.'.join(folder)}: {' <- '.join(circle.args[1])}")


@pytest.mark.parametrize("folder", FOLDERS, ids=".".join)
def test_a_folder_has_few_rooms_and_says_what_lives_there(folder: tuple[str, ...]) -> None:
    rooms = {module[len(folder)] for module in MODULES if module[: len(folder)] == folder != module}
    if folder == ("pyro_pfedbayes",):
        rooms -= STOREYS.keys()
    assert folder[-1] in LONG_LISTS or len(rooms) <= MOST_ROOMS, sorted(rooms)
    assert folder in MODULES, "lacks an __init__.py"
    assert ast.get_docstring(ast.parse(MODULES[folder].read_text()))


def test_every_folder_is_installed() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    assert sorted(listed) == sorted(
        ".".join(module) for module, path in MODULES.items() if path.name == "__init__.py"
    )


@pytest.mark.parametrize("name", NAMES)
def test_docstring_examples_run(name: str) -> None:
    failures, _ = doctest.testmod(
        importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE
    )
    assert failures == 0


def test_public_names_exist_and_are_documented() -> None:
    for name in pyro_pfedbayes.__all__:
        assert getattr(pyro_pfedbayes, name).__doc__, name
    with pytest.raises(AttributeError, match="no attribute 'barycenter'"):
        pyro_pfedbayes.barycenter  # noqa: B018


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = "import sys, pyro_pfedbayes; print([m for m in ('torch', 'pyro') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.stem != "CONTRIBUTING"], ids=lambda path: path.name
)
def test_python_in_the_docs_runs(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All Python blocks of a page, one after the other, as a reader would paste them."""
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    exec(compile("\n".join(blocks), str(page), "exec"), {"__name__": "docs"})


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_within_the_docs_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_python_started_in_a_checkout_finds_all_storeys() -> None:
    """Even beside a plain install: the folder here comes first on the path, so it must be whole."""
    code = (
        "import sys; sys.meta_path = [f for f in sys.meta_path if '__editable__' not in repr(f)];"
        f"sys.path.insert(0, {str(ROOT)!r});"
        "import pyro_pfedbayes as pfb; print(pfb.UserError.__module__);"
        "import pyro_pfedbayes.models, pyro_pfedbayes.inference.algorithms, pyro_pfedbayes.experiments"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert out.stdout.strip() == "pyro_pfedbayes.errors", out.stderr


def test_no_public_name_is_hidden_by_a_module_of_that_name() -> None:
    """Importing a submodule sets an attribute of the package, which would stand before the lazy name."""
    names = set(pyro_pfedbayes.__all__) - {"families", "likelihoods"}
    assert not names & {name.rpartition(".")[2] for name in NAMES if name.count(".") == 1}


def test_the_architecture_page_is_up_to_date() -> None:
    page = ROOT / "docs" / "architecture.md"
    script = runpy.run_path(str(page.with_suffix(".py")))
    assert script["updated"](page.read_text()) == page.read_text(), "run docs/architecture.py"
