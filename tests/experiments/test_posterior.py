"""``posterior.nc``: what it holds is what the evaluation saw."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from pyro_pfedbayes.datatree import load_datatree
from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.experiments import posterior
from pyro_pfedbayes.experiments.posterior import personal_draws, posterior_datatree
from pyro_pfedbayes.experiments.runfolder import RunFolder
from pyro_pfedbayes.experiments.session import reopen
from tests.experiments.helpers import Outcome


def test_it_is_the_evaluations_posterior_predictive(finished: tuple[Path, Outcome]) -> None:
    experiment, state, _ = reopen(RunFolder.open(finished[0]))
    predictions, _ = experiment.federation.predictions(state, "test", draws=3)
    tree = load_datatree(finished[0] / "posterior.nc")
    assert dict(tree["posterior_predictive"].sizes) == {"chain": 1, "draw": 3, "observation": 90}
    p = tree["observation_stats"]["p"].to_numpy()
    assert np.allclose(p, predictions.probs.numpy(), atol=1e-6)
    assert np.array_equal(tree["observed_data"]["y"], predictions.y.numpy())
    assert np.array_equal(tree["observed_data"].coords["client_of"], predictions.client.numpy())
    index = torch.from_numpy(tree["constant_data"]["index"].to_numpy())
    assert torch.equal(experiment.data.dataset.y[index], predictions.y)
    attrs = tree.attrs
    assert (attrs["method"], attrs["zeta"], attrs["seed"]) == ("pfedbayes", 1.0, 0)
    assert attrs["version_torch"] == torch.__version__


def test_draws_average_to_the_evaluation(finished: tuple[Path, Outcome]) -> None:
    experiment, state, _ = reopen(RunFolder.open(finished[0]))
    federation = experiment.federation
    wanted, _ = federation.predictions(state, "validation", draws=4)
    draws = torch.stack(list(personal_draws(federation, state, "validation", 4)))
    assert draws.shape == (4, 36, 10)
    assert torch.allclose(draws.mean(0), wanted.probs, atol=1e-6)
    assert not torch.equal(draws[0], draws[1])


def test_fewer_draws_where_more_would_not_fit(
    finished: tuple[Path, Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment, state, _ = reopen(RunFolder.open(finished[0]))
    monkeypatch.setattr(posterior, "MAX_CELLS", 200)
    tree = posterior_datatree(experiment.federation, state, draws=50)
    assert tree["posterior_predictive"].sizes["draw"] == 2
    with pytest.raises(UserError, match="unknown part"):
        posterior_datatree(experiment.federation, state, part="tset")
