"""The numbers of a table, against figures worked out by hand from runs that are made up."""

from __future__ import annotations

import json
import math
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.experiments.reports.collect.comparison import Spread
from pyro_pfedbayes.experiments.tables.declaration.plan import Plan
from pyro_pfedbayes.experiments.tables.execution.folder import TableFolder
from pyro_pfedbayes.experiments.tables.execution.schedule import Schedule, choose
from pyro_pfedbayes.experiments.tables.execution.supervisor import TimeLeft, span
from pyro_pfedbayes.experiments.tables.pages.columns import difference_text, spread_text
from pyro_pfedbayes.experiments.tables.pages.document import (
    Document,
    Heading,
    Mark,
    Sheet,
    Text,
    to_html,
    to_latex,
    to_markdown,
)
from pyro_pfedbayes.experiments.tables.pages.files import write_files
from pyro_pfedbayes.experiments.tables.pages.layout import lay_out
from pyro_pfedbayes.experiments.tables.results import (
    Paired,
    Results,
    collect,
    dropped_line,
    failures,
    lacking_line,
    paired,
)
from tests.experiments.tables.helpers import OURS, made_up, plan, record, rows, zeta

TUNED = {"name": "tuned", "algorithm": "pfedbayes", "grid": {"lr": [0.1, 0.2, 0.3]}}
TUNING = {"tuning": {"seeds": [9], "points": 3}}


def folder_of(tmp_path: Path, table: Plan) -> TableFolder:
    folder = TableFolder(tmp_path / "t")
    folder.claim(table)
    return folder


def two_methods(tmp_path: Path, seeds: list[int], **changes: Any) -> tuple[Plan, TableFolder]:
    """PM 80, 82, ... %; the other method 1, 3, ... points above it; GM 50 %."""
    table = plan(OURS, zeta(4.0, **changes), seeds=seeds)
    folder = folder_of(tmp_path, table)
    for above, cell in enumerate(table.cells):
        for k, job in enumerate(cell.final[0]):
            value = 0.80 + 0.02 * k + above * (0.01 + 0.02 * k)
            line = record(3, personal=(value, 0.5, 0.9, 0.4), **{"global": (0.5, 1.0, 0.6, 1.0)})
            made_up(folder, job, line, bytes_uploaded=24_000 if above else None)
    return table, folder


def results(table: Plan, folder: TableFolder) -> Results:
    schedule = Schedule(table, folder)
    assert schedule.next() is None
    return collect(schedule)


def test_seeds_of_a_methods_own_are_told(tmp_path: Path) -> None:
    table = plan(OURS, zeta(4.0, seeds=[7]), seeds=[1, 2])
    folder = folder_of(tmp_path, table)
    for cell in table.cells:
        for job in cell.final[0]:
            made_up(folder, job, record(3, personal=(0.5, 0.5, 0.9, 0.4)))
    page = to_markdown(lay_out(results(table, folder)))
    assert "Methods with seeds of their own: zeta 4 7." in page
    assert "no seed in common" in page


# -- choosing ---------------------------------------------------------------------------------------------


def tried(tmp_path: Path, lines: list[dict[str, Any]], **changes: Any) -> int | None:
    """The point chosen when the three tuning runs quote these lines."""
    table = plan(TUNED | changes, **TUNING)
    folder, (cell,) = folder_of(tmp_path, table), table.cells
    for (job,), line in zip(cell.tuning, lines, strict=True):
        made_up(folder, job, line)
    return choose(cell, folder).number


def test_tuning_looks_at_validation_examples_and_not_at_the_test_set(tmp_path: Path) -> None:
    test_says_first = [
        record(3, personal=(0.99, 0.01, 0.70, 0.9)),
        record(3, personal=(0.10, 9.00, 0.80, 0.9)),
        record(3, personal=(0.98, 0.02, 0.60, 0.1)),
    ]
    assert tried(tmp_path, test_says_first) == 1


def test_ties_of_tuning_go_to_the_lower_validation_nll(tmp_path: Path) -> None:
    lines = [record(3, personal=(0.5, 0.5, 0.8, nll)) for nll in (0.6, 0.4, 0.5)]
    assert tried(tmp_path, lines) == 1


def test_methods_without_personal_models_are_tuned_by_the_global_one(tmp_path: Path) -> None:
    lines = [
        record(3, personal=(0.5, 0.5, pm, 0.5), **{"global": (0.5, 0.5, gm, 0.5)})
        for pm, gm in ((0.9, 0.1), (0.8, 0.2), (0.7, 0.3))
    ]
    assert tried(tmp_path / "both", lines) == 0
    assert tried(tmp_path / "global", lines, models=["global"]) == 2


def test_points_that_failed_drop_out(tmp_path: Path) -> None:
    table = plan(TUNED, **TUNING)
    folder, (cell,) = folder_of(tmp_path, table), table.cells
    schedule = Schedule(table, folder)
    folder.fail(cell.tuning[0][0].id, "it diverged")
    made_up(folder, cell.tuning[1][0], record(3, personal=(0.5, 0.5, 0.1, 2.0)))
    assert schedule.choice(cell) is None
    folder.fail(cell.tuning[2][0].id, "it diverged")
    choice = schedule.choice(cell)
    assert choice is not None
    assert (choice.number, choice.trials[0].reason) == (1, "it diverged")
    assert schedule.next() == cell.final[1][0]


def test_a_cell_all_of_whose_points_failed_says_why(tmp_path: Path) -> None:
    table = plan(TUNED, **TUNING)
    folder, (cell,) = folder_of(tmp_path, table), table.cells
    for (job,) in cell.tuning:
        folder.fail(job.id, "it diverged")
    found = results(table, folder)
    assert found.cells[0].reason == "it diverged"
    page = to_markdown(lay_out(found))
    assert "| tuned | failed: it diverged | failed |" in page
    assert "tuning with lr=0.3: failed: it diverged" in page
    write_files(found, folder.path)
    (row,) = rows(folder.path / "results.csv")
    assert (row["status"], row["reason"]) == ("failed", "it diverged")


@pytest.mark.parametrize(
    ("models", "model"),
    [(["personal", "global"], "personal"), (["personal"], "personal"), (["global"], "global")],
)
def test_points_that_failed_are_listed_under_the_model_that_decides(
    tmp_path: Path, models: list[str], model: str
) -> None:
    table = plan(TUNED | {"models": models}, zeta(4.0), **TUNING)
    folder = folder_of(tmp_path, table)
    for (job,) in table.cells[0].tuning:
        folder.fail(job.id, "it diverged")
    assert choose(table.cells[0], folder).model == model
    write_files(collect(Schedule(table, folder)), folder.path)
    # Nothing tells the measure.
    told = {(row["model"], row["measure"]) for row in rows(folder.path / "tuning.csv")}
    assert told == {(model, "")}
    line = {"rmse": 1.0, "nll": 1.0, "validation_rmse": 1.0, "validation_nll": 1.0}
    for job in table.cells[1].final[0]:
        made_up(folder, job, record(3) | {"personal": line, "global": line})
    write_files(collect(Schedule(table, folder)), folder.path)
    assert {row["measure"] for row in rows(folder.path / "tuning.csv")} == {"validation_rmse"}


def test_failures_are_counted_with_their_places(tmp_path: Path) -> None:
    """All points of one method, one of two seeds of another, one point of a third."""
    tuned = TUNED | {"name": "some", "grid": {"lr": [0.1, 0.2]}}
    table = plan(TUNED, zeta(4.0), tuned, **TUNING)
    folder = folder_of(tmp_path, table)
    none, part, some = table.cells
    for (job,) in none.tuning:
        folder.fail(job.id, "it diverged")
    line = record(3, personal=(0.8, 0.5, 0.9, 0.4))
    made_up(folder, part.final[0][0], line)
    folder.fail(part.final[0][1].id, "it diverged")
    folder.fail(some.tuning[0][0].id, "it diverged")
    for job in (some.tuning[1][0], *some.final[1]):
        made_up(folder, job, line)
    found = failures(results(table, folder), folder)
    assert lacking_line(found) == (
        "4 runs failed: digits-blocks tuned (3 tuning runs); digits-blocks zeta 4 (seed 2) "
        "(--retry makes them anew)"
    )
    assert dropped_line(found) == (
        "1 tuning run failed, other points were chosen: digits-blocks some (1 tuning run)"
    )
    assert (lacking_line([]), dropped_line([])) == (None, None)


def test_a_table_with_nothing_to_choose_says_so(tmp_path: Path) -> None:
    """The runs did not fail, but their figures are not finite."""
    table = plan(TUNED, **TUNING)
    folder, (cell,) = folder_of(tmp_path, table), table.cells
    for (job,) in cell.tuning:
        made_up(folder, job, record(3, personal=(0.8, 0.5, math.nan, math.nan)))
    line = lacking_line(failures(results(table, folder), folder))
    assert line is not None
    assert "digits-blocks tuned (nothing to choose: " in line


# -- figures ----------------------------------------------------------------------------------------------


def test_each_figure_is_that_of_its_round(tmp_path: Path) -> None:
    table = plan(OURS, seeds=[1])
    folder, ((job,),) = folder_of(tmp_path, table), table.cells[0].final
    lines = [
        record(1, personal=(0.70, 0.9, 0.80, 0.5)),
        record(2, personal=(0.90, 0.7, 0.60, 0.4)),
        record(3, personal=(0.60, 0.8, 0.80, 0.4)),
        record(4, personal=(0.65, 0.6, 0.50, 0.1)),
    ]
    made_up(folder, job, *lines)
    write_files(results(table, folder), folder.path)
    found = {
        (row["selector"], row["measure"]): float(row["value"])
        for row in rows(folder.path / "results.csv")
    }
    assert found == {
        **{("selected", "accuracy"): 0.60, ("selected", "nll"): 0.8},
        **{("last", "accuracy"): 0.65, ("last", "nll"): 0.6},
        **{("best", "accuracy"): 0.90, ("best", "nll"): 0.7},
    }


def test_the_csv_holds_a_row_a_figure(tmp_path: Path) -> None:
    table, folder = two_methods(tmp_path, [1, 2])
    write_files(results(table, folder), folder.path)
    found = rows(folder.path / "results.csv")
    # 2 methods, 2 seeds, 3 selectors, 2 models, 2 measures.
    assert len(found) == 48
    (row,) = [
        row
        for row in found
        if (row["method"], row["seed"], row["model"]) == ("zeta 4", "2", "personal")
        and (row["selector"], row["measure"]) == ("selected", "accuracy")
    ]
    assert float(row["value"]) == pytest.approx(0.85)
    assert {k: row[k] for k in ("data", "split", "algorithm", "status", "reason")} == {
        **{"data": "digits-blocks", "split": "", "algorithm": "pfedbayes"},
        **{"status": "finished", "reason": ""},
    }
    assert (row["seconds"], row["bytes_uploaded"], row["gradient_steps"]) == ("2.0", "24000", "24")
    assert json.loads(row["settings"])["algorithm"]["zeta"] == 4.0


def test_paired_differences_and_their_interval_by_hand(tmp_path: Path) -> None:
    """Differences 0.01, 0.03, 0.05: mean 0.03, sd 0.02, and t(0.975, 2) = 4.302653 over the root of 3."""
    table, folder = two_methods(tmp_path, [1, 2, 3])
    found = results(table, folder)
    write_files(found, folder.path)
    (row,) = [
        row
        for row in rows(folder.path / "differences.csv")
        if (row["model"], row["selector"], row["measure"]) == ("personal", "last", "accuracy")
    ]
    half = 4.302653 * 0.02 / math.sqrt(3)
    assert (row["method"], row["against"], row["seeds"]) == ("zeta 4", "pfedbayes", "3")
    assert float(row["mean"]) == pytest.approx(0.03)
    assert float(row["lower"]) == pytest.approx(0.03 - half, rel=1e-5)
    assert float(row["upper"]) == pytest.approx(0.03 + half, rel=1e-5)
    page = to_markdown(lay_out(found))
    assert "| zeta 4 | +3.00 [−1.97, +7.97], n = 3 | 0.00 [not defined], n = 3 |" in page
    assert "Intervals from 3 seeds or fewer are wide" in page
    assert "| pfedbayes | 82.00 ± 2.00 |" in page
    assert "| zeta 4 | **85.00 ± 4.00** |" in page


def test_only_seeds_that_both_have_are_paired() -> None:
    found = paired({1: 0.5, 2: 0.9, 3: math.nan}, {2: 0.8, 3: 0.1, 4: 0.0})
    assert found is not None
    assert (round(found.mean, 9), math.isnan(found.lower), found.seeds) == (0.1, True, 1)
    assert paired({1: 0.5}, {2: 0.5}) is None


def test_the_same_difference_with_all_seeds_has_no_interval(tmp_path: Path) -> None:
    """0.7 - 0.6 and 0.4 - 0.3 differ by rounding, which would be an interval of width 1e-15."""
    found = paired({1: 0.7, 2: 0.4}, {1: 0.6, 2: 0.3})
    assert found is not None
    assert (round(found.mean, 9), found.seeds) == (0.1, 2)
    assert math.isnan(found.lower)
    assert math.isnan(found.upper)
    other = paired({1: 0.7, 2: 0.4}, {1: 0.6, 2: 0.300001})
    assert other is not None
    assert other.lower < 0.0999995 < other.upper
    table, folder = two_methods(tmp_path, [1, 2])
    shown = results(table, folder)
    write_files(shown, folder.path)
    # GM is the same in both.
    found_rows = [
        (row["mean"], row["lower"], row["upper"], row["seeds"])
        for row in rows(folder.path / "differences.csv")
        if (row["model"], row["selector"], row["measure"]) == ("global", "last", "accuracy")
    ]
    assert found_rows == [("0.0", "", "", "2")]
    page = to_markdown(lay_out(shown))
    assert "Not defined: of one seed, or where the differences are the same" in page


def test_nothing_is_said_of_intervals_that_are_all_there(tmp_path: Path) -> None:
    page = to_markdown(lay_out(results(*two_methods(tmp_path, [1, 2, 3, 4], models=["personal"]))))
    assert ", n = 4 |" in page
    assert "- n is the number of seeds that both methods have.\n" in page
    assert "Not defined" not in page


def test_a_failed_seed_is_told_and_the_others_count(tmp_path: Path) -> None:
    table = plan(OURS, zeta(4.0), seeds=[1, 2])
    folder = folder_of(tmp_path, table)
    for cell in table.cells:
        made_up(folder, cell.final[0][0], record(3, personal=(0.8, 0.5, 0.9, 0.4)))
    made_up(folder, table.cells[0].final[0][1], record(3, personal=(0.9, 0.5, 0.9, 0.4)))
    folder.fail(table.cells[1].final[0][1].id, "it | diverged")
    found = results(table, folder)
    page = to_markdown(lay_out(found))
    assert "| zeta 4 | 80.00 (1 of 2) |" in page
    assert "- zeta 4 on digits-blocks, seed 2: failed: it \\| diverged" in page
    write_files(found, folder.path)
    failed = [row for row in rows(folder.path / "results.csv") if row["status"] == "failed"]
    assert [(row["method"], row["seed"], row["reason"]) for row in failed] == [
        ("zeta 4", "2", "it | diverged")
    ]


def test_a_run_that_diverged_to_its_end_is_told(tmp_path: Path) -> None:
    table = plan(OURS, zeta(4.0), seeds=[1, 2])
    folder = folder_of(tmp_path, table)
    fine, lost = record(3, personal=(0.8, 0.5, 0.9, 0.4)), dict.fromkeys(("accuracy", "nll"), None)
    for cell in table.cells:
        made_up(folder, cell.final[0][0], fine)
    made_up(folder, table.cells[0].final[0][1], fine)
    made_up(folder, table.cells[1].final[0][1], record(3) | {"personal": lost})
    page = to_markdown(lay_out(results(table, folder)))
    assert "- zeta 4 on digits-blocks, seed 2: diverged: predictions are not numbers" in page
    assert "pfedbayes on digits-blocks, seed" not in page


def test_cost_is_a_client_and_a_round(tmp_path: Path) -> None:
    """24 kB over 4 clients and 3 rounds are 2 kB; 24 gradient steps are 2."""
    page = to_markdown(lay_out(results(*two_methods(tmp_path, [1]))))
    assert "| zeta 4 | 2.0 | 0.02 | 2.0 | 2 | 3 | 1 | personal\\_rounds=1, zeta=4.0 |" in page
    # A run of an earlier version did not count what it sent.
    assert "| pfedbayes | 2.0 | – | – | 2 | 3 | 1 | personal\\_rounds=1 |" in page


def test_lengths_of_its_own_are_marked(tmp_path: Path) -> None:
    settings = {"personal_rounds": 1, "local_steps": 1}
    found = results(*two_methods(tmp_path, [1], rounds=6, settings=settings))
    assert "| zeta 4 | 2.0 | 0.02 | 1.0 | 1 (its own) | 6 (its own) |" in to_markdown(
        lay_out(found)
    )


def test_models_that_a_method_does_not_have_are_dashes(tmp_path: Path) -> None:
    found = results(
        *two_methods(
            tmp_path, [1, 2], models=["global"], paper={"digits-blocks": {"gm": [91, 0.5]}}
        )
    )
    page = to_markdown(lay_out(found))
    assert "| zeta 4 | – | **50.00 ± 0.00** | 91.00 ± 0.50 |" in page
    assert "| method | PM | GM | paper GM |" in page


def test_no_method_to_compare_with_no_differences(tmp_path: Path) -> None:
    table = plan(zeta(1.0), zeta(2.0), seeds=[1])
    folder = folder_of(tmp_path, table)
    for cell in table.cells:
        made_up(folder, cell.final[0][0], record(3, personal=(0.8, 0.5, 0.9, 0.4)))
    found = results(table, folder)
    assert "−" not in to_markdown(lay_out(found))
    write_files(found, folder.path)
    assert rows(folder.path / "differences.csv") == []


def test_a_damaged_run_is_named(tmp_path: Path) -> None:
    table, folder = two_methods(tmp_path, [1])
    run = folder.run(table.cells[0].final[0][0].id)
    run.metrics.write_text("{")
    with pytest.raises(UserError, match=f"{run.path.name} is damaged.*delete it to run it again"):
        collect(Schedule(table, folder))


def test_numbers_as_papers_write_them() -> None:
    assert spread_text(Spread(0.9413, 0.0027, 2), "accuracy", 3) == "94.13 ± 0.27 (2 of 3)"
    assert spread_text(Spread(0.9413, math.nan, 1), "accuracy", 1) == "94.13"
    assert spread_text(Spread(0.12345, 0.1, 2), "nll", 2) == "0.123 ± 0.100"
    assert spread_text(Spread(math.nan, math.nan, 0), "nll", 2) == "–"
    shown = difference_text(Paired(-0.012, -0.02, 0.0, 3), "accuracy")
    assert shown == "−1.20 [−2.00, 0.00], n = 3"
    shown = difference_text(Paired(0.012, math.nan, math.nan, 1), "accuracy")
    assert shown == "+1.20 [not defined], n = 1"


def test_time_left_is_that_of_runs_alike() -> None:
    table = plan(OURS, zeta(4.0))
    ours, other = (cell.final[0] for cell in table.cells)
    clock = TimeLeft()
    assert clock.left(ours, 1) is None
    clock.add(ours[0], 30.0)
    assert clock.left([ours[1], *other], 1) == 90.0
    clock.add(other[0], 60.0)
    assert clock.left([ours[1], other[1]], 2) == 45.0
    assert [span(s) for s in (50, 600, 12_600)] == ["50 s", "10 min", "3.5 h"]


# -- pages ------------------------------------------------------------------------------------------------

NASTY = "a & b_<c> | 50 % ± $x\\"
PAGE = Document(
    NASTY,
    (
        Text("p ± 1"),
        Heading(NASTY),
        Sheet("c", ("m", NASTY), ((Mark(NASTY), Mark("−1", True)),), (NASTY,)),
    ),
)


class Cells(HTMLParser):
    """The texts of an HTML page by tag."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.found.append((self.open[-1], data))


def test_html_keeps_every_character() -> None:
    page = Cells()
    page.feed(to_html(PAGE))
    assert page.open == []
    texts = [pair for pair in page.found if pair[0] not in ("style", "title")]
    assert texts == [
        *[("h1", NASTY), ("p", "p ± 1"), ("h2", NASTY), ("figcaption", "c"), ("th", "m")],
        *[("th", NASTY), ("th", NASTY), ("b", "−1"), ("li", NASTY)],
    ]


def test_figures_of_a_page_do_not_break_and_tables_scroll() -> None:
    long = "failed: " + 50 * "x"
    figures = ("97.27 ± 1.04 (2 of 3)", "+3.00 [−10.97, +17.97], n = 3", long)
    row = tuple(Mark(text) for text in ("m", *figures))
    page = to_html(Document("t", (Sheet("c", ("m", "a", "b", "c"), (row,)),)))
    assert f"<td>{figures[0]}</td><td>{figures[1]}</td>" in page
    assert f'<td class="long">{long}</td>' in page
    assert "td, th[scope=row] { white-space: nowrap; }" in page
    assert "td.long { white-space: normal;" in page
    assert "div { overflow-x: auto; }" in page
    assert '<figcaption id="t1">c</figcaption>\n<div role="region" aria-labelledby="t1"' in page


def test_markdown_and_latex_escape_what_they_would_read() -> None:
    assert "| a & b\\_\\<c> \\| 50 % ± $x\\\\ | **−1** |" in to_markdown(PAGE)
    row = "a \\& b\\_$<$c$>$ \\textbar{} 50 \\% $\\pm$ \\$x\\textbackslash{} & \\textbf{$-$1} \\\\"
    assert row in to_latex(PAGE)
