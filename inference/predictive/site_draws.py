"""What clients believe about their sites, for an ArviZ tree: draws or a summary, and the information gain."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from pyro_pfedbayes.datatree.groups import draws_that_fit
from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.gaussians.mean_field import MeanFieldGaussian
from pyro_pfedbayes.inference.beliefs.client_objective import POINT
from pyro_pfedbayes.inference.beliefs.points import PointBelief, point_layout
from pyro_pfedbayes.inference.beliefs.private_guides import PRIVATE
from pyro_pfedbayes.inference.beliefs.sites import Belief, SiteBelief
from pyro_pfedbayes.models.declared import DeclaredModel

if TYPE_CHECKING:
    import xarray as xr

SMALL = 200
"""Scalar weights up to which the draws themselves are kept."""
RESERVED = ("chain", "draw", "client", "client_name", "site")

Array = NDArray[Any]


class SiteGroups:
    """Gathers the groups ``posterior`` or ``posterior_summary``, and ``information_gain``, a client at a time.

    ``w`` is the server's belief; of each client at most ``draws`` are stored, if the sites are few.
    """

    def __init__(self, model: DeclaredModel, w: Belief, draws: int) -> None:
        self._model, self._w = model, w
        self._size = model.declaration.num_weights
        self.wants_draws = self._size <= SMALL
        self._draws, self._clients = draws, 0
        self._values: dict[str, list[list[Array]]] = {}
        self._gain: list[dict[str, Tensor]] = []
        self._moments: dict[str, list[dict[str, Tensor]]] = {"mean_abs_loc": [], "mean_scale": []}

    def add_beliefs(self, stacked: Belief) -> None:
        """Add the q^i of the next clients, stacked."""
        assert stacked.clients is not None
        self._clients += stacked.clients
        self._gain.append(information_gain(self._model, stacked, self._w))
        if not self.wants_draws:
            moments = unconstrained_moments(self._model, stacked).items()
            self._moments["mean_abs_loc"].append(
                {k: _mean_of_each(m.abs()) for k, (m, _) in moments}
            )
            self._moments["mean_scale"].append({k: _mean_of_each(s) for k, (_, s) in moments})

    def add_draw(self, number: int, values: Mapping[str, Tensor]) -> None:
        """Add draw ``number`` of a client's sites; draw 0 begins the next client."""
        if not self.wants_draws or number >= self._draws:
            return
        # A belief may hold more than sites, such as stored examples.
        for name in self._model.declaration.shapes:
            clients = self._values.setdefault(name, [])
            if number == 0:
                clients.append([])
            clients[-1].append(values[name].detach().cpu().numpy())

    def groups(self) -> dict[str, xr.Dataset]:
        """The groups by name; one that has nothing to hold is absent."""
        found = {}
        if self._gain[0]:
            group = self._by_site({"kl": self._gain})
            group["kl"].attrs["units"] = "nats"
            shared = self._model.declaration.shared
            sizes = {name: math.prod(shape) for name, shape in shared.shapes.items()}
            weights = [sizes.get(name, shared.size) for name in self._gain[0]]
            found["information_gain"] = group.assign(weights=("site", np.asarray(weights)))
        if self.wants_draws:
            found["posterior"] = self._draw_group()
        else:
            found["posterior_summary"] = self._by_site(self._moments)
        return found

    def _by_site(self, parts: Mapping[str, Sequence[Mapping[str, Tensor]]]) -> xr.Dataset:
        """Variables by client and site, each from one tensor ``[S]`` a site and stack of clients."""
        import xarray as xr

        names = list(next(iter(parts.values()))[0])
        variables = {
            key: torch.stack([torch.cat([part[name] for part in found]) for name in names], 1)
            for key, found in parts.items()
        }
        return xr.Dataset(
            {k: (("client", "site"), v.float().cpu().numpy()) for k, v in variables.items()},
            coords={"client": np.arange(self._clients), "site": names},
        )

    def _draw_group(self) -> xr.Dataset:
        import xarray as xr

        keep = min(self._draws, draws_that_fit(self._clients * self._size))
        arrays = {}
        for site, clients in self._values.items():
            name = _safe(site)
            stack = np.stack([np.stack(draws[:keep]) for draws in clients], 1)[None]
            own = [f"{name}_dim_{k}" for k in range(stack.ndim - 3)]
            arrays[name] = (("chain", "draw", "client", *own), stack.astype(np.float32))
        dims = ("chain", "draw", "client")
        sizes = next(iter(arrays.values()))[1].shape
        return xr.Dataset(
            arrays, {name: np.arange(n) for name, n in zip(dims, sizes, strict=False)}
        )


def information_gain(model: DeclaredModel, stacked: Belief, w: Belief) -> dict[str, Tensor]:
    """KL(q^i‖w) of each of S clients in nats ``[S]``, by site: what it learned from its data that w does not say.

    By site where q^i and w are mean-field Gaussians, because only then is the divergence a sum over sites; otherwise
    of all shared sites together, under the name ``"all"``. NaN where the two families have no closed divergence.
    Empty if no site is shared, or if beliefs are points.
    """
    declared = model.declaration
    if not declared.shared.shapes or isinstance(stacked, PointBelief):
        return {}
    if isinstance(stacked, SiteBelief) and not declared.mean_field:
        assert isinstance(w, SiteBelief)
        try:
            return {"all": stacked.kl(w)}
        except UserError:
            return {"all": torch.full((stacked.clients or 1,), torch.nan)}
    q, p = _gaussian(stacked), _gaussian(w)

    def only(belief: MeanFieldGaussian, site: str) -> MeanFieldGaussian:
        loc, scale = ({site: part[site]} for part in (belief.loc, belief.scale))
        return MeanFieldGaussian.unchecked(loc, scale, belief.stacked)

    return {name: only(q, name).kl(only(p, name)) for name in declared.shared.shapes}


def unconstrained_moments(
    model: DeclaredModel, stacked: Belief
) -> dict[str, tuple[Tensor, Tensor]]:
    """Means and marginal standard deviations ``[S, *shape]`` of each site, in unconstrained coordinates.

    A point estimate has standard deviation 0; private sites under an AutoGuide of the user's own are NaN.
    """
    if isinstance(stacked, MeanFieldGaussian):
        return {name: (stacked.loc[name], stacked.scale[name]) for name in stacked.names}
    if isinstance(stacked, PointBelief):
        points = point_layout(model).unflatten(stacked.theta)
        return {name: (loc, torch.zeros_like(loc)) for name, loc in points.items()}
    declared, params = model.declaration, stacked.params
    parts = []
    if declared.shared.shapes:
        parts.append((declared.shared, declared.guide.mean(params), declared.guide.std(params)))
    if declared.private.shapes:
        if PRIVATE + "rho" in params:
            loc, scale = params[PRIVATE + "loc"], F.softplus(params[PRIVATE + "rho"])
        else:
            some = next(iter(params.values()))
            loc = scale = some.new_full((len(some), declared.private.size), torch.nan)
        parts.append((declared.private, loc, scale))
    if declared.point.shapes:
        parts.append((declared.point, params[POINT], torch.zeros_like(params[POINT])))
    found = {
        name: (mean, deviation)
        for layout, loc, scale in parts
        for (name, mean), deviation in zip(
            layout.unflatten(loc).items(), layout.unflatten(scale).values(), strict=True
        )
    }
    return {name: found[name] for name in declared.shapes}


def _gaussian(belief: Belief) -> MeanFieldGaussian:
    """A mean-field belief as Gaussians over the shared sites."""
    if isinstance(belief, MeanFieldGaussian):
        return belief
    assert isinstance(belief, SiteBelief)
    params = belief.params
    scale = params["scale"] if belief.of_server else F.softplus(params["rho"])
    return belief.model.declaration.shared.gaussian(params["loc"], scale)


def _mean_of_each(values: Tensor) -> Tensor:
    """Mean of each client's values ``[S, ...]``."""
    return values.flatten(1).mean(1) if values.dim() > 1 else values


def _safe(site: str) -> str:
    """A name that netCDF takes, and that no coordinate has."""
    name = site.replace("/", "_")
    return f"{name}_" if name in RESERVED else name
