import json
import os

import pytest
import torch

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.inference.federation.checkpoint import load_checkpoint, save_checkpoint
from tests.inference.federation.test_loop import same, toy_federation


def test_a_run_resumed_from_disk_has_the_same_bits(tmp_path) -> None:
    whole = toy_federation(participation=2).run(6).state
    fed = toy_federation(participation=2)
    state = fed.initial_state()
    for _ in range(3):
        state, _ = fed.advance(state, 6)
        save_checkpoint(tmp_path / "c", state, {"who": "me"})
    loaded, meta = load_checkpoint(tmp_path / "c")
    assert meta == {"who": "me"}
    assert same(loaded, state)
    assert same(toy_federation(participation=2).run(6, state=loaded).state, whole)
    assert len(list((tmp_path / "c").iterdir())) == 2


def test_no_pickle_and_no_client_data_in_a_checkpoint(tmp_path) -> None:
    fed = toy_federation()
    state, _ = fed.advance(fed.initial_state(), 2)
    save_checkpoint(tmp_path, state, {})
    assert {path.suffix for path in tmp_path.iterdir()} == {".safetensors", ".json"}
    raw = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert all(row.numpy().tobytes() not in raw for row in fed.data.dataset.x)


@pytest.fixture
def saved(tmp_path):
    fed = toy_federation()
    state, _ = fed.advance(fed.initial_state(), 2)
    save_checkpoint(tmp_path, state, {})
    return tmp_path, fed, state


def test_a_checkpoint_that_did_not_count_bytes_reads_as_0(saved) -> None:
    folder, _, state = saved
    assert load_checkpoint(folder)[0].bytes_uploaded == state.bytes_uploaded > 0
    edit(bytes_uploaded=None)(folder)
    assert load_checkpoint(folder)[0].bytes_uploaded == 0


def test_an_interrupted_write_leaves_the_previous_checkpoint(saved, monkeypatch) -> None:
    folder, fed, state = saved
    later, _ = fed.advance(state, 2)
    replace = os.replace

    def full_disk(source, target):
        if str(target).endswith("state.json"):
            raise OSError(28, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", full_disk)
    with pytest.raises(UserError, match=r"cannot write checkpoint .*No space left on device"):
        save_checkpoint(folder, later, {})
    assert same(load_checkpoint(folder)[0], state)
    assert not list(folder.glob(".*.tmp"))


def damage(folder) -> None:
    path = next(folder.glob("*.safetensors"))
    raw = bytearray(path.read_bytes())
    raw[-3] ^= 1
    path.write_bytes(raw)


def edit(**changes):
    def apply(folder) -> None:
        path = folder / "state.json"
        index = {**json.loads(path.read_text()), **changes}
        path.write_text(json.dumps({k: v for k, v in index.items() if v is not None}))

    return apply


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (damage, "is damaged"),
        (edit(format="somebody else's"), "not a checkpoint of this version"),
        (edit(history=None), "lacks 'history'"),
        (edit(tensors="../elsewhere.safetensors"), "cannot read checkpoint file"),
        (lambda folder: (folder / "state.json").write_text("{"), "not readable JSON"),
        (lambda folder: (folder / "state.json").unlink(), "there is no checkpoint in"),
        (lambda folder: next(folder.glob("*.safetensors")).unlink(), "cannot read checkpoint file"),
    ],
)
def test_damaged_and_foreign_checkpoints_are_refused(saved, spoil, words) -> None:
    folder = saved[0]
    spoil(folder)
    with pytest.raises(UserError, match=words):
        load_checkpoint(folder)


def test_dtypes_and_scalars_survive(saved) -> None:
    folder, _, state = saved
    loaded, _ = load_checkpoint(folder)
    assert {k: v.dtype for k, v in loaded.server.items()} == {
        k: v.dtype for k, v in state.server.items()
    }
    assert loaded.server["adam.step"].shape == torch.Size([])
