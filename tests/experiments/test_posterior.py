"""``posterior.nc``: what it holds is what the evaluation saw."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from pyro_pfedbayes.datatree import for_client, load_datatree
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
    assert (attrs["draws"], attrs["draws_kept"], attrs["rounds"]) == (3, 3, 6)
    assert attrs["version_torch"] == torch.__version__


def test_the_further_groups_are_the_evaluations_too(finished: tuple[Path, Outcome]) -> None:
    experiment, state, _ = reopen(RunFolder.open(finished[0]))
    tree = load_datatree(finished[0] / "posterior.nc")
    for part, suffix in (("test", "stats"), ("validation", "validation_stats")):
        personal, everyone = experiment.federation.predictions(state, part, draws=3)
        own = "observation_stats" if part == "test" else suffix
        for name, wanted in ((own, personal), (f"global_{suffix}", everyone)):
            found = tree[name]
            assert np.allclose(found["p"], wanted.probs.numpy(), atol=1e-6), name
            assert np.array_equal(found.coords["client_of"], wanted.client.numpy()), name
            if part == "validation":
                assert np.array_equal(found["y"], wanted.y.numpy()), name
    gain = tree["information_gain"]
    assert dict(gain.sizes) == {"client": 6, "site": 4}
    kl = experiment.federation.run(6, state=state)
    total = kl.personal.kl(kl.global_)
    assert np.allclose(gain["kl"].sum("site"), total.numpy(), rtol=1e-4)
    assert int(gain["weights"].sum()) == kl.global_.num_weights
    assert dict(tree["posterior_summary"].sizes) == {"client": 6, "site": 4}
    one = for_client(tree, 2)
    assert set(one["validation_stats"].coords["client_of"].to_numpy()) == {2}
    assert set(one["unseen_stats"].coords["client_of_example"].to_numpy()) == {2}
    assert dict(one["information_gain"].sizes) == {"site": 4}
