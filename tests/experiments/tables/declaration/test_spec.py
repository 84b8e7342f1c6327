"""What a table may declare, and how it is told what is wrong."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.experiments.config.registry import preset_text, table_names
from pyro_pfedbayes.experiments.tables.declaration.plan import make_plan
from pyro_pfedbayes.experiments.tables.declaration.reader import parse_spec, read_spec
from tests.experiments.helpers import pfedbayes
from tests.experiments.tables.helpers import DIGITS, OURS, plan, spec_file, tree, zeta

TUNED = {"name": "pfedbayes", "grid": {"lr": [0.01, 0.1]}}


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        (tree({"name": "pfedbays"}), "unknown method 'pfedbays'; did you mean 'pfedbayes'?"),
        (tree(OURS | {"setings": {}}), "unknown key 'method.setings'; did you mean 'settings'?"),
        (tree(OURS | {"settings": {"zta": 1}}), "unknown key 'algorithm.zta'"),
        (tree(OURS | {"model": {"hiden": [3]}}), "unknown key 'model.hiden'"),
        (tree(OURS | {"grid": {"lr": ["fast"]}}), "(lr=fast): algorithm.lr is 'fast'; it must be"),
        (tree(OURS | {"grid": {"lr": [-1.0]}}), "(lr=-1.0): algorithm: lr"),
        (tree(OURS | {"grid": {"lrr": [1.0]}}), "unknown key 'algorithm.lrr'"),
        (tree(OURS | {"grid": {"model.rh": [1.0]}}), "unknown key 'model.rh'"),
        (tree(OURS | {"grid": {"lr": []}}), "grid.lr is empty"),
        (tree(OURS | {"grid": {"lr": 0.1}}), "method.grid is"),
        (tree(OURS | {"grid": {"lr": [0.1, 0.1]}}), "grid.lr holds a value twice"),
        (tree(zeta(1.0, grid={"zeta": [1, 2]})), "both fixed in settings and tuned in grid"),
        (tree(OURS | {"grid": {"a.b.c": [1]}}), "give a setting of the method, or model.KEY"),
        (tree(TUNED, zeta(2.0)), "the grid of 'pfedbayes' has 2 points, that of 'zeta 2' 1"),
        (tree(TUNED, tuning={"points": 1}), "its grid has 2 points, tuning.points allows 1"),
        (
            tree(TUNED, validation=0.0),
            "table.validation is 0, but the grid of 'pfedbayes' is chosen on",
        ),
        (tree(tuning={"round": 3}), "unknown key 'tuning.round'; did you mean 'rounds'?"),
        (tree(seeds=[]), "table.seeds is []; it must be a list of integers"),
        (tree(seeds=["a"]), "table.seeds[0] is 'a'; it must be a list of integers"),
        (tree(seeds=[1, 2, 1]), "table.seeds holds a seed twice: [1, 2, 1]"),
        (tree(OURS | {"seeds": [4, 4]}), "method 'pfedbayes': seeds holds a seed twice: [4, 4]"),
        (tree(OURS | {"seeds": []}), "method.seeds is []; it must be a list of integers"),
        (tree(OURS | {"settings": {"name": "fedavg"}}), "do not name the method; give algorithm"),
        (tree(rounds=0), "table.rounds is 0; it must be at least 1"),
        (tree(rounds=1), "rounds is 1, but kind_rounds takes 0 and personal_rounds 1"),
        (tree(local_stpes=1), "unknown key 'table.local_stpes'; did you mean 'local_steps'?"),
        (tree(paired_with="fedavgg"), "table.paired_with is 'fedavgg', which is no method"),
        (tree(OURS, OURS), "two methods on digits-blocks are called 'pfedbayes'"),
        (tree(OURS | {"on": ["mnist"]}), "on names no data 'mnist'"),
        (tree(OURS | {"paper": {"digit": {"pm": 1}}}), "paper names no data 'digit'"),
        (tree(OURS | {"paper": {"digits-blocks": {"pm": "1"}}}), "method.paper is"),
        (tree(OURS | {"models": ["personnel"]}), "method.models[0] is 'personnel'; it must be"),
        (tree(data=[DIGITS, DIGITS]), "two [[data]] are called 'digits-blocks'"),
        (tree(data=[DIGITS | {"nme": 1}]), "unknown key 'data.nme'"),
        (tree(data=[{"split": "small"}]), "a [[data]] lacks the key 'name'"),
        (tree(data=[{"name": "mnits"}]), "unknown data set 'mnits'; did you mean 'mnist'?"),
        (tree(data=[{"name": "digits", "splits": "small"}]), "give either split, or splits"),
        (tree(data=[]), "give at least one [[data]]"),
        (tree() | {"methods": []}, "unknown section 'methods'; did you mean 'method'?"),
        ({"table": {}}, "[table] lacks the key 'rounds'"),
        ({"table": 3}, "'table' must be a section of keys, not 3"),
    ],
)
def test_mistakes_are_told_in_a_line_that_names_them(
    declared: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError) as caught:
        make_plan(parse_spec(declared, "t.toml: "), "t.toml: ")
    assert message in str(caught.value)
    assert str(caught.value).startswith("t.toml: ")


def test_files_that_are_no_tables(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("[table")
    (tmp_path / "other").write_text("")
    for name, message in {
        "bad.toml": "is not valid TOML",
        "none.toml": "cannot read",
        "other": "neither a table that is built in nor a .toml file",
    }.items():
        outcome = pfedbayes("table", tmp_path / name)
        assert (outcome.code, outcome.err.count("\n")) == (2, 1)
        assert message in outcome.err
    assert "unknown table 'digit-quick'; did you mean" in pfedbayes("table", "digit-quick").err


def test_the_plan_has_tuning_and_final_runs_and_equal_lengths() -> None:
    tuned = TUNED | {"grid": {"lr": [0.01, 0.1], "model.rho": [-2.0, -3.0]}}
    found = plan(tuned, zeta(2.0, rounds=6), tuning={"points": 4, "rounds": 2, "seeds": [7]})
    ours, other = found.cells
    assert [dict(point) for point in ours.points] == [
        {"lr": lr, "model.rho": rho} for lr in (0.01, 0.1) for rho in (-2.0, -3.0)
    ]
    assert [(job.seed, job.rounds) for runs in ours.tuning for job in runs] == [(7, 2)] * 4
    assert [(job.seed, job.rounds) for job in ours.final[1]] == [(1, 3), (2, 3)]
    job = ours.final[1][0]
    assert job.tree["model"] == {"hidden": [6], "rho": -3.0}
    assert job.tree["algorithm"] == {
        **{"name": "pfedbayes", "local_steps": 2, "batch_size": 8},
        "lr": 0.01,
    }
    assert job.tree["data"]["validation"] == 0.2
    # A length of its own, and nothing to tune.
    assert other.tuning == ()
    assert [job.rounds for job in other.final[0]] == [6, 6]
    assert len(found.jobs()) == 4 + 4 * 2 + 2


def test_names_of_runs_stay_when_a_table_grows_and_change_with_what_matters() -> None:
    before = plan().jobs().keys()
    assert before < plan(OURS, zeta(4.0), zeta(5.0), seeds=[1, 2, 3], title="Other").jobs().keys()
    assert not before & plan(eval_draws=3).jobs().keys()
    assert not before & plan(data=[DIGITS | {"alpha": 0.5, "scheme": "dirichlet"}]).jobs().keys()
    options = {"data.dir": "elsewhere", "run.device": "cpu"}
    moved = make_plan(parse_spec(tree()), "", options).jobs()
    assert moved.keys() == before
    assert {job.tree["run"]["device"] for job in moved.values()} == {"cpu"}


def test_a_method_may_have_seeds_of_its_own() -> None:
    found = plan(OURS, zeta(4.0, seeds=[2]))
    assert [[job.seed for job in cell.final[0]] for cell in found.cells] == [[1, 2], [2]]


def test_one_method_may_be_declared_apart_for_some_data() -> None:
    here = {"name": "pfedbayes", "on": ["digits"], "settings": {"zeta": 2.0}}
    there = {"name": "pfedbayes", "on": ["wine"], "rounds": 5}
    found = plan(here, there, data=[DIGITS, {"name": "wine"}])
    assert [cell.key for cell in found.cells] == [
        ("digits-blocks", "pfedbayes"),
        ("wine", "pfedbayes"),
    ]
    assert [cell.final[0][0].rounds for cell in found.cells] == [3, 5]


def test_splits_make_columns_of_their_own() -> None:
    spec = parse_spec(tree(data=[{"name": "MNIST", "splits": ["small", "large"]}]))
    assert [(e.label, e.name, e.split) for e in spec.data] == [
        ("mnist-small", "mnist", "small"),
        ("mnist-large", "mnist", "large"),
    ]


def test_a_dry_run_counts_runs_and_leaves_nothing(tmp_path: Path) -> None:
    file = spec_file(tmp_path, TUNED, zeta(4.0), tuning={"points": 2})
    outcome = pfedbayes("table", file, "-o", tmp_path / "out", "--dry-run")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.splitlines() == [
        "digits-blocks pfedbayes: 2 points tried in 2 runs, 2 runs of 3 rounds",
        "digits-blocks zeta 4: 2 runs of 3 rounds",
        # A tuning run with the first seed is a final one as well.
        "2 cells, 5 runs, 5 of them still to be made",
    ]
    assert not (tmp_path / "out").exists()


def test_tables_are_listed_with_a_line() -> None:
    listed = pfedbayes("list").out
    assert "Tables (pfedbayes table NAME)" in listed
    assert {"digits-quick", "table1"} <= set(table_names())
    assert all(name in listed for name in table_names())


def test_the_table_of_the_paper_quotes_its_figures() -> None:
    """Figures read off Table 1 by hand, and the numbers of a whole copy: 8 methods on 9 data sets."""
    declared = tomllib.loads(preset_text("table1", "table"))
    paper: dict[str, dict[str, Any]] = {}
    for method in declared["method"]:
        paper.setdefault(method["name"], {}).update(method["paper"])
    assert [len(cells) for cells in paper.values()] == [9] * 8
    assert paper["pfedbayes"]["mnist-small"]["pm"] == [94.13, 0.27]
    assert paper["pfedme"]["cifar10-large"]["gm"] == [70.86, 1.04]
    assert paper["bnfed"]["fmnist-medium"] == {"gm": [69.68, 0.39]}
    assert json.dumps(paper).count('"pm"') == 5 * 9
    assert json.dumps(paper).count('"gm"') == 5 * 9


@pytest.mark.parametrize("name", table_names())
def test_tables_that_come_with_the_package_can_be_run(name: str) -> None:
    found = make_plan(read_spec(name))
    sizes = {"table1": 9, "mnist-fmnist": 6, "heterogeneity": 3}
    assert len(found.spec.data) == sizes.get(name, 1)
    tried = {(cell.method.name, len(cell.points)) for cell in found.cells}
    # Nothing of ours is tuned by more points than others are.
    assert max(size for _, size in tried) == max([s for m, s in tried if m != "pfedbayes"])
    assert not {job.seed for c in found.cells for r in c.final for job in r} & {
        job.seed for c in found.cells for r in c.tuning for job in r
    }


def test_the_quick_table_tunes_the_same_setting_of_all_methods() -> None:
    declared = tomllib.loads(preset_text("digits-quick", "table"))
    assert {tuple(m["grid"]) for m in declared["method"]} == {("lr",)}
    assert {len(m["grid"]["lr"]) for m in declared["method"]} == {2}


@pytest.mark.parametrize(
    ("preset", "table", "method"),
    [
        ("personal", "mnist-fmnist", "pfedbayes"),
        ("global", "global-model", "zeta 0.1, local reparameterization"),
    ],
)
def test_presets_are_rows_of_the_tables_that_speak_for_them(
    preset: str, table: str, method: str
) -> None:
    declared = tomllib.loads(preset_text(preset))
    cells = make_plan(read_spec(table)).cells
    job = next(cell for cell in cells if cell.method.name == method).final[-1][0]
    defaults = {"lr": 3e-3}
    algorithm = {k: v for k, v in job.tree["algorithm"].items() if k in declared["algorithm"]}
    assert algorithm == declared["algorithm"]
    assert {**defaults, **declared["algorithm"]}["lr"] == {**defaults, **job.tree["algorithm"]}[
        "lr"
    ]
    assert job.tree["model"].items() <= declared["model"].items()
    assert job.rounds == declared["run"]["rounds"]


def test_the_example_of_the_manual_can_be_run() -> None:
    page = (Path(__file__).parents[4] / "docs" / "table.md").read_text()
    text, sweep = re.findall(r"^```toml\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    found = make_plan(parse_spec(tomllib.loads(text)))
    assert [cell.key for cell in found.cells][-1] == ("wine-by-size", "pfedbayes")
    more = make_plan(parse_spec(tomllib.loads(text + sweep)))
    assert len(more.cells) == len(found.cells) + 5
    assert more.cells[-1].key == ("digits-small, weight of the KL=20.0", "pfedbayes")
