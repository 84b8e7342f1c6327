"""The ArviZ tree of numbers: definitions on small numbers, units, missing outcomes, and files."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr

from pyro_pfedbayes.datatree import groups as datatree_core
from pyro_pfedbayes.datatree.groups import Owners
from pyro_pfedbayes.datatree.numeric import NumberDraw, NumberTable, to_datatree_numbers
from pyro_pfedbayes.datatree.tree import for_client, load_datatree, save_datatree
from tests.helpers import message
from tests.pyro_pfedbayes.measures.gaussian_crps import crps_gaussian_mixture

Y = torch.tensor([0.5, torch.nan, -1.0, 2.0, 0.0])
CLIENT = torch.tensor([4, 4, 4, 9, 9])
LOC, SCALE = 100.0, 10.0


def draws(count: int = 6, n: int = 5, seed: int = 0) -> list[NumberDraw]:
    """Normal distributions, and one outcome of each."""
    stream = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(count):
        mean = torch.randn(n, generator=stream)
        scale = 0.5 + torch.rand(n, generator=stream)
        normal = torch.distributions.Normal(mean, scale)
        log_density = normal.log_prob(Y.nan_to_num(0.0)).masked_fill(Y.isnan(), torch.nan)
        outcomes = mean + scale * torch.randn(1, n, generator=stream)
        found.append(NumberDraw(mean, scale.square(), log_density, outcomes))
    return found


def values(tree: xr.DataTree, group: str, name: str) -> np.ndarray:
    return np.asarray(tree[group][name])


def test_groups_dimensions_and_types() -> None:
    tree = to_datatree_numbers(
        draws(), Y, CLIENT, names=[f"c{i}" for i in range(10)], attrs={"method": "m"}
    )
    sizes = {
        "posterior_predictive": {"chain": 1, "draw": 6, "observation": 5},
        "log_likelihood": {"chain": 1, "draw": 6, "observation": 5},
        "client_metrics": {"chain": 1, "draw": 6, "client": 2},
        "observed_data": {"observation": 5},
        "constant_data": {"observation": 5},
        "observation_stats": {"observation": 5},
    }
    assert {name: dict(tree[name].sizes) for name in tree.children} == sizes
    assert set(tree["observation_stats"].data_vars) == {
        "mean",
        "sd",
        "aleatoric",
        "epistemic",
        "log_density",
        "crps",
        "below",
        "equal",
    }
    for group in ("posterior_predictive", "log_likelihood", "observed_data"):
        assert tree[group]["y"].dtype == np.float32
    for name in sizes.keys() - {"client_metrics"}:
        assert tree[name].coords["client_of"].to_numpy().tolist() == CLIENT.tolist()
    assert tree["client_metrics"].coords["client_name"].to_numpy().tolist() == ["c4", "c9"]
    assert tree.attrs["method"] == "m"


@pytest.mark.parametrize("scaling", [None, (LOC, SCALE)])
def test_numbers_are_what_they_are_called_in_their_own_units(
    scaling: tuple[float, float] | None,
) -> None:
    loc, scale = scaling or (0.0, 1.0)
    given = draws()
    tree = to_datatree_numbers(given, Y, CLIENT, target_scaling=scaling)
    mean = np.stack([d.mean.numpy() for d in given]).astype(float) * scale + loc
    variance = np.stack([d.variance.numpy() for d in given]) * scale**2
    density = np.stack([d.log_density.numpy() for d in given]) - math.log(scale)
    outcomes = np.stack([d.outcomes[0].numpy() for d in given]) * scale + loc
    y = Y.numpy() * scale + loc
    stats = {name: values(tree, "observation_stats", name) for name in ("mean", "sd")}
    assert np.allclose(stats["mean"], mean.mean(0), rtol=1e-5)
    assert np.allclose(values(tree, "observation_stats", "aleatoric"), variance.mean(0), rtol=1e-5)
    assert np.allclose(values(tree, "observation_stats", "epistemic"), mean.var(0), rtol=1e-4)
    assert np.allclose(stats["sd"], np.sqrt(variance.mean(0) + mean.var(0)), rtol=1e-4)
    mixed = np.log(np.exp(density.astype(float)).mean(0))
    found = values(tree, "observation_stats", "log_density")
    assert np.allclose(found, mixed, rtol=1e-5, equal_nan=True)
    assert np.allclose(values(tree, "posterior_predictive", "y")[0], outcomes, rtol=1e-5)
    assert np.allclose(values(tree, "log_likelihood", "y")[0], density, rtol=1e-5, equal_nan=True)
    assert np.allclose(values(tree, "observed_data", "y"), y, equal_nan=True)
    # The second observation of client 4 is missing.
    errors = (mean - y) ** 2
    rmse = np.sqrt(np.stack([errors[:, [0, 2]].mean(1), errors[:, 3:].mean(1)], 1))
    assert np.allclose(values(tree, "client_metrics", "rmse")[0], rmse, rtol=1e-5)
    nll = -np.stack([density[:, [0, 2]].mean(1), density[:, 3:].mean(1)], 1)
    assert np.allclose(values(tree, "client_metrics", "nll")[0], nll, rtol=1e-5)


@pytest.mark.parametrize("scaling", [None, (LOC, SCALE)])
def test_score_and_ranks_by_hand(scaling: tuple[float, float] | None) -> None:
    given = [replace(d, outcomes=d.outcomes.round()) for d in draws(7)]
    y = torch.tensor([1.0, torch.nan, -1.0, 2.0, 0.0])
    tree = to_datatree_numbers(given, y, CLIENT, target_scaling=scaling)
    drawn = torch.cat([d.outcomes for d in given]).double()
    known = ~y.isnan().numpy()
    for name, wanted in (("below", (drawn < y).sum(0)), ("equal", (drawn == y).sum(0))):
        found = values(tree, "observation_stats", name)
        assert found[known].tolist() == wanted.numpy()[known].tolist()
        assert np.isnan(found[~known]).all()
    steps = drawn.diff(dim=0).abs().sum(0) / (2 * 6)
    crps = (drawn - y).abs().mean(0) - steps
    unit = 1.0 if scaling is None else scaling[1]
    found = values(tree, "observation_stats", "crps")
    np.testing.assert_allclose(found, unit * crps.numpy(), rtol=1e-5)
    alone = to_datatree_numbers(given[:1], y, CLIENT)
    assert np.isnan(values(alone, "observation_stats", "crps")).all()


def test_the_running_crps_is_unbiased() -> None:
    """That of N(0, 1) at 0.3, over 20,000 observations of 5 draws; tolerance 4 standard errors."""
    n, stream = 20_000, torch.Generator().manual_seed(0)
    table = NumberTable(np.full(n, 0.3), Owners.of(np.zeros(n, int), [0]), keep=0)
    one = torch.ones(n)
    for number in range(5):
        outcomes = torch.randn(1, n, generator=stream)
        table.add(number, NumberDraw(0 * one, one, -one, outcomes))
    found = table.statistics()["crps"].to_numpy()
    one = torch.ones(1, 1)
    exact = crps_gaussian_mixture(0 * one, one, torch.tensor([0.3])).item()
    assert found.mean() == pytest.approx(exact, abs=4 * float(found.std()) / math.sqrt(n))


def test_one_client_can_be_cut_out_and_a_file_gives_back_the_same(tmp_path: Path) -> None:
    tree = to_datatree_numbers(draws(), Y, CLIENT, index=torch.arange(5) + 20)
    again = load_datatree(save_datatree(tree, tmp_path / "t.nc"))
    for group in tree.children:
        assert tree[group].to_dataset().equals(again[group].to_dataset()), group
    one = for_client(again, 9)
    assert one["constant_data"]["index"].to_numpy().tolist() == [23, 24]
    assert one["posterior_predictive"].sizes["observation"] == 2


def test_infinite_variances_and_clients_without_outcomes_are_kept_as_they_are() -> None:
    given = [replace(d, variance=torch.full((5,), torch.inf)) for d in draws()]
    missing = torch.where(CLIENT == 9, torch.nan, Y)
    tree = to_datatree_numbers(given, missing, CLIENT)
    assert np.isinf(values(tree, "observation_stats", "sd")).all()
    assert np.isfinite(values(tree, "observation_stats", "epistemic")).all()
    assert np.isnan(values(tree, "client_metrics", "rmse")[0, :, 1]).all()
    assert np.isfinite(values(tree, "client_metrics", "rmse")[0, :, 0]).all()


def changed(**parts: Any) -> list[NumberDraw]:
    return [replace(draws()[0], **parts)]


@pytest.mark.parametrize(
    ("given", "options", "words"),
    [
        ([], {}, "there are no draws"),
        (draws(), {"y": Y[:0], "client": CLIENT[:0]}, "there are no observations"),
        (draws(), {"client": CLIENT[:4]}, "client has 4 entries for 5 observations"),
        (draws(), {"index": torch.arange(3)}, "index has 3 entries"),
        (draws(), {"y": np.array(list("abcde"))}, "y must be numbers"),
        (changed(mean=torch.zeros(4)), {}, "draw 0: mean has shape [4]; wanted [5]"),
        (changed(outcomes=torch.full((1, 5), torch.inf)), {}, "outcomes that are not finite"),
        (draws(), {"attrs": {"a": None}}, "attribute 'a' is None"),
    ],
)
def test_what_does_not_fit_is_refused(
    given: list[NumberDraw], options: dict[str, Any], words: str
) -> None:
    arguments = {"y": Y, "client": CLIENT, **options}
    assert words in message(to_datatree_numbers, given, **arguments)


def test_of_too_many_draws_the_first_are_kept_and_all_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = to_datatree_numbers(draws(), Y, CLIENT)
    monkeypatch.setattr(datatree_core, "MAX_CELLS", 12)
    tree = to_datatree_numbers(draws(), Y, CLIENT)
    assert (tree.attrs["draws"], tree.attrs["draws_kept"]) == (6, 2)
    for group in ("posterior_predictive", "log_likelihood"):
        kept = whole[group].to_dataset().isel(draw=slice(2))
        assert tree[group].to_dataset().equals(kept), group
    for group in ("observation_stats", "client_metrics"):
        assert tree[group].to_dataset().equals(whole[group].to_dataset()), group


def test_rows_may_come_in_pieces_and_clients_may_have_none() -> None:
    owners = Owners.of(CLIENT.numpy(), [4, 7, 9])
    whole, pieces = (NumberTable(Y.double().numpy(), owners) for _ in range(2))
    for number, draw in enumerate(draws()):
        whole.add(number, draw)
        for rows in (slice(0, 3), slice(3, 5)):
            parts = {name: getattr(draw, name)[..., rows] for name in vars(draw)}
            pieces.add(number, NumberDraw(**parts), rows)
    one, other = (table.tree(np.arange(5), None, {}) for table in (whole, pieces))
    for group in one.children:
        assert one[group].to_dataset().equals(other[group].to_dataset()), group
    rmse = values(one, "client_metrics", "rmse")[0]
    assert np.isnan(rmse[:, 1]).all()
    assert np.isfinite(rmse[:, [0, 2]]).all()
