"""Damaged and foreign examples in a result's tree: the same draws, the right inputs, no harm to the rest."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import pyro_pfedbayes as pfb
from pyro_pfedbayes.data.corruptions import corrupt_images
from pyro_pfedbayes.data.partitions.schemes import Partition
from pyro_pfedbayes.datatree.tree import for_client, load_datatree, save_datatree
from pyro_pfedbayes.inference.federation.loop import Federation, Result
from pyro_pfedbayes.inference.posterior.out_of_distribution import (
    SHIFTS,
    corrupted_predictions,
    foreign_examples,
)
from pyro_pfedbayes.randomness import seed_for
from tests.helpers import message, toy_data

LIMITS = (-0.5, 2.0)
GROUPS = ("corrupted_stats", "foreign_stats")


def pictures(test: tuple[int, ...] = (4, 0, 7)) -> pfb.FederatedData:
    """Three clients with images of 5 x 5 pixels and so many test examples each."""
    stream = torch.Generator().manual_seed(0)
    total = sum(test) + 3 * 8
    x = torch.rand(total, 1, 5, 5, generator=stream) * 2.5 - 0.5
    y = torch.arange(total) % 3
    parts: dict[str, list[torch.Tensor]] = {"train": [], "validation": [], "test": []}
    start = 0
    for count in test:
        for part, size in (("test", count), ("train", 8), ("validation", 0)):
            parts[part].append(torch.arange(start, start + size))
            start += size
    names = ("train", "validation", "test")
    partition = Partition("toy", *(tuple(parts[name]) for name in names))
    return pfb.FederatedData(pfb.Dataset("pictures", x, y, tuple("abc")), partition)


def run(data: pfb.FederatedData) -> Result:
    model = pfb.BayesianModel(pfb.mlp([25, 6, 3], seed=1), pfb.Categorical(3))
    algorithm = pfb.PFedBayes(local_steps=2, batch_size=8)
    return Federation(
        model, data, algorithm=algorithm, device="cpu", eval_every=0, engine="eager", eval_draws=2
    ).run(2)


@pytest.fixture(scope="module")
def result() -> Result:
    return run(pictures())


def other(n: int = 20, **changes: object) -> pfb.Dataset:
    x = torch.rand(n, 1, 5, 5, generator=torch.Generator().manual_seed(3))
    mask = torch.arange(n) >= 12
    return replace(pfb.Dataset("shoes", x, torch.zeros(n).long(), ("s",), mask), **changes)  # type: ignore[arg-type]


def answer(result: Result, client: int, x: torch.Tensor, draws: int) -> np.ndarray:
    """The client's posterior predictive by the draws that its own test examples had."""
    seed = seed_for(seed_for(0, "evaluation"), "personal", client)
    belief = result.personal.client(client)
    p = pfb.posterior_predictive(result.federation.model, belief, x, draws=draws, seed=seed)
    return np.asarray(p)


def test_damaged_examples_are_the_clients_own_in_every_way(result: Result) -> None:
    tree = pfb.to_datatree(result, draws=4, corruptions=True, limits=LIMITS)
    found, data = tree["corrupted_stats"], result.federation.data
    assert dict(found["p"].sizes) == {"corruption": 3, "strength": 5, "example": 11, "class": 3}
    test = torch.cat([data.partition.test[0], data.partition.test[2]])
    assert found.coords["index"].to_numpy().tolist() == test.tolist()
    owner = found.coords["client_of_example"].to_numpy()
    assert owner.tolist() == [0] * 4 + [2] * 7
    assert found["y"].to_numpy().tolist() == data.dataset.y[test].tolist()
    for client in (0, 2):
        x, _ = data.examples(client, "test")
        for kind, strength in SHIFTS:
            seed = seed_for(0, "corrupted", client)
            spoilt = corrupt_images(x, kind, strength, seed=seed, limits=LIMITS)
            p = answer(result, client, spoilt, 4)
            one = found.sel(corruption=kind, strength=strength).isel(example=owner == client)
            np.testing.assert_allclose(one["p"], p, atol=1e-6, err_msg=f"{kind} {strength}")
            np.testing.assert_allclose(one["total"], -(p * np.log(p)).sum(-1), atol=1e-5)


def test_few_of_many_test_examples_are_damaged(result: Result) -> None:
    data = result.federation.data
    asked = corrupted_predictions(data, 0, LIMITS, limit=5)
    assert asked is not None
    assert [len(asked.rows(client)) for client in range(3)] == [4 * 15, 0, 5 * 15]
    chosen = asked.index[60:].reshape(15, 5)
    assert (chosen == chosen[0]).all()
    assert set(chosen[0].tolist()) < set(data.partition.test[2].tolist())
    again, another = (corrupted_predictions(data, seed, LIMITS, limit=5) for seed in (0, 1))
    assert again is not None
    assert another is not None
    assert torch.equal(again.index, asked.index)
    assert not torch.equal(another.index, asked.index)


def test_every_client_is_asked_about_the_same_foreign_examples(result: Result) -> None:
    shoes = other()
    tree = pfb.to_datatree(result, draws=4, foreign=shoes)
    found = tree["foreign_stats"]
    assert dict(found["p"].sizes) == {"client": 3, "example": 8, "class": 3}
    assert found.attrs["data"] == "shoes"
    index = found.coords["index"].to_numpy()
    assert index.tolist() == list(range(12, 20))
    for client in range(3):
        p = answer(result, client, shoes.x[12:], 4)
        np.testing.assert_allclose(found["p"].sel(client=client), p, atol=1e-6)
    data = result.federation.data
    few = foreign_examples(data, other(test_mask=None), 0, limit=5)
    assert len(few) == 5
    assert len(foreign_examples(data, other(test_mask=torch.zeros(20).bool()), 0)) == 20


def test_the_other_groups_do_not_depend_on_them_nor_on_pieces(result: Result) -> None:
    plain = pfb.to_datatree(result, draws=3)
    options = {"draws": 3, "corruptions": True, "limits": LIMITS, "foreign": other()}
    both, pieces = pfb.to_datatree(result, **options), pfb.to_datatree(result, chunk=2, **options)
    assert set(both.children) - set(plain.children) == set(GROUPS)
    for group in plain.children:
        assert plain[group].to_dataset().equals(both[group].to_dataset()), group
    for group in GROUPS:
        for name, values in both[group].data_vars.items():
            np.testing.assert_allclose(pieces[group][name], values, atol=1e-6)


def test_they_are_written_and_read_and_cut_to_a_client(result: Result, tmp_path: object) -> None:
    tree = pfb.to_datatree(result, draws=2, corruptions=True, foreign=other())
    path = save_datatree(tree, f"{tmp_path}/tree.nc")
    read = load_datatree(path)
    for group in GROUPS:
        assert read[group].to_dataset().equals(tree[group].to_dataset())
    assert read["foreign_stats"].attrs == {"data": "shoes"}
    one = for_client(read, 2)
    assert one["corrupted_stats"].sizes["example"] == 7
    assert "client" not in one["foreign_stats"].sizes


def test_an_answer_that_is_no_number_stands_for_itself_alone(result: Result) -> None:
    """A foreign example overflows: it is NaN, at every client, and the run's own predictions are whole."""
    x = other().x.clone()
    x[14] = 3e38
    tree = pfb.to_datatree(result, draws=3, foreign=other(x=x))
    for name in ("p", "total", "aleatoric", "epistemic"):
        broken = np.isnan(tree["foreign_stats"][name].to_numpy()).reshape(3, 8, -1).all(-1)
        assert broken.any(1).all(), name
        assert broken[:, 2].all(), name
        assert broken.sum() == 3, name
    assert np.isfinite(tree["observation_stats"]["p"]).all()


def test_what_has_no_pictures_or_no_classes_has_no_such_groups() -> None:
    model = pfb.BayesianModel(pfb.mlp([4, 5, 3]), pfb.Categorical(3))
    table = Federation(model, toy_data((6, 6)), device="cpu", eval_every=0).run(2)
    assert not set(GROUPS) & set(pfb.to_datatree(table, draws=2, corruptions=True).children)
    data = pictures()
    numbers = pfb.FederatedData(
        pfb.Dataset("sizes", data.dataset.x, data.dataset.y.float(), ()), data.partition
    )
    assert corrupted_predictions(numbers, 0, LIMITS) is None
    assert "holds numbers" in message(foreign_examples, numbers, other(), 0)
    nobody = replace(data.partition, test=tuple(index[:0] for index in data.partition.test))
    assert corrupted_predictions(pfb.FederatedData(data.dataset, nobody), 0, LIMITS) is None


def test_what_does_not_fit_is_refused(result: Result) -> None:
    colour = other(x=torch.zeros(20, 3, 5, 5))
    text = message(pfb.to_datatree, result, draws=1, foreign=colour)
    assert text == "foreign data set shoes has inputs [3, 5, 5], but the clients' are [1, 5, 5]"
    assert "limits" in message(
        pfb.to_datatree, result, draws=1, corruptions=True, limits=(1.0, -1.0)
    )
