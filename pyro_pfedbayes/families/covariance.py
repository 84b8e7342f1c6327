"""Servers that know how weights vary together: full covariance, and low-rank plus diagonal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyro.distributions as dist
import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import LowRankMultivariateNormal

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.families.base import ClientFamily, ServerFamily
from pyro_pfedbayes.families.precision import half_log_det, mahalanobis, precision_diagonal
from pyro_pfedbayes.families.rows import GaussianRows, shares

_FLOOR = 1e-6  # of a weight's variance: the least that a factor analysis leaves unexplained
_ALIVE = 1e-3  # Fᵀ Ψ⁻¹ F of a column: the least from which EM soon leads anywhere


class _Gaussian(ServerFamily):
    """What every w of a mean and a covariance can do, by its factor or, if w has one, by ``tril``."""

    @property
    def start_rank(self) -> int:
        """Columns of the factor at the start."""
        return 1

    def distribution(self, w: Mapping[str, Tensor]) -> TorchDistribution:
        """A ``MultivariateNormal`` if w has ``tril``, else a ``LowRankMultivariateNormal``."""
        if "tril" in w:
            return dist.MultivariateNormal(w["loc"], scale_tril=w["tril"])
        return dist.LowRankMultivariateNormal(w["loc"], w["factor"], w["scale"].square())

    def std(self, w: Mapping[str, Tensor]) -> Any:
        return self.distribution(w).stddev

    def start(self, loc: Tensor, scale: Tensor) -> dict[str, Tensor]:
        """Independent weights: a factor of zeros."""
        factor = torch.zeros(len(loc), self.start_rank).to(loc)
        return super().start(loc, scale) | {"factor": factor}

    def nearest(self, w: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """As for all families: its variances are the inverse diagonal of the precision of w."""
        return w["loc"], precision_diagonal(self.distribution(w)).rsqrt()

    def sample(self, w: Mapping[str, Tensor], generator: torch.Generator) -> Tensor:
        noise = torch.empty_like(w["loc"]).normal_(generator=generator)
        if "tril" in w:
            return w["loc"] + torch.mv(w["tril"], noise)
        common = torch.empty_like(w["factor"][0]).normal_(generator=generator)
        return w["loc"] + w["scale"] * noise + torch.mv(w["factor"], common)


@dataclass(frozen=True)
class FullCovariance(_Gaussian):
    """A Gaussian of any covariance, as small as it can be.

    The projection matches the mean m = Σ p μ_i and the covariance Σ p [Cov(q_i) + (μ_i - m)(μ_i - m)ᵀ], and is exact
    for every Gaussian client. For S clients of diagonal plus rank-R covariance it is a diagonal plus at most S (R + 1)
    columns: w is ``loc [T]``, ``scale [T]`` and ``factor [T, min(S (R + 1), T)]``, of covariance
    diag(scale²) + factor factorᵀ, and the shape of ``factor`` follows the number of clients. For full-rank clients w is
    ``loc [T]`` and the Cholesky factor ``tril [T, T]``.

    Example:
        >>> rows = GaussianRows(torch.tensor([[0.0, 0.0], [2.0, 2.0]]), torch.ones(2, 2))
        >>> w = FullCovariance().project(rows, torch.ones(2), {})
        >>> FullCovariance().distribution(w).covariance_matrix.round(decimals=4)
        tensor([[2., 1.],
                [1., 2.]])
    """

    name = "full-covariance"

    def project(
        self, rows: GaussianRows, weights: Tensor, previous: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        loc, diagonal, factor = _matched(rows, weights)
        dtype = rows.loc.dtype
        if rows.rank >= rows.num_weights:  # full-rank clients
            covariance = torch.diag(diagonal) + factor @ factor.T
            return {"loc": loc.to(dtype), "tril": torch.linalg.cholesky(covariance).to(dtype)}
        return _state(loc, diagonal, _principal(factor, diagonal), dtype)


@dataclass(frozen=True)
class LowRank(_Gaussian):
    """A Gaussian of covariance diag(scale²) + factor factorᵀ, with a factor ``[T, rank]``.

    The projection is a factor analysis of the covariance that `FullCovariance` matches, by EM (Rubin and Thayer 1982),
    in float64 and without a T × T matrix. It finds a local minimum: from the leading columns of the exact factor, or
    from the previous w where that is better. It is exact as soon as the exact factor has at most ``rank`` columns,
    as S mean-field clients with S - 1 <= rank.

    Args:
        rank: Columns of the factor, >= 1 and below the number of weights.
        iterations: EM steps a projection, at most.
        tolerance: Stop when a step lowers the divergence by less, in nats a weight.

    Example:
        >>> rows = GaussianRows(torch.tensor([[0.0, 0.0], [2.0, 2.0]]), torch.ones(2, 2))
        >>> w = LowRank(1).project(rows, torch.ones(2), {})
        >>> LowRank(1).distribution(w).covariance_matrix.round(decimals=4)
        tensor([[2., 1.],
                [1., 2.]])
    """

    rank: int
    iterations: int = 200
    tolerance: float = 1e-7

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise UserError(f"rank of a low-rank server is {self.rank}: give at least 1")
        if self.iterations < 1 or not self.tolerance >= 0:
            raise UserError("a low-rank server needs iterations >= 1 and a tolerance >= 0")

    name = "low-rank"

    @property
    def start_rank(self) -> int:
        return self.rank

    def check(self, client_family: ClientFamily, num_weights: int) -> None:
        client_family.check(num_weights)
        if self.rank >= num_weights:
            raise UserError(
                f"rank {self.rank} of a low-rank server is not below its {num_weights} weights: "
                "give a smaller one, or take FullCovariance()"
            )

    def project(
        self, rows: GaussianRows, weights: Tensor, previous: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """EM for factor analysis; ``previous`` is one of its two starts if it has a factor of this shape."""
        loc, diagonal, exact = _matched(rows, weights)
        target = _Target(diagonal, exact)
        leading = _principal(exact, target.variance)[:, : self.rank]
        factor = torch.nn.functional.pad(leading, (0, self.rank - leading.shape[1]))
        start = factor, target.unexplained(factor)
        old = previous.get("factor")
        if old is not None and old.shape == factor.shape:
            warm = old.to(factor), previous["scale"].to(factor).square()
            # EM cannot bring a column of zeros back to life.
            alive = (warm[0].square() / warm[1].unsqueeze(1)).sum(0) > _ALIVE
            if bool(alive.all()):
                start = min(start, warm, key=lambda each: target.divergence(*each))
        factor, diagonal = target.analyse(*start, self.iterations, self.tolerance)
        return _state(loc, diagonal, _principal(factor, diagonal), rows.loc.dtype)


class _Target:
    """A covariance C = diag(d) + W Wᵀ that is to be explained by F Fᵀ + diag(ψ)."""

    def __init__(self, diagonal: Tensor, factor: Tensor) -> None:
        self.diagonal, self.factor = diagonal, factor
        self.variance = diagonal + factor.square().sum(1)

    def unexplained(self, factor: Tensor) -> Tensor:
        """Ψ ``[T]`` that keeps the variances, given a factor; never quite 0."""
        return torch.maximum(self.variance - factor.square().sum(1), _FLOOR * self.variance)

    def divergence(self, factor: Tensor, psi: Tensor) -> float:
        """KL(N(0, C) ‖ N(0, F Fᵀ + diag(ψ))) in nats a weight, up to a constant."""
        p = _gaussian(factor, psi)
        trace = (precision_diagonal(p) * self.diagonal).sum() + mahalanobis(p, self.factor)
        return float(half_log_det(p) + 0.5 * trace) / len(psi)

    def analyse(
        self, factor: Tensor, psi: Tensor, iterations: int, tolerance: float
    ) -> tuple[Tensor, Tensor]:
        """EM steps from a start until one gains less than the tolerance; returns F ``[T, R]`` and ψ ``[T]``."""
        now = self.divergence(factor, psi)
        for _ in range(iterations):
            before, previous = now, (factor, psi)
            factor, psi = self._step(factor, psi)
            now = self.divergence(factor, psi)
            if now > before:  # rounding, or the floor under ψ
                return previous
            if before - now < tolerance:
                break
        return factor, psi

    def _step(self, factor: Tensor, psi: Tensor) -> tuple[Tensor, Tensor]:
        scaled, tril = factor / psi.unsqueeze(1), _gaussian(factor, psi)._capacitance_tril
        beta = torch.cholesky_solve(scaled.T, tril)  # [R, T]: E[z | θ] = β θ
        cross = self.diagonal.unsqueeze(1) * beta.T + self.factor @ (beta @ self.factor).T  # C βᵀ
        second = torch.eye(len(beta)).to(beta) - beta @ factor + beta @ cross  # E[z zᵀ]
        factor = torch.linalg.solve(second, cross, left=False)
        psi = self.variance - (factor * cross).sum(1)
        return factor, torch.maximum(psi, _FLOOR * self.variance)


def _gaussian(factor: Tensor, psi: Tensor) -> LowRankMultivariateNormal:
    """N(0, F Fᵀ + diag(ψ))."""
    return LowRankMultivariateNormal(torch.zeros_like(psi), factor, psi, validate_args=False)


def _matched(rows: GaussianRows, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean ``[T]``, diagonal ``[T]`` and factor ``[T, S (R + 1)]`` of the matched moments, in float64."""
    p = shares(rows, weights)
    # Measured from the first row, equal rows give back their loc exactly.
    offset = rows.loc.double() - rows.loc[0].double()
    shift = p @ offset
    columns = [((offset - shift) * p.sqrt().unsqueeze(1)).T]
    if rows.factor is not None:
        own = rows.factor.double() * p.sqrt()[:, None, None]
        columns.append(own.transpose(0, 1).flatten(1))
    diagonal = p @ rows.scale.double().square()
    return rows.loc[0].double() + shift, diagonal, torch.cat(columns, 1)


def _principal(factor: Tensor, diagonal: Tensor) -> Tensor:
    """The same F Fᵀ by columns that are orthogonal in D⁻¹, largest first, at most T of them.

    I + Fᵀ D⁻¹ F is then diagonal, so its Cholesky factor is as accurate in float32 as its entries. With columns as they
    come it may have a condition of T times (spread / scale)², and fail.
    """
    scaled = factor / diagonal.sqrt().unsqueeze(1)
    vectors = torch.linalg.eigh(scaled.T @ scaled).eigenvectors.flip(1)
    rotated: Tensor = factor @ vectors[:, : len(factor)]
    return rotated


def _state(loc: Tensor, diagonal: Tensor, factor: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
    w = {"loc": loc, "scale": diagonal.sqrt(), "factor": factor}
    return {name: value.to(dtype) for name, value in w.items()}
