"""``pfedbayes evaluate`` and ``predict``: what they print agrees with the run and with the library."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from pyro_pfedbayes.data.partitions.text_tables import table_text
from pyro_pfedbayes.experiments.runs.folder import RunFolder
from pyro_pfedbayes.experiments.runs.inputs import InputRule
from pyro_pfedbayes.experiments.runs.lifecycle import reopen
from pyro_pfedbayes.experiments.runs.prediction_files import class_predictions
from pyro_pfedbayes.experiments.runs.result_tables import result_table
from pyro_pfedbayes.inference.federation.loop import Result
from pyro_pfedbayes.inference.predictive.draws import posterior_predictive, predictive_draws
from pyro_pfedbayes.randomness import generator
from tests import helpers
from tests.experiments.helpers import Outcome, pfedbayes, tiny_options

Finished = tuple[Path, Outcome]


def raw_digits(count: int) -> np.ndarray:
    return np.asarray(load_digits().images[:count]).astype(np.uint8)


def evaluated(folder: Path, *options: str) -> dict[str, Any]:
    outcome = pfedbayes("evaluate", folder, "--json", *options)
    assert (outcome.code, outcome.err) == (0, "")
    found: dict[str, Any] = json.loads(outcome.out)
    return found


# -- evaluate ---------------------------------------------------------------------------------------------


def test_evaluate_agrees_with_the_run(finished: Finished) -> None:
    found = evaluated(finished[0])
    summary = json.loads((finished[0] / "summary.json").read_text())
    for key in ("personal", "global"):
        assert found["pooled"][key]["accuracy"] == summary[key]["accuracy"]["last"]
        assert found["pooled"][key]["nll"] == summary[key]["nll"]
    assert (found["round"], found["draws"], found["part"]) == (6, 2, "test")


def test_the_clients_make_up_the_pool(finished: Finished) -> None:
    found = evaluated(finished[0])
    sizes = [row["examples"] for row in found["clients"]]
    assert sizes == [15] * 6
    for key in ("personal", "global"):
        for name in ("accuracy", "nll"):
            mean = np.average([row[key][name] for row in found["clients"]], weights=sizes)
            assert mean == pytest.approx(found["pooled"][key][name], rel=1e-5)


def test_evaluate_prints_a_row_a_client_and_one_for_all(finished: Finished) -> None:
    outcome = pfedbayes("evaluate", finished[0], "--part", "validation", "--draws", "7")
    assert outcome.code == 0
    assert "validation examples after round 6, 7 draws" in outcome.out
    rows = [line.split() for line in outcome.out.splitlines() if len(line.split()) == 8]
    assert [row[0] for row in rows] == ["0", "1", "2", "3", "4", "5", "all"]
    assert {row[1] for row in rows[:-1]} == {"6"}
    assert rows[-1][1] == "36"


def test_more_draws_are_other_numbers(finished: Finished) -> None:
    few, many = evaluated(finished[0]), evaluated(finished[0], "--draws", "50")
    assert many["draws"] == 50
    assert few["pooled"]["personal"]["nll"] != many["pooled"]["personal"]["nll"]


def test_no_validation_examples_are_an_error(tmp_path: Path) -> None:
    options = tiny_options(data__validation=0.0, run__rounds=4, run__posterior_draws=0)
    assert pfedbayes("run", "--out", tmp_path / "r", *options).code == 0
    outcome = pfedbayes("evaluate", tmp_path / "r", "--part", "validation")
    assert outcome.code == 2
    assert "has a validation example" in outcome.err


# -- predict ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("client", ["3", "global"])
def test_predict_equals_the_librarys_posterior_predictive(
    finished: Finished, tmp_path: Path, client: str
) -> None:
    experiment, state, _ = reopen(RunFolder.open(finished[0]))
    result = Result(experiment.federation, state)
    belief = result.global_ if client == "global" else result.personal.client(3)
    # Inputs as the network sees them, beside the raw ones that a user has.
    x = experiment.data.dataset.x[:25]
    wanted = posterior_predictive(experiment.federation.model, belief, x, draws=9, seed=0)
    np.savez(tmp_path / "x.npz", x=raw_digits(25))
    outcome = pfedbayes(
        *("predict", finished[0], "--client", client, "--input", tmp_path / "x.npz"),
        *("--draws", "9", "--output", tmp_path / "p.npz"),
    )
    assert (outcome.code, outcome.err) == (0, "")
    with np.load(tmp_path / "p.npz") as found:
        assert np.array_equal(found["probs"], wanted.numpy())
        assert np.array_equal(found["label"], wanted.argmax(-1).numpy())
        entropy = torch.distributions.Categorical(probs=wanted).entropy().numpy()
        assert np.allclose(found["entropy"], entropy, atol=1e-6)
        stream = generator(0, "predictive", "alone")
        draws = list(predictive_draws(experiment.federation.model, belief, x, 9, stream))
        each = torch.distributions.Categorical(probs=torch.stack(draws)).entropy().mean(0)
        assert np.allclose(found["aleatoric"], each.numpy(), atol=1e-6)
        assert np.allclose(found["entropy"], found["aleatoric"] + found["epistemic"], atol=1e-6)
        assert (found["epistemic"] > 0).all()
        assert found["classes"].tolist() == list("0123456789")


def test_predict_prints_the_first_rows_and_writes_all(finished: Finished, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=raw_digits(12))
    common = ("predict", finished[0], "--client", "0", "--input", tmp_path / "x.npz")
    outcome = pfedbayes(*common, "--output", tmp_path / "p.csv")
    rows = [line.split() for line in outcome.out.splitlines()]
    shown = [row for row in rows if len(row) == 5 and row[0].isdigit()]
    assert [row[0] for row in shown] == [str(number) for number in range(10)]
    assert "and 2 more" in outcome.out
    with (tmp_path / "p.csv").open() as file:
        written = list(csv.DictReader(file))
    assert len(written) == 12
    for row, line in zip(written, shown, strict=False):
        assert line[1] == row["class"]
        assert float(line[2]) == pytest.approx(float(row["probability"]), abs=5.1e-4)
        assert float(line[3]) == pytest.approx(float(row["entropy"]), abs=5.1e-4)
        assert sum(float(row[f"p({label})"]) for label in range(10)) == pytest.approx(1, abs=1e-4)
        assert 0 < float(row["entropy"]) <= math.log(10)
    assert "--output FILE.csv writes them all" in pfedbayes(*common).out


def test_clients_have_names_and_tables_their_own_units(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    y = np.arange(80) % 2
    x = rng.normal(size=(80, 3)) * [1.0, 1000.0, 1e-3] + [0.0, 5e4, 0.0]
    x[:, 1] += 3000 * y
    site = np.array(["east", "north"])[np.arange(80) // 40]
    np.savez(tmp_path / "d.npz", x=x, y=y, site=site)
    options = (
        *(
            "--set",
            "data.column=site",
            "--set",
            "model.hidden=[4]",
            "--set",
            "run.posterior_draws=0",
        ),
        *("--set", "algorithm.lr=0.05", "--set", "algorithm.zeta=0.1", "--device", "cpu"),
        *("--rounds", "12"),
    )
    run = ("run", "--data", tmp_path / "d.npz", "--out", tmp_path / "r")
    assert pfedbayes(*run, *options).code == 0
    np.savez(tmp_path / "x.npz", x=x)
    outcome = pfedbayes(
        *("predict", tmp_path / "r", "--client", "north", "--input", tmp_path / "x.npz"),
        *("--output", tmp_path / "north.npz"),
    )
    assert "personal model of client north" in outcome.out
    with np.load(tmp_path / "north.npz") as found:
        # On inputs left in their own units it would be a coin's accuracy.
        assert (found["label"] == y).mean() > 0.85
    # A number could be meant for a name: with names such as 10 and 20 that would go unnoticed.
    for client, hint in {"nort": "; did you mean 'north'?", "1": ""}.items():
        wrong = pfedbayes(
            "predict", tmp_path / "r", "--client", client, "--input", tmp_path / "x.npz"
        )
        assert wrong.code == 2
        names = "(give a name: 'east', 'north'; or 'global')"
        assert f"no client '{client}'{hint} {names}" in wrong.err


def test_names_are_not_taken_for_markup(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    names = np.array(["[/b]", "Köln [red]", ":cat:"])
    np.savez(
        tmp_path / "d.npz",
        x=rng.normal(size=(60, 4)),
        y=np.arange(60) % 2,
        h=names[np.arange(60) // 20],
    )
    options = ("--set", "data.column=h", "--set", "run.posterior_draws=0", "--device", "cpu")
    run = ("run", "--data", tmp_path / "d.npz", "--out", tmp_path / "r", "--rounds", "4")
    assert pfedbayes(*run, *options).code == 0
    outcome = pfedbayes("evaluate", tmp_path / "r")
    assert outcome.code == 0, outcome.err
    np.savez(tmp_path / "x.npz", x=rng.normal(size=(2, 4)))
    for name in names:
        assert name in outcome.out
        common = ("predict", tmp_path / "r", "--input", tmp_path / "x.npz", "--draws", "1")
        predicted = pfedbayes(*common, "--client", name)
        assert f"personal model of client {name} after round 4, 1 draw " in predicted.out
    title = "mine [/b], [red]"
    column = {"accuracy": {"selected": None, "last": 0.5, "best": 0.5}}
    summary = {"personal": column, "global": column, "data": title, "split": "s", "algorithm": "a"}
    shown = table_text(result_table(summary | {"clients": 1, "rounds": 1}))
    assert f"a on {title}, s, 1 client, 1 round" in shown


def test_prediction_does_not_need_the_training_data(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "d.npz", x=rng.normal(size=(60, 4)), y=np.arange(60) % 2)
    options = ("--rounds", "4", "--set", "run.posterior_draws=0", "--clients", "3")
    run = ("run", "--data", tmp_path / "d.npz", "--out", tmp_path / "r", "--device", "cpu")
    assert pfedbayes(*run, *options).code == 0
    (tmp_path / "d.npz").unlink()
    np.savez(tmp_path / "x.npz", rng.normal(size=(2, 4)))
    common = ("predict", tmp_path / "r", "--client", "global", "--input", tmp_path / "x.npz")
    assert pfedbayes(*common).code == 0


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (
            {"x": np.zeros((3, 7, 7), dtype=int)},
            "x has shape [3, 7, 7]; the model takes images [n, 1, 8, 8]",
        ),
        ({"x": np.zeros((3, 63), dtype=int)}, "or flattened [n, 64]"),
        ({"x": np.full((3, 8, 8), 17.0)}, "give integers from 0 to 16 or floats in [-1, 1]"),
        ({"x": np.full((3, 8, 8), 1.0)}, "could mean [0, 1] or [-1, 1]"),
        ({"x": np.full((3, 8, 8), 17)}, "integers from 17 to 17; the training images held 0 to 16"),
        ({"x": np.full((3, 8, 8), np.nan)}, "NaN or infinite values in 3 of 3"),
        ({"x": np.full((3, 8, 8), 9.5)}, "like the training images, give integers from 0 to 16"),
        ({"x": np.full((3, 8, 8), 0.5)}, "could mean [0, 1] or [-1, 1]"),
        ({"x": np.zeros((0, 8, 8))}, "holds no examples"),
        ({"x": np.array(["a"] * 3)[:, None]}, "must hold numbers"),
        ({"a": np.zeros(3), "b": np.zeros(3)}, "no array 'x' in it; it holds a, b"),
        ({"x": np.array([{}, {}])}, "a pickle, which is never read"),
    ],
)
def test_foreign_inputs_are_refused(
    finished: Finished, tmp_path: Path, arrays: dict[str, Any], message: str
) -> None:
    np.savez(tmp_path / "x.npz", **arrays)
    outcome = pfedbayes(
        *("predict", finished[0], "--client", "1", "--input", tmp_path / "x.npz"),
        *("--output", tmp_path / "p.csv"),
    )
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert message in outcome.err
    assert not (tmp_path / "p.csv").exists()


def test_scikit_learns_own_digits_are_understood(finished: Finished, tmp_path: Path) -> None:
    digits = load_digits()
    found = []
    for x in (raw_digits(9), digits.images[:9], digits.data[:9], raw_digits(9).reshape(9, 64)):
        np.savez(tmp_path / "x.npz", x=x)
        outcome = pfedbayes(
            *("predict", finished[0], "--client", "1", "--input", tmp_path / "x.npz"),
            *("--output", tmp_path / "p.npz"),
        )
        assert outcome.code == 0, outcome.err
        with np.load(tmp_path / "p.npz") as written:
            found.append(written["probs"])
    assert all(np.array_equal(found[0], other) for other in found[1:])


def test_flattened_images_of_several_channels_are_refused() -> None:
    mnist = InputRule((1, 28, 28), top=255, divide=127.5, floats="signed")
    flat = np.arange(2 * 784).reshape(2, 784) % 256
    wanted = torch.from_numpy(flat.reshape(2, 1, 28, 28)).float() / 127.5 - 1
    torch.testing.assert_close(mnist.apply(flat.astype(np.float64), "x"), wanted)
    # Nothing tells whether channels came first or last in them.
    cifar = InputRule((3, 32, 32), top=255, divide=127.5, floats="signed")
    assert "channels first or last" in helpers.message(
        cifar.apply, np.zeros((2, 3072), np.uint8), "x"
    )


def test_a_certain_prediction_has_an_entropy_of_plain_0() -> None:
    probs = torch.tensor([[1.0, 0.0], [1.0 + 1e-6, 0.0]])
    found = class_predictions("who", ("a", "b"), probs, torch.full((2,), 1e-7))
    assert not np.signbit(found.columns["entropy"]).any()
    assert not np.signbit(found.columns["epistemic"]).any()
    assert "-0.000" not in table_text(found.table(2))


def test_other_files_clients_and_outputs_are_refused(finished: Finished, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=raw_digits(2))
    common = ("predict", finished[0], "--input")
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04 and no more")
    np.save(tmp_path / "single.npy", np.zeros(3))
    for name, message in {
        "none.npz": "no such file",
        "broken.npz": "not a readable .npz file",
        "single.npy": "holds a single array",
    }.items():
        assert message in pfedbayes(*common, tmp_path / name, "--client", "0").err
    for client in ("6", "-1", "globe"):
        outcome = pfedbayes(*common, tmp_path / "x.npz", "--client", client)
        assert outcome.code == 2
        assert f"no client '{client}': give a number from 0 to 5, or 'global'" in outcome.err
    for output, message in {"p.txt": "ends in .npz or .csv", "none/p.csv": "cannot write"}.items():
        outcome = pfedbayes(
            *common, tmp_path / "x.npz", "--client", "0", "--output", tmp_path / output
        )
        assert outcome.code == 2
        assert message in outcome.err
