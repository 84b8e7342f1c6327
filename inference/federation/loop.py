"""The round loop: who takes part, whose state waits where, when to evaluate."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch

from pyro_pfedbayes.data.clients import FederatedData
from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.gaussians.mean_field import MeanFieldGaussian
from pyro_pfedbayes.inference.algorithm import Algorithm, Personalizing, Round
from pyro_pfedbayes.inference.algorithms.pfedbayes import PFedBayes
from pyro_pfedbayes.inference.beliefs.points import PointBelief
from pyro_pfedbayes.inference.beliefs.sites import Belief, SiteBelief
from pyro_pfedbayes.inference.engine.client_step import GradientEngine
from pyro_pfedbayes.inference.engine.devices import EngineChoice, choose_engine, resolve_device
from pyro_pfedbayes.inference.federation.cohort import CohortWork, in_chunks
from pyro_pfedbayes.inference.federation.dry_run import try_out
from pyro_pfedbayes.inference.federation.evaluation import (
    AnyPredictions,
    measures,
    predict_global,
    predict_personal,
)
from pyro_pfedbayes.inference.federation.state import FederationState, gather_rows, moved
from pyro_pfedbayes.inference.federation.summary import summarize
from pyro_pfedbayes.inference.predictive.site_draws import information_gain
from pyro_pfedbayes.inference.server.prefixed_state import prefixed
from pyro_pfedbayes.inference.server.screening import (
    check_held_out,
    screened_clients,
    screened_rounds,
)
from pyro_pfedbayes.models.bayesian import BayesianModel
from pyro_pfedbayes.models.declared import DeclaredModel
from pyro_pfedbayes.models.program import ProgramModel
from pyro_pfedbayes.randomness import generator, seed_for


class DivergenceWarning(UserWarning):
    """A client's numbers are no longer finite; its update was left out."""


@dataclass(frozen=True)
class RoundReport:
    """What happened in one round."""

    index: int  # rounds finished, this one included
    total: int
    loss: float  # objective averaged over the clients that took part, in nats
    phase: str
    evaluation: dict[str, Any] | None  # the round's line of metrics.jsonl, if it was evaluated
    dropped: tuple[int, ...]  # clients that diverged
    state: FederationState
    screened: tuple[int, ...] = ()  # clients that the algorithm's rule left out of the average


@dataclass(frozen=True)
class Result:
    """What a run leaves: a federation, its last state, and beliefs, history and summary made from them."""

    federation: Federation
    state: FederationState

    @property
    def personal(self) -> Belief:
        """The q^i of all N clients, stacked."""
        chunks: list[Any] = [b for _, b in self.federation.personal_beliefs(self.state)]
        first = cast(Belief, chunks[0])
        if len(chunks) == 1:
            return first
        if isinstance(first, PointBelief | SiteBelief):
            return type(first).cat(chunks)
        loc, scale = (
            {name: torch.cat([getattr(c, part)[name] for c in chunks]) for name in first.names}
            for part in ("loc", "scale")
        )
        return MeanFieldGaussian.unchecked(loc, scale, stacked=True)

    @property
    def global_(self) -> Belief:
        """The server's w."""
        return self.federation.global_belief(self.state)

    @property
    def history(self) -> list[dict[str, Any]]:
        """One record an evaluated round."""
        return list(self.state.history)

    @property
    def summary(self) -> dict[str, Any]:
        """``last``, ``best`` and ``selected`` accuracies and the other figures of ``summary.json``."""
        return summarize(self.state, self.federation.model.outcome)


class Federation:
    """Clients, a server, and the rounds between them.

    A federation holds no progress: it maps a state to the next one. So two of them never disturb each other, and a
    run can be taken up from any state.

    Args:
        model: What a client believes; its prior is the server's first w.
        data: The clients' examples.
        algorithm: The method and its settings.
        seed: Seed of everything random in the run.
        device: ``"auto"`` (CUDA if there is any), ``"cpu"``, ``"cuda"`` or ``"cuda:1"``.
        participation: Clients drawn in a round: None for all, a number S, or a fraction as a float, up to 1.0.
        engine: ``"eager"`` runs the Pyro programs at each step, ``"traced"`` replays a recording of them,
            ``"compiled"`` compiles it; ``"auto"`` does what the length of the run repays.
        chunk: Clients stacked at once; bounds memory when many take part.
        eval_every: Rounds between evaluations; the last round is always evaluated. 0 for the last one only.
        eval_draws: Draws of the weights in an evaluation.

    Raises:
        UserError: More participants than clients, no such device, a model that does not fit the data.

    Example:
        >>> from pyro_pfedbayes.data.datasets import load_dataset
        >>> from pyro_pfedbayes.models.likelihoods import Categorical
        >>> from pyro_pfedbayes.models.networks import mlp
        >>> from pyro_pfedbayes.data.partitions.schemes import partition_labels
        >>> digits = load_dataset("digits")
        >>> data = FederatedData(digits, partition_labels(digits, 10, 5, 15, 15, validation=0.2))
        >>> model = BayesianModel(mlp([64, 20, 10]), Categorical(10))
        >>> result = Federation(model, data, algorithm=PFedBayes(local_steps=2), device="cpu").run(2)
        >>> result.personal.clients, result.global_.num_weights
        (10, 1510)
    """

    def __init__(
        self,
        model: BayesianModel | ProgramModel,
        data: FederatedData,
        *,
        algorithm: Algorithm | None = None,
        seed: int = 0,
        device: str = "auto",
        participation: int | float | None = None,
        engine: EngineChoice = "auto",
        chunk: int = 32,
        eval_every: int = 10,
        eval_draws: int = 10,
    ) -> None:
        kinds = {"model": (model, (BayesianModel, ProgramModel)), "data": (data, (FederatedData,))}
        for name, (value, wanted) in kinds.items():
            if not isinstance(value, wanted):
                words = " or a ".join(kind.__name__ for kind in wanted)
                raise UserError(f"{name} is a {type(value).__name__}; give a {words}")
        if isinstance(algorithm, str):
            raise UserError(
                f"algorithm is the name {algorithm!r}; give its settings, such as PFedBayes()"
            )
        self.device = resolve_device(device)
        self.algorithm: Algorithm = PFedBayes() if algorithm is None else algorithm
        self.seed = seed
        if model.covariates:
            columns = data.dataset.columns
            data = data.with_covariates(model.covariates)
            model.check_covariates({name: columns[name] for name in model.covariates})
        if getattr(self.algorithm, "screening", "none") == "held-out":
            check_held_out(data)
        self.data = data.to(self.device)
        self.cohort_size = _cohort_size(participation, data.num_clients)
        counts = {"chunk": (chunk, 1), "eval_every": (eval_every, 0), "eval_draws": (eval_draws, 1)}
        for name, (count, least) in counts.items():
            if count < least:
                raise UserError(f"{name} is {count}; it must be at least {least}")
        self.chunk, self.eval_every, self.eval_draws = chunk, eval_every, eval_draws
        self.model: DeclaredModel = model.moved(self.device)
        x, _ = self.data.examples(0, "train")
        self.model.check_fits(x[:2], self.data.dataset.y, f"data set {data.dataset.name!r}")
        try_out(self.model, self.algorithm, self.data, seed, self.cohort_size)
        self._engine_choice = engine
        self._gradient_engine: GradientEngine | None = None
        # Rows wait on the device only if all clients are stacked at once anyway.
        self._store = self.device if data.num_clients <= chunk else torch.device("cpu")

    def initial_state(self) -> FederationState:
        """The state before any round."""
        return FederationState(round=0, server=self.algorithm.init(self.model))

    def run(
        self,
        rounds: int,
        *,
        state: FederationState | None = None,
        on_round: Callable[[RoundReport], None] | None = None,
    ) -> Result:
        """Run until ``rounds`` rounds are finished.

        Args:
            rounds: Rounds of the whole run, a personal phase included.
            state: Where to carry on; None to begin.
            on_round: Called after each round.

        Raises:
            UserError: ``rounds`` below 1, or every client diverged.
        """
        if rounds < 1:
            raise UserError(f"rounds is {rounds}; it must be at least 1")
        self.algorithm.check(rounds, self.data.num_clients)
        if state is None:
            state = self.initial_state()
        else:
            clients = {i: moved(row, self._store) for i, row in state.clients.items()}
            state = replace(state, server=moved(state.server, self.device), clients=clients)
        while state.round < rounds:
            state, report = self.advance(state, rounds)
            if on_round is not None:
                on_round(report)
        return Result(self, state)

    def advance(self, state: FederationState, rounds: int) -> tuple[FederationState, RoundReport]:
        """One round of a run of ``rounds`` rounds, and its evaluation if it is due."""
        started = time.perf_counter()
        at = Round(state.round, rounds, self.seed)
        cohort = self.draw_cohort(at, everyone=self.algorithm.needs_everyone(at))
        work = self._work(state, at)
        server = self.algorithm.server_update(self.model, state.server, work.uploads(cohort), at)
        for client in work.dropped:
            warnings.warn(
                f"client {client} diverged in round {at.index + 1} (numbers are not finite); its update is left out",
                DivergenceWarning,
                stacklevel=2,
            )
        state = replace(
            state,
            round=at.index + 1,
            server=server,
            clients=work.rows,
            gradient_steps=state.gradient_steps + self.algorithm.gradient_steps(at) * len(cohort),
            seconds=self._seconds(state, "train", started),
            bytes_uploaded=state.bytes_uploaded + work.bytes_uploaded,
        )
        record = None
        if state.round == rounds or (self.eval_every > 0 and state.round % self.eval_every == 0):
            state = self.evaluated(self._personalized(state, at))
            record = state.history[-1]
        what, dropped = (work.mean_loss, self.algorithm.phase(at), record), tuple(work.dropped)
        screened = screened_clients(server)
        return state, RoundReport(state.round, rounds, *what, dropped, state, screened)

    def draw_cohort(self, at: Round, *, everyone: bool = False) -> tuple[int, ...]:
        """The clients of a round, by seed and round."""
        clients = self.data.num_clients
        if everyone or self.cohort_size == clients:
            return tuple(range(clients))
        order = torch.randperm(clients, generator=generator(at.seed, "cohort", at.index))
        return tuple(sorted(order[: self.cohort_size].tolist()))

    def engine_for(self, rounds: int) -> GradientEngine:
        """The gradient engine of a run of ``rounds`` rounds, made once."""
        if self._gradient_engine is None:
            work = self.algorithm.gradient_steps(Round(0, rounds, self.seed)) * rounds
            mode = choose_engine(
                self._engine_choice,
                evaluations=work * -(-self.cohort_size // self.chunk),
                weights=min(self.chunk, self.cohort_size) * self.model.declaration.num_weights,
                device=self.device,
            )
            self._gradient_engine = GradientEngine(self.model, mode, self.algorithm.estimator)
        return self._gradient_engine

    def personal_beliefs(self, state: FederationState) -> Iterator[tuple[Sequence[int], Belief]]:
        """Client numbers and their stacked q^i, a chunk at a time."""
        for clients in in_chunks(range(self.data.num_clients), self.chunk):
            rows = gather_rows(self.algorithm, self.model, state, clients)
            yield clients, self.algorithm.personal_belief(self.model, rows)

    def global_belief(self, state: FederationState) -> Belief:
        """The server's w."""
        return self.algorithm.global_belief(self.model, state.server)

    def draws_of(self, wanted: int, state: FederationState) -> int:
        """Draws that tell all about the federation's beliefs: one if they are points, else as many as wanted."""
        return 1 if isinstance(self.global_belief(state), PointBelief) else wanted

    def predictions(
        self, state: FederationState, part: str = "test", *, draws: int | None = None
    ) -> tuple[AnyPredictions, AnyPredictions]:
        """Posterior predictive of the personal and of the global model on every client's examples."""
        count = self.draws_of(draws or self.eval_draws, state)
        # The same draws at every evaluation, so that figures move only if beliefs do.
        seed = seed_for(self.seed, "evaluation")
        beliefs, w = self.personal_beliefs(state), self.global_belief(state)
        return (
            predict_personal(self.model, beliefs, self.data, part, draws=count, seed=seed),
            predict_global(self.model, w, self.data, part, draws=count, seed=seed),
        )

    def _personalized(self, state: FederationState, at: Round) -> FederationState:
        """The state with personal models made from the server's, if the method makes them so."""
        if not isinstance(self.algorithm, Personalizing):
            return state
        started = time.perf_counter()
        clients = self._work(state, at).personalized(self.algorithm)
        return replace(state, clients=clients, seconds=self._seconds(state, "evaluate", started))

    def evaluated(self, state: FederationState) -> FederationState:
        """The state with one more record in its history."""
        started = time.perf_counter()
        record: dict[str, Any] = {"round": state.round, "seconds": {}, "personal": {}, "global": {}}
        w = self.global_belief(state)
        for part, prefix in (("test", ""), ("validation", "validation_")):
            personal, common = self.predictions(state, part)
            record["personal"] |= prefixed(measures(personal), prefix)
            record["global"] |= prefixed(measures(common), prefix)
        at_mean = predict_global(self.model, w, self.data, "test", draws=0, seed=0)
        record["global"] |= prefixed(measures(at_mean), "mean_weights_")
        beliefs = self.personal_beliefs(state)
        parts = [information_gain(self.model, stacked, w) for _, stacked in beliefs]
        gains = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        # KL(q^i‖w) in nats by site, one a client, where it is defined.
        finite = {name: kl.tolist() for name, kl in gains.items() if bool(kl.isfinite().all())}
        if finite:
            record["information_gain"] = {k: [round(v, 4) for v in kl] for k, kl in finite.items()}
        screened = screened_rounds(state.server)
        if screened is not None:
            record["screened"] = {str(client): count for client, count in screened.items()}
        seconds = self._seconds(state, "evaluate", started)
        record["seconds"] = {k: round(v, 3) for k, v in seconds.items()}
        return replace(state, history=(*state.history, record), seconds=seconds)

    def _work(self, state: FederationState, at: Round) -> CohortWork:
        engine = self.engine_for(at.total)
        return CohortWork(self.algorithm, engine, self.data, state, at, self.chunk, self._store)

    def _seconds(self, state: FederationState, kind: str, started: float) -> dict[str, float]:
        """The state's seconds with those since ``started``, which went into one kind of work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return {**state.seconds, kind: state.seconds[kind] + time.perf_counter() - started}


def _cohort_size(participation: int | float | None, clients: int) -> int:
    if participation is None:
        return clients
    if isinstance(participation, float) and 0 < participation <= 1:
        return max(1, round(participation * clients))
    # Not `in range(...)`, which counts up to a number that is no integer.
    if not participation >= 1 or participation % 1 != 0:
        raise UserError(
            f"participation is {participation}; give a number of clients, or a fraction up to 1.0"
        )
    if participation > clients:
        raise UserError(f"participation is {participation:g}, but there are only {clients} clients")
    return int(participation)
