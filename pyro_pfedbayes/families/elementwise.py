"""Servers of independent weights: Gaussian (the paper's w), Laplace and Student's t."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pyro.distributions as dist
import torch
from numpy.polynomial.hermite_e import hermegauss
from pyro.distributions import TorchDistribution
from scipy.optimize import brentq
from torch import Tensor

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.families.base import ServerFamily
from pyro_pfedbayes.families.rows import GaussianRows, column_blocks, moments, shares

NODES = 20  # of the Gauss-Hermite rule
_STEPS = 100


@dataclass(frozen=True)
class MeanField(ServerFamily):
    """W = Π N(loc, scale²), by ``loc [T]`` and ``scale [T]``.

    The projection is exact for every Gaussian client: it matches mean and variance of each weight,
    loc = Σ p μ_i and scale² = Σ p [σ²_i + (μ_i - loc)²] (Zhang et al. 2022, section 3).

    Example:
        >>> rows = GaussianRows(torch.tensor([[0.0], [2.0]]), torch.ones(2, 1))
        >>> MeanField().project(rows, torch.ones(2), {})
        {'loc': tensor([1.]), 'scale': tensor([1.4142])}
    """

    name = "mean-field"

    def distribution(self, w: Mapping[str, Tensor]) -> TorchDistribution:
        return dist.Normal(w["loc"], w["scale"]).to_event(1)

    def project(
        self, rows: GaussianRows, weights: Tensor, previous: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        loc, scale = moments(rows, weights)
        return {"loc": loc, "scale": scale}


@dataclass(frozen=True)
class Laplace(ServerFamily):
    """Independent Laplace distributions of density exp(-|θ - loc| / scale) / (2 scale), by ``loc [T]``, ``scale [T]``.

    The projection is exact up to root finding, for every Gaussian client: loc is the median of the mixture of the
    clients' marginals, where Σ p_i Φ((loc - μ_i) / σ_i) = 1/2, and scale = Σ p_i E|θ_i - loc|, the mean of a folded
    normal.

    Example:
        >>> rows = GaussianRows(torch.tensor([[0.0], [0.0], [9.0]]), torch.full((3, 1), 1e-3))
        >>> w = Laplace().project(rows, torch.ones(3), {})
        >>> w["loc"].abs() < 1e-3, w["scale"]
        (tensor([True]), tensor([3.0004]))
    """

    name = "laplace"

    def start(self, loc: Tensor, scale: Tensor) -> dict[str, Tensor]:
        return {"loc": loc.clone(), "scale": scale / math.sqrt(2.0)}

    def distribution(self, w: Mapping[str, Tensor]) -> TorchDistribution:
        return dist.Laplace(w["loc"], w["scale"]).to_event(1)

    def project(
        self, rows: GaussianRows, weights: Tensor, previous: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Median and mean distance, in float64; ``previous`` is not used."""
        p = shares(rows, weights).unsqueeze(1)

        def solve(block: slice, mu: Tensor, sigma: Tensor) -> tuple[Tensor, Tensor]:
            loc = _median(mu, sigma, p)
            return loc, (p * sigma * folded_mean((mu - loc) / sigma)).sum(0)

        return _by_block(rows, 8, solve)

    def std(self, w: Mapping[str, Tensor]) -> Tensor:
        return math.sqrt(2.0) * w["scale"]

    def nearest(self, w: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """As for all families: at distance E|θ - loc| = scale, so that projecting it gives w back."""
        return w["loc"], math.sqrt(math.pi / 2.0) * w["scale"]

    def sample(self, w: Mapping[str, Tensor], generator: torch.Generator) -> Tensor:
        """One draw ``[T]``: an exponential number with a random sign."""
        size = torch.empty_like(w["loc"]).exponential_(generator=generator)
        sign = torch.empty_like(w["loc"]).bernoulli_(generator=generator) * 2.0 - 1.0
        return w["loc"] + w["scale"] * sign * size


@dataclass(frozen=True)
class StudentT(ServerFamily):
    """Independent Student t distributions of fixed degrees of freedom, by ``loc [T]`` and ``scale [T]``.

    The projection has no closed form. For every weight EM (Lange, Little and Taylor 1989, in the faster form of Kent,
    Tyler and Vardi 1994) minimises the divergence, with the clients' marginals replaced by 20 Gauss-Hermite nodes
    each, from the matched moments. With clients far apart there may be several minima; it finds one.

    Args:
        df: Degrees of freedom ν > 2 (below that it has no variance), the same for all weights and rounds.

    Example:
        >>> w = StudentT(4.0).start(torch.zeros(1), torch.ones(1))
        >>> StudentT(4.0).distribution(w).variance
        tensor([1.0000])
    """

    df: float

    def __post_init__(self) -> None:
        if not 2.0 < self.df < math.inf:
            raise UserError(f"df of a Student t server is {self.df}: give a number above 2")

    name = "student-t"

    def start(self, loc: Tensor, scale: Tensor) -> dict[str, Tensor]:
        return {"loc": loc.clone(), "scale": scale * math.sqrt((self.df - 2.0) / self.df)}

    def distribution(self, w: Mapping[str, Tensor]) -> TorchDistribution:
        df = torch.full_like(w["loc"], self.df)
        return dist.StudentT(df, w["loc"], w["scale"]).to_event(1)

    def project(
        self, rows: GaussianRows, weights: Tensor, previous: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """EM in float64, at most 100 steps; ``previous`` is not used: the clients alone decide."""
        p, start = shares(rows, weights), self.start(*moments(rows, weights))
        nodes, node_weights = (torch.as_tensor(v).to(p) for v in hermegauss(NODES))
        share = (p[:, None, None] * (node_weights / node_weights.sum())[:, None]).flatten(0, 1)

        def solve(block: slice, mu: Tensor, sigma: Tensor) -> tuple[Tensor, Tensor]:
            points = (mu.unsqueeze(1) + sigma.unsqueeze(1) * nodes[:, None]).flatten(0, 1)
            loc, scale = (start[name][block].double() for name in ("loc", "scale"))
            return _student(points, share, loc, scale, self.df)

        return _by_block(rows, 3 * NODES, solve)

    def std(self, w: Mapping[str, Tensor]) -> Tensor:
        return w["scale"] * math.sqrt(self.df / (self.df - 2.0))

    def nearest(self, w: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        return w["loc"], _nearest_ratio(self.df) * w["scale"]

    def sample(self, w: Mapping[str, Tensor], generator: torch.Generator) -> Tensor:
        """One draw ``[T]`` from two uniform numbers a weight (Bailey 1994, Math. Comp. 62)."""
        size, angle = (
            torch.empty_like(w["loc"], dtype=torch.float64).uniform_(generator=generator)
            for _ in range(2)
        )
        size = 1.0 - size  # in (0, 1]
        radius = (self.df * torch.expm1(-2.0 / self.df * size.log())).sqrt()
        return w["loc"] + w["scale"] * (radius * torch.cos(2.0 * math.pi * angle)).to(w["loc"])


@functools.cache
def _nearest_ratio(df: float) -> float:
    """The σ of the Gaussian nearest to a t of scale 1: where E[(ν + 1) σ²z² / (ν + σ²z²)] = 1, z ~ N(0, 1)."""
    nodes, weights = hermegauss(4 * NODES)
    weights = weights / weights.sum()

    def excess(sigma: float) -> float:
        square = (sigma * nodes) ** 2
        return float((weights * (df + 1.0) * square / (df + square)).sum()) - 1.0

    return float(brentq(excess, 0.5, 4.0, xtol=1e-15))


def folded_mean(z: Tensor) -> Tensor:
    """E|x| of x ~ N(z, 1), the mean of a folded normal."""
    mean = math.sqrt(2.0 / math.pi) * torch.exp(-0.5 * z.square())
    return mean + z * torch.erf(z / math.sqrt(2.0))


def _by_block(
    rows: GaussianRows,
    copies: int,
    solve: Callable[[slice, Tensor, Tensor], tuple[Tensor, Tensor]],
) -> dict[str, Tensor]:
    """``loc`` and ``scale``, solved in float64 for a block of weights at a time, by the rows' marginals."""
    parts = []
    for block in column_blocks(rows, copies):
        marginals = rows.columns(block)
        parts.append(torch.stack(solve(block, marginals.loc, marginals.std)))
    loc, scale = torch.cat(parts, 1).to(rows.loc.dtype)
    return {"loc": loc, "scale": scale}


def _median(mu: Tensor, sigma: Tensor, p: Tensor) -> Tensor:
    """Where Σ p Φ((x - μ) / σ) = 1/2, for each column ``[T]``: by Newton's steps, or halving where they go astray."""
    low, high = mu.amin(0), mu.amax(0)
    x = (p * mu).sum(0)
    for _ in range(_STEPS):
        z = (x - mu) / sigma
        excess = 0.5 * (p * torch.erf(z / math.sqrt(2.0))).sum(0)
        density = (p * torch.exp(-0.5 * z.square()) / sigma).sum(0) / math.sqrt(2.0 * math.pi)
        low, high = torch.where(excess < 0, x, low), torch.where(excess > 0, x, high)
        step = x - excess / density  # not finite where no client is near
        middle = 0.5 * (low + high)
        new = torch.where((step >= low) & (step <= high), step, middle)
        moved, x = (new - x).abs(), new
        if bool((moved <= 1e-12 * (high - low + sigma.amin(0))).all()):
            break
    return x


def _student(
    points: Tensor, share: Tensor, loc: Tensor, scale: Tensor, df: float
) -> tuple[Tensor, Tensor]:
    """EM for a t distribution at points ``[P, T]`` of shares ``[P, 1]``; loc and scale are ``[T]``."""
    for _ in range(_STEPS):
        distance = ((points - loc) / scale).square()
        weight = share / (df + distance)  # up to a factor, which cancels
        total = weight.sum(0)
        new_loc = (weight * points).sum(0) / total
        # Divided by the total weight, not by 1 as in plain EM: the same fixed point, in fewer steps.
        new_scale = ((weight * (points - new_loc).square()).sum(0) / total).sqrt()
        moved = torch.maximum((new_loc - loc).abs(), (new_scale - scale).abs())
        loc, scale = new_loc, new_scale
        if bool((moved <= 1e-6 * scale).all()):
            break
    return loc, scale
