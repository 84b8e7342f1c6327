"""Bootstrap distributions against their exact moments and enumeration; Beta intervals against scipy."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.measures import resampling
from pyro_pfedbayes.measures.resampling import (
    Interval,
    Over,
    Statistic,
    accuracy_interval,
    bootstrap,
    bootstrap_by_client,
)

Resampled = Callable[..., Tensor]


@pytest.fixture
def resampled(monkeypatch: pytest.MonkeyPatch) -> Resampled:
    """The statistic on every resample, not only its quantiles."""

    def run(
        values: Tensor, client: Tensor, statistic: Statistic, over: Over, resamples: int
    ) -> Tensor:
        seen: list[Tensor] = []

        def keep(estimate: float, found: Tensor, level: float) -> Interval:
            seen.append(found)
            return Interval(estimate, 0.0, 0.0, level)

        monkeypatch.setattr(resampling, "_interval", keep)
        bootstrap(values, client, statistic=statistic, over=over, resamples=resamples, seed=5)
        return seen[0]

    return run


def mean_of(rows: Tensor) -> Tensor:
    return rows.mean()


def data(clients: int, size: int, binary: bool = False) -> tuple[Tensor, Tensor]:
    stream = torch.Generator().manual_seed(3)
    level = torch.randn(clients, 1, generator=stream, dtype=torch.float64)
    values = level + 2 * torch.randn(clients, size, generator=stream, dtype=torch.float64)
    values = (values > 0.3).double() if binary else values
    return values.flatten(), torch.arange(clients).repeat_interleave(size)


@pytest.mark.parametrize("binary", [False, True], ids=["numbers", "right-or-wrong"])
@pytest.mark.parametrize("over", ["examples", "clients", "both"])
@pytest.mark.parametrize("statistic", ["mean", "client_mean", mean_of])
def test_mean_and_variance_of_resamples_are_exact(
    resampled: Resampled, statistic: Statistic, over: Over, binary: bool
) -> None:
    """With equal sizes: clients B/N, examples W/(N n), both their sum (B, W with divisors N and n)."""
    values, client = data(6, 5, binary)
    count = 3000 if callable(statistic) else 40_000
    found = resampled(values, client, statistic, over, count)
    table = values.view(6, 5)
    between = table.mean(1).var(correction=0).item() / 6
    within = table.var(1, correction=0).mean().item() / (6 * 5)
    expected = {"clients": between, "examples": within, "both": between + within}[over]
    assert found.mean().item() == pytest.approx(
        values.mean().item(), abs=4 * math.sqrt(expected / count)
    )
    # A variance's relative standard error is sqrt(2 / count), of nearly normal numbers.
    assert found.var().item() == pytest.approx(expected, rel=5 * math.sqrt(2 / count))


def enumerated(table: list[list[float]], over: Over, statistic: str) -> list[tuple[float, float]]:
    """Each possible resample's statistic and its probability, for two clients."""
    n, out = len(table), []
    choices = itertools.product(range(n), repeat=n) if over != "examples" else [tuple(range(n))]
    listed = list(choices)
    for picked in listed:
        groups = [
            [list(c) for c in itertools.product(table[i], repeat=len(table[i]))]
            if over != "clients"
            else [table[i]]
            for i in picked
        ]
        combos = list(itertools.product(*groups))
        for combo in combos:
            rows = [v for group in combo for v in group]
            means = [sum(group) / len(group) for group in combo]
            value = sum(rows) / len(rows) if statistic == "mean" else sum(means) / len(means)
            out.append((value, 1 / (len(listed) * len(combos))))
    return out


@pytest.mark.parametrize("over", ["examples", "clients", "both"])
@pytest.mark.parametrize("statistic", ["mean", "client_mean"])
def test_unequal_clients_by_enumeration(
    resampled: Resampled, statistic: Statistic, over: Over
) -> None:
    table = [[0.0, 3.0], [1.0, 10.0, 4.0]]
    client = torch.tensor([7, 9, 7, 9, 9])  # mixed up on purpose
    values = torch.tensor([0.0, 1.0, 3.0, 10.0, 4.0])
    found = resampled(values, client, statistic, over, 40_000).round(decimals=9)
    chances: dict[float, float] = {}
    for value, chance in enumerated(table, over, str(statistic)):
        chances[round(value, 9)] = chances.get(round(value, 9), 0.0) + chance
    seen, times = found.unique(return_counts=True)
    assert {round(v, 9) for v in seen.tolist()} <= set(chances)
    share = dict(zip((round(v, 9) for v in seen.tolist()), (times / 40_000).tolist(), strict=True))
    for value, chance in chances.items():
        error = math.sqrt(chance * (1 - chance) / 40_000)
        assert share.get(value, 0.0) == pytest.approx(chance, abs=5 * error + 1e-9)


def test_a_function_sees_rows_of_whole_clients() -> None:
    client = torch.tensor([0, 1, 1, 2, 2, 2])
    rows = torch.stack([client.double(), torch.arange(6.0)], 1)
    seen: list[Tensor] = []

    def spy(part: Tensor) -> float:
        seen.append(part)
        return 0.0

    bootstrap(rows, client, statistic=spy, over="clients", resamples=50)
    assert torch.equal(seen[0], rows)
    for part in seen[1:]:
        for i in range(3):
            own = part[part[:, 0] == i][:, 1]
            whole = rows[client == i][:, 1]
            assert torch.equal(
                own.sort().values, whole.repeat(len(own) // len(whole)).sort().values
            )
    seen.clear()
    bootstrap(rows, client, statistic=spy, over="examples", resamples=50)
    assert all(part[:, 0].tolist() == client.tolist() for part in seen)
    assert len({tuple(part[:, 1].tolist()) for part in seen}) > 20


def test_ends_are_order_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    found = resampling._interval(5.0, torch.arange(1000.0).double(), 0.9)
    assert (found.lower, found.upper, found.undefined) == (49.0, 950.0, 0)
    mixed = torch.tensor([1.0, float("nan"), 2.0]).double()
    assert resampling._interval(1.5, mixed, 0.5) == Interval(1.5, 1.0, 2.0, 0.5, 1)


def test_resamples_without_the_measure_are_left_out_and_counted() -> None:
    values = torch.tensor([1.0, 2.0, 0.0])

    def of_positive(rows: Tensor) -> Tensor:
        return rows[rows > 1.5].mean()  # NaN if none was drawn: (2/3)³ of the time

    found = bootstrap(values, statistic=of_positive, over="examples", resamples=2000)
    assert (found.estimate, found.lower, found.upper) == (2.0, 2.0, 2.0)
    assert found.undefined / 2000 == pytest.approx((2 / 3) ** 3, abs=0.04)


def test_intervals_over_clients_cover_and_those_over_examples_alone_do_not() -> None:
    """25 clients of 20: a client's level varies by 1, an example by 1. 300 data sets: standard error 0.013."""
    stream, inside = torch.Generator().manual_seed(0), {"both": 0, "clients": 0, "examples": 0}
    client = torch.arange(25).repeat_interleave(20)
    for trial in range(300):
        level = torch.randn(25, 1, generator=stream)
        values = (level + torch.randn(25, 20, generator=stream)).flatten()
        for over in inside:
            found = bootstrap(values, client, over=over, resamples=199, seed=trial)  # type: ignore[arg-type]
            inside[over] += found.lower <= 0 <= found.upper
    assert 0.89 <= inside["clients"] / 300 <= 0.98
    assert 0.89 <= inside["both"] / 300 <= 0.985
    assert inside["examples"] / 300 < 0.5


# --- By client


def test_each_clients_interval_has_its_exact_spread_and_is_its_own() -> None:
    values, client = data(4, 30)
    found = bootstrap_by_client(values, client, resamples=4000, level=0.6827)
    table = values.view(4, 30)
    torch.testing.assert_close(found.estimate, table.mean(1))
    error = table.std(1, correction=0) / math.sqrt(30)
    torch.testing.assert_close(found.upper - found.lower, 2 * error, rtol=0.08, atol=0)
    other = values.clone()
    other[client == 1] += 100
    again = bootstrap_by_client(other, client, resamples=4000, level=0.6827)
    for i in (0, 2, 3):
        assert found.lower[i] == again.lower[i]
    alone = bootstrap_by_client(
        values[client == 3], client[client == 3], resamples=4000, level=0.6827
    )
    assert alone.lower[3] == found.lower[3]
    assert bool(alone.estimate[:3].isnan().all())


def test_clients_without_examples_or_with_one() -> None:
    found = bootstrap_by_client(torch.tensor([1.0, 0.0, 4.0]), torch.tensor([2, 2, 0]), clients=4)
    assert found.estimate.isnan().tolist() == [False, True, False, True]
    assert found.lower.isnan().tolist() == found.upper.isnan().tolist() == [True, True, False, True]
    none = bootstrap_by_client(torch.zeros(0), torch.zeros(0).long(), clients=2)
    assert bool(none.estimate.isnan().all())
    assert none.lower.shape == (2,)
    with pytest.raises(UserError, match="client numbers go from 0 to 2, not 0 to 1"):
        bootstrap_by_client(torch.ones(2), torch.tensor([0, 2]), clients=2)
    with pytest.raises(UserError, match="from -1"):
        bootstrap_by_client(torch.ones(2), torch.tensor([-1, 0]))


# --- Determinism, edges and refusals


def test_a_seed_names_the_answer() -> None:
    values, client = data(5, 8)
    for statistic in ("mean", mean_of):
        first = bootstrap(values, client, statistic=statistic, seed=1, resamples=100)
        assert first == bootstrap(values, client, statistic=statistic, seed=1, resamples=100)
        assert first != bootstrap(values, client, statistic=statistic, seed=2, resamples=100)


def test_where_an_interval_is_not_defined() -> None:
    none = bootstrap(torch.zeros(0), torch.zeros(0).long())
    assert math.isnan(none.estimate)
    assert math.isnan(none.lower)
    one_client = bootstrap(torch.tensor([1.0, 2.0]), torch.zeros(2).long())
    assert one_client.estimate == 1.5
    assert math.isnan(one_client.lower)
    assert math.isnan(one_client.upper)
    one_each = torch.tensor([1.0, 2.0]), torch.tensor([0, 1])
    assert math.isnan(bootstrap(*one_each, over="examples").upper)
    assert bootstrap(*one_each, over="both").upper == 2.0
    assert math.isnan(bootstrap(torch.zeros(0, 2), over="examples", statistic=mean_of).estimate)


def test_what_is_refused() -> None:
    values, client = torch.tensor([1.0, 2.0]), torch.tensor([0, 1])
    with pytest.raises(UserError, match="values are NaN at row 1"):
        bootstrap(torch.tensor([1.0, float("nan")]), client)
    with pytest.raises(UserError, match="needs client"):
        bootstrap(values)
    with pytest.raises(UserError, match="client has shape"):
        bootstrap(values, torch.tensor([0]))
    with pytest.raises(UserError, match="client must hold integers"):
        bootstrap(values, torch.tensor([0.0, 1.0]))
    with pytest.raises(UserError, match="over is 'rows'"):
        bootstrap(values, client, over="rows")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="statistic is 'median'"):
        bootstrap(values, client, statistic="median")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="one number"):
        bootstrap(values, client, statistic=lambda rows: rows.repeat(2))
    with pytest.raises(UserError, match="level"):
        bootstrap(values, client, level=95)
    with pytest.raises(UserError, match="resamples"):
        bootstrap(values, client, resamples=0)
    with pytest.raises(UserError, match="seed"):
        bootstrap(values, client, seed=0.5)  # type: ignore[arg-type]


# --- Beta


@pytest.mark.parametrize("prior", [(0.5, 0.5), (1.0, 1.0), (2.0, 7.0)])
@pytest.mark.parametrize("level", [0.5, 0.95])
def test_beta_interval_is_scipys(prior: tuple[float, float], level: float) -> None:
    right, total = torch.tensor([1, 7, 19, 400]), torch.tensor([20, 20, 20, 5000])
    found = accuracy_interval(right, total, level=level, prior=prior)
    beta = stats.beta(right.numpy() + prior[0], (total - right).numpy() + prior[1])
    assert found.lower.numpy() == pytest.approx(beta.ppf((1 - level) / 2))
    assert found.upper.numpy() == pytest.approx(beta.ppf((1 + level) / 2))
    assert found.estimate.tolist() == pytest.approx((right / total).tolist())


def test_over_the_prior_its_level_is_exact() -> None:
    """Under p ~ U(0, 1) each count is equally likely; the two end counts gain the tail that was given to them."""
    n, level = 12, 0.9
    right = torch.arange(n + 1)
    found = accuracy_interval(right, torch.full((n + 1,), n), level=level, prior=(1.0, 1.0))
    beta = stats.beta(right.numpy() + 1, n - right.numpy() + 1)
    held = np.mean(beta.cdf(found.upper.numpy()) - beta.cdf(found.lower.numpy()))
    assert held == pytest.approx(level + 2 * (1 - level) / 2 / (n + 1))


def test_all_right_all_wrong_none() -> None:
    found = accuracy_interval(torch.tensor([5, 0, 0]), torch.tensor([5, 5, 0]))
    assert (found.upper[0].item(), found.lower[1].item()) == (1.0, 0.0)
    assert 0.5 < found.lower[0].item() < 1
    assert found.lower[0].item() == pytest.approx(1 - found.upper[1].item())
    assert bool(torch.stack([found.estimate, found.lower, found.upper])[:, 2].isnan().all())
    assert accuracy_interval(torch.tensor(3), torch.tensor(4)).lower.shape == ()


@pytest.mark.parametrize(
    ("right", "total"), [(3, 2), (-1, 2), (0.5, 2), (float("nan"), 2), (1, float("inf"))]
)
def test_counts_that_are_none(right: float, total: float) -> None:
    with pytest.raises(UserError, match="whole numbers"):
        accuracy_interval(torch.tensor([right]), torch.tensor([total]))


def test_beta_refusals() -> None:
    with pytest.raises(UserError, match="prior"):
        accuracy_interval(torch.tensor(1), torch.tensor(2), prior=(0.0, 1.0))
    with pytest.raises(UserError, match="right has shape"):
        accuracy_interval(torch.tensor([1]), torch.tensor(2))


@pytest.mark.cuda
def test_on_a_gpu() -> None:
    values, client = data(6, 50)
    for over in ("examples", "clients", "both"):
        here = bootstrap(values, client, over=over, resamples=4000)
        there = bootstrap(values.cuda(), client.cuda(), over=over, resamples=4000)
        assert there.estimate == pytest.approx(here.estimate)
        assert there.upper - there.lower == pytest.approx(here.upper - here.lower, rel=0.1)
    assert accuracy_interval(torch.tensor([3]).cuda(), torch.tensor([4]).cuda()).lower.is_cuda
    assert bootstrap_by_client(values.cuda(), client).lower.is_cuda
