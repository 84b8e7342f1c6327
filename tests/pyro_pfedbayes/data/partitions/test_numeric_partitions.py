"""Partitions where outcomes are numbers, and where some outcomes are unknown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from pyro_pfedbayes.data.datasets import Dataset
from pyro_pfedbayes.data.partitions.allocation import quantile_bins
from pyro_pfedbayes.data.partitions.schemes import (
    Partition,
    partition_column,
    partition_dirichlet,
    partition_labels,
    partition_quantity,
    plot_partition,
)
from tests.helpers import dataset, message


def numbers(n: int = 400, missing: int = 0, seed: int = 0) -> Dataset:
    """Outcomes 0 … n - 1 in a mixed order, the first ``missing`` rows NaN; a column of two sites."""
    y = torch.randperm(n, generator=torch.Generator().manual_seed(seed)).float()
    y[:missing] = torch.nan
    return Dataset("toy", torch.zeros(n, 1), y, (), columns={"site": torch.arange(n) % 2})


def dealt(partition: Partition) -> torch.Tensor:
    parts = (partition.train, partition.validation, partition.test)
    return torch.cat([index for part in parts for index in part])


def test_quantile_bins_are_equally_full_and_ordered() -> None:
    y = np.random.default_rng(0).normal(size=100)
    bins = quantile_bins(y, 5)
    assert np.bincount(bins).tolist() == [20] * 5
    for k in range(4):
        assert y[bins == k].max() < y[bins == k + 1].min()
    assert quantile_bins(np.full(4, np.nan), 5).tolist() == [-1] * 4
    # A value that half of the examples share cannot be cut.
    assert np.bincount(quantile_bins(np.array([0.0] * 6 + [1, 2, 3, 4]), 5)).tolist()[0] >= 6


def test_dirichlet_skews_numbers_by_their_fifths() -> None:
    data = numbers()
    skewed = partition_dirichlet(data, 5, alpha=0.1, seed=3)
    alike = partition_dirichlet(data, 5, alpha=1e4, seed=3)
    assert sorted(dealt(skewed).tolist()) == list(range(400))
    assert skewed.scheme == "dirichlet(alpha=0.1) over fifths of y"

    def spread(partition: Partition) -> float:
        means = [float(y.mean()) for y in partition.dealt(data.y)]
        return float(np.std(means))

    # Outcomes have a standard deviation of 115; dealt alike, means of 57 differ by chance only.
    assert spread(alike) < 15
    assert spread(skewed) > 40
    # What is held out has its share of each fifth.
    fifths = torch.from_numpy(quantile_bins(data.y.numpy(), 5))
    for held, rest in zip(alike.test, alike.train, strict=True):
        share = fifths[held].bincount(minlength=5) / len(held)
        assert torch.allclose(share, fifths[rest].bincount(minlength=5) / len(rest), atol=0.08)


def test_quantity_and_column_deal_numbers_and_missing_ones() -> None:
    data = numbers(missing=40)
    for partition in (partition_quantity(data, 4, 1.0), partition_column(data, "site")):
        assert sorted(dealt(partition).tolist()) == list(range(400))
        known = [bool(data.known[index].any()) for index in partition.test]
        assert all(known)
    # The tenth that is missing is a tenth of what is held out, too.
    held = torch.cat(partition_column(data, "site").test)
    assert int((~data.known[held]).sum()) == 8


def test_dirichlet_puts_unknown_outcomes_aside() -> None:
    data = numbers(missing=40)
    assert sorted(dealt(partition_dirichlet(data, 4)).tolist()) == list(range(40, 400))
    labels = dataset([50, 50])
    labels = replace(labels, y=torch.where(torch.arange(100) < 30, -1, labels.y))
    for partition in (
        partition_dirichlet(labels, 4),
        partition_labels(labels, 2, 2, 10, 5, validation=0.2),
    ):
        assert int(dealt(partition).min()) >= 30
    nothing = replace(data, y=torch.full((400,), torch.nan))
    assert "no outcome is known" in message(partition_dirichlet, nothing, 4)


def test_too_few_known_labels_are_too_few() -> None:
    labels = dataset([20, 20])
    labels = replace(labels, y=torch.where(torch.arange(40) < 30, -1, labels.y))
    assert "but the split needs" in message(partition_labels, labels, 2, 2, 10, 5)


def test_label_schemes_refuse_numbers() -> None:
    text = message(partition_labels, numbers(), 2, 2, 10, 5)
    assert text == (
        "toy: outcomes are numbers, which scheme 'blocks' cannot deal by label; "
        "use dirichlet (over fifths of y), quantity or column"
    )


def test_unknown_labels_are_counted_as_examples_but_as_no_class() -> None:
    labels = replace(dataset([4, 4]), y=torch.tensor([0, -1, 1, -1, 0, 1, 0, -1]))
    lists = (torch.arange(4), torch.arange(4, 8))
    nothing = (torch.arange(0), torch.arange(0))
    partition = Partition("by hand", lists, nothing, nothing)
    assert partition.counts(labels.y, 2).tolist() == [[1, 1], [2, 1]]
    rows = [line.split() for line in partition.to_text(labels.y, labels.classes).splitlines()]
    assert ["0", "1", "1", "4", "0", "0"] in rows
    assert ["all", "3", "2", "8", "0", "0"] in rows
    figure = plot_partition(partition, labels)
    assert "8 in all (3 without a known outcome)" in figure.texts[0].get_text()
    assert np.asarray(figure.axes[0].images[0].get_array()).tolist() == [[1, 1], [2, 1]]


def by_hand() -> tuple[Dataset, Partition]:
    y = torch.tensor([1.0, 3.0, torch.nan, 10.0, 5.0, torch.nan])
    data = Dataset("toy", torch.zeros(6, 1), y, (), target_scaling=(100.0, 10.0))
    nothing = torch.arange(0)
    lists = (torch.arange(4), torch.tensor([5]))
    partition = Partition("by hand", lists, (nothing, nothing), (torch.tensor([4]), nothing))
    return data, replace(partition, names=("[/b]", r"$\q$"))


def test_the_table_of_numbers_shows_sizes_and_moments() -> None:
    data, partition = by_hand()
    rows = [line.split() for line in partition.to_text(data.y, ()).splitlines()]
    assert ["client", "train", "valid.", "test", "missing", "mean", "y", "±", "sd"] in rows
    deviation = f"{np.std([1, 3, 10]):.4g}"
    assert ["[/b]", "4", "0", "1", "1", "4.667", deviation] in rows
    assert [r"$\q$", "1", "0", "0", "1", "–", "–"] in rows
    assert ["all", "5", "0", "1", "2", "4.667", deviation] in rows
    # Without missing outcomes there is no column of them.
    whole = partition_quantity(numbers(), 2)
    assert "missing" not in whole.to_text(numbers().y, ())


@pytest.mark.parametrize("width", [60, 100])
def test_the_table_of_many_clients_stays_small(width: int) -> None:
    data = numbers()
    partition = partition_quantity(data, 60)
    lines = partition.to_text(data.y, (), width).splitlines()
    assert len(lines) < 25
    smallest = next(line.split() for line in lines if line.split()[:1] == ["smallest"])
    assert smallest[1] == str(min(len(index) for index in partition.train))


def test_the_picture_of_numbers_shows_each_clients_distribution(tmp_path: Path) -> None:
    data, partition = by_hand()
    figure = plot_partition(partition, data)
    axes = figure.axes[0]
    # In their own units: 110, 130, 200.
    (box,) = axes.patches
    assert (box.get_x(), box.get_width()) == (120.0, 45.0)
    marks = {line.get_marker(): np.asarray(line.get_xdata()) for line in axes.lines}
    assert marks["D"].tolist() == pytest.approx([440 / 3])
    assert sorted(marks["|"].tolist()) == [110.0, 130.0, 200.0]
    assert [text.get_text() for text in axes.texts] == ["3", "0"]
    assert [text.get_text() for text in axes.get_yticklabels()] == list(partition.names)
    assert "5 in all (2 without a known outcome)" in figure.texts[0].get_text()
    figure.savefig(tmp_path / "p.png")
    for part in ("validation", "test"):
        plot_partition(partition, data, part).savefig(tmp_path / f"{part}.png")


def test_the_picture_of_a_thousand_clients_is_no_larger_than_a_page(tmp_path: Path) -> None:
    data = numbers(3_000)
    figure = plot_partition(partition_quantity(data, 1_000), data)
    assert figure.get_size_inches().max() < 16
    figure.savefig(tmp_path / "p.png", dpi=40)
