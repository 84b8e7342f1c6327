"""Posterior predictive draws of outcomes that are numbers, as an ArviZ ``DataTree``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from pyro_pfedbayes.datatree_core import (
    MAX_CELLS,
    as_array,
    assemble,
    check_lengths,
    checked_attrs,
    client_means,
    integers,
)
from pyro_pfedbayes.errors import UserError

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["NumberDraw", "to_datatree_numbers"]

Array = NDArray[Any]


@dataclass(frozen=True)
class NumberDraw:
    """What one draw of the weights says about n outcomes.

    Attributes:
        mean: Conditional mean ``[n]``.
        variance: Conditional variance ``[n]``; infinite or NaN where the distribution has none.
        log_density: log p(y | x, weights), ``[n]`` in nats; NaN where y is missing.
        outcomes: Outcomes drawn from it, ``[samples, n]``.
    """

    mean: Tensor
    variance: Tensor
    log_density: Tensor
    outcomes: Tensor


def to_datatree_numbers(
    draws: Iterable[NumberDraw],
    y: Any,
    client: Any,
    *,
    target_scaling: tuple[float, float] | None = None,
    names: Sequence[str] | None = None,
    index: Any = None,
    attrs: Mapping[str, str | int | float] | None = None,
) -> xr.DataTree:
    """Lay predictions of numbers out in ArviZ's schema.

    ===================== ============================================== ===========================================
    group                 variables                                      dimensions
    ===================== ============================================== ===========================================
    posterior_predictive  ``y`` outcome drawn (float32)                  chain, draw, observation
    log_likelihood        ``y`` log p(y | x, weights), nats              chain, draw, observation
    client_metrics        ``rmse``, ``nll`` (nats)                       chain, draw, client
    observed_data         ``y`` the true outcome, NaN where missing      observation
    constant_data         ``index`` of the example in its data set       observation
    observation_stats     ``mean``, ``sd``, ``aleatoric``, ``epistemic`` observation
    ===================== ============================================== ===========================================

    ``aleatoric`` is the mean over draws of the conditional variance, ``epistemic`` the variance over draws of the
    conditional mean, ``sd`` the root of their sum. Where an outcome is missing, the log-likelihood is NaN and no metric
    counts it. `pyro_pfedbayes.datatree.for_client`, ``save_datatree`` and ``load_datatree`` work as for classes.

    Args:
        draws: One a draw of the weights; the first of its drawn outcomes is kept.
        y: Outcomes ``[n]``, NaN where missing.
        client: Number of the client that each observation belongs to, ``[n]``.
        target_scaling: (loc, scale) by which outcomes were standardised: the tree is in the data's own units.
        names: Names of the clients, by number; default their numbers.
        index: Where each observation lies in its data set, ``[n]``; default 0 … n - 1.
        attrs: What to remember of the run: texts and numbers.

    Returns:
        The tree.

    Raises:
        UserError: No draws or observations, lengths or shapes that differ, outcomes that are no numbers, drawn ones
            that are NaN or infinite, more than `MAX_CELLS` draws times observations, an attribute of another type.

    Example:
        >>> import torch
        >>> one = torch.ones(2)
        >>> first = NumberDraw(mean=0 * one, variance=one, log_density=-one, outcomes=torch.zeros(1, 2))
        >>> second = NumberDraw(mean=2 * one, variance=3 * one, log_density=-one, outcomes=torch.ones(1, 2))
        >>> tree = to_datatree_numbers([first, second], torch.tensor([0.0, 2.0]), torch.tensor([0, 1]))
        >>> stats = tree["observation_stats"]
        >>> stats["aleatoric"].values.tolist(), stats["epistemic"].values.tolist()
        ([2.0, 2.0], [1.0, 1.0])
        >>> tree["client_metrics"]["rmse"].sel(client=1).values.tolist()
        [[2.0, 0.0]]
    """
    outcomes, owner = _numbers(y), integers(client, "client")
    places = np.arange(len(outcomes)) if index is None else integers(index, "index")
    check_lengths(len(outcomes), client=owner, index=places)
    # A variance may be infinite, or too large for float32: that is how it is kept.
    with np.errstate(invalid="ignore", over="ignore"):
        table = _Draws(draws, outcomes, (0.0, 1.0) if target_scaling is None else target_scaling)
        return _assembled(table, owner, places, names, checked_attrs(attrs or {}))


class _Draws:
    """What is kept of a stream of predictions, in the data's own units."""

    def __init__(
        self, draws: Iterable[NumberDraw], y: NDArray[np.float64], scaling: tuple[float, float]
    ) -> None:
        if not len(y):
            raise UserError("there are no observations")
        loc, scale = scaling
        self.y = y * scale + loc
        drawn, log_likelihood, errors = [], [], []
        mean, squares, variance = np.zeros((3, len(y)))
        for number, draw in enumerate(draws):
            parts = _parts(draw, number, len(y))
            if (number + 1) * len(y) > MAX_CELLS:
                raise UserError(
                    f"more than {MAX_CELLS:,} draws times observations; "
                    f"{MAX_CELLS // len(y)} draws fit {len(y)} observations"
                )
            predicted = parts["mean"] * scale + loc
            step = predicted - mean
            mean = mean + step / (number + 1)
            squares = squares + step * (predicted - mean)
            variance = variance + parts["variance"] * scale**2
            errors.append((predicted - self.y) ** 2)
            drawn.append((parts["outcomes"] * scale + loc).astype(np.float32))
            log_likelihood.append((parts["log_density"] - math.log(scale)).astype(np.float32))
        if not drawn:
            raise UserError("there are no draws")
        self.drawn, self.log_likelihood = np.stack(drawn), np.stack(log_likelihood)
        self.errors = np.stack(errors)
        self.mean, self.epistemic = mean, squares / len(drawn)
        self.aleatoric = variance / len(drawn)


def _assembled(
    table: _Draws,
    owner: NDArray[np.int64],
    index: NDArray[np.int64],
    names: Sequence[str] | None,
    attrs: dict[str, str | int | float],
) -> xr.DataTree:
    import xarray as xr

    present, place = np.unique(owner, return_inverse=True)
    known = ~np.isnan(table.y)
    metrics = {
        "rmse": np.sqrt(client_means(table.errors, place, len(present), known)),
        "nll": client_means(-table.log_likelihood, place, len(present), known),
    }
    statistics = {
        "mean": table.mean,
        "sd": np.sqrt(table.aleatoric + table.epistemic),
        "aleatoric": table.aleatoric,
        "epistemic": table.epistemic,
    }
    return assemble(
        {
            "posterior_predictive": {"y": table.drawn[None]},
            "log_likelihood": {"y": table.log_likelihood[None]},
            "client_metrics": {name: values[None] for name, values in metrics.items()},
            "observed_data": {"y": table.y.astype(np.float32)},
            "constant_data": {"index": index},
        },
        xr.Dataset(
            {
                name: ("observation", values.astype(np.float32))
                for name, values in statistics.items()
            },
            coords={"observation": np.arange(len(owner))},
        ),
        owner,
        names,
        attrs,
    )


def _numbers(values: Any) -> NDArray[np.float64]:
    found = as_array(values)
    if found.ndim != 1 or found.dtype.kind not in "iuf":
        raise UserError(
            f"y must be numbers, one an observation, not {found.dtype} {list(found.shape)}"
        )
    return found.astype(np.float64)


def _parts(draw: NumberDraw, number: int, n: int) -> dict[str, NDArray[np.float64]]:
    """A draw's parts ``[n]``, checked."""
    parts: dict[str, Array] = {
        name: as_array(getattr(draw, name)).astype(np.float64)
        for name in ("mean", "variance", "log_density", "outcomes")
    }
    if parts["outcomes"].ndim == 2:
        parts["outcomes"] = parts["outcomes"][0]
    for name, values in parts.items():
        if values.shape != (n,):
            raise UserError(f"draw {number}: {name} has shape {list(values.shape)}; wanted [{n}]")
    if not np.isfinite(parts["outcomes"]).all():
        raise UserError(f"draw {number} holds outcomes that are not finite")
    return parts
