import math

import pytest
import torch
from torch import Tensor

from pyro_pfedbayes.families import (
    ClientFamily,
    FullRankNormal,
    GaussianRows,
    Laplace,
    MeanFieldNormal,
    ServerFamily,
    StudentT,
)
from tests.helpers import message
from tests.pyro_pfedbayes.families.helpers import CLIENTS, WEIGHTS, minimise, rows_of

every = pytest.mark.parametrize("family", CLIENTS, ids=lambda family: family.name)


def cross_entropy(
    rows: GaussianRows, weights: Tensor, log_density: object, points: int = 40_001
) -> Tensor:
    """Σ p_i E_{q_i}[-log w] summed over weights, by the trapezoidal rule on a dense grid of each marginal.

    It differs from Σ p_i KL(q_i‖w) by the entropies of the q_i, which do not depend on w.
    """
    z = torch.linspace(-9.0, 9.0, points, dtype=torch.float64)
    density = torch.exp(-0.5 * z.square()) / math.sqrt(2 * math.pi) * (z[1] - z[0])
    x = rows.loc[..., None] + rows.std[..., None] * z  # [S, T, points]
    each: Tensor = -(log_density(x) * density).sum(-1)  # type: ignore[operator]
    return ((weights / weights.sum()) @ each).sum()


def compare(
    server: ServerFamily, rows: GaussianRows, weights: Tensor, points: int, near: float
) -> None:
    w = server.project(rows, weights, {})

    def objective(loc: Tensor, log_scale: Tensor) -> Tensor:
        w = {"loc": loc[:, None], "scale": log_scale.exp()[:, None]}
        base = server.distribution(w).base_dist
        return cross_entropy(rows, weights, base.log_prob, points)

    start = rows.loc.mean(0), rows.std.mean(0).log()
    (loc, log_scale), least = minimise(objective, *start)
    torch.testing.assert_close(w["loc"], loc, atol=near, rtol=0)
    torch.testing.assert_close(w["scale"], log_scale.exp(), atol=near, rtol=0)
    assert float(objective(w["loc"], w["scale"].log())) == pytest.approx(least, abs=2e-5)


@every
def test_laplace_projection_is_the_numerical_minimiser(family: ClientFamily) -> None:
    """Up to the grid of the quadrature, whose kinks attract the minimiser; the median below is exact."""
    compare(Laplace(), rows_of(family), WEIGHTS.double(), points=4001, near=2e-3)


@every
@pytest.mark.parametrize("df", [3.0, 10.0])
def test_student_projection_is_the_numerical_minimiser(family: ClientFamily, df: float) -> None:
    """Up to the error of 20 nodes, which is that of the tolerance."""
    compare(StudentT(df), rows_of(family), WEIGHTS.double(), points=401, near=1e-3)


def test_laplace_location_is_the_median_and_scale_the_mean_distance() -> None:
    """Against the distribution function itself, with clients near, far, sharp and wide, and one without weight."""
    loc = torch.tensor(
        [[0.0, 0.0, -5.0], [1.0, 100.0, 5.0], [3.0, 101.0, 7.0], [9.0, -9.0, 50.0]]
    ).double()
    scale = torch.tensor(
        [[1.0, 1e-3, 1e-4], [2.0, 1e-3, 3.0], [0.1, 1.0, 1e-4], [1.0, 1.0, 1.0]],
        dtype=torch.float64,
    )
    p = torch.tensor([0.5, 0.3, 0.2, 0.0], dtype=torch.float64)
    w = Laplace().project(GaussianRows(loc, scale), p, {})
    below = (p[:, None] * torch.special.ndtr((w["loc"] - loc) / scale)).sum(0)
    torch.testing.assert_close(below, torch.full((3,), 0.5).double(), atol=1e-9, rtol=0)
    stream = torch.Generator().manual_seed(0)
    draws = loc[:3, None] + scale[:3, None] * torch.randn(3, 100_000, 3, generator=stream).double()
    distance = (draws - w["loc"]).abs()
    error = (p[:3, None] ** 2 * distance.var(1) / 100_000).sum(0).sqrt()
    assert bool(((p[:3, None] * distance.mean(1)).sum(0) - w["scale"]).abs().le(4 * error).all())


def test_an_outlying_client_moves_a_laplace_less_than_a_gaussian() -> None:
    loc = torch.zeros(5, 1).double()
    loc[4] = 100.0
    rows = GaussianRows(loc, torch.ones(5, 1).double())
    assert abs(float(Laplace().project(rows, torch.ones(5), {})["loc"])) < 0.5
    assert abs(float(StudentT(3.0).project(rows, torch.ones(5), {})["loc"])) < 2.0


def test_student_with_many_degrees_of_freedom_is_the_gaussian() -> None:
    rows, weights = rows_of(MeanFieldNormal()), WEIGHTS.double()
    w = StudentT(1e6).project(rows, weights, {})
    p = weights / weights.sum()
    mean = p @ rows.loc
    std = (p @ (rows.variance + (rows.loc - mean).square())).sqrt()
    torch.testing.assert_close(w["loc"], mean, atol=1e-4, rtol=0)
    torch.testing.assert_close(StudentT(1e6).std(w), std, atol=1e-4, rtol=0)


@pytest.mark.parametrize("server", [Laplace(), StudentT(4.0)], ids=lambda server: server.name)
def test_blocks_of_weights_change_nothing(
    server: ServerFamily, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = rows_of(CLIENTS[1], num_weights=7)
    whole = server.project(rows, WEIGHTS, {})
    monkeypatch.setattr("pyro_pfedbayes.families.rows._BLOCK", 1)
    parts = server.project(rows, WEIGHTS, {})
    for name, value in whole.items():
        torch.testing.assert_close(parts[name], value, atol=1e-5, rtol=0)


@pytest.mark.parametrize("server", [Laplace(), StudentT(4.0)], ids=lambda server: server.name)
def test_equal_clients_agree_with_themselves(server: ServerFamily) -> None:
    """A location all share is kept, in single precision too."""
    rows = GaussianRows(torch.full((3, 2), 0.7), torch.full((3, 2), 0.1))
    w = server.project(rows, torch.ones(3), {})
    torch.testing.assert_close(w["loc"], torch.full((2,), 0.7))
    assert w["scale"].dtype == torch.float32


def test_options_and_sizes_that_cannot_work_are_refused() -> None:
    for df in (2.0, -1.0, math.inf, math.nan):
        assert "above 2" in message(StudentT, df)
    for server in (Laplace(), StudentT(3.0)):
        assert "at most 3000" in message(server.check, FullRankNormal(), 4000)
        server.check(MeanFieldNormal(), 10**6)
        assert "each of 5" in message(server.project, rows_of(MeanFieldNormal()), torch.ones(2), {})
