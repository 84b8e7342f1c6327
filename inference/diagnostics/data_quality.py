"""What the clients' uncertainty says of their data, and how it goes down as they learn."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.inference.beliefs.sites import Belief
from pyro_pfedbayes.inference.federation.loop import Federation
from pyro_pfedbayes.inference.federation.state import FederationState
from pyro_pfedbayes.inference.predictive.draws import predictive_draws, predictive_streams
from pyro_pfedbayes.inference.server import screening
from pyro_pfedbayes.models.declared import DeclaredModel
from pyro_pfedbayes.randomness import seed_for

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class PredictiveTrace:
    """How clients' posterior predictives of the same inputs change from round to round."""

    rounds: tuple[int, ...]  # the R rounds looked at; 0 is before any training
    clients: tuple[int, ...]  # the S clients looked at
    classes: tuple[str, ...]  # names of the C classes
    y: Tensor  # labels of the n inputs, int64 ``[n]``
    probs: Tensor  # class probabilities, averaged over draws, ``[R, S, n, C]``
    entropy: Tensor  # entropy of those, in nats, ``[R, S, n]``
    epistemic: Tensor  # the part of it that more data would remove (mutual information), in nats, ``[R, S, n]``
    spread: (
        Tensor  # standard deviation over draws of the probability of the true class, ``[R, S, n]``
    )

    @property
    def truth(self) -> Tensor:
        """Probability of the true class, ``[R, S, n]``."""
        where = self.y.expand(self.probs.shape[:-1]).unsqueeze(-1)
        return self.probs.gather(-1, where).squeeze(-1)


def trace_predictions(
    federation: Federation,
    x: Tensor,
    y: Tensor,
    *,
    clients: Sequence[int],
    rounds: Sequence[int] = (0, 1, 10),
    of: int | None = None,
    draws: int = 100,
) -> PredictiveTrace:
    """Train a federation and look at some clients' predictive distributions of fixed inputs on the way.

    This is what the paper shows in appendix B.2 (rounds 0, 1 and 10). The same draws serve all rounds, so only the
    beliefs make a difference.

    Args:
        federation: Its model's outcome must be classes.
        x: Inputs ``[n, *features]`` as clients have them, at least one.
        y: Their true labels ``[n]``.
        clients: Numbers of the clients to look at.
        rounds: When, in rounds finished.
        of: Rounds of the whole run, for schedules; the last one looked at if None.
        draws: Draws of the weights.

    Raises:
        UserError: Outcomes that are numbers, inputs, labels, clients or rounds that do not fit.

    Example:
        >>> import pyro_pfedbayes as pfb
        >>> digits = pfb.load_dataset("digits")
        >>> data = pfb.FederatedData(digits, pfb.partition_labels(digits, 10, 5, 15, 15))
        >>> model = pfb.BayesianModel(pfb.mlp([64, 20, 10]), pfb.Categorical(10))
        >>> algorithm = pfb.PFedBayes(personal_rounds=0)
        >>> federation = Federation(model, data, algorithm=algorithm, device="cpu")
        >>> x, y = data.examples(0, "test")
        >>> trace = trace_predictions(federation, x[:3], y[:3], clients=[0, 2], rounds=[0, 2], draws=5)
        >>> trace.probs.shape, trace.probs[0, 0].equal(trace.probs[0, 1])  # before training all believe the same
        (torch.Size([2, 2, 3, 10]), True)
    """
    recorded = tuple(sorted(set(rounds)))
    total = max(recorded, default=0) if of is None else of
    _check_trace(federation, x, y, clients, recorded, total)
    x, found = x.to(federation.device), []
    state = federation.initial_state()
    for index in range(recorded[-1] + 1):
        if index:
            state, _ = federation.advance(state, total)
        if index in recorded:
            beliefs = _beliefs(federation, state, clients)
            each = [
                _predictive(
                    federation.model, beliefs[i], x, y, draws, seed_for(federation.seed, "trace")
                )
                for i in clients
            ]
            found.append([torch.stack(part) for part in zip(*each, strict=True)])
    probs, entropy, epistemic, spread = (torch.stack(part) for part in zip(*found, strict=True))
    classes = federation.data.dataset.classes
    return PredictiveTrace(
        recorded, tuple(clients), classes, y.cpu(), probs, entropy, epistemic, spread
    )


def plot_trace(trace: PredictiveTrace, example: int = 0) -> Figure:
    """Draw the predictive distributions of one input of `trace_predictions`: a row a client, a column a round.

    The figure is its own (no global state of pyplot). The true class is hatched; panels bear the entropy in nats.
    """
    from matplotlib.figure import Figure

    if example not in range(len(trace.y)):
        raise UserError(f"there is no example {example}: give 0 to {len(trace.y) - 1}")
    rows, columns, label = len(trace.clients), len(trace.rounds), int(trace.y[example])
    figure = Figure(figsize=(0.6 + 2.6 * columns, 0.6 + 1.4 * rows), dpi=120, layout="constrained")
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    names = range(len(trace.classes))
    for row, client in enumerate(trace.clients):
        for column, index in enumerate(trace.rounds):
            axes = panels[row, column]
            bars = axes.bar(names, trace.probs[column, row, example].tolist(), color="0.6")
            bars[label].set(hatch="////", facecolor="white", edgecolor="black")
            entropy = float(trace.entropy[column, row, example])
            axes.set_title(f"entropy {entropy:.2f}", fontsize=8, loc="right")
            axes.set_ylim(0, 1)
            axes.tick_params(labelsize=7)
            axes.spines[["top", "right"]].set_visible(False)
            if row == 0:
                axes.set_title(f"round {index}", fontsize=9, loc="left")
            if row == rows - 1:
                axes.set_xticks(names, trace.classes, fontsize=7, parse_math=False)
                axes.set_xlabel("class", fontsize=8)
        panels[row, 0].set_ylabel(f"client {client}", fontsize=8)
    figure.suptitle(
        f"p(class | x), true class {trace.classes[label]} hatched", fontsize=9, parse_math=False
    )
    return figure


@dataclass(frozen=True)
class ClientQuality:
    """What a client's own uncertainty says of its data; NaN is "not defined"."""

    client: int  # its number
    examples: int  # training examples n_i
    information_gain: float  # KL(q^i‖w) in nats: how much its data changed its mind
    gain_per_example: float  # the same per training example
    train_entropy: float  # mean predictive entropy of its training examples, in nats (classes only)
    held_out_entropy: float  # that of its validation examples
    held_out_nll: float  # mean negative log-likelihood of its validation examples, in nats
    z: float  # evidence that its validation outcomes depend on their inputs, standard normal if they do not
    effect: float  # z/√(m-1) of m validation examples, about proportional to the share of outcomes that are right


def client_quality(
    federation: Federation, state: FederationState, *, draws: int = 20
) -> list[ClientQuality]:
    """Judge all clients' data by their personal models, the most doubtful client first.

    Everything is computed where the data are and is a number a client; nothing needs data at the server. With
    ``start="server"`` and a learning rate that has gone to 0, q^i is next to w at the end of a run and the information
    gain says little: judge a state on the way, or one after personal rounds.

    Returns one record a client: by ``effect``, lowest first; those without enough validation examples last.
    """
    w = federation.global_belief(state)
    beliefs = _beliefs(federation, state, range(federation.data.num_clients))
    found = [_quality(federation, i, beliefs[i], w, draws) for i in beliefs]
    return sorted(found, key=lambda one: (math.isnan(one.effect), one.effect, one.client))


def _quality(
    federation: Federation, client: int, q: Belief, w: Belief, draws: int
) -> ClientQuality:
    model, data, seed = federation.model, federation.data, seed_for(federation.seed, "quality")
    gain, examples = _gain(q, w), int(data.train_sizes[client])
    entropies = {"train": math.nan, "validation": math.nan}
    nll, z, effect = math.nan, math.nan, math.nan
    for part in ("train", "validation"):
        x, y = screening.judged_examples(model, *data.examples(client, part))
        if model.outcome == "class" and len(y):
            entropies[part] = float(_predictive(model, q, x, y, draws, seed)[1].mean())
        if part == "validation" and len(y):
            table = screening.outcome_log_probs(model, q, x, y, draws=draws, seed=seed)
            nll = -float(table.diagonal().mean())
            if len(y) >= screening.MIN_EXAMPLES:
                z, effect = screening.evidence(table)
    train, held_out = entropies.values()
    return ClientQuality(client, examples, gain, gain / examples, train, held_out, nll, z, effect)


def _gain(q: Belief, w: Belief) -> float:
    """KL(q‖w) over shared sites; NaN where it has no closed form or nothing is shared."""
    try:
        return float(q.kl(w))  # type: ignore[arg-type]
    except UserError:
        return math.nan


def _beliefs(
    federation: Federation, state: FederationState, clients: Sequence[int]
) -> Mapping[int, Belief]:
    wanted = set(clients)
    found: dict[int, Belief] = {}
    for numbers, stacked in federation.personal_beliefs(state):
        found |= {i: stacked.client(row) for row, i in enumerate(numbers) if i in wanted}
    return found


def _predictive(
    model: DeclaredModel, belief: Belief, x: Tensor, y: Tensor, draws: int, seed: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mean probabilities ``[n, C]``, their entropy, its epistemic part, and the spread of the true class's ``[n]``."""
    stream = predictive_streams(seed, belief.device).weights
    mean = noise = truth = squares = torch.zeros(())
    where = y.to(x.device)[:, None]
    for probs in predictive_draws(model, belief, x, draws, stream):
        wide = probs.double()
        right = wide.gather(1, where)[:, 0]
        mean, noise = mean + wide / draws, noise + _entropy(wide) / draws
        truth, squares = truth + right / draws, squares + right.square() / draws
    total = _entropy(mean)
    spread = (squares - truth.square()).clamp_min(0).sqrt()
    epistemic = (total - noise).clamp_min(0)
    return mean.cpu(), total.cpu(), epistemic.cpu(), spread.cpu()


def _entropy(probs: Tensor) -> Tensor:
    return -torch.xlogy(probs, probs).sum(-1)


def _check_trace(
    federation: Federation,
    x: Tensor,
    y: Tensor,
    clients: Sequence[int],
    rounds: Sequence[int],
    total: int,
) -> None:
    if federation.model.outcome != "class":
        raise UserError("a trace shows probabilities of classes, but this model predicts numbers")
    if len(x) == 0 or len(x) != len(y):
        raise UserError(f"x has {len(x)} inputs and y {len(y)} labels; give one or more of each")
    classes = federation.data.num_classes
    if int(y.min()) < 0 or int(y.max()) >= classes:
        raise UserError(f"y holds {int(y.min())} to {int(y.max())}; labels are 0 to {classes - 1}")
    if missing := set(clients) - set(range(federation.data.num_clients)):
        raise UserError(
            f"no client {min(missing)}: there are {federation.data.num_clients}, numbered from 0"
        )
    if not clients or not rounds or rounds[0] < 0 or rounds[-1] > total:
        raise UserError(
            f"rounds are {list(rounds)} and clients {list(clients)}; "
            f"give at least one of each, rounds from 0 to {total}"
        )
    if rounds[-1]:
        federation.algorithm.check(total, federation.data.num_clients)
