"""How far measures may be off: bootstrap intervals over examples and clients, and a Bayesian one for accuracy."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.measures.validation import level_of, same_length, vector
from pyro_pfedbayes.randomness import generator

Over = Literal["examples", "clients", "both"]
Statistic = Literal["mean", "client_mean"] | Callable[[Tensor], float | Tensor]

_BLOCK = 2**22  # rows that are drawn at a time


@dataclass(frozen=True)
class Interval:
    """A measure and where it may lie."""

    estimate: float  # the measure of the data as they are; NaN where it is not defined
    lower: float  # lower end; NaN where the interval is not defined
    upper: float  # upper end; NaN likewise
    level: float  # probability of the interval
    undefined: int = 0
    """Resamples in which the measure was not defined; the ends are those of the others."""


@dataclass(frozen=True)
class Intervals:
    """The same for several clients, float64 ``[N]`` each."""

    estimate: Tensor  # the measure; NaN where it is not defined
    lower: Tensor  # lower ends; NaN where the interval is not defined
    upper: Tensor  # upper ends; NaN likewise
    level: float  # probability of each interval


def bootstrap(
    values: Tensor,
    client: Tensor | None = None,
    *,
    statistic: Statistic = "mean",
    over: Over = "both",
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> Interval:
    """Percentile bootstrap interval of a measure pooled over clients (Davison & Hinkley 1997, sections 3.8 and 5.3).

    A resample takes, with replacement, as many clients as there are (``over="clients"``: each whole), as many
    examples of each client as it has (``"examples"``), or both, one within the other. "examples" answers how the
    measure would vary with other test examples *of these clients*; "clients" and "both" with other clients of the same
    kind. With N clients of equally many examples, the variance of "both" is that of "clients" plus that of "examples".

    Intervals from few clients or examples are too narrow, and of equal values have no width at all: for an accuracy
    near 1 take `accuracy_interval`. The answer depends on the device's kind, as random numbers do.

    Args:
        values: One an example: ``[n]`` for a mean (right or not, -log p, squared error), ``[n, …]`` for a function.
        client: Whose example it is, integers ``[n]``; None if there is only one client and ``over`` is "examples".
        statistic: "mean" over examples; "client_mean", the mean over clients of their means; or a function of the rows
            of a resample ``[m, …]`` that returns one number, called once a resample.
        over: What is drawn anew.
        level: Probability of the interval, in (0, 1).
        resamples: Number of resamples.
        seed: Seed of the resamples.

    Returns:
        The interval. Estimate and ends are NaN without examples; the ends are NaN where there is one client
        only, or (over examples) one example a client, for that says nothing of how they vary.

    Raises:
        UserError: Shapes that do not fit, NaN or infinite values, an unknown statistic or level, no clients given.

    Example:
        >>> right = torch.tensor([1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0])
        >>> found = bootstrap(right, torch.tensor([0, 0, 0, 0, 1, 1, 1, 1]), over="examples", seed=1)
        >>> found.estimate, found.lower < 0.5, found.upper > 0.75
        (0.625, True, True)
    """
    level = _checked_settings(over, level, resamples)
    values, sizes = _grouped(values, client, over, statistic)
    if len(values) == 0:
        return Interval(math.nan, math.nan, math.nan, level)
    if callable(statistic):
        estimate = _number(statistic(values))
    else:
        sums = _sums(values, sizes[None])
        estimate = float(_combined(sums, sizes[None], statistic))
    enough = bool((sizes > 1).any()) if over == "examples" else len(sizes) > 1
    if not enough:
        return Interval(estimate, float("nan"), float("nan"), level)
    if callable(statistic):
        found = _called(statistic, values, sizes, over, resamples, seed)
    else:
        picked = _picked(sizes, over, resamples, generator(seed, "bootstrap", device=sizes.device))
        drawn = _drawn_sums(values, sizes, over, picked, seed)
        found = _combined(drawn, sizes[picked], statistic).cpu()
    return _interval(estimate, found, level)


def bootstrap_by_client(
    values: Tensor,
    client: Tensor,
    *,
    clients: int | None = None,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> Intervals:
    """Percentile bootstrap interval of each client's own mean, over its examples.

    Args:
        values: One an example ``[n]``: right or not, -log p, squared error.
        client: Whose example it is, integers >= 0 ``[n]``.
        clients: Number N of clients; default the largest number that occurs, plus 1.
        level: Probability of the intervals, in (0, 1).
        resamples: Number of resamples.
        seed: Seed of the resamples.

    Returns:
        Intervals ``[N]``: all NaN for a client without examples; the ends NaN for one with a single example.

    Raises:
        UserError: Shapes that do not fit, NaN or infinite values, a client beyond ``clients``.

    Example:
        >>> found = bootstrap_by_client(torch.tensor([0.0, 1.0, 5.0]), torch.tensor([0, 0, 2]))
        >>> found.estimate.tolist(), found.lower.tolist()
        ([0.5, nan, 5.0], [0.0, nan, nan])
    """
    level = _checked_settings("examples", level, resamples)
    present = torch.unique(client).to(values.device)
    values, sizes = _grouped(values, client, "examples", "mean")
    n = int(present.max()) + 1 if clients is None and len(present) else (clients or 0)
    if len(present) and (int(present[0]) < 0 or int(present[-1]) >= n):
        raise UserError(
            f"client numbers go from {int(present[0])} to {int(present[-1])}, not 0 to {n - 1}"
        )
    estimate, lower, upper = torch.full(
        (3, n), float("nan"), dtype=torch.float64, device=values.device
    )
    if len(values) == 0:
        return Intervals(estimate, lower, upper, level)
    estimate[present] = _sums(values, sizes[None])[0] / sizes
    places = torch.arange(len(sizes), device=values.device).expand(resamples, len(sizes))
    keys = present.tolist()
    drawn = _drawn_sums(values, sizes, "examples", places, seed, keys)
    ends = _quantiles(drawn / sizes, level)
    several = sizes > 1
    lower[present[several]], upper[present[several]] = ends[0][several], ends[1][several]
    return Intervals(estimate, lower, upper, level)


def accuracy_interval(
    right: Tensor,
    total: Tensor,
    *,
    level: float = 0.95,
    prior: tuple[float, float] = (0.5, 0.5),
) -> Intervals:
    """Equal-tailed Bayesian interval of an accuracy, from the Beta posterior of a binomial share.

    With the prior Beta(a, b) and r of n right, the posterior is Beta(r + a, n - r + b); the default is Jeffreys' prior.
    As Brown, Cai & DasGupta (2001) advise, the lower end is 0 if none is right and the upper 1 if all are, so that the
    interval holds the estimate r / n. It has width where all are right, where a bootstrap has none. NaN of nothing.

    Example:
        >>> found = accuracy_interval(torch.tensor([20, 0]), torch.tensor([20, 0]))
        >>> found.estimate.tolist(), round(found.lower[0].item(), 3), found.upper.tolist()
        ([1.0, nan], 0.883, [1.0, nan])
    """
    level = level_of(level)
    if not all(math.isfinite(p) and p > 0 for p in prior):
        raise UserError(f"prior is {prior}: give two numbers > 0, such as (0.5, 0.5)")
    r, n = right.detach().double(), total.detach().double()
    if r.shape != n.shape:
        raise UserError(f"right has shape {list(r.shape)} but total {list(n.shape)}")
    if not bool(((r >= 0) & (r <= n) & (r == r.floor()) & (n == n.floor()) & n.isfinite()).all()):
        raise UserError("right and total must be whole numbers with 0 <= right <= total")
    quantile = importlib.import_module("scipy.special").betaincinv
    a, b = (r + prior[0]).cpu().numpy(), (n - r + prior[1]).cpu().numpy()
    ends = [torch.as_tensor(quantile(a, b, (1 + s * level) / 2)).to(r) for s in (-1, 1)]
    none = torch.full_like(r, float("nan"))
    lower = ends[0].where(r > 0, torch.zeros_like(r)).where(n > 0, none)
    upper = ends[1].where(r < n, torch.ones_like(r)).where(n > 0, none)
    return Intervals(r / n, lower, upper, level)


def _checked_settings(over: str, level: float, resamples: int) -> float:
    if over not in ("examples", "clients", "both"):
        raise UserError(f"over is {over!r}: give 'examples', 'clients' or 'both'")
    if isinstance(resamples, bool) or not isinstance(resamples, int) or resamples < 1:
        raise UserError(f"resamples is {resamples!r}: give a whole number >= 1")
    return level_of(level)


def _grouped(
    values: Tensor, client: Tensor | None, over: Over, statistic: Statistic
) -> tuple[Tensor, Tensor]:
    """Values with each client's side by side, in ascending order of clients, and how many each client has."""
    if callable(statistic):
        if values.ndim < 1:
            raise UserError("values must hold one row an example, [n, …], not a single number")
        values = values.detach()
    else:
        if statistic not in ("mean", "client_mean"):
            raise UserError(f"statistic is {statistic!r}: give 'mean', 'client_mean' or a function")
        values = vector(values, "values", finite=True)
    if client is None:
        if over != "examples":
            raise UserError(f"over={over!r} needs client, the number of each example's client")
        client = torch.zeros(len(values), dtype=torch.long, device=values.device)
    if client.ndim != 1 or client.is_floating_point() or client.dtype == torch.bool:
        raise UserError(f"client must hold integers [n], not {client.dtype} {list(client.shape)}")
    same_length(len(values), client=client)
    client = client.to(values.device)
    return values[client.argsort(stable=True)], torch.unique(client, return_counts=True)[1]


def _picked(sizes: Tensor, over: Over, block: int, stream: torch.Generator) -> Tensor:
    """The clients of each resample ``[block, N]``."""
    clients = len(sizes)
    if over == "examples":
        return torch.arange(clients, device=sizes.device).expand(block, clients)
    return torch.randint(clients, (block, clients), generator=stream, device=sizes.device)


def _rows(sizes: Tensor, over: Over, block: int, stream: torch.Generator) -> tuple[Tensor, Tensor]:
    """Rows of ``block`` resamples end to end, and how many each client picked gives, ``[block, N]``."""
    picked = _picked(sizes, over, block, stream)
    lengths = sizes[picked]
    flat = lengths.flatten()
    first = (sizes.cumsum(0) - sizes)[picked].flatten()
    if over == "clients":
        # Row j of all is row j - (rows before this pick) of its client.
        first = first - (flat.cumsum(0) - flat)
        return first.repeat_interleave(flat) + torch.arange(
            int(flat.sum()), device=flat.device
        ), lengths
    span = flat.repeat_interleave(flat)
    uniform = torch.rand(len(span), generator=stream, dtype=torch.float64, device=span.device)
    within = torch.minimum((uniform * span).long(), span - 1)
    return first.repeat_interleave(flat) + within, lengths


def _called(
    statistic: Callable[[Tensor], float | Tensor],
    values: Tensor,
    sizes: Tensor,
    over: Over,
    resamples: int,
    seed: int,
) -> Tensor:
    """The function's value on each resample, float64 ``[resamples]``."""
    width, found = max(1, _BLOCK // len(values)), []
    for start in range(0, resamples, width):
        stream = generator(seed, "bootstrap", "rows", start, device=sizes.device)
        rows, lengths = _rows(sizes, over, min(width, resamples - start), stream)
        parts = rows.split(lengths.sum(1).tolist())
        found += [_number(statistic(values[part])) for part in parts]
    return torch.tensor(found, dtype=torch.float64)


def _drawn_sums(
    values: Tensor,
    sizes: Tensor,
    over: Over,
    picked: Tensor,
    seed: int,
    keys: Sequence[int] | None = None,
) -> Tensor:
    """Sum of the values that each client picked gives, in the shape of ``picked``.

    Each client has a stream of its own, named by its key (default its place), so that the examples drawn for one do
    not depend on who else takes part.
    """
    if over == "clients":
        return _sums(values, sizes[None])[0][picked]
    flat = picked.flatten()
    times = torch.bincount(flat, minlength=len(sizes)).tolist()
    sums = []
    for place, own in enumerate(values.split(sizes.tolist())):
        key = place if keys is None else keys[place]
        stream = generator(seed, "bootstrap", "examples", key, device=values.device)
        sums.append(_own_sums(own, times[place], stream))
    drawn = torch.empty_like(flat, dtype=torch.float64)
    drawn[flat.argsort(stable=True)] = torch.cat(sums)
    return drawn.view(picked.shape)


def _own_sums(own: Tensor, times: int, stream: torch.Generator) -> Tensor:
    """Sums of ``times`` resamples of one client's values."""
    n = len(own)
    if bool(((own == 0) | (own == 1)).all()):
        # The number of ones in a resample is binomial, which is far quicker to draw.
        share = own.mean().expand(times).contiguous()
        return torch.binomial(torch.full_like(share, n), share, generator=stream)
    sums = []
    width = max(1, _BLOCK // n)
    for start in range(0, times, width):
        shape = (min(width, times - start), n)
        sums.append(own[torch.randint(n, shape, generator=stream, device=own.device)].sum(1))
    return torch.cat(sums) if sums else own[:0]


def _sums(values: Tensor, lengths: Tensor) -> Tensor:
    """Sums of consecutive runs of ``values``, of the given lengths, in the lengths' shape."""
    flat = torch.segment_reduce(values, "sum", lengths=lengths.flatten())
    return flat.view(lengths.shape)


def _combined(sums: Tensor, lengths: Tensor, statistic: Literal["mean", "client_mean"]) -> Tensor:
    """The statistic of each resample ``[block]``."""
    if statistic == "client_mean":
        return (sums / lengths).mean(1)
    return sums.sum(1) / lengths.sum(1)


def _interval(estimate: float, found: Tensor, level: float) -> Interval:
    defined = found[~found.isnan()]
    missing = len(found) - len(defined)
    if math.isnan(estimate) or not len(defined):
        return Interval(estimate, float("nan"), float("nan"), level, missing)
    lower, upper = _quantiles(defined, level)
    return Interval(estimate, float(lower), float(upper), level, missing)


def _quantiles(found: Tensor, level: float) -> tuple[Tensor, Tensor]:
    """Both ends over the first axis: the nearest order statistics outwards, so that they are values that occurred."""
    ordered = found.sort(0).values
    low = math.floor((len(found) - 1) * (1 - level) / 2)
    return ordered[low], ordered[len(found) - 1 - low]


def _number(value: float | Tensor) -> float:
    if isinstance(value, Tensor) and value.numel() != 1:
        raise UserError(f"the statistic must return one number, not {list(value.shape)}")
    return float(value)
