"""Posterior predictive draws of outcomes that are numbers, as an ArviZ ``DataTree``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from pyro_pfedbayes.datatree.groups import DrawTable, Owners, as_array, integers
from pyro_pfedbayes.errors import UserError

if TYPE_CHECKING:
    import xarray as xr

Array = NDArray[Any]


@dataclass(frozen=True)
class NumberDraw:
    """What one draw of the weights says about n outcomes."""

    mean: Tensor  # conditional mean ``[n]``
    variance: (
        Tensor  # conditional variance ``[n]``; infinite or NaN where the distribution has none
    )
    log_density: Tensor  # log p(y | x, weights), ``[n]`` in nats; NaN where y is missing
    outcomes: Tensor  # outcomes drawn from it, ``[samples, n]``


def to_datatree_numbers(
    draws: Iterable[NumberDraw],
    y: Any,
    client: Any,
    *,
    target_scaling: tuple[float, float] | None = None,
    names: Sequence[str] | None = None,
    clients: Sequence[int] | None = None,
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
    observation_stats     ``log_density`` (nats), ``crps``               observation
    observation_stats     ``below``, ``equal``                           observation
    ===================== ============================================== ===========================================

    ``aleatoric`` is the mean over draws of the conditional variance, ``epistemic`` the variance over draws of the
    conditional mean, ``sd`` the root of their sum, ``log_density`` the log of the mean over draws of p(y | x, weights).
    ``crps`` is an estimate without bias of the continuous ranked probability score, in the outcome's unit: the mean of
    |x_k - y| less half that of |x_k - x_(k-1)|, for outcomes drawn x_k (from at least two). ``below`` and ``equal`` say
    how many of them lie below y, and at y: `pyro_pfedbayes.measures.interval_scores.pit_from_ranks` makes the PIT of
    them.
    These and the metrics run over all ``draws`` (an attribute); outcomes and log-likelihoods are kept of the first
    ``draws_kept``, which are all or as many as `pyro_pfedbayes.datatree.tree.MAX_CELLS` allows. Where an outcome is
    missing,
    the log-likelihood is NaN and no metric counts it. `pyro_pfedbayes.datatree.tree.for_client`, ``save_datatree`` and
    ``load_datatree`` work as for classes.

    Args:
        draws: One a draw of the weights; the first of its drawn outcomes is kept.
        y: Outcomes ``[n]``, NaN where missing.
        client: Number of the client that each observation belongs to, ``[n]``.
        target_scaling: (loc, scale) by which outcomes were standardised: the tree is in the data's own units.
        names: Names of the clients, by number; default their numbers.
        clients: Numbers of all clients; those without an observation have metrics that are NaN. Default: those
            that have one.
        index: Where each observation lies in its data set, ``[n]``; default 0 … n - 1.
        attrs: What to remember of the run: texts and numbers.

    Returns:
        The tree.

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
    owners = Owners.of(integers(client, "client"), clients)
    table = NumberTable(_numbers(y), owners, target_scaling=target_scaling)
    return table.filled_tree(draws, index, names, attrs)


class NumberTable(DrawTable):
    """Running moments over all draws, and the first draws one by one, in the data's own units.

    Outcomes are in the model's units, NaN where missing; ``target_scaling`` is the (loc, scale) that made them so.
    """

    stored = np.float32

    def __init__(
        self,
        y: NDArray[np.float64],
        owners: Owners,
        *,
        target_scaling: tuple[float, float] | None = None,
        keep: int | None = None,
    ) -> None:
        self._loc, self._scale = target_scaling or (0.0, 1.0)
        super().__init__(y * self._scale + self._loc, ~np.isnan(y), owners, ("rmse", "nll"), keep)
        self._mean, self._squares, self._variance = np.zeros((3, len(y)))
        self._density = np.full(len(y), -np.inf)
        self._ranks = _Ranks(y)

    def add(self, number: int, draw: NumberDraw, rows: slice = slice(None)) -> None:
        """Take up draw ``number`` for the m observations ``rows``."""
        y, scale = self.y[rows], self._scale
        parts = self._checked(draw, number, rows, len(y))
        self.draws = max(self.draws, number + 1)
        # A variance may be infinite, or too large for float32: that is how it is kept.
        with np.errstate(invalid="ignore", over="ignore"):
            predicted = parts["mean"] * scale + self._loc
            step = predicted - self._mean[rows]
            self._mean[rows] += step / (number + 1)
            self._squares[rows] += step * (predicted - self._mean[rows])
            self._variance[rows] += parts["variance"] * scale**2
            density = parts["log_density"] - math.log(scale)
            self._density[rows] = np.logaddexp(self._density[rows], density)
            self._metrics["rmse"].add(number, (predicted - y) ** 2, rows)
            self._metrics["nll"].add(number, -density, rows)
            self._ranks.add(number, parts["outcomes"], rows)
            if number < self.keep:
                self._keep(number, rows, parts["outcomes"] * scale + self._loc, density)

    def statistics(
        self, dim: str = "observation", classes: Sequence[str] | None = None
    ) -> xr.Dataset:
        """Mean, standard deviation and its two parts, log of the mean density, CRPS, and ranks of the outcomes."""
        import xarray as xr

        if not self.draws:
            raise UserError("there are no draws")
        with np.errstate(invalid="ignore", over="ignore"):
            aleatoric, epistemic = self._variance / self.draws, self._squares / self.draws
            parts = {
                "mean": self._mean,
                "sd": np.sqrt(aleatoric + epistemic),
                "aleatoric": aleatoric,
                "epistemic": epistemic,
                "log_density": self._density - math.log(self.draws),
                "crps": self._ranks.crps(self.draws) * self._scale,
                "below": self._ranks.counts(self._ranks.below),
                "equal": self._ranks.counts(self._ranks.equal),
            }
            return xr.Dataset(
                {name: (dim, values.astype(np.float32)) for name, values in parts.items()},
                coords={dim: np.arange(len(self.y))},
            )

    def client_metrics(self) -> dict[str, NDArray[np.float32]]:
        """As the base has it; squared errors become their root."""
        found = super().client_metrics()
        return found | {"rmse": np.sqrt(found["rmse"])}

    def _checked(
        self, draw: NumberDraw, number: int, rows: slice, n: int
    ) -> dict[str, NDArray[np.float64]]:
        """A draw's parts ``[n]``."""
        parts: dict[str, Array] = {
            name: as_array(getattr(draw, name)).astype(np.float64)
            for name in ("mean", "variance", "log_density", "outcomes")
        }
        if parts["outcomes"].ndim == 2:
            parts["outcomes"] = parts["outcomes"][0]
        for name, values in parts.items():
            if values.shape != (n,):
                found = list(values.shape)
                raise UserError(f"draw {number}: {name} has shape {found}; wanted [{n}]")
        self._refuse(~np.isfinite(parts["outcomes"]), number, rows, "outcomes that are not finite")
        return parts


class _Ranks:
    """What running sums over draws tell of where outcomes lie among them: nothing grows with the number of draws.

    Args:
        y: Outcomes ``[n]`` in the model's units, NaN where missing.
    """

    def __init__(self, y: NDArray[np.float64]) -> None:
        self._y = y
        self.below, self.equal = np.zeros((2, len(y)), np.int32)
        self._distance, self._steps, self._last = np.zeros((3, len(y)))

    def add(self, number: int, drawn: NDArray[np.float64], rows: slice) -> None:
        """Take up draw ``number`` of the observations ``rows``."""
        y = self._y[rows]
        self.below[rows] += drawn < y
        self.equal[rows] += drawn == y
        self._distance[rows] += np.abs(drawn - y)
        if number:
            self._steps[rows] += np.abs(drawn - self._last[rows])
        self._last[rows] = drawn

    def crps(self, draws: int) -> NDArray[np.float64]:
        """``[n]``; NaN where the outcome is missing, or if there is only one draw."""
        if draws < 2:
            return np.full(len(self._y), np.nan)
        return self._distance / draws - self._steps / (2 * (draws - 1))

    def counts(self, counts: NDArray[np.int32]) -> NDArray[np.float64]:
        """Counts as numbers, NaN where the outcome is missing."""
        return np.where(np.isnan(self._y), np.nan, counts)


def _numbers(values: Any) -> NDArray[np.float64]:
    found = as_array(values)
    if found.ndim != 1 or found.dtype.kind not in "iuf":
        raise UserError(
            f"y must be numbers, one an observation, not {found.dtype} {list(found.shape)}"
        )
    return found.astype(np.float64)
