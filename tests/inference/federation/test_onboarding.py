"""A new client's belief: w without data, better than w with some."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor

import pyro_pfedbayes as pfb
from pyro_pfedbayes.data.partitions.schemes import Partition
from pyro_pfedbayes.families import FullCovariance, FullRankNormal
from pyro_pfedbayes.inference.beliefs.sites import SiteBelief
from pyro_pfedbayes.inference.federation.loop import Federation, Result
from pyro_pfedbayes.inference.federation.onboarding import onboard
from pyro_pfedbayes.inference.predictive.draws import posterior_predictive
from pyro_pfedbayes.measures.scores import negative_log_likelihood
from pyro_pfedbayes.models.spec import DataSpec
from tests.helpers import digits, message, tiny_model, toy_data

HELD_OUT = 9


@pytest.fixture(scope="module")
def without_the_last() -> tuple[Result, pfb.FederatedData]:
    """A run of nine of ten clients on the digits, and the data of all ten."""
    data = digits()
    some = Partition(
        "nine", *(data.partition.part(part)[:HELD_OUT] for part in ("train", "validation", "test"))
    )
    model = pfb.BayesianModel(pfb.mlp([64, 20, 10]), pfb.Categorical(10), rho=-3.0)
    federation = Federation(
        model,
        pfb.FederatedData(data.dataset, some),
        algorithm=pfb.PFedBayes(local_steps=20, batch_size=30, personal_rounds=1),
        device="cpu",
        eval_every=0,
        engine="traced",
    )
    return federation.run(8), data


def nll(result: Result, belief: object, x: Tensor, y: Tensor) -> float:
    probs = posterior_predictive(result.federation.model, belief, x, draws=20)  # type: ignore[arg-type]
    return float(negative_log_likelihood(probs, y))


def test_some_data_improve_on_the_prior_predictive(
    without_the_last: tuple[Result, pfb.FederatedData],
) -> None:
    result, data = without_the_last
    x, y = data.examples(HELD_OUT, "train")
    test = data.examples(HELD_OUT, "test")
    before = {name: tensor.clone() for name, tensor in result.state.server.items()}
    prior = nll(result, onboard(result), *test)
    few = nll(result, onboard(result, x[:10], y[:10], steps=60, engine="eager"), *test)
    all_ = nll(result, onboard(result, x, y, steps=60, engine="eager"), *test)
    assert few < prior - 0.05
    assert all_ < few
    # The run is left as it was.
    assert all(torch.equal(result.state.server[name], t) for name, t in before.items())
    assert len(result.state.clients) == HELD_OUT


def test_no_data_or_no_steps_give_w(
    without_the_last: tuple[Result, pfb.FederatedData],
) -> None:
    result, data = without_the_last
    x, y = data.examples(HELD_OUT, "train")
    w = result.global_
    for belief in (onboard(result), onboard(result, x[:0], y[:0]), onboard(result, x, y, steps=0)):
        for name in w.names:
            assert torch.equal(belief.loc[name], w.loc[name])
        assert torch.equal(
            posterior_predictive(result.federation.model, belief, x, draws=3),
            posterior_predictive(result.federation.model, w, x, draws=3),
        )
    assert torch.equal(
        onboard(result.federation, state=result.state).loc["head.bias"], w.loc["head.bias"]
    )


def test_it_is_the_runs_own_personal_phase(
    without_the_last: tuple[Result, pfb.FederatedData],
) -> None:
    """One tiny step moves q^i from w by about the learning rate, as Adam does; and a seed decides the noise."""
    result, data = without_the_last
    x, y = data.examples(HELD_OUT, "train")
    one, same, other = (
        onboard(result, x, y, steps=1, lr=1e-4, engine="eager", seed=seed).loc["head.weight"]
        for seed in (0, 0, 1)
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    moved = (one - result.global_.loc["head.weight"]).abs()
    assert float(moved.max()) == pytest.approx(1e-4, rel=0.02)


def line(x: Tensor, y: Tensor | None = None) -> None:
    intercept = pyro.sample("intercept", dist.Normal(0.0, 5.0))
    slope = pyro.sample("slope", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", len(x)):
        pyro.sample("y", dist.Normal(intercept + slope * x[:, 0], 0.3), obs=y)


def number_run(**families: object) -> Result:
    stream = torch.Generator().manual_seed(0)
    x = torch.randn(90, 1, generator=stream)
    intercepts = torch.tensor([-1.0, 0.0, 1.0]).repeat_interleave(30)
    y = intercepts + 0.5 * x[:, 0] + 0.3 * torch.randn(90, generator=stream)
    rows = torch.arange(90).split(30)
    clients = Partition(
        "three", *(tuple(r[a:b] for r in rows) for a, b in ((0, 24), (0, 0), (24, 30)))
    )
    data = pfb.FederatedData(pfb.Dataset("lines", x, y, ()), clients)
    model = pfb.ProgramModel(line, DataSpec((1,)), roles={"intercept": "private"}, **families)  # type: ignore[arg-type]
    algorithm = pfb.PFedBayes(lr=0.05, local_steps=20, batch_size=24)
    return Federation(
        model, data, algorithm=algorithm, device="cpu", eval_every=0, engine="traced"
    ).run(10)


@pytest.mark.parametrize("families", [{}, {"guide": FullRankNormal(), "server": FullCovariance()}])
def test_a_new_clients_private_site_is_found(families: dict[str, object]) -> None:
    """Its intercept 3.0 is unlike any before; with slope and noise known, 40 rows tell it within 4 standard errors."""
    result = number_run(**families)
    x = torch.randn(40, 1, generator=torch.Generator().manual_seed(5))
    y = 3.0 + 0.5 * x[:, 0] + 0.3 * torch.randn(40, generator=torch.Generator().manual_seed(6))
    belief = onboard(result, x, y, steps=300, lr=0.05)
    assert isinstance(belief, SiteBelief)
    assert float(belief.loc["intercept"]) == pytest.approx(3.0, abs=4 * 0.3 / 40**0.5 + 0.05)
    assert float(belief.loc["slope"]) == pytest.approx(0.5, abs=0.2)
    # Without data the intercept is drawn from the program's own prior, of standard deviation 5.
    prior = onboard(result)
    assert "intercept" not in prior.names
    means = [
        posterior_predictive(result.federation.model, prior, x[:1], draws=1, seed=seed)
        for seed in range(60)
    ]
    # The standard error of a standard deviation of 60 draws is 5 / sqrt(120).
    assert float(torch.cat(means).std()) == pytest.approx(5.0, abs=4 * 5 / 120**0.5)


def test_of_a_run_with_kinds_it_starts_from_w() -> None:
    data = toy_data((20, 20, 20, 20))
    model = tiny_model(torch.float32)
    algorithm = pfb.PFedBayes(local_steps=2, kinds=2, kind_rounds=1, optimizer_state="kept")
    result = Federation(model, data, algorithm=algorithm, device="cpu", engine="eager").run(4)
    x, y = data.examples(0, "test")
    moved = onboard(result, x, y, steps=1, lr=1e-5, engine="eager")
    for name in model.weight_shapes:
        torch.testing.assert_close(moved.loc[name], result.global_.loc[name], atol=2e-5, rtol=0)


def test_what_does_not_fit_is_refused(
    without_the_last: tuple[Result, pfb.FederatedData],
) -> None:
    result, data = without_the_last
    x, y = data.examples(HELD_OUT, "train")
    federation = result.federation
    assert "give state=" in message(onboard, federation, x, y)
    assert "source is a list" in message(onboard, [], x, y)
    assert "steps is -1" in message(onboard, result, x, y, steps=-1)
    assert "x has 3 rows and y 2" in message(onboard, result, x[:3], y[:2])
    assert "x has 3 rows and y 0" in message(onboard, result, x[:3])
    assert "has shape [64], one of digits [1, 8, 8]" in message(onboard, result, x.flatten(1), y)
    assert "the new client's data" in message(onboard, result, x, y + 10)
    assert "diverged within 3 steps" in message(
        onboard, result, 3e38 * x, y, steps=3, engine="eager"
    )
