"""Posterior draws of one client by NUTS: slow, exact in the limit, and so a yardstick for q^i."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.infer import MCMC, NUTS
from pyro.ops.stats import split_gelman_rubin
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.families import MeanField
from pyro_pfedbayes.gaussians.flat_layout import FlatLayout
from pyro_pfedbayes.gaussians.mean_field import MeanFieldGaussian
from pyro_pfedbayes.inference.beliefs.client_objective import POINT, THETA, client_problem
from pyro_pfedbayes.inference.beliefs.points import PointBelief
from pyro_pfedbayes.inference.beliefs.sites import Belief, SiteBelief, w_of
from pyro_pfedbayes.models.declared import DeclaredModel
from pyro_pfedbayes.models.settings import pyro_local
from pyro_pfedbayes.models.sites import seeded
from pyro_pfedbayes.randomness import seed_for

MOST_WEIGHTS = 2000
"""Beyond it NUTS would hardly finish."""
DENSE_WEIGHTS = 100
"""Up to here the mass matrix is dense, so that correlated sites cost no more steps than independent ones."""
MIXED = 1.1
"""R-hat of the chain's halves above which it is called unmixed."""
DIVERGENT_SHARE = 0.01


class NutsWarning(UserWarning):
    """The chain's draws are not to be trusted as a yardstick."""


def nuts_draws(
    model: DeclaredModel,
    x: Tensor,
    y: Tensor,
    *,
    prior: Belief | None = None,
    zeta: float = 1.0,
    draws: int = 1000,
    warmup: int = 500,
    seed: int = 0,
) -> dict[str, Tensor]:
    """Draw one client's sites from the distribution that its q^i approximates, by the No-U-Turn sampler.

    Among all distributions the client objective ``-E_q log p(y | x, theta) + zeta KL(q || w)`` is least at
    ``q ∝ w · p(y | x, theta)^(1/zeta)``. That is the target here: Bayes' posterior at ``zeta = 1``, otherwise one whose
    likelihood is tempered. All of the client's data count at once. Private sites have the model's own
    priors; point estimates stand at the server's values.

    One chain, by Pyro's NUTS (Hoffman and Gelman 2014); Pyro's global state and PyTorch's stream are left as they are.

    Args:
        model: The declared model.
        x: The client's inputs ``[n, *features]``, covariates last.
        y: Its observations ``[n]``.
        prior: The server's belief, such as ``result.global_``, or a Gaussian over the shared sites in unconstrained
            coordinates. None for the model's own priors, which are those of the first round.
        zeta: Weight of the KL divergence, > 0.
        draws: Number of draws K after warm-up.
        warmup: Draws that adapt step size and mass matrix and are thrown away.
        seed: Seed of the chain.

    Returns:
        ``{site: [draws, *shape]}`` in the sites' own coordinates, as from a belief's ``sample``; consecutive draws
        depend on each other (see `pyro.ops.stats.effective_sample_size`).

    Raises:
        UserError: A setting out of range, more than 2,000 weights, data or a prior that do not fit the model, or
            a start with no finite density.

    Warns:
        NutsWarning: More than 1 % of draws diverged, or the chain's halves differ (R-hat above 1.1).

    Example:
        >>> import pyro_pfedbayes as pfb
        >>> def counts(x, y=None):
        ...     rate = pyro.sample("rate", dist.Gamma(2.0, 1.0))
        ...     with pyro.plate("data", len(x)):
        ...         pyro.sample("y", dist.Poisson(rate), obs=y)
        >>> model = pfb.ProgramModel(counts, pfb.DataSpec((1,)))
        >>> y = torch.tensor([3.0, 1.0, 4.0, 1.0, 5.0])
        >>> rate = nuts_draws(model, torch.zeros(5, 1), y, draws=300, warmup=100)["rate"]
        >>> rate.shape, round(float(rate.mean()), 1)  # exactly Gamma(2 + 14, 1 + 5), of mean 2.67
        (torch.Size([300]), 2.7)
    """
    _check(model, x, y, zeta, draws, warmup)
    posterior = client_posterior(model, prior, zeta, x)
    with pyro_local(), seeded(seed_for(seed, "nuts")):
        potential = posterior.recorded(x, y)
        if not bool(potential({"z": posterior.start}).isfinite()):
            raise UserError(
                "NUTS cannot begin: at the prior's mean the posterior density is not a positive finite number; "
                "look at x, y and the prior"
            )
        kernel = NUTS(potential_fn=potential, full_mass=posterior.latent.size <= DENSE_WEIGHTS)
        chain = MCMC(
            kernel,
            num_samples=draws,
            warmup_steps=warmup,
            initial_params={"z": posterior.start},
            disable_progbar=True,
        )
        chain.run()
        free: Tensor = chain.get_samples()["z"]
        _warn_if_unmixed(
            free, len(chain.diagnostics()["divergences"]["chain 0"]) if draws > 3 else 0
        )
        return posterior.sites(free)


@dataclass(frozen=True, eq=False)
class ClientPosterior:
    """One client's posterior over its random sites in one vector, shared ones first, in unconstrained coordinates."""

    model: DeclaredModel
    # Stands in for the priors of shared sites; None: the model's own
    w: dist.TorchDistribution | None
    points: Tensor | None  # values of the point estimates, flat; None if there are none
    zeta: float  # weight of the KL divergence
    start: Tensor  # where the chain begins ``[T]``

    @property
    def latent(self) -> FlatLayout:
        """Flat order of the random sites."""
        declared = self.model.declaration
        return FlatLayout({**declared.shared.shapes, **declared.private.shapes})

    def recorded(self, x: Tensor, y: Tensor) -> Callable[[Mapping[str, Tensor]], Tensor]:
        """The negative log-density, as a recording of its tensor operations that costs no Python of Pyro's."""
        with pyro_local():
            energy = make_fx(lambda z: self.energy(z, x, y))(self.start)
        return lambda values: energy(values["z"])

    def energy(self, z: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Negative log-density at ``z [T]`` in nats, up to a constant.

        The objective weighs log w by zeta and log q too, so its minimiser is the density that it weighs, to the power
        1/zeta.
        """
        declared, one = self.model.declaration, z.new_ones(())

        def values() -> None:
            sites = self.latent.unflatten(z)
            if self.w is not None:
                pyro.sample(THETA, dist.Delta(z[: declared.shared.size], event_dim=1))
                sites = {name: sites[name] for name in declared.private.shapes}
            for name, value in sites.items():
                pyro.sample(name, dist.Delta(value, event_dim=value.dim()))

        program = client_problem(self.model, self.w, self.points, one * self.zeta, one)
        at_values = poutine.replay(program, trace=poutine.trace(values).get_trace())
        total: Tensor = poutine.trace(at_values).get_trace(x, y).log_prob_sum()
        return -total / self.zeta

    def sites(self, free: Tensor) -> dict[str, Tensor]:
        """All sites in their own coordinates ``[K, *shape]``, from draws ``[K, T]``."""
        declared = self.model.declaration
        values = self.latent.unflatten(free)
        if self.points is not None:
            values |= declared.point.unflatten(self.points.expand(len(free), -1))
        own = self.model.constrain(values)
        return {name: own[name] for name in declared.shapes}


def client_posterior(
    model: DeclaredModel, prior: Belief | None, zeta: float, x: Tensor
) -> ClientPosterior:
    """What `nuts_draws` draws from; ``x`` are the client's inputs, for their device."""
    declared, start = model.declaration, model.start
    shared = declared.shared.flatten(start.loc) if declared.shared.shapes else None
    points = declared.point.flatten(start.loc) if declared.point.shapes else None
    w: dist.TorchDistribution | None = None
    if isinstance(prior, PointBelief):
        raise UserError(
            "prior is a point estimate, which has no density to draw under; give a Gaussian, or None"
        )
    if isinstance(prior, SiteBelief):
        _check_server(model, prior)
        points = prior.params.get(POINT)
        if shared is not None:
            parameters = w_of(prior.params)
            w, shared = declared.server.distribution(parameters), declared.server.mean(parameters)
    elif prior is not None:
        _check_gaussian(model, prior)
        loc, scale = (declared.shared.flatten(part) for part in (prior.loc, prior.scale))
        w, shared = MeanField().distribution({"loc": loc, "scale": scale}), loc
    own = declared.private.flatten(start.loc) if declared.private.shapes else None
    begin = torch.cat([part for part in (shared, own) if part is not None]).detach()
    return ClientPosterior(model, w, points, zeta, begin.to(x.device))


def _warn_if_unmixed(free: Tensor, divergent: int) -> None:
    reasons = []
    if divergent > DIVERGENT_SHARE * len(free):
        reasons.append(
            f"{divergent} of {len(free)} NUTS draws diverged: the posterior has corners that the chain did not reach; "
            "a longer warmup may help, or other coordinates in the program"
        )
    if len(free) >= 100 and not (r_hat := float(split_gelman_rubin(free[None]).max())) < MIXED:
        reasons.append(
            f"the NUTS chain has not mixed: R-hat of its halves is {r_hat:.2f}, it should be below {MIXED}; "
            "give more draws and a longer warmup"
        )
    for reason in reasons:
        warnings.warn(reason, NutsWarning, stacklevel=3)


def _check(
    model: DeclaredModel, x: Tensor, y: Tensor, zeta: float, draws: int, warmup: int
) -> None:
    for name, value, least in (("draws", draws, 1), ("warmup", warmup, 0)):
        if not isinstance(value, int) or value < least:
            raise UserError(f"{name} is {value!r}; give a whole number >= {least}")
    if not 0 < zeta < float("inf"):
        raise UserError(f"zeta is {zeta}; it must be a positive number")
    declared = model.declaration
    size = declared.shared.size + declared.private.size
    if size > MOST_WEIGHTS:
        raise UserError(
            f"the model has {size:,} random weights; NUTS would not finish above {MOST_WEIGHTS:,}: "
            "check a smaller model of the same kind"
        )
    if x.dim() < 2 or y.dim() != 1 or len(x) != len(y) or len(y) == 0:
        raise UserError(
            f"x is {list(x.shape)} and y {list(y.shape)}; give one client's inputs [n, *features] "
            "and observations [n], n at least 1"
        )
    model.check_fits(x[:2], y, "y")


def _check_server(model: DeclaredModel, prior: SiteBelief) -> None:
    if not prior.of_server:
        raise UserError("prior is a client's belief; give the server's, such as result.global_")
    theirs, own = prior.model.declaration, model.declaration
    if (theirs.shared, theirs.point) != (own.shared, own.point):
        raise UserError(
            f"prior is about the sites {', '.join(theirs.shapes)}, "
            f"the model has {', '.join(own.shapes)}; give a belief of this model's server"
        )


def _check_gaussian(model: DeclaredModel, prior: MeanFieldGaussian) -> None:
    declared = model.declaration
    if prior.stacked:
        raise UserError("prior is stacked, one a client; give one Gaussian")
    if declared.point.shapes:
        raise UserError(
            f"prior says nothing about the point estimate {next(iter(declared.point.shapes))!r}; "
            "give the server's belief, result.global_"
        )
    shapes = {name: tuple(prior.event_shape(name)) for name in prior.names}
    if shapes != dict(declared.shared.shapes):
        raise UserError(
            f"prior is a Gaussian over {shapes}, the shared sites are {dict(declared.shared.shapes)}"
        )
