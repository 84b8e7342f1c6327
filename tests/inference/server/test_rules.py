import pytest
import torch

from pyro_pfedbayes.gaussians.barycentre import barycentre
from pyro_pfedbayes.gaussians.mean_field import MeanFieldGaussian
from pyro_pfedbayes.inference.server.rules import MeanAccumulator, closed_form, momentum_step


def test_closed_form_in_chunks_is_the_barycentre() -> None:
    stream = torch.Generator().manual_seed(0)
    loc, scale = torch.randn(5, 9, generator=stream), 0.1 + torch.rand(5, 9, generator=stream)
    weights = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
    chunks = [(loc[a:b], scale[a:b], weights[a:b]) for a, b in ((0, 2), (2, 5))]
    w = barycentre(MeanFieldGaussian({"t": loc}, {"t": scale}, True), weights)
    ours = closed_form(chunks)
    torch.testing.assert_close(ours[0], w.loc["t"])
    torch.testing.assert_close(ours[1], w.scale["t"])


def test_mean_in_chunks_is_the_weighted_mean_even_far_from_zero() -> None:
    stream = torch.Generator().manual_seed(0)
    rows = 1e4 + 1e-2 * torch.randn(6, 5, generator=stream)
    weights = torch.arange(1.0, 7.0)
    mean = MeanAccumulator()
    for a, b in ((0, 1), (1, 4), (4, 6)):
        mean.add({"v": rows[a:b], "n": weights[a:b]}, weights[a:b])
    expected = (weights.double() @ rows.double() / weights.sum()).float()
    assert torch.equal(mean.result()["v"], expected)
    assert mean.result()["n"].item() == pytest.approx(91 / 21)


def test_momentum_step_by_hand() -> None:
    previous, average = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0])
    assert momentum_step(previous, average, 0.25).tolist() == [1.0, 2.5]
    assert momentum_step(previous, average, 1.0).tolist() == [1.0, 4.0]
