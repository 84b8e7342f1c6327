"""What only data and model can tell is found before anything runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.experiments.tables.declaration.plan import Plan, make_plan
from pyro_pfedbayes.experiments.tables.declaration.reader import parse_spec
from pyro_pfedbayes.experiments.tables.execution.folder import TableFolder
from pyro_pfedbayes.experiments.tables.execution.schedule import Schedule
from pyro_pfedbayes.experiments.tables.execution.trial import try_out
from tests.experiments.helpers import pfedbayes
from tests.experiments.tables.helpers import DIGITS, HEAD, OURS, made_up, plan, record, spec_file

NUMBERS = {"name": "diabetes", "label": "sugar", "target_scaling": "standard"}
PER = {"name": "fedper", "settings": {"head": "zz"}}
UNEVEN = DIGITS | {"scheme": "random", "clients": 3, "train_per_class": 80, "test_per_class": 8}


def schedule(table: Plan, folder: Path) -> Schedule:
    return Schedule(table, TableFolder(folder / "out"))


@pytest.mark.parametrize(
    ("methods", "changes", "message"),
    [
        ([OURS, PER], {}, "t: method 'fedper' on digits-blocks: head is 'zz', which matches no"),
        (
            [{"name": "fedrep", "grid": {"head": ["head.*", "zz"]}}],
            {},
            "t: method 'fedrep' on digits-blocks (head=zz): head is 'zz'",
        ),
        (
            [OURS, {"name": "oracle-cluster", "on": ["diabetes"]}],
            {"data": [DIGITS, NUMBERS]},
            "t: method 'oracle-cluster' on sugar: oracle-cluster groups clients by their classes",
        ),
        (
            [{"name": "bnfed", "model": {"name": "linear"}}],
            {},
            "t: method 'bnfed' on digits-blocks: bnfed matches hidden neurons",
        ),
        (
            [OURS],
            {"data": [{"name": "wine", "model": {"name": "vgg"}}]},
            "t: method 'pfedbayes' on wine: ",
        ),
        # Two sexes: how many clients there are is known only from the column.
        (
            [{"name": "pfedbayes", "settings": {"kinds": 9, "kind_rounds": 1}}],
            {"data": [NUMBERS]},
            "t: method 'pfedbayes' on sugar: kinds is 9, but there are only 2 clients",
        ),
        ([OURS], {"data": [DIGITS | {"train_per_class": 5000}]}, "t: data 'digits-blocks': "),
        # Class 8 is too small to be held by two clients, as seed 2 would have it.
        (
            [OURS],
            {"data": [UNEVEN], "seeds": [3, 2]},
            "t: data 'digits-random', seed 2: digits: class '8'",
        ),
        ([OURS], {"data": [UNEVEN], "seeds": [2, 3]}, "t: data 'digits-random': digits: class '8'"),
    ],
)
def test_what_cannot_begin_is_refused_with_its_place(
    tmp_path: Path, methods: list[dict[str, Any]], changes: dict[str, Any], message: str
) -> None:
    table = plan(*methods, **({"tuning": {"points": 2}} | changes))
    with pytest.raises(UserError, match=re.escape(message)):
        try_out(schedule(table, tmp_path), "t: ")
    assert not list(tmp_path.iterdir())


def test_the_command_refuses_before_it_makes_a_folder(tmp_path: Path) -> None:
    file = spec_file(tmp_path, OURS, PER)
    for options in ([], ["--dry-run"]):
        outcome = pfedbayes("table", file, "-o", tmp_path / "out", *options)
        assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
        assert f"{file}: method 'fedper' on digits-blocks: head is 'zz'" in outcome.err
        assert not (tmp_path / "out").exists()


def test_methods_that_can_begin_are_let_through(tmp_path: Path) -> None:
    table = plan(OURS, {"name": "fedper"}, {"name": "knn-per"})
    assert try_out(schedule(table, tmp_path)) == []


def test_only_what_is_still_to_be_run_is_tried(tmp_path: Path) -> None:
    """A finished table needs no data; what failed is tried again only if it is to be made anew."""
    table = plan(PER)
    given = schedule(table, tmp_path)
    first, second = table.cells[0].final[0]
    made_up(given.folder, first, record(3, personal=(0.8, 0.5, 0.9, 0.4)))
    with pytest.raises(UserError, match="head is 'zz'"):
        try_out(given)
    given.folder.failures.mkdir()
    given.folder.fail(second.id, "it diverged")
    assert try_out(schedule(table, tmp_path)) == []
    with pytest.raises(UserError, match="head is 'zz'"):
        try_out(schedule(table, tmp_path), retry=True)


def test_a_dry_run_downloads_nothing(tmp_path: Path) -> None:
    declared = {
        "table": HEAD,
        "data": [DIGITS, {"name": "mnist", "splits": ["small", "large"]}],
        "method": [OURS],
    }
    table = make_plan(parse_spec(declared), "", {"data.dir": str(tmp_path / "empty")})
    (line,) = try_out(schedule(table, tmp_path), download=False)
    assert line.startswith("not tried out on mnist-small, mnist-large: MNIST was not found")
    assert "may not be downloaded" in line
    assert not list(tmp_path.iterdir())
