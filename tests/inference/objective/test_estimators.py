"""Variance reduction must change the noise of a gradient and nothing else."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
import torch.nn.functional as F
from pyro import poutine
from pyro.infer import TraceMeanField_ELBO
from pyro.infer.autoguide import AutoNormal
from pyro.poutine.runtime import _PYRO_STACK
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.families import FullCovariance, FullRankNormal, StudentT
from pyro_pfedbayes.families.divergence import divergence
from pyro_pfedbayes.gaussians.mean_field import MeanFieldGaussian
from pyro_pfedbayes.inference.algorithms.pfedbayes import PFedBayes
from pyro_pfedbayes.inference.beliefs.guides import MeanFieldGuide
from pyro_pfedbayes.inference.engine.client_step import GradientEngine
from pyro_pfedbayes.inference.engine.noise import NoiseStreams
from pyro_pfedbayes.inference.federation.loop import Federation
from pyro_pfedbayes.inference.objective.elbo import ClientELBO
from pyro_pfedbayes.inference.objective.handlers import Flipout, LocalReparameterization
from pyro_pfedbayes.models.bayesian import BayesianModel
from pyro_pfedbayes.models.declared import DeclaredModel
from pyro_pfedbayes.models.likelihoods import Categorical
from pyro_pfedbayes.models.networks import mlp
from pyro_pfedbayes.models.program import ProgramModel
from pyro_pfedbayes.models.roles import Private
from pyro_pfedbayes.models.settings import pyro_local
from pyro_pfedbayes.models.spec import DataSpec
from tests.helpers import message, random_gaussian, tiny_model, toy_data

B, F64 = 6, torch.float64
KINDS = ("local", "flipout")


@pytest.fixture(autouse=True)
def _double() -> Any:
    """Programs here are written for float64, their prototypes too."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(F64)
    yield
    torch.set_default_dtype(before)


# --- a client of any declared model, many draws at once ---


def client_of(
    model: DeclaredModel, features: tuple[int, ...] = (4,), seed: int = 0
) -> dict[str, Any]:
    """One client near nothing in particular: parameters, w, batch; without client dimension."""
    stream = torch.Generator().manual_seed(seed)
    declared = model.declaration

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=stream, dtype=F64)

    params, size_of_w = {}, declared.shared.size
    for prefix, size in (("", size_of_w), ("private.", declared.private.size)):
        if size:
            params[prefix + "loc"] = 0.7 * normal(size)
            params[prefix + "rho"] = -1.0 + 0.3 * normal(size)
    if declared.point.size:
        params["point"] = normal(declared.point.size)
    w = {"loc": 0.3 * normal(size_of_w), "scale": 0.5 + normal(size_of_w).abs()}
    prior = declared.server.start(w["loc"], w["scale"]) if size_of_w else {}
    y = torch.randint(3, (B,), generator=stream)
    y = y if model.outcome == "class" else y.to(F64)
    return {"params": params, "prior": prior, "x": normal(B, *features), "y": y}


def drawn(
    model: DeclaredModel,
    client: dict[str, Any],
    kind: str,
    draws: int,
    *,
    own_prior: bool = False,
    seed: int = 1,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Losses ``[draws]`` and gradients ``[draws, P]``: as many clients that differ in their noise only."""
    engine = GradientEngine(model, "eager", kind)  # type: ignore[arg-type]

    def rows(value: Tensor) -> Tensor:
        return value.expand(draws, *value.shape)

    params = {k: rows(v) for k, v in client["params"].items()}
    x, y = rows(client["x"]), rows(client["y"])
    size = engine.noise_size(params, client["prior"], x, y, own_prior=own_prior)
    noise = torch.randn(1, draws, size, generator=torch.Generator().manual_seed(seed), dtype=F64)
    scale = torch.full((draws,), 3.0, dtype=F64)
    zeta = torch.tensor(0.5, dtype=F64)
    return engine(params, client["prior"], zeta, scale, noise, x, y, own_prior=own_prior)


def noise_size(model: DeclaredModel, client: dict[str, Any], kind: str, **options: Any) -> int:
    rows = {k: v[None] for k, v in client["params"].items()}
    engine = GradientEngine(model, "eager", kind)  # type: ignore[arg-type]
    return engine.noise_size(rows, client["prior"], client["x"][None], client["y"][None], **options)


def z_scores(ours: Tensor, theirs: Tensor) -> Tensor:
    """Differences of means over the first dimension, in standard errors."""
    error = (ours.var(0) / len(ours) + theirs.var(0) / len(theirs)).sqrt()
    difference = ours.mean(0) - theirs.mean(0)
    # Of what is not random, such as a divergence's gradient, nothing but rounding may be left.
    return difference / error.clamp_min(1e-9)


def assert_same_expectation(ours: Any, theirs: Any) -> None:
    """Loss within 4 standard errors; the squared z-scores of gradients average 1, within 5 standard errors of that."""
    assert abs(z_scores(ours[0], theirs[0])) < 4
    for name, reference in theirs[1].items():
        z = z_scores(ours[1][name], reference)
        # The variance of a mean of squares of correlated standard normal numbers is 2 tr(C^2) / P^2.
        standard = (reference - reference.mean(0)) / reference.std(0).clamp_min(1e-9)
        correlation = standard.T @ standard / len(standard)
        spread = (2 * correlation.square().sum()).sqrt() / len(z)
        assert z.square().mean() < 1 + 5 * spread, (name, spread, z)
        assert z.abs().max() < 5, (name, z)


def total_variances(gradients: dict[str, Tensor]) -> dict[str, float]:
    return {name: float(g.var(0).sum()) for name, g in gradients.items()}


# --- networks ---


def of(network: nn.Module, **options: Any) -> BayesianModel:
    return BayesianModel(network.double(), Categorical(3), **options)


def conv_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 3)
    )


class Positions(nn.Module):
    """A linear layer over three positions, then one over all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.each = nn.Linear(4, 2)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        # Inputs of one sign, so that one draw moves all positions of an example the same way.
        return self.head(torch.tanh(self.each(x.abs())).flatten(1))


class Merged(Positions):
    """The same, with positions moved into the rows: rows are no examples any more."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.each(x.flatten(0, 1))).reshape(len(x), -1))


class Turned(nn.Module):
    """Transposed convolution, which is no layer here, before one that is."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose1d(2, 2, 2)
        self.head = nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.up(x)).flatten(1))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], tuple[str, ...]]] = {
    "mlp": (lambda: mlp([4, 5, 3], seed=1), (4,), KINDS),
    "no bias": (
        lambda: nn.Sequential(nn.Linear(4, 5, bias=False), nn.Tanh(), nn.Linear(5, 3, bias=False)),
        (4,),
        KINDS,
    ),
    "conv2d": (conv_net, (1, 6, 6), ("flipout",)),
    "conv1d in groups": (
        lambda: nn.Sequential(
            nn.Conv1d(4, 4, 3, groups=2), nn.Tanh(), nn.Flatten(), nn.Linear(8, 3)
        ),
        (4, 4),
        ("flipout",),
    ),
    "conv3d": (
        lambda: nn.Sequential(
            nn.Conv3d(1, 2, 2, padding="same"), nn.Tanh(), nn.Flatten(), nn.Linear(16, 3)
        ),
        (1, 2, 2, 2),
        ("flipout",),
    ),
    "positions": (Positions, (3, 4), ("flipout",)),
    "merged": (Merged, (3, 4), KINDS),
    "transposed": (Turned, (2, 4), KINDS),
}


@pytest.mark.parametrize(
    ("name", "kind"), [(name, kind) for name, (_, _, kinds) in NETWORKS.items() for kind in kinds]
)
@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_expected_loss_and_gradient_are_those_of_plain_draws(name, kind) -> None:
    make, features, _ = NETWORKS[name]
    torch.manual_seed(0)
    model = of(make())
    client = client_of(model, features)
    assert_same_expectation(
        drawn(model, client, kind, 4000), drawn(model, client, "plain", 4000, seed=2)
    )


def test_gradients_vary_less() -> None:
    """The measured ratios (MLP 20-16-5, 40 examples): local .36 and .06, Flipout .53 and .54."""
    torch.manual_seed(0)
    model = BayesianModel(mlp([20, 16, 5], seed=1).double(), Categorical(5))
    client = client_of(model, (20,))
    client["x"] = torch.randn(40, 20, dtype=F64)
    client["y"] = torch.randint(5, (40,))
    of_kind = {k: total_variances(drawn(model, client, k, 400)[1]) for k in ("plain", *KINDS)}
    ratios = {k: [of_kind[k][p] / of_kind["plain"][p] for p in ("loc", "rho")] for k in KINDS}
    assert ratios["local"][0] < 0.6, ratios
    assert ratios["local"][1] < 0.2, ratios
    assert max(ratios["flipout"]) < 0.8, ratios
    assert min(ratios["flipout"]) > 0.2, ratios


# --- exactly ---


def kl_of(model: DeclaredModel, client: dict[str, Any]) -> Tensor:
    declared = model.declaration
    return divergence(
        declared.guide.distribution(client["params"]), declared.server.distribution(client["prior"])
    )


def engine_inputs(model: BayesianModel, client: dict[str, Any], eps: Tensor) -> tuple[Any, ...]:
    params = {k: v[None] for k, v in client["params"].items()}
    zeta, scale = torch.tensor(0.5, dtype=F64), torch.tensor([3.0], dtype=F64)
    return params, client["prior"], zeta, scale, eps, client["x"][None], client["y"][None]


def by_hand(model: BayesianModel, client: dict[str, Any], kind: str, eps: Tensor) -> Tensor:
    """The formula of each estimator for the network 4-5-3, noise in the order that layers are met."""
    layout = model.layout
    loc = layout.unflatten(client["params"]["loc"])
    scale = layout.unflatten(F.softplus(client["params"]["rho"]))
    left = eps

    def take(*shape: int) -> Tensor:
        nonlocal left
        count = int(torch.tensor(shape).prod())
        found, left = left[:count], left[count:]
        return found.reshape(shape)

    theta = loc
    if kind == "flipout":
        theta = layout.unflatten(
            client["params"]["loc"] + F.softplus(client["params"]["rho"]) * take(43)
        )
    h = client["x"]
    for layer, (fan_in, fan_out) in (("fc1", (4, 5)), ("head", (5, 3))):
        w, b = f"{layer}.weight", f"{layer}.bias"
        if kind == "local":
            variance = h**2 @ scale[w].T ** 2 + scale[b] ** 2
            out = h @ loc[w].T + loc[b] + variance.sqrt() * take(B, fan_out)
        else:
            r, s = take(B, fan_in), take(B, fan_out)
            r, s = torch.where(r < 0, -1.0, 1.0), torch.where(s < 0, -1.0, 1.0)
            out = h @ loc[w].T + theta[b] + ((h * r) @ (theta[w] - loc[w]).T) * s
        h = out.relu() if layer == "fc1" else out
    assert not len(left)
    return 0.5 * kl_of(model, client) + 3.0 * F.cross_entropy(h, client["y"], reduction="sum")


@pytest.mark.parametrize(
    ("kind", "size"), [("local", B * 8), ("flipout", 43 + B * (4 + 5 + 5 + 3))]
)
def test_losses_equal_the_formula(kind, size) -> None:
    """And local reparameterization takes no noise for weights at all."""
    model = tiny_model()
    client = client_of(model)
    assert noise_size(model, client, kind) == size
    eps = torch.randn(1, 1, size, dtype=F64, generator=torch.Generator().manual_seed(3))
    losses, gradients = GradientEngine(model, "eager", kind)(*engine_inputs(model, client, eps))
    leaves = {k: v.clone().requires_grad_() for k, v in client["params"].items()}
    hand = by_hand(model, {**client, "params": leaves}, kind, eps[0, 0])
    torch.testing.assert_close(losses[0], hand.detach(), rtol=1e-10, atol=1e-10)
    by_autograd = torch.autograd.grad(hand, tuple(leaves.values()))
    for name, g in zip(leaves, by_autograd, strict=True):
        torch.testing.assert_close(gradients[name][0], g, rtol=1e-9, atol=1e-9, msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_the_divergence_is_the_closed_one(kind) -> None:
    model = tiny_model()
    client = client_of(model)
    eps = torch.randn(1, 1, noise_size(model, client, kind), dtype=F64)
    params, prior, zeta, scale, *rest = engine_inputs(model, client, eps)
    losses, _ = GradientEngine(model, "eager", kind)(params, prior, zeta, 0 * scale, *rest)
    torch.testing.assert_close(losses[0], 0.5 * kl_of(model, client), rtol=1e-12, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_several_draws_average_single_ones(kind) -> None:
    model = tiny_model()
    client = client_of(model)
    eps = torch.randn(3, 1, noise_size(model, client, kind), dtype=F64)
    engine = GradientEngine(model, "eager", kind)
    single = [engine(*engine_inputs(model, client, one[None]))[0] for one in eps]
    together, _ = engine(*engine_inputs(model, client, eps))
    torch.testing.assert_close(together, torch.stack(single).mean(0), rtol=1e-12, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_under_the_mask_do_not_count(kind) -> None:
    model = tiny_model()
    client = client_of(model)
    eps = torch.randn(1, 1, noise_size(model, client, kind), dtype=F64)
    engine = GradientEngine(model, "eager", kind)
    *given, x, y = engine_inputs(model, client, eps)
    mask = torch.arange(B)[None] < 2
    padded = torch.where(mask[..., None], x, 100.0)
    losses, gradients = engine(*given, x, y, mask)
    others, other_gradients = engine(*given, padded, y, mask)
    assert torch.equal(losses, others)
    assert all(torch.equal(gradients[k], other_gradients[k]) for k in gradients)
    assert not torch.equal(losses, engine(*given, x, y)[0])
    assert torch.equal(engine(*given, x, y)[0], engine(*given, x, y, mask | True)[0])


def test_a_row_of_zeros_has_finite_gradients() -> None:
    """Its outputs have no variance where there is no bias, and a root no derivative at 0."""
    torch.manual_seed(0)
    model = of(nn.Sequential(nn.Linear(4, 3, bias=False)))
    client = client_of(model)
    client["x"][0] = 0
    _, gradients = drawn(model, client, "local", 2)
    assert all(bool(g.isfinite().all()) for g in gradients.values())


@pytest.mark.parametrize(
    ("mode", "kind"),
    [
        ("traced", "local"),
        ("traced", "flipout"),
        ("compiled", "local"),
        pytest.param("compiled", "flipout", marks=pytest.mark.slow),
    ],
)
def test_recordings_compute_the_same(mode, kind) -> None:
    model = tiny_model()
    client = client_of(model)
    size = noise_size(model, client, kind)
    eager, recorded = GradientEngine(model, "eager", kind), GradientEngine(model, mode, kind)
    for _ in range(2):  # the second time nothing is recorded
        given = engine_inputs(model, client, torch.randn(2, 1, size, dtype=F64))
        (loss, gradients), (other, other_gradients) = eager(*given), recorded(*given)
        if mode == "traced":
            assert torch.equal(loss, other)
            assert all(torch.equal(gradients[k], other_gradients[k]) for k in gradients)
        torch.testing.assert_close(loss, other, rtol=1e-11, atol=1e-11)
        torch.testing.assert_close(gradients, other_gradients, rtol=1e-9, atol=1e-9)
    assert len(recorded._steps) == 1


# --- what it must not be used for ---


def test_refusals_say_what_to_use() -> None:
    conv = of(conv_net())
    client = client_of(conv, (1, 6, 6))
    for kind, model, given in (
        ("convolution (site '0.weight')", conv, client),
        ("positions (site 'each.weight')", of(Positions()), client_of(of(Positions()), (3, 4))),
    ):
        text = message(noise_size, model, given, "local")
        assert kind in text
        assert "use estimator 'flipout' or 'plain'" in text
    full = tiny_model(guide=FullRankNormal(), server=FullCovariance())
    assert "mean-field guide, not 'full-rank'" in message(GradientEngine, full, "eager", "local")

    def no_layers(x: Tensor, y: Tensor | None = None) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([4]).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)

    model = ProgramModel(no_layers, DataSpec((4,)))
    for kind in KINDS:
        text = message(noise_size, model, client_of(model), kind)
        assert f"estimator is '{kind}', but no linear layer" in text
        assert "use estimator 'plain'" in text


# --- programs that use weights in other ways than one layer does ---

KNOTS = torch.linspace(-1, 1, B * 4, dtype=F64).reshape(B, 4)
FIXED = torch.linspace(-1, 1, 20, dtype=F64).reshape(5, 4)


class Leaning(dist.Normal):
    """A Normal that asks a weight only when it is evaluated."""

    def __init__(self, loc: Tensor, weight: Tensor) -> None:
        super().__init__(loc, 1.0)
        self.weight = weight

    def expand(self, batch_shape: Any, _instance: Any = None) -> Leaning:
        return Leaning(self.loc.expand(batch_shape), self.weight)

    def log_prob(self, value: Tensor) -> Tensor:
        return super().log_prob(value - self.weight.square().sum())


def tied(x, w, b):
    h = torch.tanh(F.linear(x, w, b)[..., :4])
    return F.linear(h, w, b)


def squared(x, w, b):
    return F.linear(x, w, b) + w.square().sum()


def multiplied(x, w, b):
    return F.linear(x, w, b) + x @ w.T


def listed(x, w, b):
    return F.linear(x, w, b) + torch.cat([w, w], 0)[:5].sum(-1)


def rows_shared(x, w, b):
    return F.linear(x, FIXED) + F.linear(KNOTS, w, b).mean(0)


def rows_turned(x, w, b):
    return F.linear(x.flip(0).cumsum(0), w, b).cumsum(0)


def rows_paired(x, w, b):
    out = F.linear(x, w, b)
    return out + (torch.arange(len(x)) % 2)[:, None] * out.roll(1, 0)


def bias_shared(x, w, b):
    return F.linear(x, w, b) * F.linear(x, FIXED, b)


def only_bias(x, w, b):
    return F.linear(x, FIXED, b) + w.sum()


def as_input(x, w, b):
    return F.linear(x, w, b) + F.linear(w, FIXED).sum(-1)


def qualifying(x, w, b):
    assert w.shape == (5, 4)
    assert w.dtype == x.dtype
    return F.linear(input=x, weight=w, bias=b)


def program_of(
    hidden: Callable[[Tensor, Tensor, Tensor], Tensor], likelihood: Any = None
) -> ProgramModel:
    """One hidden layer made by ``hidden``, then an ordinary layer with weight v."""

    def program(x: Tensor, y: Tensor | None = None) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([5, 4]).to_event(2))
        b = pyro.sample("b", dist.Normal(0.0, 1.0).expand([5]).to_event(1))
        v = pyro.sample("v", dist.Normal(0.0, 1.0).expand([1, 5]).to_event(2))
        mean = F.linear(torch.tanh(hidden(x, w, b)), v)[..., 0]
        with pyro.plate("data", len(x)):
            pyro.sample(
                "y", dist.Normal(mean, 1.0) if likelihood is None else likelihood(mean, w), obs=y
            )

    return ProgramModel(program, DataSpec((4,)))


PROGRAMS: dict[str, tuple[Any, Any, set[str]]] = {
    "qualifying": (qualifying, None, {"w", "b", "v"}),
    "tied": (tied, None, {"v"}),
    "squared": (squared, None, {"v"}),
    "multiplied": (multiplied, None, {"v"}),
    "in a list": (listed, None, {"v"}),
    "rows shared": (rows_shared, None, {"v"}),
    "rows summed": (rows_turned, None, {"v"}),
    "rows paired": (rows_paired, None, {"v"}),
    "bias shared": (bias_shared, None, {"w", "v"}),
    "only a bias": (only_bias, None, {"v"}),
    "as an input": (as_input, None, {"v"}),
    "asked later": (qualifying, Leaning, {"v"}),
}


@functools.cache
def plainly(name: str, own_prior: bool = False) -> Any:
    model = program_of(*PROGRAMS[name][:2])
    return drawn(model, client_of(model), "plain", 4000, own_prior=own_prior, seed=2)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("kind", KINDS)
def test_only_weights_that_qualify_get_it(name, kind) -> None:
    """The noise taken tells which, and the expectation is that of plain draws for every program."""
    hidden, likelihood, suited = PROGRAMS[name]
    model = program_of(hidden, likelihood)
    client = client_of(model)
    size = noise_size(model, client, kind)
    if kind == "local":
        of_weights = sum({"w": 20, "b": 5, "v": 5}[k] for k in {"w", "b", "v"} - suited)
        of_layers = {"w": B * 5, "v": B * 1}
    else:
        of_weights, of_layers = 30, {"w": B * (4 + 5), "v": B * (5 + 1)}
    assert size == of_weights + sum(of_layers[k] for k in suited if k != "b")
    assert_same_expectation(drawn(model, client, kind, 4000), plainly(name))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["qualifying", "tied"])
def test_the_first_round_has_it_too(name, kind) -> None:
    """There the program's own priors stand in, and every weight is drawn."""
    model = program_of(*PROGRAMS[name][:2])
    client = client_of(model)
    assert noise_size(model, client, "local", own_prior=True) > 30
    assert_same_expectation(
        drawn(model, client, kind, 4000, own_prior=True), plainly(name, own_prior=True)
    )


def test_weights_are_drawn_where_the_divergence_is_estimated() -> None:
    model = tiny_model(server=StudentT(4.0))
    client = client_of(model)
    assert noise_size(model, client, "local") == 43 + B * 8
    for kind in KINDS:
        assert_same_expectation(
            drawn(model, client, kind, 4000), drawn(model, client, "plain", 4000, seed=2)
        )


@pytest.mark.parametrize("kind", KINDS)
def test_points_stay_and_private_heads_profit(kind) -> None:
    roles = {"fc1.weight": "point", "head.*": Private(dist.Normal(0.0, 1.0))}
    model = tiny_model(roles=roles)
    client = client_of(model)
    # fc1.bias, the head's weights, which are drawn all the same, and the head's outputs.
    if kind == "local":
        assert noise_size(model, client, kind) == 5 + 18 + B * 3
    ours = drawn(model, client, kind, 4000)
    theirs = drawn(model, client, "plain", 4000, seed=2)
    assert_same_expectation(ours, theirs)
    ratio = float(ours[1]["private.rho"].var(0).sum() / theirs[1]["private.rho"].var(0).sum())
    assert ratio < (0.5 if kind == "local" else 0.95)


@pytest.mark.parametrize("kind", KINDS)
def test_a_prior_of_the_first_round_and_a_hierarchical_one(kind) -> None:
    def wide() -> dist.TorchDistribution:
        return dist.StudentT(3.0, 0.0, pyro.sample("tau", dist.LogNormal(0.0, 0.3)))

    for options in ({"first_prior": dist.Laplace(0.0, 1.0)}, {"roles": {"head.*": Private(wide)}}):
        model = tiny_model(**options)
        client = client_of(model)
        for own_prior in (True, False):
            assert_same_expectation(
                drawn(model, client, kind, 4000, own_prior=own_prior),
                drawn(model, client, "plain", 4000, own_prior=own_prior, seed=2),
            )


# --- runs ---


def federation(kind: str, **options: Any) -> Federation:
    model = BayesianModel(mlp([4, 5, 3], seed=1).float(), Categorical(3))
    algorithm = PFedBayes(
        estimator=kind,
        local_steps=3,
        batch_size=10,
        personal_rounds=0,
        lr=0.01,  # type: ignore[arg-type]
    )
    return Federation(model, toy_data((30, 7, 50)), algorithm=algorithm, seed=5, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_gives_the_same_run(kind) -> None:
    torch.set_default_dtype(torch.float32)
    first, again = (federation(kind).run(rounds=3) for _ in range(2))
    plain = federation("plain").run(rounds=3)
    for name, value in first.global_.loc.items():
        assert torch.equal(value, again.global_.loc[name])
        assert not torch.equal(value, plain.global_.loc[name])


@pytest.mark.parametrize("kind", KINDS)
def test_a_clients_step_does_not_depend_on_who_else_takes_part(kind) -> None:
    model = tiny_model()
    client = client_of(model)
    size = noise_size(model, client, kind)

    def step(clients: list[int]) -> tuple[Tensor, Tensor]:
        noise = NoiseStreams(3, 0, clients, 1, width=size, like=client["x"]).draw()
        params, prior, zeta, scale, _, x, y = engine_inputs(model, client, noise)
        rows = {k: v.expand(len(clients), -1) for k, v in params.items()}
        x, y = x.expand(len(clients), -1, -1), y.expand(len(clients), -1)
        losses, gradients = GradientEngine(model, "eager", kind)(
            rows, prior, zeta, scale.expand(len(clients)), noise, x, y
        )
        return losses, gradients["rho"]

    alone, together = step([7]), step([2, 7, 9])
    torch.testing.assert_close(alone[0][0], together[0][1], rtol=1e-12, atol=0)
    torch.testing.assert_close(alone[1][0], together[1][1], rtol=1e-10, atol=1e-12)
    assert together[0][0] != together[0][1]


# --- handlers for any ELBO ---


def stacked_pair() -> tuple[Any, Any, Tensor, Tensor]:
    """A model of 300 equal clients and its guide: as many draws of one."""
    model = tiny_model(zeta=0.5, data_scale=3.0)
    q = random_gaussian(model, clients=None, seed=4)
    rows = MeanFieldGaussian.stack([q] * 300)
    model = model.with_prior(random_gaussian(model, seed=5), zeta=0.5, data_scale=3.0)
    client = client_of(model)
    x, y = client["x"].expand(300, B, 4), client["y"].expand(300, B)
    return model, MeanFieldGuide(model, rows), x, y


def stacked_draws(handler: Any, seed: int) -> tuple[Tensor, dict[str, Tensor]]:
    model, guide, x, y = stacked_pair()
    torch.manual_seed(seed)
    losses, gradients = [], []
    for _ in range(10):
        with handler or contextlib.nullcontext():
            loss = ClientELBO().client_losses(model, guide, x, y)
        found = torch.autograd.grad(loss.sum(), tuple(guide.parameters()))
        losses.append(loss.detach())
        gradients.append(torch.cat([g.flatten(1) for g in found], -1))
    return torch.cat(losses), {"all": torch.cat(gradients)}


@pytest.mark.parametrize("make", [LocalReparameterization, Flipout])
def test_round_the_elbo_of_stacked_clients(make) -> None:
    handler = make()  # used ten times
    ours, theirs = stacked_draws(handler, 1), stacked_draws(None, 2)
    assert_same_expectation(ours, theirs)
    ratio = ours[1]["all"].var(0).sum() / theirs[1]["all"].var(0).sum()
    assert ratio < 0.9


@pytest.mark.parametrize("make", [LocalReparameterization, Flipout])
def test_layers_over_positions_are_told_apart_in_a_stack(make) -> None:
    model = BayesianModel(Merged().double(), Categorical(3))
    guide = MeanFieldGuide(model, MeanFieldGaussian.stack([model.prior] * 2))
    x, y = torch.randn(2, B, 3, 4), torch.zeros(2, B, dtype=torch.long)
    with CountNoise() as count, make():
        ClientELBO().client_losses(model, guide, x, y)
    # Only the head is a layer over examples.
    assert count.shapes == [(B, 3)] if make is LocalReparameterization else [(B, 6), (B, 3)]
    positions = BayesianModel(Positions().double(), Categorical(3))
    guide = MeanFieldGuide(positions, MeanFieldGaussian.stack([positions.prior] * 2))
    if make is LocalReparameterization:
        with pytest.raises(UserError, match="over positions"), make():
            ClientELBO().client_losses(positions, guide, x, y)


class CountNoise(TorchFunctionMode):
    """Shapes that torch.randn was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.randn:
            self.shapes.append(tuple(args[0]))
        return func(*args, **(kwargs or {}))


X = torch.linspace(-2, 2, 24, dtype=F64).reshape(6, 4)
Y = torch.tensor([0.3, -0.4, 1.0, 0.2, -1.0, 0.8], dtype=F64)


def single(hidden: Any = qualifying) -> Any:
    def model() -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([5, 4]).to_event(2))
        b = pyro.sample("b", dist.Normal(0.0, 1.0).expand([5]).to_event(1))
        v = pyro.sample("v", dist.Normal(0.0, 1.0).expand([1, 5]).to_event(2))
        mean = F.linear(torch.tanh(hidden(X, w, b)), v)[..., 0]
        with pyro.plate("data", len(X)):
            pyro.sample("y", dist.Normal(mean, 1.0), obs=Y)

    return model


class Leaves(nn.Module):
    """An ordinary guide with parameters of its own, and the gradients of one evaluation."""

    def __init__(self, auto: bool = False) -> None:
        super().__init__()
        stream = torch.Generator().manual_seed(0)
        self.shapes = {"w": (5, 4), "b": (5,), "v": (1, 5)}
        self.loc = {
            k: torch.randn(s, generator=stream).requires_grad_() for k, s in self.shapes.items()
        }
        self.log_scale = {k: torch.full(s, -1.0).requires_grad_() for k, s in self.shapes.items()}
        self.auto = auto

    def forward(self) -> None:
        for name, shape in self.shapes.items():
            fn = dist.Normal(self.loc[name], self.log_scale[name].exp()).to_event(len(shape))
            if not self.auto:
                pyro.sample(name, fn)
                continue
            # As AutoNormal does.
            value = pyro.sample(f"{name}_unconstrained", fn, infer={"is_auxiliary": True})
            pyro.sample(name, dist.Delta(value, event_dim=len(shape)))

    def gradient(self, loss: Tensor) -> Tensor:
        leaves = (*self.loc.values(), *self.log_scale.values())
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, leaves)])


def single_draws(handler: Any, elbo: Any, guide: Leaves, seed: int, draws: int = 150) -> Any:
    torch.manual_seed(seed)
    losses, gradients = [], []
    for _ in range(draws):
        with handler or contextlib.nullcontext():
            loss = elbo.differentiable_loss(single(), guide)
        losses.append(loss.detach())
        gradients.append(guide.gradient(loss))
    return torch.stack(losses), {"all": torch.stack(gradients)}


@pytest.mark.parametrize("make", [LocalReparameterization, Flipout])
@pytest.mark.parametrize("auto", [False, True], ids=["Normal sites", "as AutoNormal"])
def test_round_an_elbo_of_pyros_own(make, auto) -> None:
    """An AutoNormal's divergence is estimated, so only the mean is asked."""
    guide = Leaves(auto)
    elbo = TraceMeanField_ELBO()
    with pyro_local():
        ours = single_draws(make(), elbo, guide, 1)
        theirs = single_draws(None, elbo, guide, 2)
    assert_same_expectation(ours, theirs)
    if not auto:
        ratio = ours[1]["all"].var(0).sum() / theirs[1]["all"].var(0).sum()
        assert ratio < 0.9


def test_round_autonormal_and_svi() -> None:
    """Pyro's own guide and training loop, the handler left open over all steps: it finds its layers at each."""
    torch.manual_seed(0)
    with pyro_local():
        guide = AutoNormal(single())
        elbo = TraceMeanField_ELBO()
        with LocalReparameterization():  # the guide sets itself up in here, running the model
            elbo.differentiable_loss(single(), guide)
        adam = torch.optim.Adam(guide.parameters(), lr=0.05)
        losses = []
        with CountNoise() as count, LocalReparameterization():
            for _ in range(150):
                adam.zero_grad()
                loss = elbo.differentiable_loss(single(), guide)
                loss.backward()
                adam.step()
                losses.append(float(loss.detach()))
    assert count.shapes == [(6, 5), (6, 1)] * 150
    assert sum(losses[-30:]) < 0.8 * sum(losses[:30])


@pytest.mark.parametrize("make", [LocalReparameterization, Flipout])
def test_each_particle_is_served(make) -> None:
    guide = Leaves()
    with pyro_local(), CountNoise() as count, make():
        TraceMeanField_ELBO(num_particles=3).differentiable_loss(single(), guide)
    each = 2 if make is LocalReparameterization else 4
    assert len(count.shapes) == 3 * each


def test_weights_of_other_families_keep_their_draws() -> None:
    """Positive weights, of which only the logarithm is Normal."""

    def model() -> None:
        w = pyro.sample("w", dist.LogNormal(0.0, 1.0).expand([5, 4]).to_event(2))
        v = pyro.sample("v", dist.Normal(0.0, 1.0).expand([1, 5]).to_event(2))
        mean = F.linear(torch.tanh(F.linear(X, w)), v)[..., 0]
        pyro.sample("y", dist.Normal(mean, 1.0).to_event(1), obs=Y)

    def guide() -> None:
        pyro.sample("w", dist.LogNormal(-1.0, 0.3).expand([5, 4]).to_event(2))
        pyro.sample("v", dist.Normal(0.0, 0.1).expand([1, 5]).mask(True).to_event(2))

    with CountNoise() as count, LocalReparameterization():
        TraceMeanField_ELBO().differentiable_loss(model, guide)
    assert count.shapes == [(6, 1)]


@pytest.mark.parametrize("make", [LocalReparameterization, Flipout])
def test_handlers_leave_nothing_behind(make) -> None:
    before = F.linear, torch.conv2d, torch.randn
    handler = make()

    def failing(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        F.linear(x, w, b)
        raise KeyError("inside")

    for _ in range(2):
        with pytest.raises(KeyError, match="inside"), pyro_local(), handler:
            TraceMeanField_ELBO().differentiable_loss(single(failing), Leaves())
        assert len(_get_current_function_mode_stack()) == 0
        assert len(_PYRO_STACK) == 0
    with pytest.raises(ValueError, match="twice"), handler, handler:
        pass  # pragma: no cover
    assert len(_get_current_function_mode_stack()) == 0
    assert (F.linear, torch.conv2d, torch.randn) == before


@pytest.mark.parametrize("make", [LocalReparameterization, Flipout])
@pytest.mark.parametrize("hidden", [tied, squared, multiplied, listed], ids=lambda f: f.__name__)
def test_a_weight_that_serves_twice_is_refused_by_handlers(make, hidden) -> None:
    """They do not know what is to come, and the loss would be another."""
    with (
        pyro_local(),
        pytest.raises(UserError, match="site 'w' is used by a layer and once more"),
        make(),
    ):
        TraceMeanField_ELBO().differentiable_loss(single(hidden), Leaves())


def test_handlers_refuse_where_they_can_do_nothing() -> None:
    def by_product(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return x @ w.T + b

    def model() -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([5, 4]).to_event(2))
        pyro.sample(
            "y",
            dist.Normal(by_product(X, w, torch.zeros(5)), 1.0).to_event(2),
            obs=torch.ones(6, 5),
        )

    def guide() -> None:
        pyro.sample("w", dist.Normal(0.0, 1.0).expand([5, 4]).to_event(2))

    with pytest.raises(UserError, match="found no linear layer"), LocalReparameterization():
        TraceMeanField_ELBO().differentiable_loss(model, guide)
    # Round the model alone the values are the guide's, and the distributions the prior's.
    with pytest.raises(UserError, match="round the evaluation of the ELBO"):
        TraceMeanField_ELBO().differentiable_loss(Flipout()(single()), Leaves())


@pytest.mark.parametrize("make", [LocalReparameterization, Flipout])
def test_handlers_nest_with_those_of_pyro_in_either_order(make) -> None:
    def loss(*handlers: Any) -> Tensor:
        with contextlib.ExitStack() as stack:
            stack.enter_context(pyro_local())
            for handler in handlers:
                stack.enter_context(handler)
            torch.manual_seed(3)
            return TraceMeanField_ELBO().differentiable_loss(single(), Leaves())

    once = loss(make())
    assert not torch.equal(once, loss())
    for others in ((poutine.scale(scale=2.0), make()), (make(), poutine.scale(scale=2.0))):
        torch.testing.assert_close(loss(*others), 2 * once)
