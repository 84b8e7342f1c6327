"""What personal and global models say about the clients' examples, draw by draw, as an ArviZ tree.

Every client's weights are drawn once and used for all that is asked of it. Examples pass in pieces of ``chunk``, sums
run over all draws, and single draws are kept as far as they fit: memory is a setting, not a function of the data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import torch
from torch import Tensor

from pyro_pfedbayes import datatree
from pyro_pfedbayes.clients import FederatedData
from pyro_pfedbayes.datatree_classes import ClassTable
from pyro_pfedbayes.datatree_core import Owners, checked_attrs, label_clients
from pyro_pfedbayes.datatree_numbers import NumberTable
from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.inference.accumulate import number_draw
from pyro_pfedbayes.inference.beliefs import Belief
from pyro_pfedbayes.inference.federation import Federation, Result
from pyro_pfedbayes.inference.posterior_sites import SiteGroups
from pyro_pfedbayes.inference.predictive import CHUNK, belief_seed, predictive_streams, site_draws
from pyro_pfedbayes.inference.state import FederationState
from pyro_pfedbayes.models.declared import DeclaredModel
from pyro_pfedbayes.randomness import generator, seed_for
from pyro_pfedbayes.versions import versions

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["UNSEEN_LIMIT", "posterior_datatree", "run_attributes", "to_datatree", "unseen_examples"]

UNSEEN_LIMIT = 300
"""Most examples of classes that a client never saw which it is asked about."""

Table = ClassTable | NumberTable
Attributes = Mapping[str, str | int | float]


@overload
def to_datatree(
    source: Result,
    /,
    *,
    draws: int = ...,
    part: str = ...,
    attrs: Attributes | None = ...,
    chunk: int = ...,
) -> xr.DataTree: ...


@overload
def to_datatree(*args: Any, **options: Any) -> xr.DataTree: ...


def to_datatree(*args: Any, **options: Any) -> xr.DataTree:
    """The posterior predictive of a finished run, or of draws of your own, as an ArviZ ``DataTree``.

    ``to_datatree(result)`` takes what ``Federation.run`` returned; ``draws`` (default 100), ``part`` (``"test"`` or
    ``"validation"``), ``attrs`` and ``chunk`` are as for `posterior_datatree`, which lists the groups. The attributes
    tell method, zeta, seed, rounds and versions.

    ``to_datatree(draws, y, client, ...)`` takes probabilities, as `pyro_pfedbayes.datatree.to_datatree` does.

    Example:
        >>> import pyro_pfedbayes as pfb
        >>> digits = pfb.load_dataset("digits")
        >>> data = pfb.FederatedData(digits, pfb.partition_labels(digits, 4, 5, 15, 15, validation=0.2))
        >>> model = pfb.BayesianModel(pfb.mlp([64, 8, 10]), pfb.Categorical(10))
        >>> result = pfb.Federation(model, data, algorithm=pfb.PFedBayes(local_steps=2), device="cpu").run(2)
        >>> tree = to_datatree(result, draws=5)
        >>> dict(tree["posterior_predictive"].sizes), tree.attrs["method"]
        ({'chain': 1, 'draw': 5, 'observation': 300}, 'pfedbayes')
    """
    if args and isinstance(args[0], Result):
        result, *rest = args
        if rest:
            raise UserError("to_datatree(result) takes its further options by name, such as draws=")
        own = options.pop("attrs", None) or {}
        options = {"draws": 100, **options}
        attrs = run_attributes(result.federation, result.state) | dict(own)
        return posterior_datatree(result.federation, result.state, attrs=attrs, **options)
    return datatree.to_datatree(*args, **options)


def run_attributes(federation: Federation, state: FederationState) -> dict[str, str | int | float]:
    """What a tree remembers of its run: method, zeta if it has one, data, seed, rounds and versions."""
    zeta = getattr(federation.algorithm, "zeta", None)
    return {
        "method": federation.algorithm.name,
        **({} if zeta is None else {"zeta": zeta}),
        "data": federation.data.dataset.name,
        "seed": federation.seed,
        "rounds": state.round,
        **{f"version_{name}": version for name, version in versions().items()},
    }


def posterior_datatree(
    federation: Federation,
    state: FederationState,
    *,
    draws: int = 20,
    part: str = "test",
    attrs: Attributes | None = None,
    chunk: int = CHUNK,
) -> xr.DataTree:
    """The posterior predictive of a federation as an ArviZ tree.

    The groups that `pyro_pfedbayes.datatree.to_datatree` (or ``to_datatree_numbers``) lists are the personal models'.
    Beside them:

    ======================= ==================================================================================
    group                   what it holds
    ======================= ==================================================================================
    global_stats            ``observation_stats`` of the global model, on the same observations
    validation_stats        the personal models' statistics and the truth ``y`` on ``validation_observation``
    global_validation_stats the same of the global model
    unseen_stats            classes: each client on up to `UNSEEN_LIMIT` examples of classes it never saw
    information_gain        ``kl`` = KL(q^i‖w) in nats by client and site, and each site's number of weights
    posterior               draws of the sites, if a client has at most 200 scalar weights
    posterior_summary       otherwise: mean |loc| and mean scale of each client's sites
    ======================= ==================================================================================

    A group that has nothing to hold is absent. Draws of weights are those of ``Federation.predictions`` with as many.
    Statistics run over all draws; those of more draws than fit are not kept one by one.

    Args:
        federation: Clients and model.
        state: What they believe.
        draws: Draws of the weights, at least 1.
        part: ``"test"`` or ``"validation"``; the validation groups come with ``"test"``.
        attrs: What to remember of the run.
        chunk: Examples that pass through the network at once.

    Raises:
        UserError: No client has such an example, or a prediction is not finite.
    """
    if draws < 1 or chunk < 1:
        raise UserError(f"draws is {draws} and chunk {chunk}: both must be at least 1")
    data = federation.data
    kept_attrs = checked_attrs(attrs or {})
    personal, everyone = _questions(federation, state, part)
    w = federation.global_belief(state)
    sites = SiteGroups(federation.model, w, min(draws, personal["observed"].table.keep))
    _ask_clients(federation, state, personal, sites, draws, chunk)
    _ask_global(federation, state, everyone, draws, chunk)
    tree = personal["observed"].tree(kept_attrs)
    _add(tree, "global_stats", everyone["observed"].statistics(), data)
    if "validation" in everyone:
        for prefix, asked in (("", personal), ("global_", everyone)):
            found = asked["validation"].statistics("validation_observation", truth="y")
            _add(tree, f"{prefix}validation_stats", found, data)
    if "unseen" in personal:
        found = personal["unseen"].statistics("example")
        labels = ("example", personal["unseen"].table.y.astype(np.int16))
        found = found.rename({"client_of": "client_of_example"}).assign_coords(label=labels)
        _add(tree, "unseen_stats", found, data)
    for name, group in sites.groups().items():
        _add(tree, name, group, data)
    return tree


def unseen_examples(
    data: FederatedData, seed: int, *, limit: int = UNSEEN_LIMIT
) -> tuple[Tensor, ...]:
    """For each client, test examples of other clients whose class none of its training examples has.

    They are what a client's model should know that it does not know: natural out-of-distribution inputs, which only a
    simulation can lay hands on, for they are others' data.

    Args:
        data: Clients and examples, of classes.
        seed: Of the run; it decides which are taken where there are more than ``limit``.
        limit: Most examples of a client.

    Returns:
        Indices into the data set, int64 ``[m]`` for each client; none where it has seen all classes.
    """
    y, lists = data.dataset.y.cpu(), data.partition.test
    pool = torch.cat(lists)
    holder = torch.arange(len(lists)).repeat_interleave(torch.tensor([len(i) for i in lists]))
    labels, found = y[pool], []
    for client, train in enumerate(data.partition.train):
        seen = torch.zeros(data.num_classes, dtype=torch.bool)
        known = y[train]
        seen[known[known >= 0]] = True
        # An unknown label may be of any class.
        new = (labels >= 0) & ~seen[labels.clamp_min(0)] & (holder != client)
        index = pool[new]
        if len(index) > limit:
            stream = generator(seed, "unseen", client)
            index = index[torch.randperm(len(index), generator=stream)[:limit].sort().values]
        found.append(index)
    return tuple(found)


@dataclass(frozen=True)
class _Asked:
    """Examples of all clients, end to end, and what is kept of the answers.

    Attributes:
        data: The clients' examples.
        index: Into the data set, int64 ``[n]``.
        starts: Where each client's begin, ``[N + 1]``.
        table: The answers so far.
    """

    data: FederatedData
    index: Tensor
    starts: tuple[int, ...]
    table: Table

    @staticmethod
    def of(
        data: FederatedData, lists: Sequence[Tensor], *, keep: int | None, seed: int = 0
    ) -> _Asked:
        sizes = torch.tensor([len(index) for index in lists])
        owner = torch.arange(len(lists)).repeat_interleave(sizes).numpy()
        owners = Owners.of(owner, range(len(lists)))
        index = torch.cat(list(lists))
        y = data.dataset.y.cpu()[index].numpy()
        table: Table
        if data.outcome == "number":
            scaling = data.dataset.target_scaling
            table = NumberTable(y.astype(np.float64), owners, target_scaling=scaling, keep=keep)
        else:
            table = ClassTable(y, owners, keep=keep, seed=seed)
        return _Asked(data, index, (0, *sizes.cumsum(0).tolist()), table)

    def rows(self, client: int | None) -> range:
        """Places of one client's observations, or of all."""
        if client is None:
            return range(len(self.index))
        return range(self.starts[client], self.starts[client + 1])

    def pieces(self, rows: range, chunk: int) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Inputs and outcomes of some observations, a piece at a time."""
        dataset = self.data.dataset
        for start in range(rows.start, rows.stop, chunk):
            piece = slice(start, min(start + chunk, rows.stop))
            index = self.index[piece].to(dataset.y.device)
            yield piece, dataset.x.index_select(0, index), dataset.y.index_select(0, index)

    def statistics(self, dim: str = "observation", truth: str | None = None) -> xr.Dataset:
        """Of all observations, beside whose they are; and the truth as a variable."""
        table = self.table
        found = (
            table.statistics(dim)
            if isinstance(table, NumberTable)
            else table.statistics(self.data.dataset.classes, dim)
        )
        if truth is not None:
            kind = np.float32 if isinstance(table, NumberTable) else np.int16
            found[truth] = (dim, table.y.astype(kind))
        coords = {"client_of": (dim, table.owners.owner.astype(np.int32))}
        if dim != "observation":
            coords["index"] = (dim, self.index.numpy())
        return found.assign_coords(coords)

    def tree(self, attrs: dict[str, str | int | float]) -> xr.DataTree:
        """The groups of the personal models."""
        index, names = self.index.numpy(), self.data.partition.names
        if isinstance(self.table, NumberTable):
            return self.table.tree(index, names, attrs)
        return self.table.tree(index, self.data.dataset.classes, names, attrs)


def _questions(
    federation: Federation, state: FederationState, part: str
) -> tuple[dict[str, _Asked], dict[str, _Asked]]:
    """What the personal models, and what the global one, are to be asked about."""
    data = federation.data
    lists = data.partition.part(part)
    if not any(map(len, lists)):
        raise UserError(f"no client has a {part} example")
    parts: dict[str, Sequence[Tensor]] = {"observed": lists}
    if part == "test" and any(map(len, data.partition.validation)):
        parts["validation"] = data.partition.validation
    seed = seed_for(federation.seed, "posterior", state.round)
    personal = {
        name: _Asked.of(data, own, keep=None if name == "observed" else 0, seed=seed)
        for name, own in parts.items()
    }
    everyone = {name: _Asked.of(data, own, keep=0) for name, own in parts.items()}
    if part == "test" and data.outcome == "class":
        unseen = unseen_examples(data, federation.seed)
        if any(map(len, unseen)):
            personal["unseen"] = _Asked.of(data, unseen, keep=0)
    return personal, everyone


def _ask_clients(
    federation: Federation,
    state: FederationState,
    asked: Mapping[str, _Asked],
    sites: SiteGroups,
    draws: int,
    chunk: int,
) -> None:
    """Ask every client's q^i about its own examples, a client at a time."""
    seed = seed_for(federation.seed, "evaluation")
    for clients, stacked in federation.personal_beliefs(state):
        sites.add_beliefs(stacked)
        for row, client in enumerate(clients):
            key = belief_seed(seed, client)
            belief = stacked.client(row)
            # Also of a client without an example the sites are drawn, if they are few.
            if sites.wants_draws or any(len(each.rows(client)) for each in asked.values()):
                try:
                    _ask(federation.model, belief, key, asked, client, draws, chunk, sites)
                except UserError as problem:
                    name = federation.data.partition.names[client]
                    raise UserError(f"client {name}: {problem}") from problem


def _ask_global(
    federation: Federation,
    state: FederationState,
    asked: Mapping[str, _Asked],
    draws: int,
    chunk: int,
) -> None:
    key = belief_seed(seed_for(federation.seed, "evaluation"), None)
    try:
        _ask(
            federation.model, federation.global_belief(state), key, asked, None, draws, chunk, None
        )
    except UserError as problem:
        raise UserError(f"global model: {problem}") from problem


def _ask(
    model: DeclaredModel,
    belief: Belief,
    key: int,
    asked: Mapping[str, _Asked],
    client: int | None,
    draws: int,
    chunk: int,
    sites: SiteGroups | None,
) -> None:
    """One belief about some examples; each draw of its sites serves all of them."""
    streams = predictive_streams(key, belief.device)
    # Each part has outcomes of its own, so that one does not depend on whether there is another.
    outcomes = {
        name: streams.outcomes
        if name == "observed"
        else generator(key, "outcomes", name, device=belief.device)
        for name in asked
    }
    rows = {name: each.rows(client) for name, each in asked.items()}
    # What fits in one piece is looked up once for all draws.
    small = {n: list(asked[n].pieces(r, chunk)) for n, r in rows.items() if len(r) <= chunk}
    for number, values in enumerate(site_draws(model, belief, draws, streams.weights)):
        if sites is not None:
            sites.add_draw(number, values)
        for name, each in asked.items():
            for piece, x, y in small.get(name) or each.pieces(rows[name], chunk):
                with torch.no_grad():
                    if isinstance(each.table, NumberTable):
                        observation = model.observation(values, x)
                        answer = number_draw(observation, y, outcomes[name])
                        each.table.add(number, answer, piece)
                    else:
                        each.table.add(number, model.predict(values, x), piece)


def _add(tree: xr.DataTree, name: str, group: xr.Dataset, data: FederatedData) -> None:
    import xarray as xr

    tree[name] = xr.DataTree(label_clients(group, data.partition.names))
