"""The ArviZ tree of a result: Pyro's own predictions, every group by hand, memory as a setting, and bad input."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
import xarray as xr
from torch import Tensor

import pyro_pfedbayes as pfb
from pyro_pfedbayes.datatree import groups as datatree_core
from pyro_pfedbayes.families import FullCovariance, FullRankNormal, StudentT
from pyro_pfedbayes.inference.federation.loop import Federation, Result
from pyro_pfedbayes.inference.federation.state import FederationState
from pyro_pfedbayes.inference.posterior.out_of_distribution import unseen_examples
from pyro_pfedbayes.inference.posterior.tree import posterior_datatree
from pyro_pfedbayes.inference.predictive.site_draws import information_gain
from pyro_pfedbayes.models.spec import DataSpec
from pyro_pfedbayes.randomness import seed_for
from tests.helpers import message, tiny_model, toy_data


def run(model: Any = None, data: Any = None, **settings: Any) -> Result:
    model = tiny_model(torch.float32) if model is None else model
    data = toy_data((12, 20, 8)) if data is None else data
    algorithm = pfb.PFedBayes(local_steps=3, batch_size=8, **settings)
    return Federation(
        model, data, algorithm=algorithm, device="cpu", eval_every=0, engine="eager", eval_draws=2
    ).run(3)


@pytest.fixture(scope="module")
def classes() -> Result:
    """Three clients of a 4-5-3 network, T = 43."""
    return run()


def line(x: Tensor, y: Tensor | None = None) -> None:
    intercept = pyro.sample("intercept", dist.Normal(0.0, 3.0))
    slopes = pyro.sample("slopes", dist.Normal(0.0, 1.0).expand([4]).to_event(1))
    sigma = pyro.sample("sigma", dist.HalfNormal(1.0))
    with pyro.plate("rows", len(x)):
        pyro.sample("y", dist.Normal(intercept + x @ slopes, sigma), obs=y)


def number_data() -> pfb.FederatedData:
    data = toy_data((12, 20, 8))
    x = data.dataset.x
    y = x.sum(1) + 0.3 * torch.randn(len(x), generator=torch.Generator().manual_seed(2))
    y[data.partition.test[1][2]] = torch.nan
    dataset = pfb.Dataset("sums", x, y, (), target_scaling=(10.0, 4.0))
    return pfb.FederatedData(dataset, data.partition)


def number_model(**families: Any) -> pfb.ProgramModel:
    return pfb.ProgramModel(
        line, DataSpec((4,)), roles={"intercept": "private"}, missing="mask", **families
    )


@pytest.fixture(scope="module")
def numbers() -> Result:
    """Three clients of a program with a private intercept."""
    return run(number_model(), number_data())


def values(tree: xr.DataTree, group: str, name: str) -> np.ndarray:
    return np.asarray(tree[group][name])


def test_classes_equal_pyros_own_predictive(classes: Result) -> None:
    """`pyro.infer.Predictive` over the tree's own draws of the weights gives its probabilities and likelihoods."""
    tree = pfb.to_datatree(classes, draws=6)
    model, data = classes.federation.model, classes.federation.data
    posterior = tree["posterior"].to_dataset().squeeze("chain")
    assert set(posterior.data_vars) == set(model.declaration.shapes)
    for client in range(3):
        samples = {
            name: torch.from_numpy(posterior[name].sel(client=client).to_numpy())
            for name in posterior.data_vars
        }
        x, y = data.examples(client, "test")
        predictive = pyro.infer.Predictive(
            model.client_program, posterior_samples=samples, return_sites=("_RETURN",)
        )
        probs = predictive(x)["_RETURN"].softmax(-1).detach().numpy()
        mine = tree["observed_data"].coords["client_of"].to_numpy() == client
        p = values(tree, "observation_stats", "p")[mine]
        np.testing.assert_allclose(p, probs.mean(0), atol=1e-6)
        found = values(tree, "log_likelihood", "y")[0][:, mine]
        wanted = np.log(probs[:, np.arange(len(y)), y.numpy()])
        np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_numbers_equal_pyros_own_predictive(numbers: Result) -> None:
    tree = pfb.to_datatree(numbers, draws=6)
    model, data = numbers.federation.model, numbers.federation.data
    posterior = tree["posterior"].to_dataset().squeeze("chain")
    for client in range(3):
        samples = {
            name: torch.from_numpy(posterior[name].sel(client=client).to_numpy())
            for name in ("intercept", "slopes", "sigma")
        }
        x, _ = data.examples(client, "test")
        # Many outcomes a draw would be Predictive's way to a mean; its own trace has the mean exactly.
        means, scales = [], []
        for k in range(6):
            conditioned = pyro.condition(
                model.client_program, {name: value[k] for name, value in samples.items()}
            )
            with pyro.validation_enabled(False):
                fn = pyro.poutine.trace(conditioned).get_trace(x).nodes["y"]["fn"]
            means.append(fn.mean)
            scales.append(fn.variance)
        mine = tree["observed_data"].coords["client_of"].to_numpy() == client
        stats = {k: v.to_numpy()[mine] for k, v in tree["observation_stats"].data_vars.items()}
        mean, variance = torch.stack(means), torch.stack(scales)
        np.testing.assert_allclose(stats["mean"], 10 + 4 * mean.mean(0), rtol=1e-5)
        np.testing.assert_allclose(stats["aleatoric"], 16 * variance.mean(0), rtol=1e-5)
        np.testing.assert_allclose(stats["epistemic"], 16 * mean.var(0, correction=0), rtol=1e-3)


@pytest.mark.parametrize("name", ["classes", "numbers"])
def test_statistics_are_those_of_the_federations_evaluation(
    name: str, request: pytest.FixtureRequest
) -> None:
    """The streams are the same: personal, global and validation figures agree, the global model's draws too."""
    result: Result = request.getfixturevalue(name)
    federation = result.federation
    tree = pfb.to_datatree(result, draws=5)
    loc, scale = federation.data.dataset.target_scaling or (0.0, 1.0)
    for part, groups in (
        ("test", ("observation_stats", "global_stats")),
        ("validation", ("validation_stats", "global_validation_stats")),
    ):
        for group, wanted in zip(
            groups, federation.predictions(result.state, part, draws=5), strict=True
        ):
            if name == "classes":
                assert np.allclose(values(tree, group, "p"), wanted.probs, atol=1e-6), group
                if part == "validation":
                    assert np.array_equal(values(tree, group, "y"), wanted.y)
            else:
                mean = wanted.mean.numpy() * scale + loc
                assert np.allclose(values(tree, group, "mean"), mean, rtol=1e-4), group
                density = wanted.log_density.numpy() - np.log(scale)
                found = values(tree, group, "log_density")
                assert np.allclose(found, density, atol=1e-4, equal_nan=True), group
            owner = tree[group].coords["client_of"].to_numpy()
            assert np.array_equal(owner, wanted.client), group


@pytest.mark.parametrize("name", ["classes", "numbers"])
def test_neither_pieces_nor_limits_change_the_statistics(
    name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    result: Result = request.getfixturevalue(name)
    whole = pfb.to_datatree(result, draws=7)
    monkeypatch.setattr(datatree_core, "MAX_CELLS", 40)  # 18 observations: two draws
    pieces = pfb.to_datatree(result, draws=7, chunk=4)
    assert (pieces.attrs["draws"], pieces.attrs["draws_kept"]) == (7, 2)
    assert pieces["posterior"].sizes["draw"] == 1 if name == "classes" else 2
    for group in whole.children:
        one, other = whole[group].to_dataset(), pieces[group].to_dataset()
        if "draw" in other.dims and group != "client_metrics":
            one = one.isel(draw=slice(other.sizes["draw"]))
        for variable in one.data_vars:
            drawn = {"y"} if group == "posterior_predictive" else {"crps", "below", "equal"}
            if name == "numbers" and variable in drawn:
                continue  # outcomes are drawn a piece at a time
            np.testing.assert_allclose(
                other[variable], one[variable], rtol=2e-5, atol=1e-5, err_msg=f"{group}.{variable}"
            )


def test_a_client_is_asked_about_classes_that_it_never_saw() -> None:
    data = toy_data((9, 9, 9))
    y = data.dataset.y.clone()
    # Client 0 learns from class 0 alone, client 1 from 0 and 1, client 2 from all.
    y[data.partition.train[0]] = 0
    y[data.partition.train[1]] = y[data.partition.train[1]].clamp(max=1)
    data = pfb.FederatedData(replace(data.dataset, y=y), data.partition)
    test = data.partition.test
    wanted = [
        [int(i) for k, index in enumerate(test) if k != client for i in index if y[i] in new]
        for client, new in enumerate(((1, 2), (2,), ()))
    ]
    found = unseen_examples(data, 0)
    assert [index.tolist() for index in found] == wanted
    few = unseen_examples(data, 0, limit=3)
    assert [len(index) for index in few] == [3, 3, 0]
    assert set(few[0].tolist()) < set(wanted[0])
    assert all(map(torch.equal, few, unseen_examples(data, 0, limit=3)))
    result = run(data=data)
    tree = pfb.to_datatree(result, draws=4)
    unseen = tree["unseen_stats"]
    assert unseen.coords["index"].to_numpy().tolist() == [*wanted[0], *wanted[1]]
    assert unseen.coords["label"].to_numpy().tolist() == y[torch.cat(found)].tolist()
    owner = unseen.coords["client_of_example"].to_numpy()
    assert owner.tolist() == [0] * len(wanted[0]) + [1] * len(wanted[1])
    # The weights are those of the client's own test examples: so is the answer to the same input.
    seed = seed_for(seed_for(0, "evaluation"), "personal", 1)
    x = data.dataset.x[torch.tensor(wanted[1])]
    p = pfb.posterior_predictive(
        result.federation.model, result.personal.client(1), x, draws=4, seed=seed
    )
    assert np.allclose(unseen["p"].to_numpy()[owner == 1], p, atol=1e-6)
    entropy = -(p * p.log()).sum(-1)
    assert np.allclose(unseen["total"].to_numpy()[owner == 1], entropy, atol=1e-5)


def test_unseen_classes_are_absent_where_everyone_has_all(classes: Result) -> None:
    assert "unseen_stats" not in pfb.to_datatree(classes, draws=2).children


def test_information_gain_by_site_and_in_all(classes: Result, numbers: Result) -> None:
    gain = pfb.to_datatree(classes, draws=2)["information_gain"]
    kl = classes.personal.kl(classes.global_)  # type: ignore[arg-type]
    np.testing.assert_allclose(gain["kl"].sum("site"), kl, rtol=1e-5)
    assert gain.coords["site"].to_numpy().tolist() == list(classes.global_.names)
    assert gain["weights"].to_numpy().tolist() == [20, 5, 15, 3]
    # Of a private site there is nothing to say, and sites of a program add up as well.
    gain = pfb.to_datatree(numbers, draws=2)["information_gain"]
    assert gain.coords["site"].to_numpy().tolist() == ["slopes", "sigma"]
    kl = numbers.personal.kl(numbers.global_)  # type: ignore[arg-type]
    np.testing.assert_allclose(gain["kl"].sum("site"), kl, rtol=1e-5)


@pytest.mark.parametrize(
    ("families", "defined"),
    [
        ({"guide": FullRankNormal(), "server": FullCovariance()}, True),
        ({"server": StudentT(4.0)}, False),
    ],
)
def test_other_families_have_one_figure_or_none(families: dict[str, Any], defined: bool) -> None:
    result = run(number_model(**families), number_data())
    tree = pfb.to_datatree(result, draws=3)
    gain = tree["information_gain"]
    assert gain.coords["site"].to_numpy().tolist() == ["all"]
    assert gain["weights"].to_numpy().tolist() == [5]
    kl = gain["kl"].to_numpy()[:, 0]
    if defined:
        wanted = result.personal.kl(result.global_)  # type: ignore[arg-type]
        np.testing.assert_allclose(kl, wanted, rtol=1e-4)
    else:
        assert np.isnan(kl).all()
    assert tree["posterior"]["slopes"].sizes == {
        "chain": 1,
        "draw": 3,
        "client": 3,
        "slopes_dim_0": 4,
    }
    assert (tree["posterior"]["sigma"] > 0).all()


def test_large_networks_have_a_summary_instead_of_draws() -> None:
    model = pfb.BayesianModel(
        pfb.mlp([4, 30, 3], seed=1),
        pfb.Categorical(3),
        roles={"fc1.bias": "point", "head.*": "private"},
    )
    result = run(model)
    tree = pfb.to_datatree(result, draws=2)
    assert "posterior" not in tree.children
    summary = tree["posterior_summary"]
    assert summary.coords["site"].to_numpy().tolist() == list(model.declaration.shapes)
    own = result.personal.client(1)
    loc = own.loc["head.weight"].abs().mean()
    assert float(summary["mean_abs_loc"].sel(client=1, site="head.weight")) == pytest.approx(
        float(loc), rel=1e-5
    )
    assert (summary["mean_scale"].sel(site="fc1.bias") == 0).all()
    # By draws: 4,000 of 90 weights have a standard error far below one per cent.
    drawn = own.sample(4000, torch.Generator().manual_seed(0))["head.weight"].std(0).mean()
    scale = float(summary["mean_scale"].sel(client=1, site="head.weight"))
    assert scale == pytest.approx(float(drawn), rel=0.01)
    gain = tree["information_gain"]
    assert gain.coords["site"].to_numpy().tolist() == ["fc1.weight"]
    nothing = pfb.BayesianModel(
        pfb.mlp([4, 3]), pfb.Categorical(3), roles={"head.weight": "private", "head.bias": "point"}
    )
    result = run(nothing, optimizer_state="reset")
    assert information_gain(result.federation.model, result.personal, result.global_) == {}
    assert "information_gain" not in pfb.to_datatree(result, draws=2).children


def without_tests(client: int) -> pfb.FederatedData:
    data = toy_data((12, 20, 8))
    test = list(data.partition.test)
    test[client] = test[client][:0]
    return pfb.FederatedData(data.dataset, replace(data.partition, test=tuple(test)))


def test_a_client_without_test_examples_is_there_and_not_defined() -> None:
    tree = pfb.to_datatree(run(data=without_tests(1)), draws=3)
    accuracy = values(tree, "client_metrics", "accuracy")[0]
    assert np.isnan(accuracy[:, 1]).all()
    assert np.isfinite(accuracy[:, [0, 2]]).all()
    assert tree["information_gain"].sizes["client"] == 3
    assert tree["posterior"].sizes["client"] == 3
    assert sorted(set(values(tree, "observation_stats", "client_of"))) == [0, 2]
    one = pfb.to_datatree(run(), draws=3)["posterior"]["head.bias"].sel(client=1)
    np.testing.assert_array_equal(tree["posterior"]["head.bias"].sel(client=1), one)


def test_where_only_one_class_occurs_nothing_is_unseen(classes: Result) -> None:
    data = classes.federation.data
    dataset = replace(data.dataset, y=torch.zeros_like(data.dataset.y))
    tree = pfb.to_datatree(run(data=pfb.FederatedData(dataset, data.partition)), draws=3)
    assert (values(tree, "observed_data", "y") == 0).all()
    assert np.isfinite(values(tree, "client_metrics", "nll")).all()
    assert tree["observation_stats"].sizes["class"] == 3
    assert "unseen_stats" not in tree.children


def test_predictions_that_are_not_finite_name_the_client() -> None:
    """Client 2's test inputs overflow; nothing is written of the others, rather than a NaN that nobody sees."""
    data = toy_data((12, 20, 8))
    x = data.dataset.x.clone()
    x[data.partition.test[2][1]] = 3e38
    data = pfb.FederatedData(replace(data.dataset, x=x), data.partition)
    result = run(data=data)
    text = message(pfb.to_datatree, result, draws=3)
    assert text.startswith("client 2: draw 0 holds probabilities that are negative or not finite")
    assert "observation 13" in text


def test_the_attributes_tell_the_run(classes: Result) -> None:
    tree = pfb.to_datatree(classes, draws=4, attrs={"label": "mine", "rounds": 7})
    attrs = tree.attrs
    assert (attrs["method"], attrs["zeta"], attrs["seed"]) == ("pfedbayes", 1.0, 0)
    assert (attrs["draws"], attrs["label"], attrs["rounds"]) == (4, "mine", 7)
    assert attrs["version_torch"] == torch.__version__
    # The call of earlier versions, with draws of one's own, is the same function.
    probs = np.full((2, 3, 2), 0.5)
    own = pfb.to_datatree(draws=probs, y=np.array([0, 1, 0]), client=np.zeros(3, dtype=int))
    assert own["posterior_predictive"].sizes["draw"] == 2
    assert own.equals(pfb.to_datatree(probs, np.array([0, 1, 0]), np.zeros(3, dtype=int)))


def test_what_cannot_be_is_refused(classes: Result) -> None:
    federation, state = classes.federation, classes.state
    assert "unknown part" in message(posterior_datatree, federation, state, part="tset")
    assert "draws is 0" in message(pfb.to_datatree, classes, draws=0)
    for wrong in (2.5, "a", True):
        assert f"draws is {wrong!r}" in message(pfb.to_datatree, classes, draws=wrong)
    assert "foreign is 'mnist'" in message(pfb.to_datatree, classes, foreign="mnist")
    assert "black and white" in message(pfb.to_datatree, classes, limits=(1.0,))
    assert "chunk 0" in message(pfb.to_datatree, classes, chunk=0)
    assert "by name" in message(pfb.to_datatree, classes, 5)
    assert "attribute 'a' is None" in message(pfb.to_datatree, classes, attrs={"a": None})
    data = toy_data((12, 20, 8))
    nobody = tuple(index[:0] for index in data.partition.test)
    empty = pfb.FederatedData(data.dataset, replace(data.partition, test=nobody))
    fed = Federation(federation.model, empty, device="cpu")
    fresh: FederationState = fed.initial_state()
    assert message(posterior_datatree, fed, fresh) == "no client has a test example"
