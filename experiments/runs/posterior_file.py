"""What a run leaves for ArviZ: `pyro_pfedbayes.inference.posterior.tree` for a configured experiment."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

from pyro_pfedbayes.data.datasets import Dataset, load_dataset
from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.inference.posterior.tree import posterior_datatree, run_attributes

if TYPE_CHECKING:
    import xarray as xr

    from pyro_pfedbayes.experiments.runs.build import Experiment
    from pyro_pfedbayes.inference.federation.state import FederationState

_FOREIGN = {"mnist": "fmnist", "fmnist": "mnist"}


def experiment_datatree(
    experiment: Experiment, state: FederationState, *, note: Callable[[str], None]
) -> xr.DataTree:
    """The tree of ``posterior.nc``: ``run.posterior_draws`` draws on the test examples, and the run's attributes.

    Damaged test examples are in it unless ``run.shifts`` is false, and those of the other data set that
    `foreign_dataset` finds; ``note`` gets a line on why one that is named is left out.
    """
    run, data = experiment.config.run, experiment.data
    attrs = run_attributes(experiment.federation, state) | {
        "rounds": run.rounds,
        "split": experiment.config.data.split or data.partition.scheme,
    }
    foreign = None
    try:
        foreign = foreign_dataset(experiment)
    except UserError as problem:
        note(f"warning: run.foreign '{run.foreign}' is left out: {problem}")
    return posterior_datatree(
        experiment.federation,
        state,
        draws=run.posterior_draws,
        attrs=attrs,
        foreign=foreign,
        corruptions=run.shifts,
        limits=experiment.rule.limits,
    )


def foreign_dataset(experiment: Experiment) -> Dataset | None:
    """The data set that ``run.foreign`` names, in the scale of the run's inputs; None if there is none.

    ``"auto"`` is Fashion-MNIST for MNIST and the other way round, if its files are there; nothing is downloaded for it.
    One that is named is downloaded where it is missing.
    """
    data, chosen = experiment.data, experiment.config.run.foreign
    own, auto = experiment.config.data.name, chosen == "auto"
    name = _FOREIGN.get(own, "none") if auto else chosen
    if name == "none":
        return None
    if name == own:
        raise UserError(f"{name} is what the run itself learns from")
    if data.outcome != "class" or len(data.feature_shape) != 3:
        raise UserError("it is for images of classes")
    try:
        found = load_dataset(name, data_dir=experiment.config.data.dir, download=not auto)
    except UserError:
        if auto:
            return None
        raise
    if found.feature_shape != data.feature_shape:
        shapes = f"{list(found.feature_shape)}, the run's are {list(data.feature_shape)}"
        raise UserError(f"images of {name} are {shapes}")
    return dataclasses.replace(found, x=experiment.rule.centred(found.x))
