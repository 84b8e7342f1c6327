"""A partition as a table and as a picture."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pyro_pfedbayes.data.partitions.schemes import (
    partition_dirichlet,
    partition_labels,
    plot_partition,
)
from tests.helpers import dataset, message


def test_the_table_shows_every_client_and_the_sums() -> None:
    data = dataset([40, 40, 40, 40])
    partition = partition_labels(data, 4, 2, 10, 5, validation=0.2)
    rows = [line.split() for line in partition.to_text(data.y, data.classes, 80).splitlines()]
    assert ["client", "c0", "c1", "c2", "c3", "train", "valid.", "test"] in rows
    assert ["0", "8", "8", "·", "·", "16", "4", "10"] in rows
    assert ["3", "·", "·", "8", "8", "16", "4", "10"] in rows
    assert ["all", "16", "16", "16", "16", "64", "16", "40"] in rows


def test_the_table_of_many_clients_and_classes_stays_small() -> None:
    data = dataset([40] * 30)
    partition = partition_dirichlet(data, 100, 0.5)
    text = partition.to_text(data.y, data.classes, 60)
    lines = text.splitlines()
    assert len(lines) < 25
    assert max(len(line) for line in lines) <= 60
    first_column = [line.split()[0] for line in lines if line.split()]
    shown = [*map(str, range(5)), "...", *map(str, range(95, 100)), "all", "smallest", "largest"]
    assert [cell for cell in first_column if cell in shown] == shown
    train = [len(index) for index in partition.train]
    smallest, largest = (
        next(line.split()[1:] for line in lines if line.split()[:1] == [name])
        for name in ("smallest", "largest")
    )
    assert smallest[0] == str(min(train))
    assert largest[0] == str(max(train))


def test_names_are_not_taken_for_markup() -> None:
    data = replace(dataset([10, 10]), classes=("[/b]", "[red]"))
    partition = replace(partition_labels(data, 2, 1, 2, 2), names=("[/i]", "[x]"))
    text = partition.to_text(data.y, data.classes)
    assert "[/b]" in text
    assert "[/i]" in text
    one = replace(partition_labels(dataset([10]), 1, 1, 2, 2), names=(":cat:",), scheme="[/x]")
    text = one.to_text(data.y[data.y == 0], ("a",))
    assert ":cat:" in text
    assert "1 client, [/x]: training" in text


def test_names_are_not_taken_for_formulas(tmp_path: Path) -> None:
    data = replace(dataset([10, 10]), name=r"$\q$", classes=(r"$\q$", "b"))
    partition = replace(partition_labels(data, 2, 1, 2, 2), names=(r"$\q$", "$"))
    plot_partition(partition, data).savefig(tmp_path / "p.png")


def drawn_numbers(figure: Any) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts]


def test_the_picture_prints_the_counts(tmp_path: Path) -> None:
    data = dataset([30, 30, 30])
    partition = partition_dirichlet(data, 4, 1.0, seed=3)
    counts = partition.counts(data.y, 3)
    figure = plot_partition(partition, data)
    cells = figure.axes[0]
    assert np.array_equal(np.asarray(cells.images[0].get_array()), counts.numpy())
    assert drawn_numbers(figure) == [str(n) for row in counts.tolist() for n in row if n]
    assert [text.get_text() for text in cells.get_xticklabels()] == ["c0", "c1", "c2"]
    assert [text.get_text() for text in cells.get_yticklabels()] == ["0", "1", "2", "3"]
    sums = [[text.get_text() for text in axes.texts] for axes in figure.axes[1:]]
    assert sums == [[str(n) for n in counts.sum(axis).tolist()] for axis in (1, 0)]
    figure.savefig(tmp_path / "partition.png")
    assert (tmp_path / "partition.png").stat().st_size > 5000


def test_the_picture_of_many_clients_stays_of_a_size() -> None:
    data = dataset([400] * 10)
    hundred, thousand = (
        plot_partition(partition_dirichlet(data, clients, 0.3), data, "train")
        for clients in (100, 1000)
    )
    assert len(drawn_numbers(hundred)) > 100
    assert drawn_numbers(thousand) == []
    assert max(*hundred.get_size_inches(), *thousand.get_size_inches()) < 18
    assert "did you mean 'test'" in message(
        plot_partition, partition_dirichlet(data, 3), data, "tests"
    )
