"""What personal and global models say about the clients' examples, draw by draw, as an ArviZ tree.

Every client's weights are drawn once and used for all of its predictions. Examples pass in pieces of ``chunk``, sums
run over all draws, and single draws are kept as far as they fit: memory is a setting, not a function of the data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pyro_pfedbayes.data.datasets import Dataset
from pyro_pfedbayes.datatree import tree as datatree
from pyro_pfedbayes.datatree.groups import checked_attrs, label_clients
from pyro_pfedbayes.datatree.numeric import NumberTable
from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.inference.beliefs.sites import Belief
from pyro_pfedbayes.inference.federation.loop import Federation, Result
from pyro_pfedbayes.inference.federation.state import FederationState
from pyro_pfedbayes.inference.posterior import out_of_distribution as ood
from pyro_pfedbayes.inference.posterior.stored_predictions import StoredPredictions
from pyro_pfedbayes.inference.predictive.accumulators import number_draw
from pyro_pfedbayes.inference.predictive.draws import (
    CHUNK,
    belief_seed,
    predictive_streams,
    predictor,
    site_draws,
)
from pyro_pfedbayes.inference.predictive.site_draws import SiteGroups
from pyro_pfedbayes.randomness import generator, seed_for
from pyro_pfedbayes.versions import versions

if TYPE_CHECKING:
    import xarray as xr

Attributes = Mapping[str, str | int | float]


def to_datatree(*args: Any, **options: Any) -> xr.DataTree:
    """The posterior predictive of a finished run, or of draws of your own, as an ArviZ ``DataTree``.

    ``to_datatree(result)`` takes what ``Federation.run`` returned; ``draws`` (default 100), ``part`` (``"test"`` or
    ``"validation"``), ``attrs``, ``chunk``, ``foreign``, ``corruptions`` and ``limits`` are as for
    `posterior_datatree`, which lists the groups. The attributes tell method, zeta, seed, rounds and versions.

    ``to_datatree(draws, y, client, ...)`` takes probabilities, as `pyro_pfedbayes.datatree.tree.to_datatree` does.

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
    foreign: Dataset | None = None,
    corruptions: bool = False,
    limits: tuple[float, float] = (-1.0, 1.0),
) -> xr.DataTree:
    """The posterior predictive of a federation as an ArviZ tree.

    The groups that `pyro_pfedbayes.datatree.tree.to_datatree` (or ``to_datatree_numbers``) lists are the personal
    models'.
    Beside them:

    ======================= ==================================================================================
    group                   what it holds
    ======================= ==================================================================================
    global_stats            ``observation_stats`` of the global model, on the same observations
    validation_stats        the personal models' statistics and the truth ``y`` on ``validation_observation``
    global_validation_stats the same of the global model
    unseen_stats            classes: each client on up to `UNSEEN_LIMIT` examples of classes it never saw
    corrupted_stats         images: each client on up to `CORRUPTED_LIMIT` of its test examples, damaged in three ways
                            at five strengths, and the truth ``y``
    foreign_stats           every client on up to `FOREIGN_LIMIT` examples of another data set
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
        foreign: Another data set, whose inputs have the clients' shape and are scaled as theirs are.
        corruptions: Whether to predict damaged test examples, if inputs are images and outcomes classes.
        limits: Black and white in the inputs' scale, for what damages them. The default is that of images as
            `load_dataset` gives them; of images centred and scaled since, it is what became of -1 and 1.
    """
    import xarray as xr

    for name, value in (("draws", draws), ("chunk", chunk)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise UserError(f"{name} is {value!r}; give a whole number >= 1")
    if foreign is not None and not isinstance(foreign, Dataset):
        raise UserError(f"foreign is {foreign!r}; give a data set, such as load_dataset('fmnist')")
    if len(limits) != 2:
        raise UserError(f"limits are {limits!r}; give black and white, such as (-1.0, 1.0)")
    if draws < 1 or chunk < 1:
        raise UserError(f"draws is {draws} and chunk {chunk}: both must be at least 1")
    draws = federation.draws_of(draws, state)
    data = federation.data
    tree_attrs = checked_attrs(attrs or {})
    personal, shared = _parts(federation, state, part)
    index = None
    if foreign is not None:
        index = ood.foreign_examples(data, foreign, federation.seed)
        personal["foreign"] = ood.foreign_predictions(data, foreign, index)
    damaged = ood.corrupted_predictions(data, federation.seed, limits) if corruptions else None
    if damaged is not None:
        personal["corrupted"] = damaged
    w = federation.global_belief(state)
    sites = SiteGroups(federation.model, w, min(draws, personal["observed"].table.keep))
    for clients, stacked in federation.personal_beliefs(state):
        sites.add_beliefs(stacked)
        for row, client in enumerate(clients):
            # Also of a client without an example the sites are drawn, if they are few.
            if sites.wants_draws or any(len(each.rows(client)) for each in personal.values()):
                with _named(f"client {data.partition.names[client]}"):
                    one = stacked.client(row)
                    _predict(federation, one, client, personal, draws, chunk, sites)
    with _named("global model"):
        _predict(federation, w, None, shared, draws, chunk, None)
    classes = data.dataset.classes
    tree = personal["observed"].tree(data.partition.names, tree_attrs)
    groups = {"global_stats": shared["observed"].statistics(classes=classes)}
    if "validation" in shared:
        for prefix, stored in (("", personal), ("global_", shared)):
            groups[f"{prefix}validation_stats"] = stored["validation"].statistics(
                "validation_observation", classes=classes, truth="y"
            )
    if "unseen" in personal:
        groups["unseen_stats"] = ood.unseen_statistics(personal["unseen"], classes)
    if damaged is not None:
        groups["corrupted_stats"] = ood.corrupted_statistics(damaged, classes)
    if foreign is not None and index is not None:
        groups["foreign_stats"] = ood.foreign_statistics(
            personal["foreign"], foreign, index, classes
        )
    for name, group in (groups | sites.groups()).items():
        tree[name] = xr.DataTree(label_clients(group, data.partition.names))
    return tree


def _parts(
    federation: Federation, state: FederationState, part: str
) -> tuple[dict[str, StoredPredictions], dict[str, StoredPredictions]]:
    """The examples that the personal models, and that the global one, predict."""
    data = federation.data
    lists = data.partition.part(part)
    if not any(map(len, lists)):
        raise UserError(f"no client has a {part} example")
    parts: dict[str, Sequence[Tensor]] = {"observed": lists}
    if part == "test" and any(map(len, data.partition.validation)):
        parts["validation"] = data.partition.validation
    seed = seed_for(federation.seed, "posterior", state.round)
    personal = {
        name: StoredPredictions.of(data, own, keep=None if name == "observed" else 0, seed=seed)
        for name, own in parts.items()
    }
    shared = {name: StoredPredictions.of(data, own, keep=0) for name, own in parts.items()}
    if part == "test" and data.outcome == "class":
        unseen = ood.unseen_examples(data, federation.seed)
        if any(map(len, unseen)):
            personal["unseen"] = StoredPredictions.of(data, unseen, keep=0)
    return personal, shared


@contextmanager
def _named(belief: str) -> Iterator[None]:
    try:
        yield
    except UserError as problem:
        raise UserError(f"{belief}: {problem}") from problem


def _predict(
    federation: Federation,
    belief: Belief,
    client: int | None,
    parts: Mapping[str, StoredPredictions],
    draws: int,
    chunk: int,
    sites: SiteGroups | None,
) -> None:
    """Store what one belief (the global one for None) says of its examples; each draw of its sites serves all parts."""
    model, key = federation.model, belief_seed(seed_for(federation.seed, "evaluation"), client)
    streams = predictive_streams(key, belief.device)
    # Each part has outcomes of its own, so that one does not depend on whether there is another.
    outcomes = {
        name: streams.outcomes
        if name == "observed"
        else generator(key, "outcomes", name, device=belief.device)
        for name in parts
    }
    predict = predictor(model, belief)
    # What fits in one piece, or is dear to make, is made ready once for all draws.
    ready = {n: list(p.pieces(client, chunk)) for n, p in parts.items() if p.once(client, chunk)}
    for number, values in enumerate(site_draws(model, belief, draws, streams.weights)):
        if sites is not None:
            sites.add_draw(number, values)
        for name, part in parts.items():
            for piece, x, y in ready[name] if name in ready else part.pieces(client, chunk):
                with torch.no_grad():
                    if isinstance(part.table, NumberTable):
                        draw = number_draw(model.observation(values, x), y, outcomes[name])
                        part.table.add(number, draw, piece)
                    else:
                        part.add_probabilities(number, predict(values, x), piece)
