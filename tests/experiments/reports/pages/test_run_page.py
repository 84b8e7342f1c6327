"""The pages and the command: self-contained, escaped, whole whatever is missing, and plain errors."""

from __future__ import annotations

import base64
import json
import math
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyro_pfedbayes.experiments.reports.collect.run import collect
from pyro_pfedbayes.experiments.reports.pages.formatting import number
from pyro_pfedbayes.experiments.reports.pages.render import environment, fragment, render
from pyro_pfedbayes.experiments.reports.pages.run_page import report_page
from tests.experiments.helpers import Outcome, pfedbayes
from tests.experiments.reports.helpers import (
    add_groups,
    brief_summary,
    class_tree,
    number_tree,
    save,
    sharp,
    write_folder,
)

NASTY = "<b>\"ward\" & 'x'</b> $\\alpha_"
VOID = {"meta", "img", "br", "link"}


class Page(HTMLParser):
    """A page's tags, checked to nest, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.text += data


def assert_self_contained(text: str) -> Page:
    page = Page(text)
    names = {tag for tag, _ in page.tags}
    assert not names & {"script", "link", "iframe", "object"}
    for tag, attrs in page.tags:
        if tag == "img":
            assert attrs["src"] is not None
            assert attrs["src"].startswith("data:image/svg+xml;base64,")
            assert attrs["alt"]
            picture = base64.b64decode(attrs["src"].split(",")[1]).decode()
            assert not re.search(r'(href|src)="(?!#|data:)', picture)
        for key, value in attrs.items():
            assert not key.startswith("on")
            if key == "href":
                assert value is not None
                assert value.startswith("#")
    assert "url(" not in text
    assert "@import" not in text
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    targets = [attrs["href"] for tag, attrs in page.tags if tag == "a"]
    assert [f"#{anchor}" for anchor in ids] == targets
    return page


def full_run(path: Path) -> Path:
    y = np.array([0, 1, 2, 0, 1, 2, 0, 1])
    owner = np.array([0, 0, 0, 0, 1, 1, 1, 1])
    said = np.where(np.arange(8) == 5, 0, y)
    history = [
        {"round": r, "personal": {"accuracy": 0.5}, "global": {"accuracy": 0.4}} for r in (1, 2)
    ]
    folder = write_folder(path, summary=brief_summary(clients=3), history=history)
    tree = class_tree(np.stack([sharp(said)] * 2), y, owner, names=[NASTY, "plain", "empty"])
    add_groups(
        tree,
        global_=sharp(y, 0.6),
        validation=(sharp([0, 0, 0, 0]), np.array([0, 0, 0, 1]), np.array([0, 0, 1, 1])),
        unseen=(np.full((2, 3), 1 / 3), np.array([0, 1])),
        kl=np.array([[1.0, np.nan], [3.0, 4.0]]),
        foreign=np.full((2, 2, 3), 1 / 3),
        corrupted=(np.full((2, 2, 2, 3), 1 / 3), y[[0, 4]], np.array([0, 1]), np.array([0, 4])),
    )
    return save(folder, tree)


# -- pages ------------------------------------------------------------------------------------------------


def test_a_full_page_is_self_contained_and_escaped(tmp_path: Path) -> None:
    text = report_page(collect(full_run(tmp_path / "run")))
    page = assert_self_contained(text)
    assert NASTY in page.text
    assert "<b>" not in text
    assert (
        "On 8 test examples of 2 clients the personal models are right in 87.5\xa0% of cases"
        in page.text
    )
    assert "One global model for all is right in 100.0\xa0%, 12.5 points more often" in page.text
    assert "no test examples: nothing tells how good its model is" in page.text
    assert sum(tag == "img" for tag, _ in page.tags) == 8
    assert "not stored" not in page.text


def test_an_empty_page_says_what_is_missing(tmp_path: Path) -> None:
    page = assert_self_contained(report_page(collect(write_folder(tmp_path / "run"))))
    assert page.text.count("The run stored no predictions") >= 4
    assert "The run has no figures on test examples yet" in page.text
    assert "the run is not finished" in page.text


def test_an_older_runs_page_says_what_was_not_stored(tmp_path: Path) -> None:
    y = np.array([0, 1, 2])
    folder = write_folder(tmp_path / "run", summary=brief_summary(clients=1))
    save(folder, class_tree(np.stack([sharp(y)] * 2), y, 0 * y))
    page = assert_self_contained(report_page(collect(folder)))
    assert page.text.lower().count("not stored in this run") >= 4
    assert "no interval: too few clients" not in page.text


def test_a_page_of_numbers(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tree = number_tree(rng.normal(size=(40, 60)), rng.normal(size=60), np.repeat([0, 1], 30))
    page = assert_self_contained(report_page(collect(save(write_folder(tmp_path / "run"), tree))))
    assert "off by" in page.text
    assert "90\xa0% intervals hold" in page.text
    assert "Reliability" not in page.text


def test_the_same_run_gives_the_same_page(tmp_path: Path) -> None:
    folder = full_run(tmp_path / "run")
    assert report_page(collect(folder)) == report_page(collect(folder))


def test_broken_everything_is_still_a_page(tmp_path: Path) -> None:
    folder = full_run(tmp_path / "run")
    tree = class_tree(np.full((2, 3, 2), 0.5), np.array([0, 1, 0]), np.array([0, 0, 1]))
    for name in ("p", "total", "aleatoric", "epistemic"):
        tree["observation_stats"][name][:] = np.nan
    page = assert_self_contained(report_page(collect(save(folder, tree))))
    assert "not numbers" in page.text
    assert "nan" not in re.findall(r"\w+", page.text.lower())


def test_table_and_document_escape() -> None:
    table = fragment("differences.html.jinja", tables=[(NASTY, [NASTY], [[NASTY]])])
    text = render("report.html.jinja", title=NASTY, subtitle=NASTY, sections=[(NASTY, table)])
    assert Page(text).text.count(NASTY) == 8
    assert environment().from_string("{{ text }}").render(text="\x1b[31m") == "?[31m"
    assert number(math.inf) == "–"


# -- the command ------------------------------------------------------------------------------------------


def test_the_command_writes_a_page(finished: tuple[Path, Outcome], tmp_path: Path) -> None:
    page = tmp_path / "mine.html"
    outcome = pfedbayes("report", finished[0], "-o", page)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out == f"the report is in {page}\n"
    assert_self_contained(page.read_text())
    assert [file.name for file in tmp_path.iterdir()] == ["mine.html"]


def test_json_has_all_numbers_and_no_nan(finished: tuple[Path, Outcome], tmp_path: Path) -> None:
    outcome = pfedbayes("report", finished[0], "--json")
    assert (outcome.code, outcome.err) == (0, "")

    def refuse(text: str) -> Any:
        raise AssertionError(text)

    found = json.loads(outcome.out, parse_constant=refuse)
    assert {"personal", "global", "clients", "history", "settings", "missing"} <= found.keys()
    assert 0 < found["personal"]["measures"]["accuracy"]["value"] <= 1
    assert len(found["clients"]) == 6
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("where", ["gone/x.html", "."])
def test_a_page_that_cannot_be_written_is_refused_before_any_work(
    tmp_path: Path, where: str
) -> None:
    outcome = pfedbayes("report", tmp_path / "no-run", "-o", tmp_path / where)
    assert outcome.code == 2
    assert outcome.err.count("\n") == 1
    assert "no folder" in outcome.err or "is a folder" in outcome.err


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    outcome = pfedbayes("report", tmp_path, "--json")
    assert (outcome.code, outcome.out) == (2, "")
    assert "is not the folder of a run" in outcome.err


def test_a_run_named_twice_is_refused(tmp_path: Path) -> None:
    run = write_folder(tmp_path / "run")
    assert "given twice" in pfedbayes("report", run, run, "--json").err


def test_a_full_disk_leaves_the_old_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, page = write_folder(tmp_path / "run"), tmp_path / "page.html"
    page.write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    outcome = pfedbayes("report", run, "-o", page)
    assert outcome.code == 2
    assert "No space left" in outcome.err
    assert page.read_text() == "old"
    assert {file.name for file in tmp_path.iterdir()} == {"run", "page.html"}


def test_no_display_is_needed_and_pyplot_is_not_touched(tmp_path: Path) -> None:
    import subprocess
    import sys

    run = full_run(tmp_path / "run")
    code = (
        "import sys; from pathlib import Path;"
        "from pyro_pfedbayes.experiments.reports.collect.run import collect;"
        "from pyro_pfedbayes.experiments.reports.pages.run_page import report_page;"
        f"report_page(collect(Path({str(run)!r}), reload=False));"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    env = {k: v for k, v in os.environ.items() if k not in ("DISPLAY", "MPLBACKEND")}
    subprocess.run([sys.executable, "-c", code], check=True, env=env)
