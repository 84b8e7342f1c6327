"""Clients: their examples, and minibatches that depend on nobody else."""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyro_pfedbayes.data.clients import FederatedData
from pyro_pfedbayes.data.datasets import Dataset
from pyro_pfedbayes.data.partitions.schemes import Partition, partition_labels
from pyro_pfedbayes.errors import UserError
from tests.helpers import toy_data


def dataset(n: int) -> Dataset:
    """Examples that tell their own index; the label is its last digit."""
    x = torch.arange(n, dtype=torch.float32)[:, None].repeat(1, 2)
    return Dataset("toy", x, torch.arange(n) % 10, tuple("0123456789"))


def by_sizes(*sizes: int) -> FederatedData:
    """Clients with so many training examples, in an order that is not that of the data set."""
    total = sum(sizes)
    order = torch.arange(total).flip(0)
    none = tuple(torch.arange(0) for _ in sizes)
    ends = list(itertools.accumulate(sizes))
    train = tuple(order[end - size : end] for end, size in zip(ends, sizes, strict=True))
    partition = Partition("by hand", train, none, none)
    return FederatedData(dataset(total), partition)


@given(
    n=st.integers(1, 40), size=st.integers(1, 40), steps=st.integers(1, 30), seed=st.integers(0, 9)
)
@settings(max_examples=60, deadline=None)
def test_each_epoch_holds_each_example_once(n: int, size: int, steps: int, seed: int) -> None:
    data = by_sizes(n, 3)  # of the first client, example 0 is none
    plan = data.plan([0], steps, size, seed, round=2)
    mine = sorted(data.partition.train[0].tolist())
    if n >= size:
        drawn = plan.index[0].flatten().tolist()
        epochs = [drawn[start : start + n] for start in range(0, len(drawn), n)]
        for epoch in epochs[:-1]:
            assert sorted(epoch) == mine
        assert len(set(epochs[-1])) == len(epochs[-1])
        assert set(drawn) <= set(mine)
        assert bool(plan.mask.all())
    else:
        for batch in plan.index[0]:
            assert sorted(batch[plan.mask[0]].tolist()) == mine
            assert set(batch.tolist()) == set(mine)
        width = min(size, max(n, 3))
        assert plan.mask[0].tolist() == [place < n for place in range(width)]
    assert plan.counts.tolist() == [min(size, n)]
    assert plan.sizes.tolist() == [n]
    assert plan.scale.tolist() == pytest.approx([n / min(size, n)])


def test_epochs_are_shuffled_afresh() -> None:
    drawn = by_sizes(50).plan([0], 4, 50, seed=0, round=0).index[0]
    assert all(not torch.equal(drawn[i], drawn[j]) for i in range(4) for j in range(i))


def test_batches_depend_on_seed_round_and_client_only() -> None:
    data = by_sizes(30, 30, 8, 30)

    def drawn(cohort: list[int], client: int, seed: int = 0, round: int = 0) -> Any:
        plan = data.plan(cohort, 5, 10, seed, round)
        return plan.index[cohort.index(client)].tolist()

    alone = drawn([1], 1)
    assert drawn([3, 2, 1, 0], 1) == alone
    assert drawn([0, 1], 1) == alone
    assert drawn([1], 1, seed=1) != alone
    assert drawn([1], 1, round=1) != alone
    # Same places, not the same order: clients draw from streams of their own.
    places = [
        torch.searchsorted(data.partition.train[c].sort().values, data.plan([c], 5, 10, 0, 0).index)
        for c in (1, 3)
    ]
    assert not torch.equal(places[0], places[1])


def test_batch_gathers_what_the_index_says() -> None:
    data = by_sizes(12, 7, 3)
    plan = data.plan([2, 0], 4, 5, seed=0, round=0)
    assert plan.steps == 4
    for step in range(4):
        x, y = plan.batch(step)
        assert x.shape == (2, 5, 2)
        assert torch.equal(x[..., 0].long(), plan.index[:, step])
        assert torch.equal(y, plan.index[:, step] % 10)
    assert plan.mask.tolist() == [[True] * 3 + [False] * 2, [True] * 5]
    assert plan.scale.tolist() == pytest.approx([1.0, 12 / 5])


def test_batches_of_images_keep_their_shape() -> None:
    images = Dataset("toy", torch.randn(20, 3, 4, 5), torch.arange(20) % 2, ("0", "1"))
    data = FederatedData(images, partition_labels(images, 2, 1, 6, 4, validation=0.0))
    plan = data.plan([1, 0], 2, 3, 0, 0)
    x, _ = plan.batch(1)
    assert x.shape == (2, 3, 3, 4, 5)
    assert torch.equal(x, images.x[plan.index[:, 1]])
    assert data.feature_shape == (3, 4, 5)


def test_examples_and_sizes() -> None:
    toy = dataset(300)
    partition = partition_labels(toy, 2, 5, 10, 5, validation=0.2)
    data = FederatedData(toy, partition)
    assert (data.num_clients, data.num_classes) == (2, 10)
    assert data.train_sizes.tolist() == [40, 40]
    for part, size in (("train", 40), ("validation", 10), ("test", 25)):
        x, y = data.examples(1, part)
        assert x[:, 0].long().tolist() == partition.part(part)[1].tolist()
        assert len(y) == size
        assert set(y.tolist()) == {5, 6, 7, 8, 9}


def test_a_client_may_lack_validation_and_test_examples() -> None:
    x, y = by_sizes(1, 5).examples(0, "test")
    assert x.shape == (0, 2)
    assert y.shape == (0,)


def index_lists(*lists: list[int]) -> tuple[torch.Tensor, ...]:
    return tuple(torch.tensor(each, dtype=torch.int64) for each in lists)


@pytest.mark.parametrize(
    ("train", "test", "words"),
    [
        (index_lists([0, 1], []), index_lists([2], [3]), "client 1 has no training example"),
        (index_lists([0, 1], [4]), index_lists([2], [1]), "example 1 is dealt 2 times"),
        (index_lists([0], [10]), index_lists([2], [3]), "holds indices 0 to 10, but toy has 10"),
        (index_lists([0], [-1]), index_lists([2], [3]), "holds indices -1 to 3"),
        ((torch.tensor([0.5]), torch.tensor([1])), index_lists([2], [3]), "must be int64"),
    ],
)
def test_partitions_that_do_not_fit_are_refused(train: Any, test: Any, words: str) -> None:
    none = index_lists([], [])
    with pytest.raises(UserError, match=words):
        FederatedData(dataset(10), Partition("by hand", train, none, test))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda d: d.plan([0, 2], 1, 1, 0, 0), "no client 2: there are 2"),
        (lambda d: d.plan([-1], 1, 1, 0, 0), "no client -1"),
        (lambda d: d.plan([0], 0, 1, 0, 0), "both must be at least 1"),
        (lambda d: d.plan([0], 1, 0, 0, 0), "both must be at least 1"),
        (lambda d: d.examples(2), "no client 2"),
        (lambda d: d.examples(0, "tests"), "unknown part 'tests'; did you mean 'test'"),
    ],
)
def test_bad_requests(call: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        call(by_sizes(3, 3))


def test_a_round_is_planned_in_milliseconds() -> None:
    """10 clients x 20 steps x 100 take about 0.8 ms; a loop over steps would take 20 times that."""
    toy = dataset(60_000)
    data = FederatedData(toy, partition_labels(toy, 10, 5, 200, 800))
    seconds = []
    for round in range(30):
        start = time.perf_counter()
        data.plan(range(10), 20, 100, 0, round)
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 8e-3


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_batches_are_the_same_on_a_gpu() -> None:
    data = by_sizes(12, 7, 3)
    here = data.plan([2, 0], 4, 5, seed=0, round=0)
    there = data.to("cuda").plan([2, 0], 4, 5, seed=0, round=0)
    assert there.index.is_cuda
    assert there.scale.is_cuda
    for mine, theirs in zip(here.batch(3), there.batch(3), strict=True):
        assert torch.equal(mine, theirs.cpu())


def test_batches_are_no_wider_than_the_largest_client() -> None:
    data = toy_data((20, 5))
    plan = data.plan([0, 1], steps=2, batch_size=10_000, seed=0, round=0)
    assert plan.index.shape == (2, 2, 20)
    assert plan.mask.sum(1).tolist() == [20, 5]
    assert plan.scale.tolist() == [1.0, 1.0]
    # The width does not depend on who takes part.
    assert data.plan([1], steps=2, batch_size=10_000, seed=0, round=0).index.shape == (1, 2, 20)


# -- columns beside the inputs ----------------------------------------------------------------------------


def visits(**changes: Any) -> FederatedData:
    """Two clients of a table of numbers, with columns of days, ages and wards."""
    parts: dict[str, Any] = {
        "x": torch.arange(8.0).view(4, 2),
        "y": torch.tensor([1.0, 0.0, 2.5, 3.0]),
        "columns": {
            "days": torch.tensor([30.0, 7.0, 1.0, 2.0], dtype=torch.float64),
            "age": torch.tensor([50, 60, 70, 80]),
            "ward": torch.tensor([0, 1, 0, 1]),
        },
        "column_values": {"ward": ("east", "west")},
        "scaling": (torch.tensor([1.0, 2.0]).double(), torch.tensor([3.0, 4.0]).double()),
        "set_aside": {"wide": "array wide has shape (4, 2)"},
        **changes,
    }
    data = Dataset("visits", classes=(), **parts)
    none = (torch.arange(0), torch.arange(0))
    lists = (torch.tensor([0, 1]), torch.tensor([2, 3]))
    return FederatedData(data, Partition("by hand", lists, none, none))


def test_covariates_become_the_last_columns_in_their_own_units() -> None:
    data = visits()
    assert data.with_covariates(()) is data
    more = data.with_covariates(["age", "days"])
    assert more.feature_shape == (4,)
    assert torch.equal(more.dataset.x[:, :2], data.dataset.x)
    assert more.dataset.x[:, 2:].tolist() == [[50, 30], [60, 7], [70, 1], [80, 2]]
    assert more.dataset.x.dtype == torch.float32
    assert more.dataset.scaling is not None
    assert [part.tolist() for part in more.dataset.scaling] == [[1, 2, 0, 0], [3, 4, 1, 1]]
    assert more.examples(1)[0].tolist() == [[4, 5, 70, 1], [6, 7, 80, 2]]
    assert data.feature_shape == (2,)


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("day", {}, "column 'day', which there is not; did you mean 'days'? (columns: days, age"),
        ("wide", {}, "which there is not: array wide has shape (4, 2)"),
        ("ward", {}, "as numbers, but it holds texts such as 'east'"),
        ("days", {"x": torch.zeros(4, 1, 2, 2), "scaling": None}, "x holds images [1, 2, 2]"),
        (
            "days",
            {"columns": {"days": torch.tensor([1.0, 2.0, torch.nan, 3.0])}, "column_values": {}},
            "column 'days' is nan in row 2",
        ),
        (
            "days",
            {
                "columns": {"days": torch.tensor([1.0, 1e39, 2.0, 3.0], dtype=torch.float64)},
                "column_values": {},
            },
            "wanted finite numbers",
        ),
    ],
)
def test_covariates_that_a_model_cannot_use_are_refused(
    name: str, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(UserError) as caught:
        visits(**changes).with_covariates([name])
    assert words in str(caught.value)


def test_batches_of_numbers_are_numbers() -> None:
    plan = visits().plan([0, 1], 1, 2, seed=0, round=0)
    _, y = plan.batch(0)
    assert y.dtype == torch.float32
    assert sorted(y[1].tolist()) == [2.5, 3.0]
    assert visits().outcome == "number"
