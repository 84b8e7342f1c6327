"""A user's own model file, from the command line; and the changes that docs/declare.md shows."""

import re
from pathlib import Path

import pyro.distributions as dist
import pytest

from pyro_pfedbayes.experiments.build import build_model
from pyro_pfedbayes.experiments.config import parse_config
from pyro_pfedbayes.families import Laplace
from pyro_pfedbayes.inference.checkpoint import load_checkpoint
from tests.experiments.helpers import pfedbayes

PAGE = (Path(__file__).parents[2] / "docs" / "declare.md").read_text()
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


def test_a_program_runs_is_taken_up_and_predicts_from_the_runs_own_copy(tmp_path) -> None:
    (tmp_path / "m.py").write_text(PROGRAM)
    options = ["--model", f"{tmp_path / 'm.py'}:tendency", "--rounds", "6"]
    folder = tmp_path / "run"
    assert pfedbayes("run", *options, "--out", str(folder)).code == 0
    assert (folder / "model.py").read_text() == PROGRAM
    # What becomes of the user's file later does not matter.
    (tmp_path / "m.py").write_text("broken = ")
    assert pfedbayes("evaluate", str(folder)).code == 0
    assert "is finished" in pfedbayes("resume", str(folder)).out


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
