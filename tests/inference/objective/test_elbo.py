import pyro
import pyro.distributions as dist
import pytest
import torch
import torch.nn.functional as F
from pyro.infer import SVI, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoNormal
from torch import nn

from pyro_pfedbayes.inference.beliefs.guides import MeanFieldGuide
from pyro_pfedbayes.inference.engine.noise import Noise
from pyro_pfedbayes.inference.objective.elbo import ClientELBO
from pyro_pfedbayes.models.settings import pyro_local
from tests.helpers import random_batch, random_gaussian, tiny_model

CLIENTS, EXAMPLES = 3, 6


def programs(zeta: float = 1.0, seed: int = 0):
    base = tiny_model()
    data_scale = torch.tensor([2.0, 5.0, 1.0], dtype=torch.float64)
    model = base.with_prior(random_gaussian(base, seed=9), zeta=zeta, data_scale=data_scale)
    return model, MeanFieldGuide(model, random_gaussian(base, clients=CLIENTS, seed=seed))


def noise(model, seed: int = 5) -> dict[str, torch.Tensor]:
    stream = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(CLIENTS, *shape, generator=stream, dtype=torch.float64)
        for name, shape in model.weight_shapes.items()
    }


def by_hand(model, guide, eps, x, y) -> torch.Tensor:
    """-(n/b) log p(y | x, theta) + zeta KL(q || w) of each client, from the formula."""
    q, w = guide.posterior(), model.prior
    losses = []
    for i in range(CLIENTS):
        own = q.client(i)
        theta = {name: own.loc[name] + own.scale[name] * eps[name][i] for name in own.names}
        logits = torch.func.functional_call(model.network, theta, (x[i],))
        nll = F.cross_entropy(logits, y[i], reduction="sum")
        losses.append(model.data_scale[i] * nll + model.zeta * own.kl(w))
    return torch.stack(losses)


def test_loss_equals_the_formula_client_by_client() -> None:
    model, guide = programs(zeta=3.0)
    x, y = random_batch(CLIENTS, EXAMPLES)
    eps = noise(model)
    with pyro_local():
        losses = ClientELBO().client_losses(model, Noise(eps)(guide), x, y)
    torch.testing.assert_close(losses, by_hand(model, guide, eps, x, y))


@pytest.mark.parametrize("validate", [True, False])
def test_loss_and_gradients_equal_pyros_own(validate: bool) -> None:
    model, guide = programs(zeta=3.0)
    x, y = random_batch(CLIENTS, EXAMPLES)
    noisy = Noise(noise(model))(guide)
    results = []
    with pyro_local(validate=validate):
        for elbo in (ClientELBO(), TraceMeanField_ELBO()):
            loss = elbo.differentiable_loss(model, noisy, x, y)
            results.append((loss, *torch.autograd.grad(loss, list(guide.parameters()))))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_sites_without_closed_form_fall_back_to_monte_carlo_like_pyro() -> None:
    class StudentModel(nn.Module):
        def forward(self, x, y=None):
            with pyro.plate("client", CLIENTS, dim=-1):
                w = pyro.sample("w", dist.StudentT(4.0, torch.zeros(4), 1.0).to_event(1))
                pyro.sample("y", dist.Normal((x * w[:, None]).sum(-1), 1.0).to_event(1), obs=y)

    loc = torch.randn(CLIENTS, 4, requires_grad=True)

    def guide(x, y=None):
        with pyro.plate("client", CLIENTS, dim=-1):
            pyro.sample("w", dist.Normal(loc, 0.3).to_event(1))

    x, y = torch.randn(CLIENTS, EXAMPLES, 4), torch.randn(CLIENTS, EXAMPLES)
    noisy = Noise({"w": torch.randn(CLIENTS, 4)})(guide)
    ours = ClientELBO().differentiable_loss(StudentModel(), noisy, x, y)
    theirs = TraceMeanField_ELBO().differentiable_loss(StudentModel(), noisy, x, y)
    torch.testing.assert_close(ours, theirs)


def test_kl_has_no_monte_carlo_noise() -> None:
    model, guide = programs()
    x, y = random_batch(CLIENTS, EXAMPLES)
    none = torch.zeros(CLIENTS, EXAMPLES, dtype=torch.bool)
    with pyro_local():
        draws = torch.stack(
            [ClientELBO().client_losses(model, guide, x, y, none).detach() for _ in range(20)]
        )
    assert float(draws.var(0).max()) == 0.0
    torch.testing.assert_close(draws[0], guide.posterior().kl(model.prior))


def test_autonormal_would_have_noise_in_its_kl() -> None:
    """The reason for a guide of our own: with AutoNormal the KL is a one-sample estimate."""
    model, _ = programs()
    x, y = random_batch(CLIENTS, EXAMPLES)
    none = torch.zeros(CLIENTS, EXAMPLES, dtype=torch.bool)
    with pyro_local():
        auto = AutoNormal(model, init_scale=0.5)
        auto(x, y, none)
        draws = [
            TraceMeanField_ELBO().differentiable_loss(model, auto, x, y, none).item()
            for _ in range(5)
        ]
    assert len(set(draws)) == 5


def test_loss_is_affine_in_zeta_with_the_kl_as_slope() -> None:
    eps, losses = None, {}
    for zeta in (0.5, 1.0, 5.0, 20.0):
        model, guide = programs(zeta=zeta)
        eps = noise(model) if eps is None else eps
        x, y = random_batch(CLIENTS, EXAMPLES)
        with pyro_local():
            losses[zeta] = ClientELBO().client_losses(model, Noise(eps)(guide), x, y)
    slope = guide.posterior().kl(model.prior)
    for zeta, loss in losses.items():
        torch.testing.assert_close(loss, losses[1.0] + (zeta - 1.0) * slope)


def test_particles_average() -> None:
    model, guide = programs()
    x, y = random_batch(CLIENTS, EXAMPLES)
    with pyro_local():
        pyro.set_rng_seed(3)
        three = ClientELBO(num_particles=3).client_losses(model, guide, x, y)
        pyro.set_rng_seed(3)
        single = sum(ClientELBO().client_losses(model, guide, x, y) for _ in range(3)) / 3
    torch.testing.assert_close(three, single)


def test_a_step_equals_pyros_svi_on_the_same_noise() -> None:
    """Ours by hand-fed noise and torch's Adam; Pyro's by its SVI class, its ELBO and its optimizer wrapper."""
    model, _ = programs(zeta=2.0)
    x, y = random_batch(CLIENTS, EXAMPLES)
    eps = [noise(model, seed) for seed in (1, 2, 3)]
    posteriors = []
    for stock in (True, False):
        _, guide = programs(zeta=2.0)
        guide._model = (model,)
        with pyro_local():
            if stock:
                optimizer = pyro.optim.Adam({"lr": 1e-2})
                for e in eps:
                    SVI(model, Noise(e)(guide), optimizer, TraceMeanField_ELBO()).step(x, y)
            else:
                adam = torch.optim.Adam(guide.parameters(), lr=1e-2)
                for e in eps:
                    adam.zero_grad()
                    ClientELBO().loss_and_grads(model, Noise(e)(guide), x, y)
                    adam.step()
        posteriors.append(guide.posterior())
    for name in model.weight_shapes:
        torch.testing.assert_close(posteriors[0].loc[name], posteriors[1].loc[name])
        torch.testing.assert_close(posteriors[0].scale[name], posteriors[1].scale[name])


def test_a_site_missing_from_the_guide_is_named() -> None:
    model, _ = programs()
    x, y = random_batch(CLIENTS, EXAMPLES)

    def empty(*args) -> None:
        pass

    with (
        pyro_local(validate=True),
        pytest.raises(ValueError, match=r"site 'fc1.weight' is in the model"),
    ):
        ClientELBO().client_losses(model, empty, x, y)
