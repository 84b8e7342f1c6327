import pytest
import torch

from pyro_pfedbayes.families import ClientFamily, FullRankNormal, MeanField, MeanFieldNormal
from pyro_pfedbayes.gaussians.barycentre import barycentre
from pyro_pfedbayes.gaussians.mean_field import MeanFieldGaussian
from tests.helpers import message
from tests.pyro_pfedbayes.families.helpers import CLIENTS, WEIGHTS, mean_kl, minimise, rows_of


@pytest.mark.parametrize("family", CLIENTS, ids=lambda family: family.name)
def test_projection_is_the_numerical_minimiser(family: ClientFamily) -> None:
    rows, weights = rows_of(family), WEIGHTS.double()
    w = MeanField().project(rows, weights, {})

    def objective(loc: torch.Tensor, log_scale: torch.Tensor) -> torch.Tensor:
        return mean_kl(rows, weights, loc, torch.diag(torch.exp(2 * log_scale)))

    (loc, log_scale), least = minimise(objective, torch.zeros(4).double(), torch.zeros(4).double())
    torch.testing.assert_close(w["loc"], loc, atol=1e-6, rtol=0)
    torch.testing.assert_close(w["scale"], log_scale.exp(), atol=1e-6, rtol=0)
    assert float(objective(w["loc"], w["scale"].log())) == pytest.approx(least, abs=1e-10)


def test_projection_equals_the_barycentre_bit_for_bit() -> None:
    rows = rows_of(MeanFieldNormal(), dtype=torch.float32)
    w = MeanField().project(rows, WEIGHTS, {})
    expected = barycentre(
        MeanFieldGaussian({"t": rows.loc}, {"t": rows.scale}, stacked=True), WEIGHTS
    )
    assert torch.equal(w["loc"], expected.loc["t"])
    assert torch.equal(w["scale"], expected.scale["t"])


def test_what_the_client_refuses_the_server_refuses() -> None:
    assert "at most 3000" in message(MeanField().check, FullRankNormal(), 5000)
    MeanField().check(MeanFieldNormal(), 10**8)
