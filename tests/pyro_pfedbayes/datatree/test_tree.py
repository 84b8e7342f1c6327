"""The ArviZ tree: definitions on small numbers, ragged clients, and files."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from pyro_pfedbayes.datatree import groups as datatree_core
from pyro_pfedbayes.datatree.classes import ClassTable
from pyro_pfedbayes.datatree.groups import Owners
from pyro_pfedbayes.datatree.tree import for_client, load_datatree, save_datatree, to_datatree
from pyro_pfedbayes.errors import UserError

Y = np.array([0, 2, 1, 1, 2])
CLIENT = np.array([4, 4, 4, 9, 9])


def values(tree: xr.DataTree, group: str, name: str) -> np.ndarray:
    return np.asarray(tree[group][name])


def probabilities(draws: int = 6, n: int = 5, classes: int = 3, seed: int = 0) -> np.ndarray:
    return (
        np.random.default_rng(seed).dirichlet(np.ones(classes), size=(draws, n)).astype(np.float32)
    )


def test_groups_dimensions_and_types() -> None:
    tree = to_datatree(
        probabilities(), Y, CLIENT, classes=list("abc"), attrs={"method": "m", "zeta": 1.0}
    )
    sizes = {
        "posterior_predictive": {"chain": 1, "draw": 6, "observation": 5},
        "log_likelihood": {"chain": 1, "draw": 6, "observation": 5},
        "client_metrics": {"chain": 1, "draw": 6, "client": 2},
        "observed_data": {"observation": 5},
        "constant_data": {"observation": 5},
        "observation_stats": {"observation": 5, "class": 3},
    }
    assert {name: dict(tree[name].sizes) for name in tree.children} == sizes
    types = {"posterior_predictive": "int16", "log_likelihood": "float32", "observed_data": "int16"}
    assert {name: str(tree[name]["y"].dtype) for name in types} == types
    assert str(tree["observation_stats"]["p"].dtype) == "float32"
    assert tree["observation_stats"].coords["class"].to_numpy().tolist() == ["a", "b", "c"]
    for name in sizes.keys() - {"client_metrics"}:
        assert tree[name].coords["client_of"].to_numpy().tolist() == CLIENT.tolist()
    assert {k: tree.attrs[k] for k in ("method", "zeta")} == {"method": "m", "zeta": 1.0}


def test_numbers_are_what_they_are_called() -> None:
    probs = probabilities()
    tree = to_datatree(probs, Y, CLIENT)
    chosen = np.log(probs[:, np.arange(5), Y])
    assert np.allclose(values(tree, "log_likelihood", "y")[0], chosen, atol=1e-6)
    right = probs.argmax(-1) == Y
    accuracy = np.stack([right[:, :3].mean(1), right[:, 3:].mean(1)], 1)
    assert np.allclose(values(tree, "client_metrics", "accuracy")[0], accuracy)
    nll = np.stack([-chosen[:, :3].mean(1), -chosen[:, 3:].mean(1)], 1)
    assert np.allclose(values(tree, "client_metrics", "nll")[0], nll, atol=1e-6)
    stats, mean = tree["observation_stats"], probs.mean(0)
    assert np.allclose(stats["p"], mean, atol=1e-6)
    assert np.allclose(stats["total"], -(mean * np.log(mean)).sum(-1), atol=1e-6)
    assert np.allclose(stats["aleatoric"], -(probs * np.log(probs)).sum(-1).mean(0), atol=1e-6)
    assert np.allclose(stats["epistemic"], stats["total"] - stats["aleatoric"], atol=1e-6)
    assert (stats["epistemic"] > 0).all()


def test_one_certain_draw_has_no_entropy_and_an_impossible_label_a_finite_likelihood() -> None:
    tree = to_datatree(np.eye(3)[None], np.array([0, 1, 0]), np.zeros(3, dtype=int))
    for name in ("total", "aleatoric", "epistemic"):
        assert np.array_equal(tree["observation_stats"][name], np.zeros(3))
    assert tree["posterior_predictive"]["y"].to_numpy().tolist() == [[[0, 1, 2]]]
    assert np.isfinite(tree["log_likelihood"]["y"]).all()
    assert float(tree["log_likelihood"]["y"].min()) < -80


def test_labels_are_drawn_with_the_probabilities() -> None:
    # 40,000 labels: a frequency has a standard error of at most 0.0025; four of them are allowed.
    p = np.array([0.5, 0.3, 0.0, 0.2])
    tree = to_datatree(
        np.broadcast_to(p, (40, 1000, 4)), np.zeros(1000, dtype=int), np.zeros(1000, dtype=int)
    )
    drawn = tree["posterior_predictive"]["y"].to_numpy().ravel()
    frequencies = np.bincount(drawn, minlength=4) / drawn.size
    assert np.abs(frequencies - p).max() < 0.01
    assert frequencies[2] == 0


def test_the_seed_decides_the_labels_drawn() -> None:
    trees = [to_datatree(probabilities(), Y, CLIENT, seed=seed) for seed in (3, 3, 4)]
    one, same, other = (values(tree, "posterior_predictive", "y") for tree in trees)
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)


def test_draws_may_come_one_by_one_and_as_tensors() -> None:
    torch = pytest.importorskip("torch")
    probs = probabilities()
    one_by_one = (torch.from_numpy(draw).requires_grad_() for draw in probs)
    streamed = to_datatree(one_by_one, torch.from_numpy(Y), torch.from_numpy(CLIENT))
    whole = to_datatree(probs, Y, CLIENT)
    for group in ("posterior_predictive", "log_likelihood", "observation_stats"):
        assert streamed[group].to_dataset().equals(whole[group].to_dataset())


def test_one_client_can_be_cut_out() -> None:
    names = [f"site {client}" for client in range(10)]
    tree = for_client(to_datatree(probabilities(), Y, CLIENT, names=names), 9)
    assert tree["observed_data"]["y"].to_numpy().tolist() == [1, 2]
    assert dict(tree["posterior_predictive"].sizes) == {"chain": 1, "draw": 6, "observation": 2}
    assert dict(tree["client_metrics"].sizes) == {"chain": 1, "draw": 6}
    assert str(tree["client_metrics"].coords["client_name"].item()) == "site 9"
    with pytest.raises(UserError, match="no client 3 in this tree; it holds 4, 9"):
        for_client(tree_of_two(), 3)


def tree_of_two() -> Any:
    return to_datatree(probabilities(), Y, CLIENT)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"draws": np.zeros((0, 5, 3))}, "no draws"),
        ({"draws": probabilities(n=4)}, r"draw 0 has shape \[4, 3\]; wanted \[5, C\]"),
        (
            {"draws": [np.ones((5, 3)), np.ones((5, 2))]},
            r"draw 1 has shape \[5, 2\]; wanted \[5, 3\]",
        ),
        ({"draws": np.full((2, 5, 3), np.nan)}, "negative or not finite"),
        ({"draws": np.full((2, 5, 3), -1.0)}, "negative or not finite"),
        ({"y": np.array([0, 1, 2, 3, 0])}, "label 3 is out of range; there are classes 0 to 2"),
        ({"y": Y.astype(float)}, "y must be integers"),
        ({"client": CLIENT[:3]}, "client has 3 entries for 5 observations"),
        ({"index": np.arange(4)}, "index has 4 entries"),
        ({"classes": ["a"]}, "1 names for 3 classes"),
        ({"attrs": {"ok": None}}, "attribute 'ok' is None"),
        ({"attrs": {"ok": True}}, "attribute 'ok' is True"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"draws": probabilities(), "y": Y, "client": CLIENT, **changes}
    with pytest.raises(UserError, match=message):
        to_datatree(**arguments)


def test_of_too_many_draws_the_first_are_kept_and_all_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    probs = probabilities(9)
    whole = to_datatree(probs, Y, CLIENT)
    monkeypatch.setattr(datatree_core, "MAX_CELLS", 20)
    tree = to_datatree(probs, Y, CLIENT)
    assert (tree.attrs["draws"], tree.attrs["draws_kept"]) == (9, 4)
    assert (whole.attrs["draws"], whole.attrs["draws_kept"]) == (9, 9)
    for group in ("posterior_predictive", "log_likelihood"):
        kept = whole[group].to_dataset().isel(draw=slice(4))
        assert tree[group].to_dataset().equals(kept), group
    for group in ("observation_stats", "client_metrics"):
        assert tree[group].to_dataset().equals(whole[group].to_dataset()), group


def test_rows_may_come_in_pieces() -> None:
    """Draws first or observations first, the table is the same, labels drawn included."""
    probs = probabilities(4)
    owners = Owners.of(CLIENT)
    whole, pieces = (ClassTable(Y, owners, seed=3) for _ in range(2))
    for number, draw in enumerate(probs):
        whole.add(number, draw)
        for rows in (slice(0, 2), slice(2, 5)):
            pieces.add(number, draw[rows], rows)
    index = np.arange(5)
    one, other = (table.tree(index, None, {}) for table in (whole, pieces))
    for group in one.children:
        assert one[group].to_dataset().equals(other[group].to_dataset()), group


def test_a_client_without_examples_has_no_metrics_and_one_class_no_entropy() -> None:
    tree = to_datatree(np.ones((3, 5, 1)), np.zeros(5, dtype=int), CLIENT, clients=[2, 4, 9])
    accuracy = values(tree, "client_metrics", "accuracy")[0]
    assert np.isnan(accuracy[:, 0]).all()
    assert (accuracy[:, 1:] == 1).all()
    assert (values(tree, "observation_stats", "total") == 0).all()
    assert for_client(tree, 2)["observed_data"].sizes["observation"] == 0
    with pytest.raises(UserError, match="belongs to client 4, which is not listed"):
        to_datatree(np.ones((3, 5, 1)), np.zeros(5, dtype=int), CLIENT, clients=[9])


def test_nan_predictions_are_refused_with_their_place() -> None:
    probs = probabilities()
    probs[2, 3] = np.nan
    with pytest.raises(UserError, match=r"draw 2 .* not finite \(observation 3, of client 9\)"):
        to_datatree(probs, Y, CLIENT)


def test_a_file_gives_the_same_tree_back(tmp_path: Path) -> None:
    tree = to_datatree(probabilities(), Y, CLIENT, attrs={"method": "pfedbayes", "seed": 3})
    assert save_datatree(tree, tmp_path / "p.nc") == tmp_path / "p.nc"
    assert load_datatree(tmp_path / "p.nc").identical(tree)
    save_datatree(tree, tmp_path / "p.nc")
    assert [path.name for path in tmp_path.iterdir()] == ["p.nc"]


def test_files_are_small(tmp_path: Path) -> None:
    """A fifth of MNIST medium's 40,000 test examples, 20 draws: a fifth of 10 MB would be too much."""
    rng = np.random.default_rng(0)
    logits = 4 * rng.normal(size=(8000, 10))
    draws = np.exp(logits + rng.normal(size=(20, 8000, 10)))
    draws /= draws.sum(-1, keepdims=True)
    tree = to_datatree(draws, logits.argmax(-1), np.repeat(np.arange(10), 800))
    assert save_datatree(tree, tmp_path / "p.nc").stat().st_size < 1.4e6


def test_a_failed_write_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save_datatree(tree_of_two(), tmp_path / "p.nc")
    before = path.read_bytes()
    write = Path.write_bytes

    def full(target: Path, _: Any) -> int:
        write(target, b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left on device") as problem:
        save_datatree(tree_of_two(), path)
    assert problem.value.filename == str(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["p.nc"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_full_disk_is_an_error_and_not_the_end_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # HDF5 itself must never see the full disk.
    monkeypatch.setattr("os.getpid", lambda: 1)
    (tmp_path / ".p.nc.1.tmp").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device"):
        save_datatree(tree_of_two(), tmp_path / "p.nc")
    assert list(tmp_path.iterdir()) == []


def test_files_of_another_kind_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        load_datatree(tmp_path / "none.nc")
    (tmp_path / "text.nc").write_text("not a netCDF file")
    with pytest.raises(UserError, match="is not a readable netCDF file"):
        load_datatree(tmp_path / "text.nc")


def test_arviz_takes_it() -> None:
    stats = pytest.importorskip("arviz_stats")
    tree = to_datatree(probabilities(50), Y, CLIENT)
    table = stats.summary(tree, group="client_metrics", kind="stats", round_to="none")
    assert len(table) == 4
    mean = tree["client_metrics"]["accuracy"].mean(("chain", "draw"))
    assert float(table["mean"].iloc[0]) == pytest.approx(float(mean.to_numpy()[0]), abs=1e-6)


def test_unknown_labels_have_no_likelihood_and_count_nowhere(tmp_path: Path) -> None:
    probs = probabilities()
    unknown = np.array([0, -1, 1, -1, -1])
    tree = to_datatree(probs, unknown, CLIENT)
    log_likelihood = values(tree, "log_likelihood", "y")[0]
    assert np.isnan(log_likelihood).all(0).tolist() == (unknown < 0).tolist()
    known = np.log(probs[:, [0, 2], [0, 1]])
    nll = values(tree, "client_metrics", "nll")[0]
    assert np.allclose(nll[:, 0], -known.mean(1), atol=1e-6)
    assert np.isnan(nll[:, 1]).all()
    accuracy = (probs.argmax(-1) == unknown)[:, [0, 2]].mean(1)
    assert np.allclose(values(tree, "client_metrics", "accuracy")[0, :, 0], accuracy)
    save_datatree(tree, tmp_path / "t.nc")
    assert values(load_datatree(tmp_path / "t.nc"), "observed_data", "y").tolist() == [
        0,
        -1,
        1,
        -1,
        -1,
    ]
