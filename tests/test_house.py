"""Rules of the house: imports go downward, docstring examples run, public names exist."""

from __future__ import annotations

import ast
import doctest
import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import pyro_pfedbayes

ROOT = Path(__file__).parent.parent
STOREYS = {"pyro_pfedbayes": 0, "models": 1, "inference": 2, "experiments": 3}
FILES = [path for top in STOREYS for path in sorted((ROOT / top).rglob("*.py"))]


def modules() -> list[str]:
    names = ["pyro_pfedbayes"]
    for info in pkgutil.iter_modules(pyro_pfedbayes.__path__, "pyro_pfedbayes."):
        names.append(info.name)
    packages = ("families", "models", "models.likelihoods", "inference", "inference.algorithms")
    for top in (*packages, "experiments", "experiments.reporting", "experiments.tables"):
        package = importlib.import_module(f"pyro_pfedbayes.{top}")
        names += [i.name for i in pkgutil.iter_modules(package.__path__, f"{package.__name__}.")]
    return sorted(set(names))


def imported(path: Path) -> list[str]:
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.append(node.module)
    return names


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_downward_and_by_the_full_name(path: Path) -> None:
    own = STOREYS[path.relative_to(ROOT).parts[0]]
    lazy = path == ROOT / "pyro_pfedbayes" / "__init__.py"
    for name in imported(path):
        parts = name.split(".")
        assert parts[0] not in ("models", "inference", "experiments"), name
        if parts[0] == "pyro_pfedbayes" and not lazy:
            target = STOREYS.get(parts[1], 0) if len(parts) > 1 else 0
            assert target <= own, f"{path.name} climbs to {name}"


@pytest.mark.parametrize("name", modules())
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


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
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
    assert not names & {name.rpartition(".")[2] for name in modules()[1:] if name.count(".") == 1}
