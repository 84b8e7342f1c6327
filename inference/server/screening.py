"""Which uploads the server leaves out of its average: declared rules on what clients send.

Two rules, both robust against a minority of bad clients and both without data at the server:

- *held-out*: each client asks whether its new model's predictions say anything about the outcomes of its own
  validation examples, by a permutation test, and sends the answer, two numbers. If outcomes have nothing to do with
  inputs (shuffled labels), no model can pass, whatever it is like; a client with labels that nobody else has passes as
  soon as it has learned a little of them.
- *information gain*: from the uploads alone, KL(q^i‖w) of each client beside that of clients of its kind. It finds
  clients far out of line, and no shuffled labels: their gain is no larger than honest clients' (``docs/quality.md``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from pyro_pfedbayes.data.clients import FederatedData
from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.gaussians.mean_field import MeanFieldGaussian
from pyro_pfedbayes.inference.algorithm import Tensors, Upload
from pyro_pfedbayes.inference.beliefs.sites import Belief
from pyro_pfedbayes.inference.predictive.draws import posterior_predictive, site_draws
from pyro_pfedbayes.inference.server.kinds import KINDS, discover_kinds
from pyro_pfedbayes.inference.server.prefixed_state import prefixed, under
from pyro_pfedbayes.models.declared import DeclaredModel
from pyro_pfedbayes.randomness import generator, seed_for

Screening = Literal["none", "information-gain", "held-out"]

SCREENING = "screening."
"""How the names of scores in uploads, and of what the server remembers of them, begin."""

MIN_EXAMPLES = 8
"""A client with fewer validation examples is not judged: its test would have no power."""
MAX_EXAMPLES = 1000
DRAWS = 10
LEAST_Z = 1.645
"""One-sided 5 % point: below it there is no evidence that outcomes depend on inputs."""
LEAST_SHARE = 0.15
"""Of the median client's effect; an effect is about proportional to the share of outcomes that are right."""
PATIENCE = 3
"""Rounds that a client must have failed in, more than it passed, before it is left out: a minority needs a few rounds
to learn, and one lucky round brings nobody back. Counted from 0 to twice as many."""
MIN_CLIENTS = 4
FAR = 3.5
"""Robust standard deviations (Iglewicz & Hoaglin 1993) above its kind that are too many."""
LEAST_SPREAD = 0.1
"""Of log information gain, so that kinds whose clients happen to agree do not throw out the next one."""


def evidence(log_probs: Tensor) -> tuple[float, float]:
    """Do predictions say more about the outcomes they were made for than about others' outcomes?

    With L_jk = log p(y_k | x_j), the statistic Σ_j L_jj is compared with its distribution over random permutations of
    the outcomes, whose mean ΣL/n and variance Σd²/(n-1), d doubly centred, are known exactly (Hoeffding 1951).

    Args:
        log_probs: L, ``[n, n]`` in nats: a row an input, a column an outcome.

    Returns:
        z, the standardised statistic; and the effect z/√(n-1), a correlation that does not grow with n. Both 0 if
        predictions, or outcomes, are all the same.

    Example:
        >>> right = torch.tensor([[0.9, 0.1], [0.1, 0.9]])[[0, 0, 1, 1]][:, [0, 0, 1, 1]]
        >>> [round(v, 3) for v in evidence(right.log())]
        [1.732, 1.0]
    """
    table = log_probs.double()
    n = len(table)
    centred = table - table.mean(0, keepdim=True) - table.mean(1, keepdim=True) + table.mean()
    # Centring leaves rounding error where nothing varies.
    if n < 2 or float(centred.abs().max()) <= 1e-9 * (1 + float(table.abs().max())):
        return 0.0, 0.0
    deviation = math.sqrt(float(centred.square().sum()) / (n - 1))
    z = float(centred.diagonal().sum()) / deviation
    return z, z / math.sqrt(n - 1)


def outcome_log_probs(
    model: DeclaredModel, belief: Belief, x: Tensor, y: Tensor, *, draws: int, seed: int
) -> Tensor:
    """Table of log p(y_k | x_j) of a posterior predictive, ``[n, n]``: probabilities of classes, densities of numbers.

    Args:
        model: The declared model.
        belief: Of one client.
        x: Inputs ``[n, *features]``.
        y: Known outcomes ``[n]``.
        draws: Draws of the weights.
        seed: Of the draws.
    """
    if model.outcome == "class":
        probs = posterior_predictive(model, belief, x, draws=draws, seed=seed)
        return probs.clamp_min(torch.finfo(probs.dtype).tiny).log()[:, y]
    stream = generator(seed, "screening", device=x.device)
    total: Tensor | None = None
    for values in site_draws(model, belief, draws, stream):
        with torch.no_grad():
            found = model.observation(values, x).log_prob(y[:, None]).T
        total = found if total is None else torch.logaddexp(total, found)
    assert total is not None
    return total - math.log(draws)


def judged_examples(model: DeclaredModel, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Examples whose outcome is known, and of more than `MAX_EXAMPLES` so many, evenly: a table of n² must fit."""
    known = y >= 0 if model.outcome == "class" else ~y.isnan()
    x, y = x[known], y[known]
    if len(y) > MAX_EXAMPLES:
        some = torch.arange(MAX_EXAMPLES, device=y.device) * len(y) // MAX_EXAMPLES
        x, y = x[some], y[some]
    return x, y


def held_out_scores(
    model: DeclaredModel,
    beliefs: Belief,
    clients: Sequence[int],
    held_out: Sequence[tuple[Tensor, Tensor]],
    *,
    seed: int,
    round: int,
) -> dict[str, Tensor]:
    """What clients find out about their own data with their own validation examples, and send.

    Args:
        model: The declared model.
        beliefs: Their stacked q^i.
        clients: Their S numbers.
        held_out: Validation examples of each, x ``[m, *features]`` and y ``[m]``.
        seed: Of the run.
        round: Number of the round.

    Returns:
        ``screening.z`` and ``screening.effect``, ``[S]`` each, see `evidence`; NaN for a client with fewer than
        `MIN_EXAMPLES` known outcomes.
    """
    scores = []
    for row, (client, (x, y)) in enumerate(zip(clients, held_out, strict=True)):
        x, y = judged_examples(model, x, y)
        if len(y) < MIN_EXAMPLES:
            scores.append((math.nan, math.nan))
            continue
        key = seed_for(seed, "screening", round, client)
        belief = beliefs.client(row)
        table = outcome_log_probs(model, belief, x, y, draws=DRAWS, seed=key)
        scores.append(evidence(table))
    found = torch.tensor(scores, dtype=torch.float32)
    return {SCREENING + "z": found[:, 0], SCREENING + "effect": found[:, 1]}


def check_held_out(data: FederatedData) -> None:
    """Refuse a federation whose clients have nothing to test themselves by."""
    most = max(len(index) for index in data.partition.validation)
    if most < MIN_EXAMPLES:
        raise UserError(
            f"screening is 'held-out', but no client has {MIN_EXAMPLES} validation examples "
            f"(the most is {most}); raise data.validation"
        )


def kept_by_held_out(z: Tensor, effect: Tensor) -> Tensor:
    """Who stays: clients with evidence that their outcomes depend on their inputs.

    Nobody is left out before the median client's evidence is clear (z of at least twice `LEAST_Z`), so a federation
    that has not learned anything yet judges nobody.

    Args:
        z: Standardised statistics ``[S]``, NaN if not judged.
        effect: Their effects ``[S]``.

    Returns:
        bool ``[S]``.

    Example:
        >>> kept_by_held_out(torch.tensor([9.0, 8.0, 0.3, 7.0]), torch.tensor([0.9, 0.8, 0.03, 0.7])).tolist()
        [True, True, False, True]
    """
    judged = ~z.isnan()
    keep = torch.ones_like(judged)
    if int(judged.sum()) < MIN_CLIENTS or float(z[judged].median()) < 2 * LEAST_Z:
        return keep
    least = LEAST_SHARE * float(effect[judged].median())
    keep[judged] = (z[judged] >= LEAST_Z) & (effect[judged] >= least)
    return keep if bool(keep.any()) else torch.ones_like(judged)


def information_gain(loc: Tensor, scale: Tensor, w_loc: Tensor, w_scale: Tensor) -> Tensor:
    """KL(q^i‖w) in nats, ``[S]``, of mean-field Gaussians ``[S, T]`` and ``[T]``; a client at a time bounds memory."""
    w = MeanFieldGaussian.unchecked({"theta": w_loc}, {"theta": w_scale})
    rows = zip(loc, scale, strict=True)
    return torch.stack(
        [MeanFieldGaussian.unchecked({"theta": m}, {"theta": s}).kl(w) for m, s in rows]
    )


def kept_by_information_gain(gain: Tensor, group: Tensor) -> Tensor:
    """Who stays: clients whose log information gain is not far above that of their kind.

    Args:
        gain: KL(q^i‖w) ``[S]`` in nats; per weight or not makes no difference.
        group: Kind of each client, ``[S]``; a kind of fewer than `MIN_CLIENTS` is not judged.

    Returns:
        bool ``[S]``.

    Example:
        >>> gain = torch.tensor([10.0, 11.0, 30.0, 9.0, 90.0])
        >>> kept_by_information_gain(gain, torch.tensor([0, 0, 0, 0, 1])).tolist()
        [True, True, False, True, True]
    """
    keep = torch.ones_like(gain, dtype=torch.bool)
    logs = gain.double().clamp_min(torch.finfo(torch.float64).tiny).log()
    for kind in group.unique():
        rows = (group == kind).nonzero()[:, 0]
        if len(rows) < MIN_CLIENTS:
            continue
        away = logs[rows] - logs[rows].quantile(0.5)
        spread = max(1.4826 * float(away.abs().quantile(0.5)), LEAST_SPREAD)
        keep[rows] = away <= FAR * spread
    return keep


def screen(
    rule: Screening, server: Tensors, uploads: Sequence[Upload], kinds: int = 1
) -> tuple[list[Upload], list[Upload], dict[str, Tensor]]:
    """Part what clients sent into what the server is to use and what it leaves out.

    Args:
        rule: One of the two rules.
        server: What the server holds: the w that clients began this round with, and what it remembers of them.
        uploads: What clients sent.
        kinds: Kinds of client that information gains are compared within, at least 2, so that a minority whose
            data are of another kind is not compared with the majority.

    Returns:
        Uploads kept and uploads left out, without the scores; and what the server is to remember: ``screening.out``,
        the clients left out now, ``screening.rounds``, in how many rounds each was so far, and ``screening.failed``,
        in how many more it failed than passed.
    """
    everyone = Upload.cat(uploads)
    sent = everyone.tensors
    if rule == "held-out":
        passed = kept_by_held_out(sent[SCREENING + "z"].cpu(), sent[SCREENING + "effect"].cpu())
    else:
        loc, scale = sent["loc"], sent["scale"]
        group = discover_kinds(loc, scale, min(max(kinds, 2), len(loc)))
        gain = information_gain(loc, scale, server["loc"], server["scale"]).cpu()
        passed = kept_by_information_gain(gain, group)
    clients = torch.tensor(everyone.clients)
    held, size = under(server, SCREENING), int(clients.max()) + 1
    failed, rounds = (_grown(held.get(name), size) for name in ("failed", "rounds"))
    failed[clients] = (failed[clients] + 1 - 2 * passed.long()).clamp(0, 2 * PATIENCE)
    leave = failed[clients] >= PATIENCE
    if bool(leave.all()):
        leave = torch.zeros_like(leave)
    rounds[clients[leave]] += 1
    memory = {"failed": failed, "rounds": rounds, "out": clients[leave].sort().values}
    kept: list[Upload] = []
    out: list[Upload] = []
    for upload, gone in zip(uploads, leave.split([len(u.clients) for u in uploads]), strict=True):
        for rows, parts in ((~gone, kept), (gone, out)):
            if bool(rows.any()):
                parts.append(_rows(upload, rows))
    return kept, out, prefixed(memory, SCREENING)


def placed(server: Tensors, out: Sequence[Upload]) -> dict[str, Tensor]:
    """The server with clients that took no part in finding the kinds put with the nearest of them, by KL(q^i‖w_k)."""
    held = under(server, KINDS)
    clients = [i for upload in out for i in upload.clients]
    if not clients or "loc" not in held:
        return dict(server)
    loc, scale = (torch.cat([u.tensors[k] for u in out]) for k in ("loc", "scale"))
    centres = zip(held["loc"], held["scale"], strict=True)
    nearest = torch.stack([information_gain(loc, scale, *w) for w in centres]).argmin(0)
    of = torch.zeros(max(len(held["of"]), max(clients) + 1), dtype=torch.int64)
    of[: len(held["of"])] = held["of"].cpu()
    of[clients] = nearest.cpu()
    return {**server, **prefixed({"of": of.to(held["of"].device)}, KINDS)}


def unscreened(server: Tensors) -> Tensors:
    """The server after a round in which nobody was judged; itself if nobody was in the last one either."""
    name = SCREENING + "out"
    return {k: v for k, v in server.items() if k != name} if name in server else server


def screened_clients(server: Tensors) -> tuple[int, ...]:
    """The clients whose uploads were left out in the last round."""
    return tuple(under(server, SCREENING).get("out", torch.zeros(0)).int().tolist())


def screened_rounds(server: Tensors) -> dict[int, int] | None:
    """In how many rounds each client was left out, those that never were aside; None if nobody is judged."""
    counts = under(server, SCREENING).get("rounds")
    return None if counts is None else {i: n for i, n in enumerate(counts.tolist()) if n}


def _grown(counts: Tensor | None, size: int) -> Tensor:
    """A copy of counts by client, on the CPU, with room for ``size`` clients at least."""
    counts = torch.zeros(0, dtype=torch.int64) if counts is None else counts.cpu()
    grown = torch.zeros(max(len(counts), size), dtype=torch.int64)
    grown[: len(counts)] = counts
    return grown


def _rows(upload: Upload, rows: Tensor) -> Upload:
    """Some clients of an upload, without their scores."""
    clients = tuple(i for i, kept in zip(upload.clients, rows.tolist(), strict=True) if kept)
    tensors = {k: v for k, v in upload.tensors.items() if not k.startswith(SCREENING)}
    if bool(rows.all()):
        return Upload(clients, tensors, upload.sizes)
    mask = rows.to(upload.sizes.device)
    return Upload(clients, {k: v[mask] for k, v in tensors.items()}, upload.sizes[mask])
