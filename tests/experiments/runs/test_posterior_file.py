"""``posterior.nc``: what it holds is what the evaluation saw."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from pyro_pfedbayes.data.corruptions import corrupt_images
from pyro_pfedbayes.data.datasets import load_dataset
from pyro_pfedbayes.datatree.tree import for_client, load_datatree
from pyro_pfedbayes.experiments.runs.build import Experiment, build_experiment
from pyro_pfedbayes.experiments.runs.folder import RunFolder
from pyro_pfedbayes.experiments.runs.lifecycle import reopen
from pyro_pfedbayes.experiments.runs.posterior_file import experiment_datatree, foreign_dataset
from pyro_pfedbayes.inference.predictive.draws import belief_seed, posterior_predictive
from pyro_pfedbayes.randomness import seed_for
from tests.experiments.helpers import Outcome, tiny_config
from tests.helpers import message


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


def with_run(experiment: Experiment, **changes: object) -> Experiment:
    run = experiment.config.run.model_copy(update=changes)
    return dataclasses.replace(experiment, config=dataclasses.replace(experiment.config, run=run))


def test_damage_is_done_in_the_scale_of_pictures(finished: tuple[Path, Outcome]) -> None:
    """The same as to take the run's scale off, to damage pictures in [-1, 1], and to put it on again."""
    experiment, state, _ = reopen(RunFolder.open(finished[0]))
    group = load_datatree(finished[0] / "posterior.nc")["corrupted_stats"]
    assert dict(group["p"].sizes) == {"corruption": 3, "strength": 5, "example": 90, "class": 10}
    rule, client = experiment.rule, 2
    assert rule.loc is not None
    assert rule.scale is not None
    mine = group.coords["client_of_example"].to_numpy() == client
    index = group.coords["index"].to_numpy()[mine]
    plain = load_dataset("digits").x[index]
    seed = belief_seed(seed_for(experiment.federation.seed, "evaluation"), client)
    belief = next(
        stacked.client(clients.index(client))
        for clients, stacked in experiment.federation.personal_beliefs(state)
        if client in clients
    )
    for kind, strength in (("noise", 5), ("blur", 3), ("rotation", 1)):
        own = seed_for(experiment.federation.seed, "corrupted", client)
        x = (corrupt_images(plain, kind, strength, seed=own) - rule.loc[0]) / rule.scale[0]
        p = posterior_predictive(experiment.federation.model, belief, x, draws=3, seed=seed)
        found = group["p"].sel(corruption=kind, strength=strength).to_numpy()[mine]
        np.testing.assert_allclose(found, p, atol=1e-5, err_msg=kind)


def test_damaged_examples_can_be_left_out_and_what_does_not_fit_is_told(
    finished: tuple[Path, Outcome],
) -> None:
    experiment, state, _ = reopen(RunFolder.open(finished[0]))
    notes: list[str] = []
    off = with_run(experiment, shifts=False)
    assert "corrupted_stats" not in experiment_datatree(off, state, note=notes.append).children
    assert notes == []
    own = with_run(experiment, foreign="digits")
    tree = experiment_datatree(own, state, note=notes.append)
    assert "foreign_stats" not in tree.children
    assert notes == [
        "warning: run.foreign 'digits' is left out: digits is what the run itself learns from"
    ]


def test_which_other_data_set_is_taken(finished: tuple[Path, Outcome], tmp_path: Path) -> None:
    experiment, _, _ = reopen(RunFolder.open(finished[0]))
    for chosen in ("auto", "none"):
        assert foreign_dataset(with_run(experiment, foreign=chosen)) is None
    # What is not there is no error unless it was asked for; nothing is downloaded for "auto".
    data = experiment.config.data.model_copy(update={"name": "mnist", "dir": str(tmp_path)})
    elsewhere = dataclasses.replace(
        experiment, config=dataclasses.replace(experiment.config, data=data)
    )
    assert foreign_dataset(with_run(elsewhere, foreign="auto")) is None


@pytest.mark.skipif("PFEDBAYES_DATA" not in os.environ, reason="PFEDBAYES_DATA is not set")
def test_fashion_mnist_is_foreign_to_mnist_and_in_its_scale(
    finished: tuple[Path, Outcome],
) -> None:
    changes = {"data.name": "mnist", "data.train_per_class": 5, "run.rounds": 6}
    experiment = build_experiment(
        tiny_config(**{k.replace(".", "__"): v for k, v in changes.items()})
    )
    found = foreign_dataset(experiment)
    assert found is not None
    assert found.name == "fmnist"
    plain, rule = load_dataset("fmnist").x[:50], experiment.rule
    assert rule.loc is not None
    assert rule.scale is not None
    assert torch.allclose(found.x[:50], (plain - rule.loc[0]) / rule.scale[0], atol=1e-5)
    digits, _, _ = reopen(RunFolder.open(finished[0]))
    told = message(foreign_dataset, with_run(digits, foreign="mnist"))
    assert told == "images of mnist are [1, 28, 28], the run's are [1, 8, 8]"
