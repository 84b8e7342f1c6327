"""Clients of several kinds: a mixture of Gaussians at the server, found from the uploads alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.gaussians.mean_field import MeanFieldGaussian
from pyro_pfedbayes.inference.algorithm import Tensors, Upload
from pyro_pfedbayes.inference.server.prefixed_state import prefixed, under
from pyro_pfedbayes.inference.server.rules import closed_form

Centre = tuple[Tensor, Tensor]
"""Means and standard deviations ``[T]``."""

KINDS = "kinds."
"""How the names of what the server stores for each kind begin."""

SWEEPS = 20
STARTS = 3


def discover_kinds(loc: Tensor, scale: Tensor, kinds: int) -> Tensor:
    """Group clients so that mean_i min_k KL(q^i‖w_k) is small: Lloyd's algorithm with Gaussians for centres.

    This is hard-assignment EM for the projection of the clients onto a mixture of ``kinds`` mean-field Gaussians;
    with many weights the soft responsibilities are 0 or 1 anyway. Each step lowers the objective: centres are
    barycentres, which minimise it for given groups. The best of a few deterministic starts is taken, from clients that
    are far apart among all their weights and along the principal components of their means. (With many weights one
    client that is far from all others draws every start of the first sort to itself.)

    From means and standard deviations ``[N, T]`` to the group of each client, int64 ``[N]``, numbered by their first
    clients.

    Example:
        >>> loc = torch.tensor([[0.0], [5.0], [0.1], [5.1]])
        >>> discover_kinds(loc, torch.ones(4, 1), 2).tolist()
        [0, 1, 0, 1]
    """
    clients = len(loc)
    if not 1 <= kinds <= clients:
        raise UserError(f"kinds is {kinds}, but {clients} clients can form 1 to {clients} groups")
    starts = [_far_apart(loc, scale, kinds, first) for first in range(min(STARTS, clients))]
    starts += _along_components(loc, scale, kinds)
    found = [_lloyd(loc, scale, centres) for centres in starts]
    return _numbered_by_first_client(min(found, key=lambda one: one[1])[0])


def update_kinds(
    server: Tensors,
    uploads: Sequence[Upload],
    kinds: int,
    *,
    regroup: bool,
    aggregate: Callable[[Upload], Tensors],
) -> dict[str, Tensor]:
    """The server after a round of the phase of kinds, with a w_k for each under ``kinds.``; w itself stands still.

    Clients stay in their groups unless ``regroup``; ``aggregate`` makes the next w_k of what those of one kind sent.
    """
    everyone, stored = Upload.cat(uploads), under(server, KINDS)
    clients, sent = list(everyone.clients), everyone.tensors
    if regroup:
        # Without shared random weights the points tell clients apart, by plain distance.
        loc = sent["loc"] if "loc" in sent else sent["point"]
        found = discover_kinds(loc, sent.get("scale", torch.ones_like(loc)), kinds)
        # A client that diverged just now sent nothing; it counts with the first kind.
        stored["of"] = torch.zeros(max(clients) + 1, dtype=torch.int64, device=found.device)
        stored["of"][clients] = found
    group = stored["of"].cpu()[clients]
    for k in group.unique().tolist():
        for name, value in aggregate(everyone.select(group == k)).items():
            stored[name] = stored.get(name, value.expand(kinds, *value.shape)).clone()
            stored[name][k] = value
    return {**server, **prefixed(stored, KINDS)}


def of_clients(server: Tensors, clients: Sequence[int]) -> Tensors:
    """The server's state for some clients: w and averages as they are, or those of their kinds ``[S, ...]``."""
    stored = under(server, KINDS)
    if not stored:
        return server
    of = stored.pop("of").tolist()
    index = [of[i] if i < len(of) else 0 for i in clients]
    return {name: value[index] for name, value in stored.items()}


def information_gain(loc: Tensor, scale: Tensor, w_loc: Tensor, w_scale: Tensor) -> Tensor:
    """KL(q^i‖w) in nats, ``[S]``, of mean-field Gaussians ``[S, T]`` and ``[T]``; a client at a time bounds memory."""
    w = MeanFieldGaussian.unchecked({"theta": w_loc}, {"theta": w_scale})
    rows = zip(loc, scale, strict=True)
    return torch.stack(
        [MeanFieldGaussian.unchecked({"theta": m}, {"theta": s}).kl(w) for m, s in rows]
    )


def _lloyd(loc: Tensor, scale: Tensor, centres: list[Centre]) -> tuple[Tensor, float]:
    centres = [*centres]
    group = torch.full((len(loc),), -1)
    distances = torch.empty(0)
    for _ in range(SWEEPS):
        distances = torch.stack([information_gain(loc, scale, *centre) for centre in centres])
        previous, group = group, distances.argmin(0).cpu()
        if torch.equal(previous, group):
            break
        for k in range(len(centres)):
            if bool((group == k).any()):
                centres[k] = _centre(loc, scale, group == k)
    return group, float(distances.amin(0).mean())


def _centre(loc: Tensor, scale: Tensor, members: Tensor) -> Centre:
    rows = members.nonzero()[:, 0].to(loc.device)
    return closed_form([(loc[rows], scale[rows], torch.ones(len(rows), device=loc.device))])


def _along_components(loc: Tensor, scale: Tensor, kinds: int) -> list[list[Centre]]:
    """Centres of the groups that clients form along the K - 1 directions in which their means differ most.

    Distances there are not drowned by the noise of all other directions, in which every client differs from the others.
    """
    if not 1 < kinds < len(loc):
        return []
    # Where q^i are narrow, a difference counts for more, as in the divergence.
    units = (loc - loc.mean(0)) / scale.square().mean(0).sqrt()
    values, vectors = torch.linalg.eigh((units @ units.T).double().cpu())
    places = (vectors * values.clamp(min=0.0).sqrt())[:, -(kinds - 1) :].to(torch.float32)
    found: dict[tuple[int, ...], list[Centre]] = {}
    width = torch.ones_like(places)
    for first in range(min(STARTS, len(loc))):
        group, _ = _lloyd(places, width, _far_apart(places, width, kinds, first))
        if len(group.unique()) == kinds:
            centres = [_centre(loc, scale, group == k) for k in range(kinds)]
            found.setdefault(tuple(_numbered_by_first_client(group).tolist()), centres)
    return list(found.values())


def _far_apart(loc: Tensor, scale: Tensor, kinds: int, first: int) -> list[Centre]:
    def centre(i: int) -> Centre:
        return loc[i], scale[i]

    chosen = [first]
    while len(chosen) < kinds:
        nearest = torch.stack([information_gain(loc, scale, *centre(i)) for i in chosen]).amin(0)
        nearest[chosen] = -1.0
        chosen.append(int(nearest.argmax()))
    return [centre(i) for i in chosen]


def _numbered_by_first_client(group: Tensor) -> Tensor:
    order: dict[int, int] = {}
    return torch.tensor([order.setdefault(int(k), len(order)) for k in group], dtype=torch.int64)
