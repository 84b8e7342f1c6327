"""Small federations that several tests share."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from pyro_pfedbayes.data.clients import FederatedData
from pyro_pfedbayes.data.datasets import Dataset, load_dataset
from pyro_pfedbayes.data.partitions.schemes import Partition, partition_labels
from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.gaussians.mean_field import MeanFieldGaussian
from pyro_pfedbayes.models.bayesian import BayesianModel
from pyro_pfedbayes.models.likelihoods import Categorical
from pyro_pfedbayes.models.networks import mlp

CLASSES = 3


def dataset(per_class: list[int], test: int = 0, **options: Any) -> Dataset:
    """So many examples of each class, in a mixed order; the last ``test`` are the test part."""
    y = torch.cat([torch.full((count,), label) for label, count in enumerate(per_class)])
    y = y[torch.randperm(len(y), generator=torch.Generator().manual_seed(1))]
    mask = torch.arange(len(y)) >= len(y) - test if test else None
    names = tuple(f"c{label}" for label in range(len(per_class)))
    return Dataset("toy", torch.zeros(len(y), 1), y, names, mask, **options)


def message(call: Any, *args: Any, **options: Any) -> str:
    """What a call that must fail tells the user: one line."""
    with pytest.raises(UserError) as caught:
        call(*args, **options)
    text = str(caught.value)
    assert "\n" not in text
    return text


def tiny_model(dtype: torch.dtype = torch.float64, **options: object) -> BayesianModel:
    """A 4-5-3 network, T = 43."""
    return BayesianModel(mlp([4, 5, CLASSES], seed=1).to(dtype), Categorical(CLASSES), **options)


def random_gaussian(
    model: BayesianModel, clients: int | None = None, seed: int = 0
) -> MeanFieldGaussian:
    """A Gaussian near nothing in particular, over the model's weights."""
    stream = torch.Generator().manual_seed(seed)
    batch = () if clients is None else (clients,)
    dtype = model.prior.dtype

    def normal(shape: tuple[int, ...]) -> Tensor:
        return torch.randn(*batch, *shape, generator=stream, dtype=dtype)

    return MeanFieldGaussian(
        {name: normal(shape) for name, shape in model.weight_shapes.items()},
        {name: 0.1 + 0.5 * normal(shape).abs() for name, shape in model.weight_shapes.items()},
        stacked=clients is not None,
    )


def random_batch(
    clients: int, examples: int, dtype: torch.dtype = torch.float64, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Inputs ``[N, b, 4]`` and labels ``[N, b]``."""
    stream = torch.Generator().manual_seed(seed)
    x = torch.randn(clients, examples, 4, generator=stream, dtype=dtype)
    return x, torch.randint(CLASSES, (clients, examples), generator=stream)


def toy_data(sizes: tuple[int, ...], seed: int = 0) -> FederatedData:
    """Clients of the given training sizes with 6 test and 4 validation examples each; 4 features, 3 classes."""
    stream = torch.Generator().manual_seed(seed)
    total = sum(sizes) + 10 * len(sizes)
    y = torch.arange(total) % CLASSES
    centres = 3 * torch.randn(CLASSES, 4, generator=stream)
    x = centres[y] + torch.randn(total, 4, generator=stream)
    dataset = Dataset("toy", x, y, tuple("abc"), None, {})
    parts: dict[str, list[Tensor]] = {"train": [], "validation": [], "test": []}
    start = 0
    for size in sizes:
        for part, count in (("train", size), ("validation", 4), ("test", 6)):
            parts[part].append(torch.arange(start, start + count))
            start += count
    partition = Partition("toy", *(tuple(parts[p]) for p in ("train", "validation", "test")))
    return FederatedData(dataset, partition)


def digits(**options: object) -> FederatedData:
    """The embedded digits, split among ten clients."""
    data = load_dataset("digits")
    settings = {"train_per_class": 15, "test_per_class": 15, "validation": 0.2, **options}
    return FederatedData(data, partition_labels(data, 10, 5, **settings))
