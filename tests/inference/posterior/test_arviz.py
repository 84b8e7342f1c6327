"""ArviZ takes the trees: the functions that docs/arviz.md recommends, with numbers checked by hand.

They run on ArviZ 0.8's packages (Python 3.11) and on 1.x (3.12 and later).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import xarray as xr

import pyro_pfedbayes as pfb
from pyro_pfedbayes.datatree.tree import for_client
from pyro_pfedbayes.inference.federation.loop import Federation, Result
from pyro_pfedbayes.models.builtin.regression import linear_regression
from tests.helpers import tiny_model, toy_data

azs = pytest.importorskip("arviz_stats")
azp = pytest.importorskip("arviz_plots")


@pytest.fixture(autouse=True)
def _no_figure_stays() -> Iterator[None]:
    import matplotlib.pyplot as plt

    yield
    plt.close("all")


@pytest.fixture(scope="module")
def classes() -> xr.DataTree:
    model = tiny_model(torch.float32, rho=-1.0)
    algorithm = pfb.PFedBayes(local_steps=20, batch_size=20, lr=0.05)
    federation = Federation(
        model, toy_data((40, 40)), algorithm=algorithm, device="cpu", engine="eager", eval_every=0
    )
    return pfb.to_datatree(federation.run(3), draws=80)


@pytest.fixture(scope="module")
def fitted() -> Result:
    data = toy_data((40, 40))
    x = data.dataset.x
    y = x.sum(1) / 4 + 0.5 * torch.randn(len(x), generator=torch.Generator().manual_seed(2))
    data = pfb.FederatedData(pfb.Dataset("sums", x, y, ()), data.partition)
    model = linear_regression(pfb.DataSpec((4,)))
    algorithm = pfb.PFedBayes(local_steps=40, batch_size=40, lr=0.03, personal_rounds=2)
    return Federation(
        model, data, algorithm=algorithm, device="cpu", engine="eager", eval_every=0
    ).run(4)


def test_a_file_goes_round(classes: xr.DataTree, fitted: Result, tmp_path: Path) -> None:
    for name, tree in (("c", classes), ("n", pfb.to_datatree(fitted, draws=5))):
        again = pfb.load_datatree(pfb.save_datatree(tree, tmp_path / f"{name}.nc"))
        assert again.identical(tree)


def test_summary_and_forest_of_clients(classes: xr.DataTree) -> None:
    table = azs.summary(
        classes, group="client_metrics", var_names=["accuracy"], kind="stats", round_to="none"
    )
    mean = classes["client_metrics"]["accuracy"].mean(("chain", "draw")).to_numpy()
    np.testing.assert_allclose(table["mean"], mean, rtol=1e-5)
    # Draws are independent: no R-hat, no ESS.
    assert not [name for name in table.columns if "hat" in name or "ess" in name]
    assert (
        azp.plot_forest(classes, group="client_metrics", var_names=["accuracy"], combined=True)
        is not None
    )
    assert (
        azp.plot_forest(classes, group="posterior", var_names=["head.bias"], combined=True)
        is not None
    )


def test_calibration_by_pava(classes: xr.DataTree) -> None:
    label = classes["observation_stats"]["p"].argmax("class")
    right = xr.DataTree.from_dict(
        {
            group: xr.Dataset({"y": (classes[group]["y"] == label).astype(int)})
            for group in ("posterior_predictive", "observed_data")
        }
    )
    # What PAVA sees as the forecast is about the probability itself: 80 labels, 4 standard errors.
    p = classes["observation_stats"]["p"].max("class").to_numpy()
    drawn = right["posterior_predictive"]["y"].mean(("chain", "draw")).to_numpy()
    assert (np.abs(drawn - p) <= 4 * np.sqrt(0.25 / 80)).all()
    assert azp.plot_ppc_pava(right, data_type="binary") is not None
    one = for_client(classes, 1)
    assert azp.plot_ppc_pava(one, data_type="categorical", var_names="y") is not None


def test_predictive_checks_and_pit_of_numbers(fitted: Result) -> None:
    tree = for_client(pfb.to_datatree(fitted, draws=100), 0)
    assert azp.plot_ppc_dist(tree, var_names="y", kind="ecdf") is not None
    assert azp.plot_ppc_pit(tree, var_names="y") is not None


def test_loo_and_its_warning(fitted: Result) -> None:
    """In a small regression LOO is near the log density of new examples; draws that miss the posterior raise k-hat."""
    training = for_client(pfb.to_datatree(fitted, part="train", draws=400), 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        loo = azs.loo(training, reff=1.0, pointwise=True)
    density = training["observation_stats"]["log_density"].to_numpy()
    # Leaving an example out can only make it less likely, here by about one of 6 parameters' share of 40 examples.
    assert 0 < density.sum() - float(loo.elpd) < 12
    assert float(loo.pareto_k.max()) < 1
    far = training.copy()
    spread = np.random.default_rng(0).normal(0.0, 8.0, (1, 400, 1))
    far["log_likelihood"] = xr.DataTree(
        training["log_likelihood"].to_dataset()
        + xr.DataArray(spread, dims=("chain", "draw", "_")).squeeze("_")
    )
    with pytest.warns(UserWarning, match="Pareto"):
        azs.loo(far, reff=1.0)
