"""Which uploads the server leaves out of its average: declared rules on what clients send.

Two rules, both robust against a minority of bad clients and both without data at the server:

- *held-out*: each client tests whether its new model's predictions say anything about the outcomes of its own
  validation examples, by a permutation test, and sends two numbers. If outcomes have nothing to do with
  inputs (shuffled labels), no model can pass, whatever it is like; a client with labels that nobody else has passes as
  soon as it has learned a little of them.
- *information gain*: from the uploads alone, KL(q^i‖w) of each client beside that of clients of its kind. It finds
  clients far out of line, and no shuffled labels: their gain is no larger than honest clients' (``docs/quality.md``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from pyro_pfedbayes.data.clients import FederatedData
from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.inference.algorithm import Tensors, Upload
from pyro_pfedbayes.inference.beliefs.sites import Belief
from pyro_pfedbayes.inference.predictive.draws import posterior_predictive, site_draws
from pyro_pfedbayes.inference.server.kinds import KINDS, discover_kinds, information_gain
from pyro_pfedbayes.inference.server.prefixed_state import prefixed, under
from pyro_pfedbayes.models.declared import DeclaredModel
from pyro_pfedbayes.randomness import generator, seed_for

Screening = Literal["none", "information-gain", "held-out"]

SCREENING = "screening."
"""How the names of scores in uploads, and of what the server stores of them, begin."""

MIN_EXAMPLES = 8
"""A client with fewer validation examples is not tested: its test would have no power."""
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
    """How much more predictions say about the outcomes that they were made for than about others' outcomes.

    With L_jk = log p(y_k | x_j), the statistic Σ_j L_jj is compared with its distribution over random permutations of
    the outcomes, whose mean ΣL/n and variance Σd²/(n-1), d doubly centred, are known exactly (Hoeffding 1951).

    From L ``[n, n]`` in nats, a row an input and a column an outcome, to z, the standardised statistic, and the effect
    z/√(n-1), a correlation that does not grow with n. Both are 0 if predictions, or outcomes, are all the same.

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
    """Log p(y_k | x_j) of a posterior predictive, ``[n, n]``: probabilities of classes, densities of numbers."""
    if model.outcome == "class":
        probs = posterior_predictive(model, belief, x, draws=draws, seed=seed)
        return probs.clamp_min(torch.finfo(probs.dtype).tiny).log()[:, y]
    stream = generator(seed, "screening", device=x.device)
    with torch.no_grad():
        tables = (
            model.observation(values, x).log_prob(y[:, None]).T
            for values in site_draws(model, belief, draws, stream)
        )
        total: Tensor = reduce(torch.logaddexp, tables)
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
    """The `evidence` of clients' own validation examples x ``[m, *features]`` and y ``[m]``, which they send.

    That is ``screening.z`` and ``screening.effect``, ``[S]`` each; NaN for a client with fewer than `MIN_EXAMPLES`
    known outcomes.
    """
    scores = []
    for row, (client, (x, y)) in enumerate(zip(clients, held_out, strict=True)):
        x, y = judged_examples(model, x, y)
        found = math.nan, math.nan
        if len(y) >= MIN_EXAMPLES:
            key, belief = seed_for(seed, "screening", round, client), beliefs.client(row)
            found = evidence(outcome_log_probs(model, belief, x, y, draws=DRAWS, seed=key))
        scores.append(found)
    columns = torch.tensor(scores, dtype=torch.float32).T
    return prefixed(dict(zip(("z", "effect"), columns, strict=True)), SCREENING)


def check_held_out(data: FederatedData) -> None:
    """Refuse a federation whose clients have nothing to test themselves by."""
    most = max(len(index) for index in data.partition.validation)
    if most < MIN_EXAMPLES:
        raise UserError(
            f"screening is 'held-out', but no client has {MIN_EXAMPLES} validation examples "
            f"(the most is {most}); raise data.validation"
        )


def passed_held_out(z: Tensor, effect: Tensor) -> Tensor:
    """Which clients have evidence that their outcomes depend on their inputs, bool ``[S]``.

    Nobody is left out before the median client's evidence is clear (z of at least twice `LEAST_Z`), so a federation
    that has not learned anything yet passes everybody, as are clients without a test (NaN).

    Example:
        >>> passed_held_out(torch.tensor([9.0, 8.0, 0.3, 7.0]), torch.tensor([0.9, 0.8, 0.03, 0.7])).tolist()
        [True, True, False, True]
    """
    tested = ~z.isnan()
    everybody = torch.ones_like(tested)
    if int(tested.sum()) < MIN_CLIENTS or float(z[tested].median()) < 2 * LEAST_Z:
        return everybody
    least = LEAST_SHARE * float(effect[tested].median())
    passed = ~tested | ((z >= LEAST_Z) & (effect >= least))
    return passed if bool(passed.any()) else everybody


def passed_information_gain(gain: Tensor, group: Tensor) -> Tensor:
    """Which clients' log information gain is not far above that of their kind, bool ``[S]``.

    From KL(q^i‖w) ``[S]``, per weight or not, and the kind of each client ``[S]``; one of fewer than `MIN_CLIENTS`
    passes.

    Example:
        >>> gain = torch.tensor([10.0, 11.0, 30.0, 9.0, 90.0])
        >>> passed_information_gain(gain, torch.tensor([0, 0, 0, 0, 1])).tolist()
        [True, True, False, True, True]
    """
    passed = torch.ones_like(gain, dtype=torch.bool)
    logs = gain.double().clamp_min(torch.finfo(torch.float64).tiny).log()
    for kind in group.unique():
        rows = (group == kind).nonzero()[:, 0]
        if len(rows) < MIN_CLIENTS:
            continue
        away = logs[rows] - logs[rows].quantile(0.5)
        spread = max(1.4826 * float(away.abs().quantile(0.5)), LEAST_SPREAD)
        passed[rows] = away <= FAR * spread
    return passed


def screen(
    rule: Screening, server: Tensors, uploads: Sequence[Upload], kinds: int = 1
) -> tuple[list[Upload], list[Upload], dict[str, Tensor]]:
    """Part what clients sent into uploads to use, uploads to leave out, and what the server is to store.

    Information gains are compared within at least 2 ``kinds``, so that a minority whose data are of another kind is
    not compared with the majority. The server stores ``screening.out``, the clients left out now, ``screening.rounds``,
    in how many rounds each was so far, and ``screening.failed``, in how many more it failed than passed.
    """
    everyone = Upload.cat(uploads)
    sent = everyone.tensors
    if rule == "held-out":
        passed = passed_held_out(sent[SCREENING + "z"].cpu(), sent[SCREENING + "effect"].cpu())
    else:
        loc, scale = sent["loc"], sent["scale"]
        group = discover_kinds(loc, scale, min(max(kinds, 2), len(loc)))
        gain = information_gain(loc, scale, server["loc"], server["scale"]).cpu()
        passed = passed_information_gain(gain, group)
    clients = torch.tensor(everyone.clients)
    stored, size = under(server, SCREENING), int(clients.max()) + 1
    nothing = torch.zeros(0, dtype=torch.int64)
    failed, rounds = (_grown(stored.get(name, nothing), size) for name in ("failed", "rounds"))
    failed[clients] = (failed[clients] + 1 - 2 * passed.long()).clamp(0, 2 * PATIENCE)
    leave = failed[clients] >= PATIENCE
    if bool(leave.all()):
        leave = torch.zeros_like(leave)
    rounds[clients[leave]] += 1
    memory = {"failed": failed, "rounds": rounds, "out": clients[leave].sort().values}
    used: list[Upload] = []
    out: list[Upload] = []
    for upload, gone in zip(uploads, leave.split([len(u.clients) for u in uploads]), strict=True):
        tensors = {k: v for k, v in upload.tensors.items() if not k.startswith(SCREENING)}
        for rows, parts in ((~gone, used), (gone, out)):
            if bool(rows.any()):
                parts.append(replace(upload, tensors=tensors).select(rows))
    return used, out, prefixed(memory, SCREENING)


def placed(server: Tensors, out: Sequence[Upload]) -> dict[str, Tensor]:
    """The server with clients that took no part in finding the kinds put with the nearest of them, by KL(q^i‖w_k)."""
    stored = under(server, KINDS)
    if not out or "loc" not in stored:
        return dict(server)
    left = Upload.cat(out)
    loc, scale = left.tensors["loc"], left.tensors["scale"]
    centres = zip(stored["loc"], stored["scale"], strict=True)
    nearest = torch.stack([information_gain(loc, scale, *w) for w in centres]).argmin(0)
    of = _grown(stored["of"], max(left.clients) + 1)
    of[list(left.clients)] = nearest.cpu()
    return {**server, KINDS + "of": of.to(stored["of"].device)}


def unscreened(server: Tensors) -> Tensors:
    """The server after a round in which nobody was tested; itself if nobody was in the last one either."""
    name = SCREENING + "out"
    return {k: v for k, v in server.items() if k != name} if name in server else server


def screened_clients(server: Tensors) -> tuple[int, ...]:
    """The clients whose uploads were left out in the last round."""
    return tuple(under(server, SCREENING).get("out", torch.zeros(0)).int().tolist())


def screened_rounds(server: Tensors) -> dict[int, int] | None:
    """In how many rounds each client was left out, those that never were aside; None without screening."""
    counts = under(server, SCREENING).get("rounds")
    return None if counts is None else {i: n for i, n in enumerate(counts.tolist()) if n}


def _grown(values: Tensor, size: int) -> Tensor:
    """A copy of integers by client, on the CPU, with room for ``size`` clients at least."""
    return F.pad(values.cpu().clone(), (0, max(size - len(values), 0)))
