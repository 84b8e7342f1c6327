"""Sweeps of a table: which runs they are, and what is shown of them."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.experiments.tables.declaration.plan import Plan, make_plan
from pyro_pfedbayes.experiments.tables.declaration.reader import parse_spec
from pyro_pfedbayes.experiments.tables.execution.folder import TableFolder
from pyro_pfedbayes.experiments.tables.execution.schedule import Schedule
from pyro_pfedbayes.experiments.tables.pages.document import (
    Picture,
    Sheet,
    to_html,
    to_latex,
    to_markdown,
)
from pyro_pfedbayes.experiments.tables.pages.files import write_files
from pyro_pfedbayes.experiments.tables.pages.layout import lay_out
from pyro_pfedbayes.experiments.tables.pages.sweep_figure import Curve, draw, make_curves
from pyro_pfedbayes.experiments.tables.results import Results, collect
from tests.experiments.helpers import pfedbayes
from tests.experiments.tables.helpers import (
    DIGITS,
    OURS,
    made_up,
    plan,
    record,
    rows,
    spec_file,
    tree,
)

AVERAGED = {"name": "fedavg"}
ZETA = {"name": "weight", "setting": "zeta", "values": [1.0, 4.0], "methods": ["pfedbayes"]}
WINE = {"name": "wine"}
TUNED = {"name": "pfedbayes", "settings": {"personal_rounds": 1}, "grid": {"zeta": [1.0, 2.0]}}


def swept(*sweeps: dict[str, Any], **changes: Any) -> Plan:
    """Ours and FedAvg on digits, and these sweeps."""
    return plan(OURS, AVERAGED, sweep=list(sweeps), **changes)


@pytest.mark.parametrize(
    ("sweep", "message"),
    [
        (ZETA | {"name": ""}, "sweep.name is ''; it must be a text"),
        ({"name": "a"}, "[sweep] lacks the key 'setting'"),
        (ZETA | {"valuse": []}, "unknown key 'sweep.valuse'; did you mean 'values'?"),
        (ZETA | {"values": []}, "sweep.values is []; it must be a list of values"),
        (ZETA | {"values": [1.0, 1.0]}, "sweep 'weight': values holds 1.0 twice"),
        (ZETA | {"values": [1.0, 1]}, "sweep 'weight': values holds 1 twice"),
        (ZETA | {"setting": "run.seed"}, "give a setting of the methods, model.KEY, data.KEY or"),
        (ZETA | {"setting": "data.name"}, "data.name is not varied by a sweep"),
        (ZETA | {"setting": "zta"}, "sweep 'weight': method 'pfedbayes' has no setting 'zta'"),
        (ZETA | {"setting": "data.clinets"}, "unknown key 'data.clinets'"),
        (ZETA | {"setting": "model.roh"}, "unknown key 'model.roh'"),
        (ZETA | {"values": [-1.0]}, "weight=-1.0: algorithm: zeta is -1.0; it must be a positive"),
        (ZETA | {"methods": ["fedavgg"]}, "methods names no method 'fedavgg'; did you mean"),
        (
            ZETA | {"methods": ["pfedbayes", "fedavg"]},
            "'fedavg' has no setting 'zeta'; name those that have it in methods (pfedbayes)",
        ),
        (
            ZETA | {"methods": ["ditto"]},
            "methods names no method 'ditto' (known: fedavg, pfedbayes)",
        ),
        (ZETA | {"on": ["digit"]}, "on names no data 'digit'; did you mean 'digits'?"),
        (ZETA | {"paper": [{"at": 3.0, "pm": 97.0}]}, "at 3.0, which is no value of it (1.0, 4.0)"),
        (ZETA | {"paper": [{"at": True, "pm": 97.0}]}, "at true, which is no value of it"),
        (ZETA | {"paper": [{"at": 1.0}, {"at": 1}]}, "paper has figures at 1 twice"),
        (ZETA | {"paper": [{"pm": 97.0}]}, "[sweep].paper[0] lacks the key 'at'"),
        (ZETA | {"paper": [{"at": 1.0, "mp": 97.0}]}, "unknown key 'mp' in sweep.paper[0]"),
        (ZETA | {"paper": [{"at": 1.0, "pm": -3.0}]}, "sweep.paper[0] is"),
        (ZETA | {"name": "ab" * 60}, "its figure's name would have 140 characters, at most 120"),
    ],
)
def test_mistakes_are_told_in_a_line_that_names_them(sweep: dict[str, Any], message: str) -> None:
    declared = tree(OURS, AVERAGED, sweep=[sweep])
    with pytest.raises(UserError) as caught:
        make_plan(parse_spec(declared, "t.toml: "), "t.toml: ")
    assert message in str(caught.value)
    assert str(caught.value).startswith("t.toml: ")


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        (tree(OURS, sweep=[ZETA, ZETA]), "two [[sweep]] are called 'weight'; rename one"),
        (
            tree(OURS, sweep=[ZETA, ZETA | {"name": "Weight"}]),
            "sweep 'Weight' on digits-blocks and sweep 'weight' on digits-blocks would both draw "
            "sweep-weight-digits-blocks.svg; give one another name",
        ),
        (
            tree(
                {
                    "name": "pfedbayes",
                    "settings": {"personal_rounds": 1},
                    "grid": {"lr": [0.1, 0.2]},
                },
                sweep=[{"name": "held out", "setting": "data.validation", "values": [0.0, 0.2]}],
                tuning={"points": 2},
            ),
            "validation is 0 on digits-blocks, held out=0.0, but the grid of 'pfedbayes' is chosen on",
        ),
        (tree(TUNED, sweep=[ZETA], tuning={"points": 2}), "zeta is both swept and tuned in a grid"),
        (tree(OURS, only_sweeps=True), "only_sweeps is true, but there is no [[sweep]]"),
        (tree(OURS, sweep=3), "give at least one [[sweep]]"),
        (
            tree(OURS | {"on": ["wine"]}, sweep=[ZETA | {"on": ["digits"]}], data=[DIGITS, WINE]),
            "sweep 'weight': none of its methods runs on any of its data",
        ),
    ],
)
def test_sweeps_must_fit_the_rest_of_the_table(declared: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        make_plan(parse_spec(declared))


def test_a_value_replaces_a_setting_wherever_it_was_given() -> None:
    ours = OURS | {"settings": {"zeta": 9.0, "personal_rounds": 1}, "model": {"rho": -1.0}}
    found = plan(
        ours,
        sweep=[
            ZETA,
            {"name": "rho", "setting": "model.rho", "values": [-4.0]},
            {"name": "clients", "setting": "data.clients", "values": [2]},
            {"name": "S", "setting": "run.participation", "values": [1]},
        ],
    )
    trees = {cell.entry.label: cell.final[0][0].tree for cell in found.cells}
    assert list(trees) == [
        *("digits-blocks", "digits-blocks, weight=1.0", "digits-blocks, weight=4.0"),
        *("digits-blocks, rho=-4.0", "digits-blocks, clients=2", "digits-blocks, S=1"),
    ]
    plain = trees.pop("digits-blocks")
    for label, section, key, value in (
        ("weight=1.0", "algorithm", "zeta", 1.0),
        ("weight=4.0", "algorithm", "zeta", 4.0),
        ("rho=-4.0", "model", "rho", -4.0),
        ("clients=2", "data", "clients", 2),
        ("S=1", "run", "participation", 1),
    ):
        changed = trees[f"digits-blocks, {label}"]
        assert changed == {**plain, section: {**plain[section], key: value}}


def test_methods_and_data_of_a_sweep_can_be_chosen() -> None:
    data = [DIGITS, WINE]
    every = {"name": "S", "setting": "run.participation", "values": [1]}
    ours, elsewhere = ZETA | {"on": ["wine"]}, AVERAGED | {"on": ["digits"]}
    found = plan(OURS, elsewhere, sweep=[ours, every], data=data, only_sweeps=True)
    assert [cell.key for cell in found.cells] == [
        ("wine, weight=1.0", "pfedbayes"),
        ("wine, weight=4.0", "pfedbayes"),
        ("digits-blocks, S=1", "pfedbayes"),
        ("digits-blocks, S=1", "fedavg"),
        ("wine, S=1", "pfedbayes"),
    ]


def test_methods_are_tuned_at_each_value() -> None:
    tuned = {"name": "pfedbayes", "settings": {"personal_rounds": 1}, "grid": {"lr": [0.01, 0.1]}}
    found = plan(tuned, sweep=[ZETA], tuning={"points": 2, "seeds": [7]}, only_sweeps=True)
    assert [
        [(job.tree["algorithm"]["zeta"], job.point["lr"]) for runs in cell.tuning for job in runs]
        for cell in found.cells
    ] == [[(1.0, 0.01), (1.0, 0.1)], [(4.0, 0.01), (4.0, 0.1)]]


def test_a_table_may_get_sweeps_and_a_sweep_values(tmp_path: Path) -> None:
    folder = TableFolder(tmp_path / "t")
    for table in (swept(), swept(ZETA), swept(ZETA | {"values": [1.0, 4.0, 9.0]})):
        folder.claim(table)
        for cell in table.cells:
            for job in cell.final[0]:
                if not folder.finished(job.id):
                    made_up(folder, job, record(3, personal=(0.5, 0.5, 0.5, 0.5)))
    with pytest.raises(UserError, match=re.escape("sweep 'weight': values has no 4.0 any more")):
        folder.claim(swept(ZETA | {"values": [1.0, 9.0]}))
    with pytest.raises(UserError, match="sweep 'weight' is gone"):
        folder.claim(swept())


PAPER = [{"at": 1.0, "pm": 97.41}, {"at": 4.0, "pm": [97.18, 0.1], "gm": 93.22}]


def made(tmp_path: Path, sweep: dict[str, Any], **changes: Any) -> tuple[Results, TableFolder]:
    """PM of seeds 1 and 2 at value k: 80 + 10 k and 82 + 10 k; GM 50 + k."""
    table = swept(sweep, only_sweeps=True, **changes)
    folder = TableFolder(tmp_path / "t")
    folder.claim(table)
    places = list(dict.fromkeys(cell.entry.label for cell in table.cells))
    for cell in table.cells:
        at = places.index(cell.entry.label)
        for number, job in enumerate(cell.final[0]):
            pm, gm = 0.80 + 0.10 * at + 0.02 * number, 0.50 + 0.01 * at
            made_up(
                folder,
                job,
                record(3, personal=(pm, 0.2, pm, 0.2), **{"global": (gm, 0.3, gm, 0.3)}),
            )
    return collect(Schedule(table, folder)), folder


def test_a_sweep_without_validation_examples_does_not_change_what_else_is_quoted(
    tmp_path: Path,
) -> None:
    held_out = {"name": "held out", "setting": "data.validation", "values": [0.0, 0.2]}
    table = plan(OURS, sweep=[held_out], seeds=[1])
    folder = TableFolder(tmp_path / "t")
    folder.claim(table)
    for cell in table.cells:
        line = record(3, personal=(0.5, 0.2, 0.5, 0.2))
        if cell.entry.label.endswith("=0.0"):
            line["personal"] = {"accuracy": 0.5, "nll": 0.2}
        made_up(folder, cell.final[0][0], line)
    page = lay_out(collect(Schedule(table, folder)))
    captions = [block.caption for block in page.blocks if isinstance(block, Sheet)]
    assert captions[:2] == [
        "digits: accuracy, selected",
        "held out on digits-blocks: accuracy, last",
    ]


def test_a_dry_run_refuses_the_folder_that_a_run_would_refuse(tmp_path: Path) -> None:
    file = spec_file(tmp_path, OURS, sweep=[ZETA], only_sweeps=True, seeds=[1], rounds=2)
    folder = TableFolder(tmp_path / "t")
    table = plan(OURS, sweep=[ZETA], only_sweeps=True, seeds=[1], rounds=2)
    folder.claim(table)
    made_up(folder, table.cells[0].final[0][0], record(2, personal=(0.5, 0.2, 0.5, 0.2)))
    assert pfedbayes("table", file, "-o", tmp_path / "t", "--dry-run").code == 0
    spec_file(
        tmp_path, OURS, sweep=[ZETA | {"values": [9.0]}], only_sweeps=True, seeds=[1], rounds=2
    )
    outcome = pfedbayes("table", file, "-o", tmp_path / "t", "--dry-run")
    assert outcome.code == 2
    assert "holds 1 run not of this table: sweep 'weight': values has no 1.0" in outcome.err


def test_a_sheet_has_a_row_a_value_and_reference_figures_beside(tmp_path: Path) -> None:
    found, _ = made(tmp_path, ZETA | {"paper": PAPER})
    page = lay_out(found)
    accuracy, nll, cost = (block for block in page.blocks if isinstance(block, Sheet))
    assert accuracy.caption == "weight on digits-blocks: accuracy, selected"
    assert accuracy.columns == ("zeta", "PM", "GM", "paper PM", "paper GM")
    texts = [[mark.text for mark in row] for row in accuracy.rows]
    assert texts == [
        ["1.0", "81.00 ± 1.41", "50.00 ± 0.00", "97.41", "–"],
        ["4.0", "91.00 ± 1.41", "51.00 ± 0.00", "97.18 ± 0.10", "93.22"],
    ]
    assert [[mark.bold for mark in row] for row in accuracy.rows] == [
        [False] * 5,
        [False, True, True, False, False],
    ]
    assert accuracy.notes == (
        "pfedbayes: personal_rounds=1",
        "paper: reference figures of pfedbayes, which may be of other rounds and a peak",
    )
    assert nll.columns == ("zeta", "PM", "GM")
    assert nll.rows[0][1].text == "0.200 ± 0.000"
    assert cost.columns == ("zeta", "seconds of training", "MB sent")
    assert [mark.text for mark in cost.rows[1]] == ["4.0", "2.0", "0.02"]


def test_the_figure_has_our_curves_and_the_papers(tmp_path: Path) -> None:
    found, _ = made(tmp_path, ZETA | {"paper": PAPER})
    (picture,) = (block for block in lay_out(found).blocks if isinstance(block, Picture))
    curves = {(c.name, c.model, c.reference): c.means for c in picture.curves.curves}
    assert curves["pfedbayes", "personal", False] == pytest.approx((81.0, 91.0))
    assert curves["pfedbayes", "global", False] == pytest.approx((50.0, 51.0))
    assert curves["paper", "personal", True] == (97.41, 97.18)
    gm = curves["paper", "global", True]
    assert math.isnan(gm[0])
    assert gm[1] == 93.22
    left, right = draw(picture.curves).axes
    assert (left.get_title(), right.get_title()) == ("personal models", "global model")
    assert [text.get_text() for text in left.get_xticklabels()] == ["1.0", "4.0"]
    assert picture.curves.svg() == picture.curves.svg()


def test_a_sweep_of_several_methods_names_them(tmp_path: Path) -> None:
    scheme = {"name": "scheme", "setting": "data.scheme", "values": ["blocks", "random"]}
    found, folder = made(tmp_path, scheme, paired_with="fedavg")
    sheet = next(block for block in lay_out(found).blocks if isinstance(block, Sheet))
    assert sheet.columns == ("data.scheme", "pfedbayes PM", "pfedbayes GM", "fedavg GM")
    assert [row[0].text for row in sheet.rows] == ["blocks", "random"]
    write_files(found, folder.path)
    lines = rows(folder.path / "results.csv")
    assert {(r["data"], r["sweep"], r["at"]) for r in lines} == {
        ("digits-blocks", "scheme", "blocks"),
        ("digits-blocks", "scheme", "random"),
    }
    (difference, *_) = [
        r
        for r in rows(folder.path / "differences.csv")
        if (r["at"], r["model"], r["measure"]) == ("random", "global", "accuracy")
    ]
    assert float(difference["mean"]) == 0.0


def test_figures_stand_in_files_and_in_all_three_pages(tmp_path: Path) -> None:
    found, folder = made(tmp_path, ZETA)
    write_files(found, folder.path)
    stem = "sweep-weight-digits-blocks"
    assert (folder.path / f"{stem}.svg").read_bytes().startswith(b"<svg")
    assert (folder.path / f"{stem}.pdf").read_bytes().startswith(b"%PDF")
    page = lay_out(found)
    assert f"]({stem}.svg)" in to_markdown(page)
    assert 'src="data:image/svg+xml;base64,' in to_html(page)
    latex = to_latex(page)
    assert f"\\includegraphics[width=\\linewidth]{{{stem}.pdf}}" in latex
    assert "\\usepackage{booktabs,graphicx}" in latex


def test_nothing_is_drawn_before_there_is_a_figure(tmp_path: Path) -> None:
    table = swept(ZETA, only_sweeps=True)
    folder = TableFolder(tmp_path / "t")
    folder.claim(table)
    page = lay_out(collect(Schedule(table, folder)))
    assert not any(isinstance(block, Picture) for block in page.blocks)
    assert "not run yet" in to_markdown(page)


@pytest.mark.parametrize(
    ("values", "scale", "line"),
    [
        ((0.5, 1, 20), "log", "-"),
        ((-3.0, -1.0), "linear", "-"),
        (("blocks", "random"), "linear", "None"),
        ((1, "all"), "linear", "None"),
    ],
)
def test_axes_fit_their_values(values: tuple[Any, ...], scale: str, line: str) -> None:
    means = tuple(80.0 + k for k in range(len(values)))
    found = Curve("a", "global", means, means)
    curves = make_curves("s", "accuracy", values, (found, Curve("b", "global", means, means, True)))
    (axes,) = draw(curves).axes
    assert axes.get_xscale() == scale
    assert len(axes.get_xticklabels()) == len(values)
    # No line between values without an order, nor between figures of others.
    assert [one.get_linestyle() for one in axes.lines if len(one.get_xdata()) == len(values)][
        ::3
    ] == [
        line,
        "None",
    ]


def test_a_value_without_a_figure_keeps_its_place() -> None:
    curves = make_curves(
        "lr",
        "accuracy",
        (0.01, 0.1, 1.0),
        (Curve("a", "global", (80.0, 81.0, math.nan), (1.0,) * 3),),
    )
    (axes,) = draw(curves).axes
    assert axes.get_xlim()[1] > 1.0
    assert [text.get_text() for text in axes.get_xticklabels()] == ["0.01", "0.1", "1.0"]


def test_labels_that_would_lie_on_one_another_are_left_out() -> None:
    values = (0.001, 0.00101, 0.00102, 0.002)
    curves = make_curves("lr", "accuracy", values, (Curve("a", "global", (1.0,) * 4, (1.0,) * 4),))
    (axes,) = draw(curves).axes
    assert [text.get_text() for text in axes.get_xticklabels()] == ["0.001", "0.002"]


def test_the_command_runs_sweeps(tmp_path: Path) -> None:
    file = spec_file(tmp_path, OURS, sweep=[ZETA], only_sweeps=True, seeds=[1], rounds=2)
    outcome = pfedbayes("table", file, "-o", tmp_path / "t")
    assert outcome.code == 0, outcome.err
    assert "weight on digits-blocks: accuracy, selected" in outcome.out
    lines = rows(tmp_path / "t" / "results.csv")
    assert {(r["at"], r["status"]) for r in lines} == {("1.0", "finished"), ("4.0", "finished")}
    again = pfedbayes("table", file, "-o", tmp_path / "t", "--dry-run")
    assert "2 cells, 2 runs, 0 of them still to be made" in again.out
