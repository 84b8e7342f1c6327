"""A user's own model file, from the command line; and the changes that docs/declare.md shows."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyro.distributions as dist
import pytest

from pyro_pfedbayes.experiments.config.sections import parse_config
from pyro_pfedbayes.experiments.runs.build import build_model
from pyro_pfedbayes.families import Laplace
from pyro_pfedbayes.inference.federation.checkpoint import load_checkpoint
from tests.experiments.helpers import pfedbayes

PAGE = (Path(__file__).parents[3] / "docs" / "declare.md").read_text()
FILE = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0]
DIFFS = re.findall(r"```diff\n(.*?)```", PAGE, re.DOTALL)
QUICK = ["--set", "model.hidden=[8]", "--set", "algorithm.local_steps=2", "--rounds", "6"]


def changed(text: str, diff: str) -> str:
    """Apply a diff of the docs: its context and the lines that it takes out must stand in the file together."""
    lines = diff.splitlines()
    before = "".join(f"{line[1:]}\n" for line in lines if line[0] in " -")
    after = "".join(f"{line[1:]}\n" for line in lines if line[0] in " +")
    assert text.count(before) == 1
    return text.replace(before, after)


def run(folder: Path, text: str, *more: str, function: str = "mine"):
    (folder / "my_models.py").write_text(text)
    model = f"{folder / 'my_models.py'}:{function}"
    return pfedbayes("run", "--model", model, "--out", str(folder / "run"), *QUICK, *more)


@pytest.mark.parametrize("diff", DIFFS, ids=["prior", "likelihood", "roles"])
def test_what_the_docs_change_is_at_most_five_lines_and_runs(diff, tmp_path) -> None:
    assert sum(line[0] in "+-" for line in diff.splitlines()) <= 5
    outcome = run(tmp_path, changed(FILE, diff))
    assert outcome.code == 0, outcome.err
    assert (tmp_path / "run" / "summary.json").is_file()
    assert pfedbayes("evaluate", str(tmp_path / "run")).code == 0


def test_the_changes_change_what_they_say(tmp_path) -> None:
    models = []
    for name, diff in zip(("prior", "likelihood", "roles"), DIFFS, strict=True):
        path = tmp_path / f"{name}.py"
        path.write_text(changed(FILE, diff))
        tree = {"model": {"name": f"{path}:mine", "hidden": [8]}}
        models.append(build_model(parse_config(tree), (1, 8, 8), 10))
    prior, likelihood, roles = models
    assert isinstance(prior.declaration.server, Laplace)
    assert isinstance(prior._own_priors["fc1.weight"], dist.Laplace)
    assert likelihood.likelihood.missing == "mask"
    assert likelihood.likelihood.class_weights[4:6] == (1.0, 2.0)
    assert {k: r.kind for k, r in roles.declaration.roles.items()} == {
        "fc1.weight": "point",
        "fc1.bias": "point",
        "head.weight": "private",
        "head.bias": "private",
    }


def test_a_file_without_changes_is_the_built_in_model(tmp_path) -> None:
    """The same seed gives the same bits, whoever wrote the model down."""
    assert run(tmp_path, FILE).code == 0
    builtin = tmp_path / "builtin"
    options = [*QUICK, "--model", "mlp", "--set", "model.rho=-3.0"]
    assert pfedbayes("run", "--out", str(builtin), *options).code == 0
    states = [load_checkpoint(folder / "checkpoint")[0] for folder in (tmp_path / "run", builtin)]
    assert all((v == states[1].server[k]).all() for k, v in states[0].server.items())


PROGRAM = """
import pyro
import pyro.distributions as dist

def tendency(x, y=None):
    p = pyro.sample("p", dist.Dirichlet(x.new_ones(10)))
    with pyro.plate("rows", len(x)):
        pyro.sample("y", dist.Categorical(p), obs=y)
"""


def test_a_run_needs_its_own_copies_only(tmp_path) -> None:
    """Evaluated, predicted from and taken up when the user's files are gone; in a process that never saw them."""
    user, folder = tmp_path / "user", tmp_path / "run"
    user.mkdir()
    (user / "pieces.py").write_text("import pyro.distributions as dist\n\nWIDE = dist.Dirichlet\n")
    text = PROGRAM.replace("def tendency", "import pieces\n\ndef tendency")
    (user / "m.py").write_text(text.replace("dist.Dirichlet", "pieces.WIDE"))
    options = ["--model", f"{user / 'm.py'}:tendency", "--rounds", "6", "--out", str(folder)]
    assert pfedbayes("run", *options).code == 0
    assert sorted(p.name for p in (folder / "model").iterdir()) == ["m.py", "pieces.py"]
    shutil.rmtree(user)
    np.savez(tmp_path / "x.npz", x=np.full((2, 8, 8), 5))
    (folder / "summary.json").unlink()
    for command in (
        ["evaluate", str(folder)],
        ["predict", str(folder), "--client", "0", "--input", str(tmp_path / "x.npz")],
        ["resume", str(folder)],
    ):
        arguments = [sys.executable, "-m", "pyro_pfedbayes.experiments.cli.main", *command]
        done = subprocess.run(arguments, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert (folder / "summary.json").is_file()


@pytest.mark.parametrize(
    ("text", "function", "message"),
    [
        ("def mine(data:\n    pass", "mine", "cannot import"),
        ("x = 1 / 0", "mine", "line 1: ZeroDivisionError: division by zero"),
        ("def other(data): pass", "mine", "has no function 'mine' (it has: other)"),
        ("def mnie(data): pass", "mine", "did you mean 'mnie'?"),
        ("def mine(data): return 3", "mine", "returned int; return a BayesianModel or"),
        ("def mine(): pass", "mine", "mine takes nothing; write def mine(data, *, option=default)"),
        ("def mine(data):\n    return data.x", "mine", "line 2: AttributeError: 'DataSpec'"),
        (FILE, "mine", "unknown key 'model.hiden'; did you mean 'hidden'?"),
        (
            PROGRAM.replace(
                "Dirichlet(x.new_ones(10))", "Bernoulli(x.new_ones(10) / 2).to_event(1)"
            ),
            "tendency",
            "site 'p' is discrete",
        ),
    ],
)
def test_mistakes_in_a_file_are_told_in_one_line(text, function, message, tmp_path) -> None:
    (tmp_path / "f.py").write_text(text)
    extra = ["--set", "model.hiden=[3]"] if "hiden" in message else []
    outcome = pfedbayes(
        "run", "--model", f"{tmp_path / 'f.py'}:{function}", "--out", str(tmp_path / "run"), *extra
    )
    assert outcome.code == 2
    assert message in outcome.err
    assert outcome.err.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere.py:mine", "there is no file nowhere.py"),
        ("my_models.py", "give FILE.py:FUNCTION"),
        ("mpl", "unknown model 'mpl'; did you mean 'mlp'?"),
    ],
)
def test_models_that_are_not_there(name, message, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = pfedbayes("run", "--model", name)
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert message in outcome.err
