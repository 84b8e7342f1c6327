"""Beliefs of clients and server over the sites of any declared model, as named flat tensors and as distributions.

A client's row holds the parameters of its q^i over shared sites by the guide family's names, those over private sites
under ``private.``, and its copy of the point estimates. The server holds w by its family's names, and the points.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.families import Mixture
from pyro_pfedbayes.families.clients import inverse_softplus
from pyro_pfedbayes.families.divergence import divergence
from pyro_pfedbayes.gaussians.flat_layout import FlatLayout
from pyro_pfedbayes.gaussians.mean_field import MeanFieldGaussian
from pyro_pfedbayes.inference.beliefs.client_objective import POINT
from pyro_pfedbayes.inference.beliefs.points import PointBelief, check_client, check_draws
from pyro_pfedbayes.inference.beliefs.private_guides import PRIVATE, private_guide
from pyro_pfedbayes.models.declared import DeclaredModel

Tensors = Mapping[str, Tensor]


def server_start(model: DeclaredModel) -> dict[str, Tensor]:
    """The server's w and point estimates before any round."""
    declared, start = model.declaration, model.start
    server: dict[str, Tensor] = {}
    if declared.shared.shapes:
        loc, scale = (declared.shared.flatten(part) for part in (start.loc, start.scale))
        server = declared.server.start(loc, scale)
    if declared.point.shapes:
        server[POINT] = declared.point.flatten(start.loc)
    return server


def w_of(server: Tensors) -> dict[str, Tensor]:
    """W alone, of what a server holds: names with a dot, and the points, are something else."""
    return {k: v for k, v in server.items() if "." not in k and k != POINT}


def parameter_names(model: DeclaredModel) -> list[str]:
    """Names of a client's parameters that the server learns of: those of shared sites, then the points."""
    declared = model.declaration
    names = list(declared.guide.sizes(declared.shared.size)) if declared.shared.shapes else []
    return [*names, POINT] if declared.point.shapes else names


def all_names(model: DeclaredModel) -> list[str]:
    """A client's parameters: those that the server learns of first, then its private ones."""
    return [*parameter_names(model), *fresh_private(model, 1)]


def restarted(
    model: DeclaredModel, server: Tensors, count: int, own: Tensors | None = None
) -> dict[str, Tensor]:
    """Rows ``[count, P]`` of clients at q^i = w (or as near as their family comes) and at the server's points.

    Under a mixture a client restarts at the component that its present q^i lies in; ``own`` are the clients' present
    rows, None if they have never trained. A mean-field w may be one a client ``[count, T]``.
    """
    declared, rows = model.declaration, {}
    if declared.shared.shapes:
        w = w_of(server)
        if isinstance(declared.server, Mixture) and own is not None:
            chosen = declared.server.component_of(declared.guide.rows(own), w)
            loc, scale = w["loc"][chosen], w["scale"][chosen]
        else:
            loc, scale = declared.server.nearest(w)
        start = declared.guide.start(loc, scale)
        rows = {name: value.expand(count, value.shape[-1]).clone() for name, value in start.items()}
    if declared.point.shapes:
        rows[POINT] = server[POINT].expand(count, -1).clone()
    return rows


def fresh_private(model: DeclaredModel, count: int) -> dict[str, Tensor]:
    """Rows of the private parameters of clients that have never trained."""
    declared, start = model.declaration, model.start
    if not declared.private.shapes:
        return {}
    guide = private_guide(model)
    if guide is not None:
        rows = {name: value.to(start.device) for name, value in guide.start().items()}
    else:
        rows = {
            PRIVATE + "loc": declared.private.flatten(start.loc),
            PRIVATE + "rho": inverse_softplus(declared.private.flatten(start.scale)),
        }
    return {name: value.expand(count, -1).clone() for name, value in rows.items()}


def shared_upload(model: DeclaredModel, rows: Tensors) -> dict[str, Tensor]:
    """What leaves the clients of a stack: Gaussians over shared sites, and points; nothing that is private."""
    declared, upload = model.declaration, {}
    if declared.shared.shapes:
        sent = declared.guide.rows(rows)
        upload = {"loc": sent.loc, "scale": sent.scale}
        if sent.factor is not None:
            upload["factor"] = sent.factor
    if declared.point.shapes:
        upload[POINT] = rows[POINT]
    return upload


@dataclass(frozen=True, eq=False)
class SiteBelief:
    """A distribution over the sites of a declared model, of one client, of N stacked ones, or of the server.

    Values of sites are in their own coordinates (a standard deviation is positive).
    """

    model: DeclaredModel
    params: Tensors  # a client's parameters ``[P]``, ``[N, P]`` if stacked, or w's
    of_server: bool = False  # whether it is the server's w
    stacked: bool = False  # whether there is a leading client dimension

    @staticmethod
    def cat(parts: Sequence[SiteBelief]) -> SiteBelief:
        """Join stacks of clients."""
        params = {k: torch.cat([part.params[k] for part in parts]) for k in parts[0].params}
        return replace(parts[0], params=params)

    @property
    def names(self) -> tuple[str, ...]:
        """The sites it says something about: under the server's belief, private sites keep their own priors."""
        declared = self.model.declaration
        hidden = declared.private.shapes if self.of_server else {}
        return tuple(name for name in declared.shapes if name not in hidden)

    @property
    def clients(self) -> int | None:
        """The number of clients N if stacked, else None."""
        return len(next(iter(self.params.values()))) if self.stacked else None

    @property
    def num_weights(self) -> int:
        """The number of scalar weights of one client, in unconstrained coordinates."""
        shapes = self.model.declaration.shapes
        return FlatLayout({name: shapes[name] for name in self.names}).size

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return next(iter(self.params.values())).device

    def client(self, i: int) -> SiteBelief:
        """One client of a stack."""
        check_client(self.clients, i)
        return replace(self, params={k: v[i] for k, v in self.params.items()}, stacked=False)

    @property
    def loc(self) -> dict[str, Tensor]:
        """Sites at the means of their unconstrained coordinates (medians of their own, where a site has one number)."""
        declared = self.model.declaration
        family = declared.server if self.of_server else declared.guide
        return self.model.constrain(
            self._joined(lambda: family.mean(self.params), self._private_mean)
        )

    def sample(
        self, draws: int | None = None, generator: torch.Generator | None = None
    ) -> dict[str, Tensor]:
        """Draw all sites that it knows of.

        Args:
            draws: How many draws K; None for one without a draw dimension.
            generator: The stream of random numbers, on this belief's device; None for PyTorch's own.

        Returns:
            ``{site: [draws?, N?, *shape]}``.
        """
        if draws is not None:
            check_draws(draws)
            return _stack([self.sample(generator=generator) for _ in range(draws)])
        if self.clients is not None:
            return _stack([self.client(i).sample(generator=generator) for i in range(self.clients)])
        stream = torch.Generator(self.device) if generator is None else generator
        if generator is None:
            stream.seed()
        free = self._joined(lambda: self._shared_draw(stream), lambda: self._private_draw(stream))
        with torch.no_grad():
            return self.model.constrain(free)

    def kl(self, other: SiteBelief) -> Tensor:
        """Information gain KL(q^i‖w) over shared sites, ``[N]`` or ``[]`` in nats."""
        declared = self.model.declaration
        if not declared.shared.shapes:
            raise UserError("no site is shared: there is nothing to compare")
        if self.clients is not None:
            return torch.stack([self.client(i).kl(other) for i in range(self.clients)])
        families = (declared.guide, declared.server)
        q, p = (
            families[belief.of_server].distribution(w_of(belief.params)) for belief in (self, other)
        )
        try:
            return divergence(q, p)
        except NotImplementedError:
            raise UserError(
                f"KL has no closed form from {declared.guide.name} to {declared.server.name}"
            ) from None

    def _joined(
        self, shared: Callable[[], Tensor], private: Callable[[], dict[str, Tensor]]
    ) -> dict[str, Tensor]:
        """Unconstrained coordinates of all sites: shared ones flat, private ones by name, and the points."""
        declared = self.model.declaration
        free = declared.shared.unflatten(shared()) if declared.shared.shapes else {}
        if declared.private.shapes:
            free |= private()
        if declared.point.shapes:
            free |= declared.point.unflatten(self.params[POINT])
        return free

    def _shared_draw(self, stream: torch.Generator) -> Tensor:
        declared = self.model.declaration
        if self.of_server:
            return declared.server.sample(w_of(self.params), stream)
        size = declared.guide.noise_size(declared.shared.size)
        return declared.guide.draw(self.params, self._noise(size, stream))

    def _private_mean(self) -> dict[str, Tensor]:
        declared, guide = self.model.declaration, private_guide(self.model)
        if self.of_server:
            return {k: self.model.start.loc[k] for k in declared.private.shapes}
        if guide is None:
            return declared.private.unflatten(self.params[PRIVATE + "loc"])
        if self.clients is None:
            return guide.values(self.params, None)[0]
        return _stack([self.client(i)._private_mean() for i in range(self.clients)])

    def _private_draw(self, stream: torch.Generator) -> dict[str, Tensor]:
        declared, guide = self.model.declaration, private_guide(self.model)
        if self.of_server:
            return {}
        if guide is None:
            loc, rho = self.params[PRIVATE + "loc"], self.params[PRIVATE + "rho"]
            return declared.private.unflatten(loc + F.softplus(rho) * self._noise(len(loc), stream))
        _, used = guide.values(self.params, None)
        return guide.values(self.params, self._noise(used, stream))[0]

    def _noise(self, size: int, stream: torch.Generator) -> Tensor:
        like = next(iter(self.params.values()))
        return torch.randn(size, generator=stream, dtype=like.dtype, device=like.device)


def _stack(rows: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


Belief = MeanFieldGaussian | SiteBelief | PointBelief
"""A network in the paper's setting believes in plain Gaussians over its weights; other models in their sites; and
methods that are not Bayesian in a point."""
