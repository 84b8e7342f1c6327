"""The barycentre of Gaussians, and the streaming sums behind it.

Given q^1..q^N, the mean-field w that minimises Σ_i a_i KL(q^i ‖ w) has, weight by weight,

    μ_w = mean_i μ_i  and  σ²_w = mean_i [σ²_i + (μ_i - μ_w)²]  (means weighted by a_i),

the closed form of the server's problem in Zhang et al. (2022), section 3. It matches the moments of
the mixture of the q^i, so it needs sums only, and sums can be streamed and merged.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.gaussians.mean_field import MeanFieldGaussian, check_same_weights

# A stacked Gaussian is widened to float64 in blocks of clients of about this many numbers (64 MiB):
# the working memory, too, must not grow with the number of clients.
_BLOCK = 2**23

_Moments = dict[str, tuple[Tensor, Tensor]]  # name: (mean, variance sum), float64 [*event]


class MomentAccumulator:
    """Streaming, mergeable moments of Gaussians, in memory independent of how many were added.

    The state is the total weight A = Σ a_i, the mean μ = Σ a_i μ_i / A and the variance sum
    S = Σ a_i [σ²_i + (μ_i - μ)²], all in float64 and updated by the pairwise rule of Chan, Golub &
    LeVeque (1979), which never subtracts two large squares. `result` is the barycentre: loc μ and
    scale sqrt(S / A). Gradients are not tracked.

    Example:
        >>> loc, scale = {"w": torch.tensor([[0.0], [2.0]])}, {"w": torch.ones(2, 1)}
        >>> q = MeanFieldGaussian(loc, scale, stacked=True)
        >>> here, there = MomentAccumulator(), MomentAccumulator()
        >>> here.add(q.client(0))
        >>> there.add(q.client(1))
        >>> here.merge(there).result().loc["w"]
        tensor([1.])
        >>> here.total_weight
        1.0
    """

    def __init__(self) -> None:
        self._total_weight = 0.0
        self._dtype: torch.dtype | None = None
        self._moments: _Moments = {}

    @property
    def total_weight(self) -> float:
        """The sum A of the weights added so far: the number of clients, if none were given."""
        return self._total_weight

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the weights, in the order of the first Gaussian added; empty before that."""
        return tuple(self._moments)

    def add(
        self, gaussian: MeanFieldGaussian, weights: float | Sequence[float] | Tensor | None = None
    ) -> None:
        """Add one Gaussian, or all clients of a stacked one at once.

        Args:
            gaussian: Over the same weights and on the same device as those added before, if any.
            weights: Importance a_i >= 0, not all zero: one number, or one a client ``[N]`` if stacked;
                None is 1 for each. They are relative, so they need not sum to 1.
        """
        a = importance(weights, gaussian.clients or 1)
        self._check_like(gaussian.one_client(), "the Gaussian to add")
        self._absorb(gaussian, a)

    def merge(self, other: MomentAccumulator) -> MomentAccumulator:
        """Return the moments of everything added to either; neither is changed.

        Merging is commutative and associative up to float64 rounding (names keep this one's order).
        Raises UserError if names, shapes or devices differ.
        """
        merged = MomentAccumulator()
        for part in (self, other):
            merged._check_like(
                {name: mean for name, (mean, _) in part._moments.items()}, "the moments to merge"
            )
            merged._update(part._total_weight, part._moments, part._dtype)
        return merged

    def result(self) -> MeanFieldGaussian:
        """Return the barycentre of everything added, unstacked, in the widest dtype added."""
        dtype = self._dtype
        if dtype is None:
            raise UserError("there are no moments yet: add at least one MeanFieldGaussian")
        return MeanFieldGaussian(
            {name: mean.to(dtype, copy=True) for name, (mean, _) in self._moments.items()},
            {
                name: (total / self._total_weight).sqrt().to(dtype)
                for name, (_, total) in self._moments.items()
            },
        )

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state as tensors that can be saved or sent, in safetensors for instance.

        Returns:
            Copies: ``total_weight`` (float64 ``[]``); for every name ``mean.<name>`` and
            ``variance_sum.<name>`` (float64 ``[*event]``); ``order`` (int64, the rank of each name
            among the sorted names, as a file may lose the order); and ``dtype``, which holds no
            numbers but has the dtype of `result`.

        Example:
            >>> moments = MomentAccumulator()
            >>> moments.add(MeanFieldGaussian({"w": torch.zeros(3)}, {"w": torch.ones(3)}), 2.0)
            >>> sorted(moments.state_dict())
            ['dtype', 'mean.w', 'order', 'total_weight', 'variance_sum.w']
            >>> MomentAccumulator.from_state_dict(moments.state_dict()).total_weight
            2.0
        """
        ranks = {name: rank for rank, name in enumerate(sorted(self._moments))}
        state = {
            "total_weight": torch.tensor(self._total_weight, dtype=torch.float64),
            "order": torch.tensor([ranks[name] for name in self._moments], dtype=torch.int64),
            "dtype": torch.empty(0, dtype=self._dtype or torch.float32),
        }
        for name, (mean, variance_sum) in self._moments.items():
            state[f"mean.{name}"] = mean.clone()
            state[f"variance_sum.{name}"] = variance_sum.clone()
        return state

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Tensor]) -> MomentAccumulator:
        """Rebuild from the tensors of `state_dict`, in any order; UserError if they cannot be moments."""
        for key in ("total_weight", "order", "dtype"):
            if key not in state:
                raise UserError(f"the moments lack {key!r}: give what state_dict() returned")
        ranked = sorted(key.removeprefix("mean.") for key in state if key.startswith("mean."))
        order, total_weight = state["order"].tolist(), float(state["total_weight"])
        if sorted(order) != list(range(len(ranked))):
            raise UserError(f"the moments' order is {order}: it must rank {len(ranked)} names")
        if not (0 < total_weight < math.inf if ranked else total_weight == 0):
            raise UserError(f"the moments' total weight is {total_weight}: it must be > 0")
        moments = {}
        for name in (ranked[rank] for rank in order):
            mean, total = state[f"mean.{name}"], state.get(f"variance_sum.{name}")
            if total is None or total.shape != mean.shape:
                raise UserError(f"variance_sum of {name!r} is missing, or not shaped as its mean")
            if not bool((mean.isfinite() & total.isfinite() & (total > 0)).all()):
                raise UserError(f"mean or variance_sum of {name!r} is not finite, or not positive")
            moments[name] = mean.to(torch.float64, copy=True), total.to(torch.float64, copy=True)
        accumulator = cls()
        accumulator._update(total_weight, moments, state["dtype"].dtype)
        return accumulator

    def __repr__(self) -> str:
        """Say how much was added, not the values."""
        return f"MomentAccumulator({len(self._moments)} names, total_weight={self._total_weight:g})"

    def _absorb(self, gaussian: MeanFieldGaussian, a: Tensor) -> None:
        """Add a Gaussian of importance ``a`` (float64 ``[N]`` on the CPU), both already checked."""
        largest = max(gaussian.event_shape(name).numel() for name in gaussian.names)
        rows = max(1, _BLOCK // max(1, largest))
        for start in range(0, len(a), rows):
            block = slice(start, start + rows)
            weight = float(a[block].sum())
            if weight == 0:
                continue
            share = (a[block] / weight).to(gaussian.device)
            moments = {}
            for name in gaussian.names:
                sides = (gaussian.loc[name].detach(), gaussian.scale[name].detach())
                loc, scale = (v[block] if gaussian.stacked else v.unsqueeze(0) for v in sides)
                mean, variance = _block_moments(loc, scale, share)
                moments[name] = mean, variance * weight
            self._update(weight, moments, gaussian.dtype)

    def _update(self, weight: float, moments: _Moments, dtype: torch.dtype | None) -> None:
        """Merge the moments of a total ``weight`` into this, by the pairwise rule."""
        if not moments:
            return
        total = self._total_weight + weight
        if total == math.inf:
            raise UserError("the weights sum to infinity: give smaller ones")
        share = weight / total
        for name, (mean, variance_sum) in moments.items():
            if name in self._moments:
                own_mean, own_sum = self._moments[name]
                shift = mean - own_mean
                between = (self._total_weight * share) * shift.square()
                mean, variance_sum = own_mean + share * shift, own_sum + (variance_sum + between)
            self._moments[name] = mean, variance_sum
        self._total_weight = total
        if dtype is not None:
            self._dtype = torch.promote_types(self._dtype or dtype, dtype)

    def _check_like(self, theirs: Mapping[str, Tensor], what: str) -> None:
        """Raise unless ``theirs`` has the names, shapes and device of what was added before."""
        mine = {name: mean for name, (mean, _) in self._moments.items()}
        if not mine or not theirs:
            return
        for names, others, where in ((mine, theirs, what), (theirs, mine, "what was added before")):
            for name in names:
                if name not in others:
                    raise UserError(f"weight {name!r} is missing from {where}")
        check_same_weights(mine, theirs, "what was added before", what)


def barycentre(
    gaussians: MeanFieldGaussian | Iterable[MeanFieldGaussian],
    weights: Sequence[float] | Tensor | None = None,
) -> MeanFieldGaussian:
    """Return the w that minimises Σ_i a_i KL(q^i ‖ w): the server's update in closed form.

    μ_w = mean_i μ_i and σ²_w = mean_i [σ²_i + (μ_i - μ_w)²], means weighted by a_i (Zhang et al.
    2022, section 3). So σ²_w is never below mean_i σ²_i: it holds the spread between clients too.
    Streamed and computed in float64; gradients are not tracked.

    Args:
        gaussians: The q^i: a stacked Gaussian, or any iterable of unstacked ones over the same
            weights (read once, one at a time).
        weights: Relative importance a_i >= 0, not all zero, one for each q^i; None weights them equally.

    Returns:
        An unstacked Gaussian in the dtype of the q^i.

    Example:
        >>> q1 = MeanFieldGaussian(loc={"w": torch.tensor([0.0])}, scale={"w": torch.tensor([1.0])})
        >>> q2 = MeanFieldGaussian(loc={"w": torch.tensor([2.0])}, scale={"w": torch.tensor([1.0])})
        >>> w = barycentre([q1, q2])
        >>> w.loc["w"], w.scale["w"]
        (tensor([1.]), tensor([1.4142]))
    """
    moments = MomentAccumulator()
    if isinstance(gaussians, MeanFieldGaussian):
        if not gaussians.stacked:
            raise UserError("barycentre got one unstacked Gaussian: give a stacked one, or a list")
        moments.add(gaussians, weights)
        return moments.result()
    a = None if weights is None else importance(weights)
    one = torch.ones(1, dtype=torch.float64)
    count = 0
    for gaussian in gaussians:
        if gaussian.stacked:
            raise UserError(f"Gaussian {count} is stacked: give a list of unstacked ones")
        moments._check_like(gaussian.loc, f"Gaussian {count}")
        moments._absorb(gaussian, one if a is None else a[count : count + 1])
        count += 1
    if count == 0:
        raise UserError("there is nothing to average: give at least one MeanFieldGaussian")
    if a is not None and count != len(a):
        raise UserError(f"there are {len(a)} weights but {count} Gaussians: give one weight each")
    return moments.result()


def importance(
    weights: float | Sequence[float] | Tensor | None, count: int | None = None
) -> Tensor:
    """Importance weights, checked, as float64 ``[N]`` on the CPU."""
    if weights is None:
        return torch.ones(count or 1, dtype=torch.float64)
    a = torch.as_tensor(weights, dtype=torch.float64, device="cpu").detach()
    a = a.reshape(1) if a.ndim == 0 else a
    if a.ndim != 1 or (count is not None and len(a) != count):
        of = "Gaussian" if count is None else f"of {count}"
        raise UserError(f"weights have shape {list(a.shape)}: give one number for each {of}")
    if not bool((a.isfinite() & (a >= 0)).all()):
        raise UserError("weights must be finite and >= 0, every one")
    if not 0 < float(a.sum()) < math.inf:
        raise UserError("weights must not be all zero, nor sum to infinity: give finite ones")
    return a


def _block_moments(loc: Tensor, scale: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and variance of rows ``[rows, *event]`` whose shares sum to 1, in float64."""
    # Measured from the first row, equal rows give back their loc exactly; large ones lose nothing.
    origin = loc[0].to(torch.float64)
    offset = loc.to(torch.float64) - origin
    shift = torch.tensordot(share, offset, dims=1)
    spread = (offset - shift).square_().add_(scale.to(torch.float64).square())
    return origin + shift, torch.tensordot(share, spread, dims=1)
