import pytest
import torch

from pyro_pfedbayes.families import GaussianRows
from pyro_pfedbayes.families.rows import column_blocks, moments, shares
from tests.helpers import message


def test_variance_adds_the_factor_to_the_diagonal() -> None:
    rows = GaussianRows(
        torch.zeros(1, 2), torch.tensor([[1.0, 2.0]]), torch.tensor([[[2.0, 2.0], [0.0, 1.0]]])
    )
    assert rows.variance.tolist() == [[9.0, 5.0]]
    assert torch.equal(rows.std, rows.variance.sqrt())
    assert (rows.clients, rows.num_weights, rows.rank) == (1, 2, 2)


def test_without_a_factor_std_is_the_scale_itself() -> None:
    scale = torch.rand(3, 2)
    assert torch.equal(GaussianRows(torch.zeros(3, 2), scale).std, scale)


@pytest.mark.parametrize("rank", [0, 2])
def test_cat_undoes_select(rank: int) -> None:
    factor = torch.randn(5, 3, rank) if rank else None
    rows = GaussianRows(torch.randn(5, 3), torch.rand(5, 3), factor)
    again = GaussianRows.cat([rows.select([0, 1]), rows.select(torch.tensor([2, 3, 4]))])
    assert torch.equal(again.loc, rows.loc)
    assert torch.equal(again.scale, rows.scale)
    if factor is None:
        assert again.factor is None
    else:
        assert again.factor is not None
        assert torch.equal(again.factor, factor)


def test_rows_carry_no_gradient() -> None:
    rows = GaussianRows(torch.zeros(1, 2, requires_grad=True), torch.ones(1, 2, requires_grad=True))
    assert not rows.loc.requires_grad
    assert not rows.scale.requires_grad


def test_misshapen_rows_are_refused() -> None:
    assert "[S, T]" in message(GaussianRows, torch.zeros(3), torch.zeros(3))
    assert "[2, 4]" in message(GaussianRows, torch.zeros(2, 3), torch.zeros(2, 4))
    flat = torch.zeros(2, 3), torch.zeros(2, 3)
    assert "[S, T, R]" in message(GaussianRows, *flat, torch.zeros(2, 4, 1))
    with_factor = GaussianRows(*flat, torch.zeros(2, 3, 1))
    assert "(3, 0), (3, 1)" in message(GaussianRows.cat, [GaussianRows(*flat), with_factor])
    assert "at least one" in message(GaussianRows.cat, [])


def test_shares_sum_to_one_and_bad_weights_are_refused() -> None:
    rows = GaussianRows(torch.zeros(2, 1), torch.ones(2, 1))
    assert shares(rows, torch.tensor([1.0, 3.0])).tolist() == [0.25, 0.75]
    assert "each of 2" in message(shares, rows, torch.ones(3))
    for bad in ([1.0, -1.0], [0.0, 0.0], [1.0, float("nan")]):
        assert "finite" in message(shares, rows, torch.tensor(bad))


def test_moments_are_those_of_the_mixture_of_clients() -> None:
    rows = GaussianRows(
        torch.tensor([[0.0], [4.0]]), torch.tensor([[1.0], [2.0]]), torch.ones(2, 1, 1)
    )
    loc, std = moments(rows, torch.tensor([3.0, 1.0]))
    # Variances 2 and 5; means 1 below and 3 above the common one.
    assert loc.tolist() == [1.0]
    assert std.item() ** 2 == pytest.approx(0.75 * (2 + 1) + 0.25 * (5 + 9))


def test_column_blocks_cover_every_weight_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyro_pfedbayes.families.rows._BLOCK", 12)
    rows = GaussianRows(torch.zeros(2, 7), torch.ones(2, 7))
    parts = [torch.arange(7)[block] for block in column_blocks(rows, 2)]
    assert [len(part) for part in parts] == [3, 3, 1]
    assert torch.cat(parts).tolist() == list(range(7))
