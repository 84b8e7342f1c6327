"""What a run leaves for ArviZ: `pyro_pfedbayes.inference.posterior` for a configured experiment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyro_pfedbayes.inference.posterior import posterior_datatree, run_attributes

if TYPE_CHECKING:
    import xarray as xr

    from pyro_pfedbayes.experiments.build import Experiment
    from pyro_pfedbayes.inference.state import FederationState

__all__ = ["experiment_datatree", "posterior_datatree"]


def experiment_datatree(experiment: Experiment, state: FederationState) -> xr.DataTree:
    """The tree of ``posterior.nc``: ``run.posterior_draws`` draws on the test examples, and the run's attributes.

    Args:
        experiment: The run's parts.
        state: Its last state.

    Raises:
        UserError: No client has a test example, or a prediction is not finite.
    """
    attrs = run_attributes(experiment.federation, state)
    split = experiment.config.data.split or experiment.data.partition.scheme
    return posterior_datatree(
        experiment.federation,
        state,
        draws=experiment.config.run.posterior_draws,
        attrs=attrs | {"rounds": experiment.config.run.rounds, "split": split},
    )
