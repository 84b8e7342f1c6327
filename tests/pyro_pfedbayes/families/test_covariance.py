from itertools import pairwise

import pytest
import torch

from pyro_pfedbayes.families import (
    ClientFamily,
    FullCovariance,
    FullRankNormal,
    GaussianRows,
    LowRank,
    MeanFieldNormal,
    covariance,
    divergence,
)
from tests.helpers import message
from tests.pyro_pfedbayes.families.helpers import (
    CLIENTS,
    WEIGHTS,
    covariances,
    mean_kl,
    minimise,
    rows_of,
)

every = pytest.mark.parametrize("family", CLIENTS, ids=lambda family: family.name)


def matched(rows: GaussianRows, weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and covariance of the mixture of clients, written out densely."""
    p = weights / weights.sum()
    mean = p @ rows.loc
    offset = rows.loc - mean
    return mean, torch.einsum(
        "s,sij->ij", p, covariances(rows) + offset[:, :, None] * offset[:, None]
    )


@every
def test_full_covariance_matches_mean_and_covariance(family: ClientFamily) -> None:
    rows, weights = rows_of(family, num_weights=12), WEIGHTS.double()
    w = FullCovariance().project(rows, weights, {})
    mean, covariance = matched(rows, weights)
    q = FullCovariance().distribution(w)
    torch.testing.assert_close(q.mean, mean)
    torch.testing.assert_close(q.covariance_matrix, covariance)
    torch.testing.assert_close(FullCovariance().std(w), covariance.diagonal().sqrt())


@every
def test_full_covariance_is_the_numerical_minimiser(family: ClientFamily) -> None:
    rows, weights = rows_of(family), WEIGHTS.double()
    w = FullCovariance().distribution(FullCovariance().project(rows, weights, {}))

    def objective(loc: torch.Tensor, root: torch.Tensor) -> torch.Tensor:
        tril = root.tril(-1) + torch.diag(root.diagonal().exp())
        return mean_kl(rows, weights, loc, tril @ tril.T)

    (loc, root), least = minimise(objective, torch.zeros(4).double(), torch.zeros(4, 4).double())
    tril = root.tril(-1) + torch.diag(root.diagonal().exp())
    torch.testing.assert_close(w.mean, loc, atol=1e-5, rtol=0)
    torch.testing.assert_close(w.covariance_matrix, tril @ tril.T, atol=1e-5, rtol=0)
    assert float(mean_kl(rows, weights, w.mean, w.covariance_matrix)) <= least + 1e-9


def test_full_covariance_stays_as_small_as_it_is() -> None:
    def shapes(family: ClientFamily, num_weights: int) -> dict[str, tuple[int, ...]]:
        w = FullCovariance().project(rows_of(family, num_weights=num_weights), WEIGHTS, {})
        return {name: tuple(value.shape) for name, value in w.items()}

    mean_field, low_rank, full_rank = CLIENTS
    assert shapes(mean_field, 40) == {"loc": (40,), "scale": (40,), "factor": (40, 5)}
    assert shapes(low_rank, 40) == {"loc": (40,), "scale": (40,), "factor": (40, 15)}
    assert shapes(low_rank, 9) == {"loc": (9,), "scale": (9,), "factor": (9, 9)}
    assert shapes(full_rank, 9) == {"loc": (9,), "tril": (9, 9)}


def test_single_precision_survives_clients_far_apart() -> None:
    """Why the columns are turned: as they come, √p (μ_i - m), float32 gets the divergence wrong."""
    size = 20_000
    stream = torch.Generator().manual_seed(0)
    loc = 10.0 * torch.randn(6, size, generator=stream)
    w = FullCovariance().project(GaussianRows(loc, torch.full((6, size), 0.01)), torch.ones(6), {})
    raw = {**w, "factor": ((loc - loc.mean(0)) / 6**0.5).T}

    def kl(w: dict[str, torch.Tensor], dtype: torch.dtype) -> float:
        q = torch.distributions.Normal((loc[0] + 0.003).to(dtype), torch.tensor(0.01).to(dtype))
        p = FullCovariance().distribution({name: value.to(dtype) for name, value in w.items()})
        return float(divergence(torch.distributions.Independent(q, 1), p))

    exact = kl(w, torch.float64)
    assert kl(raw, torch.float64) == pytest.approx(exact, rel=1e-5)
    assert kl(w, torch.float32) == pytest.approx(exact, rel=1e-3)
    try:
        wrong = abs(kl(raw, torch.float32) - exact)
    except RuntimeError:  # or has no Cholesky factor at all
        wrong = float("inf")
    assert wrong > 10 * abs(kl(w, torch.float32) - exact)


@pytest.mark.parametrize(
    ("family", "clients", "rank"), [(CLIENTS[0], 5, 4), (CLIENTS[1], 1, 2), (CLIENTS[1], 2, 5)]
)
def test_low_rank_at_a_high_enough_rank_is_the_full_covariance(
    family: ClientFamily, clients: int, rank: int
) -> None:
    """S clients of rank R have a covariance of rank S R + S - 1 beyond the diagonal."""
    rows, weights = rows_of(family, clients=clients, num_weights=9), WEIGHTS.double()[:clients]
    w = LowRank(rank).project(rows, weights, {})
    mean, covariance = matched(rows, weights)
    torch.testing.assert_close(LowRank(rank).distribution(w).mean, mean)
    torch.testing.assert_close(LowRank(rank).distribution(w).covariance_matrix, covariance)
    torch.testing.assert_close(LowRank(rank).std(w), covariance.diagonal().sqrt())


@every
def test_low_rank_is_a_numerical_minimiser(family: ClientFamily) -> None:
    rows, weights = rows_of(family, num_weights=8, spread=0.7), WEIGHTS.double()
    w = LowRank(2, iterations=6000, tolerance=1e-13).project(rows, weights, {})

    def objective(factor: torch.Tensor, log_psi: torch.Tensor) -> torch.Tensor:
        covariance = factor @ factor.T + torch.diag(log_psi.exp())
        return mean_kl(rows, weights, w["loc"], covariance)

    def value(w: dict[str, torch.Tensor]) -> float:
        return float(objective(w["factor"], 2 * w["scale"].log()))

    # Nothing better is near it.
    assert value(w) == pytest.approx(
        minimise(objective, w["factor"], 2 * w["scale"].log())[1], abs=1e-7
    )
    # Where there is one minimum that others find from anywhere, it is that.
    stream = torch.Generator().manual_seed(0)
    starts = [torch.randn(8, 2, generator=stream).double() for _ in range(2)]
    if family.name != "full-rank":
        others = [minimise(objective, start, torch.zeros(8).double())[1] for start in starts]
        assert value(w) == pytest.approx(min(others), abs=1e-6)
    # And the default effort comes close.
    assert value(LowRank(2).project(rows, weights, {})) <= value(w) + 1e-3


def test_every_low_rank_step_lowers_the_divergence() -> None:
    rows, weights = rows_of(CLIENTS[1], num_weights=8), WEIGHTS.double()
    values = []
    for steps in range(1, 12):
        w = LowRank(1, iterations=steps, tolerance=0.0).project(rows, weights, {})
        covariance = LowRank(1).distribution(w).covariance_matrix
        values.append(float(mean_kl(rows, weights, w["loc"], covariance)))
    assert all(later < earlier for earlier, later in pairwise(values))


def test_low_rank_goes_on_from_the_previous_w_if_that_is_better() -> None:
    rows, weights = rows_of(CLIENTS[1], num_weights=8), WEIGHTS.double()
    family = LowRank(1, iterations=3, tolerance=0.0)

    def value(w: dict[str, torch.Tensor]) -> float:
        return float(mean_kl(rows, weights, w["loc"], family.distribution(w).covariance_matrix))

    first = family.project(rows, weights, family.start(rows.loc[0], rows.scale[0]))
    second = family.project(rows, weights, first)
    assert value(second) < value(first)
    # A useless one, or the zeros of `start`, from where EM cannot move, change nothing.
    useless = {**first, "factor": 100.0 * torch.ones_like(first["factor"])}
    for previous in ({}, useless, LowRank(2).start(rows.loc[0], rows.scale[0])):
        again = family.project(rows, weights, previous)
        assert all(torch.equal(again[name], first[name]) for name in first)


@pytest.mark.parametrize("left", [0.0, 1e-9])
def test_a_dead_column_in_the_previous_w_does_not_stay_dead(left: float) -> None:
    """Here the best single column, and a dead one beside it, beats the start from the leading two: a trap."""
    stream = torch.Generator().manual_seed(252)
    scale = 0.05 + 2 * torch.rand(1, 6, generator=stream).double() ** 3
    rows = GaussianRows(
        torch.zeros(1, 6).double(), scale, torch.randn(1, 6, 4, generator=stream).double()
    )
    one = torch.ones(1)

    def value(w: dict[str, torch.Tensor]) -> float:
        return float(
            mean_kl(rows, one.double(), w["loc"], LowRank(2).distribution(w).covariance_matrix)
        )

    single = LowRank(1, iterations=2000).project(rows, one, {})
    trap = {**single, "factor": torch.cat([single["factor"], left * single["factor"]], 1)}
    _, diagonal, exact = covariance._matched(rows, one)
    target = covariance._Target(diagonal, exact)
    leading = covariance._principal(exact, target.variance)[:, :2]
    at_trap = target.divergence(trap["factor"], trap["scale"].square())
    assert at_trap < target.divergence(leading, target.unexplained(leading))
    found = LowRank(2, iterations=2000).project(rows, one, trap)
    assert value(found) < value(trap) - 0.5
    assert value(found) == pytest.approx(
        value(LowRank(2, iterations=2000).project(rows, one, {})), abs=1e-9
    )


def test_unneeded_columns_are_zeros() -> None:
    rows = rows_of(MeanFieldNormal(), clients=2, num_weights=7)
    w = LowRank(5).project(rows, torch.ones(2), {})
    assert w["factor"].shape == (7, 5)
    assert float(w["factor"][:, 1:].abs().max()) < 1e-6
    q = MeanFieldNormal().distribution(
        {"loc": torch.zeros(7).double(), "rho": torch.zeros(7).double()}
    )
    assert bool(divergence(q, LowRank(5).distribution(w)).isfinite())


def test_options_and_sizes_that_cannot_work_are_refused() -> None:
    assert "at least 1" in message(LowRank, 0)
    assert "iterations" in message(LowRank, 1, iterations=0)
    assert "tolerance" in message(LowRank, 1, tolerance=-1.0)
    assert "rank 5" in message(LowRank(5).check, MeanFieldNormal(), 5)
    assert "at most 3000" in message(LowRank(5).check, FullRankNormal(), 4000)
    assert "at most 3000" in message(FullCovariance().check, FullRankNormal(), 4000)
    FullCovariance().check(MeanFieldNormal(), 10**6)
    assert "each of 5" in message(
        FullCovariance().project, rows_of(MeanFieldNormal()), torch.ones(2), {}
    )
