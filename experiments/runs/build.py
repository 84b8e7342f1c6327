"""From a configuration to what runs: data set, partition, model, federation."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_pfedbayes.data.clients import FederatedData
from pyro_pfedbayes.data.corruptions import corrupt_clients
from pyro_pfedbayes.data.datasets import Dataset, load_dataset
from pyro_pfedbayes.data.partitions.schemes import (
    Partition,
    partition_column,
    partition_dirichlet,
    partition_labels,
    partition_quantity,
)
from pyro_pfedbayes.experiments.config.model_files import build
from pyro_pfedbayes.experiments.config.resolve import LABEL_SCHEMES, resolve
from pyro_pfedbayes.experiments.config.sections import Config, DataSection
from pyro_pfedbayes.experiments.runs.inputs import InputRule, input_rule
from pyro_pfedbayes.experiments.runs.target_scaling import standard_outcomes
from pyro_pfedbayes.inference.engine.devices import resolve_device
from pyro_pfedbayes.inference.federation.loop import Federation
from pyro_pfedbayes.models.bayesian import BayesianModel
from pyro_pfedbayes.models.program import ProgramModel
from pyro_pfedbayes.models.spec import DataSpec
from pyro_pfedbayes.randomness import seed_for

Array = NDArray[np.float64]
_LABELS = ("scheme", "clients", "labels_per_client", "train_per_class", "test_per_class")
_SCHEMES: Mapping[str | None, tuple[Callable[..., Partition], tuple[str, ...]]] = {
    "column": (partition_column, ("column", "test_fraction")),
    "dirichlet": (partition_dirichlet, ("clients", "alpha", "test_fraction")),
    "quantity": (partition_quantity, ("clients", "alpha", "test_fraction")),
    **dict.fromkeys(LABEL_SCHEMES, (partition_labels, _LABELS)),
}
_SAMPLE = 1_000
_CHUNK = 4_096


@dataclass(frozen=True)
class Experiment:
    """A run, ready to start; device and engine are those chosen, so that a resumed run chooses alike."""

    config: Config
    data: FederatedData
    rule: InputRule
    federation: Federation

    def description(self) -> dict[str, Any]:
        """JSON values that tell whether a checkpoint belongs to this run, and all that prediction needs of the data."""
        dataset, partition = self.data.dataset, self.data.partition
        return {
            "config": self.config.tree(),
            "data": {
                "name": dataset.name,
                "fingerprint": fingerprint(self.data),
                "classes": list(dataset.classes),
                "clients": list(partition.names),
                "inputs": dataclasses.asdict(self.rule),
            },
        }


def build_experiment(config: Config) -> Experiment:
    """Build all parts of a run, and find out whether they fit together."""
    config = resolve(config)
    resolve_device(config.run.device)
    data, rule = build_data(config.data)
    config.algorithm.check(config.run.rounds, data.num_clients)
    federation = build_federation(config, data)
    run = config.run.model_copy(
        update={
            "device": str(federation.device),
            "engine": federation.engine_for(config.run.rounds).mode,
        }
    )
    return Experiment(dataclasses.replace(config, run=run), data, rule, federation)


def build_data(section: DataSection) -> tuple[FederatedData, InputRule]:
    """Load, deal and scale the examples of section ``data``, resolved; and how they were scaled."""
    standard = section.scaling == "standard"
    # A table is standardised in float64 as it is read; then again, over what the clients train on.
    dataset = load_dataset(
        section.name,
        data_dir=section.dir,
        standardise=standard,
        target=section.target or "auto",
    )
    partition = build_partition(section, dataset)
    rule = input_rule(dataset, section.name if section.name.endswith(".npz") else None)
    if standard:
        dataset, rule = _standardised(dataset, partition, rule)
    if section.target_scaling == "standard":
        dataset = standard_outcomes(dataset, partition)
        rule = dataclasses.replace(rule, target=dataset.target_scaling)
    data = FederatedData(dataset, partition)
    if section.corrupt_clients:
        how: dict[str, Any] = {
            "kind": section.corruption,
            "strength": section.corruption_strength,
            "seed": section.seed,
        }
        # The scale stays that of clean data. Limits are of an image; those of a table are of no use to it.
        data = corrupt_clients(data, section.corrupt_clients, limits=rule.limits, **how)
    return data, rule


def build_partition(section: DataSection, dataset: Dataset) -> Partition:
    """Deal the examples to clients as section ``data``, resolved, says."""
    deal, names = _SCHEMES[section.scheme]
    return deal(dataset, **{n: getattr(section, n) for n in (*names, "validation", "seed")})


def build_model(
    config: Config, shape: Sequence[int], num_classes: int
) -> BayesianModel | ProgramModel:
    """The model of a resolved configuration, for inputs of a shape; 0 classes if outcomes are numbers."""
    spec = DataSpec(tuple(shape), num_classes, seed_for(config.run.seed, "network"))
    model: BayesianModel | ProgramModel = build(config.model.name, config.model.options, spec)
    return model


def build_federation(config: Config, data: FederatedData) -> Federation:
    """Clients and server of a resolved configuration."""
    run = config.run
    options: Mapping[str, Any] = {
        name: getattr(run, name)
        for name in ("seed", "device", "engine", "chunk", "eval_every", "eval_draws")
    }
    return Federation(
        build_model(config, data.feature_shape, data.num_classes),
        data,
        algorithm=config.algorithm,
        participation=None if run.participation == "all" else run.participation,
        **options,
    )


def fingerprint(data: FederatedData) -> str:
    """A digest of who holds what: all outcomes (missing ones as well) and indices, and a sample of the inputs."""
    dataset, partition = data.dataset, data.partition
    digest = hashlib.sha256(repr(list(dataset.x.shape)).encode())
    every = max(1, len(dataset) // _SAMPLE)
    dealt = (*partition.train, *partition.validation, *partition.test)
    for tensor in (dataset.y, dataset.x[::every], *dealt):
        digest.update(tensor.contiguous().numpy().tobytes())
        digest.update(b"|")
    return digest.hexdigest()


def _standardised(
    dataset: Dataset, partition: Partition, rule: InputRule
) -> tuple[Dataset, InputRule]:
    """Centre and scale over all clients' training examples: images by two numbers, tables by column."""
    table = len(dataset.feature_shape) == 1
    loc, scale = _moments(dataset, torch.cat([*partition.train, *partition.validation]), table)
    x = dataset.x.numpy()
    if table:
        x = ((x.astype(np.float64) - loc) / scale).astype(np.float32)
        dataset = dataclasses.replace(dataset, x=torch.from_numpy(x))
        assert rule.loc is not None
        assert rule.scale is not None
        loc, scale = np.array(rule.loc) + np.array(rule.scale) * loc, np.array(rule.scale) * scale
    rule = dataclasses.replace(rule, loc=tuple(loc.tolist()), scale=tuple(scale.tolist()))
    if not table:
        dataset = dataclasses.replace(dataset, x=rule.centred(dataset.x))
    return dataset, rule


def _moments(dataset: Dataset, index: Tensor, by_column: bool) -> tuple[Array, Array]:
    """Mean and standard deviation, by NumPy: one thread, so that a resumed run gets the same bits."""
    x = dataset.x.numpy()
    width = x.shape[1] if by_column else 1
    total, squares, count = np.zeros(width), np.zeros(width), 0
    for part in index.split(_CHUNK):
        rows = x[part.numpy()].reshape(-1, width).astype(np.float64)
        total, squares, count = total + rows.sum(0), squares + (rows**2).sum(0), count + len(rows)
    loc = total / count
    scale = np.sqrt(np.maximum(squares / count - loc**2, 0.0))
    # The inputs are of the order of 1 here, so this is rounding error only: leave such a column alone.
    return loc, np.where(scale < 1e-6, 1.0, scale)
