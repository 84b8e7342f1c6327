"""pFedBayes (Zhang et al., ICML 2022): personalized federated learning by variational Bayesian inference."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.families.clients import inverse_softplus
from pyro_pfedbayes.inference.algorithm import ClientUpdate, Cohort, Judged, Round, Tensors, Upload
from pyro_pfedbayes.inference.algorithms.components.settings import (
    Count,
    NonNegative,
    Positive,
    check_families,
    check_settings,
)
from pyro_pfedbayes.inference.beliefs import sites
from pyro_pfedbayes.inference.beliefs.client_objective import POINT
from pyro_pfedbayes.inference.beliefs.sites import Belief
from pyro_pfedbayes.inference.engine.client_step import GradientEngine
from pyro_pfedbayes.inference.engine.noise import NoiseStreams
from pyro_pfedbayes.inference.engine.optimizer import RowAdam, split_moments
from pyro_pfedbayes.inference.engine.schedules import Phase, Schedule
from pyro_pfedbayes.inference.objective.estimators import EstimatorKind
from pyro_pfedbayes.inference.server.kinds import of_clients, update_kinds
from pyro_pfedbayes.inference.server.localized import LocalizedGaussian
from pyro_pfedbayes.inference.server.prefixed_state import prefixed, under
from pyro_pfedbayes.inference.server.rules import averaged, momentum_step, project
from pyro_pfedbayes.inference.server.screening import (
    Screening,
    held_out_scores,
    placed,
    screen,
    unscreened,
)
from pyro_pfedbayes.models.bayesian import BayesianModel
from pyro_pfedbayes.models.declared import DeclaredModel

FOLLOWER = "follower."
"""How the names of the moments of a localized w_i begin in a client's row."""
UNOFFICIAL_NOISE = 1e-3
UNOFFICIAL_STEPS_PER_BATCH = 5


@dataclass(frozen=True)
class PFedBayes:
    """Settings of pFedBayes, and its functions.

    Client i minimises, one minibatch of b examples and K draws at a time,
    ``-(n_i/b) (1/K) sum log p(y|x, theta_k) + zeta KL(q^i || w)`` (section 2); the server sets w to the minimiser of
    the mean KL (section 3) or follows Algorithm 1 (section 4). A run has up to three phases:

    1. *shared* rounds, the paper's: clients learn against w, the server averages them;
    2. ``kind_rounds`` (optional): the server groups the clients by their uploads and keeps one Gaussian w_k for each
       group, a mixture prior; w stands still;
    3. ``personal_rounds`` (optional): every client solves its own subproblem against the frozen w (or
       w_k), with no communication. That solution is the definition of q^i.

    Attributes:
        zeta: Weight of the KL divergence, > 0.
        local_steps: Minibatches R of a round.
        draws: Monte Carlo draws K of a gradient step.
        batch_size: Examples b of a minibatch.
        lr: Adam's learning rate of q^i in the shared rounds (the paper's eta_1).
        lr_schedule: How it changes over the shared rounds, from ``lr`` to ``lr_final``.
        lr_final: Where a schedule that is not constant ends, in every phase.
        start: ``"server"``: a client begins each round at q^i = w, which favours the global model;
            ``"own"``: it carries on from its own q^i (the paper), which favours the personal one.
        optimizer_state: Adam's moments from round to round of a phase: ``"shared"``: averaged by the server like the
            Gaussians, so that no client's steps run large in directions that only its own data leave quiet
            (in the spirit of Mime, Karimireddy et al. 2021; uploads grow threefold); ``"kept"`` by each client; or
            ``"reset"`` each round.
        server_rule: ``"closed-form"`` averages moments; ``"gradient"`` is the paper's Algorithm 1: clients
            send a localized w_i that followed their q^i by gradient steps on KL(q^i || w_i).
        server_lr: Adam's learning rate of w_i under the gradient rule (eta_2).
        beta: Share of the new average under the gradient rule.
        weighting: Average clients ``"uniform"`` (the paper) or by number of ``"examples"``.
        screening: Which uploads the server leaves out of its averages (docs/quality.md): ``"none"``; those of clients
            whose ``"information-gain"`` is far above that of their kind; or those of clients that do not predict their
            own ``"held-out"`` validation examples. The server then holds a round's uploads at once.
        estimator: How the noise of layers is drawn: ``"plain"``, one draw of the weights for all examples of a
            batch; ``"local"`` reparameterization of linear layers; or ``"flipout"`` (see docs/variance.md).
        objective: ``"paper"``, or ``"unofficial"``: what the public unofficial code optimizes. Its noise is scaled by
            0.001, a batch's log-likelihood is not scaled to n_i, the KL is divided by R, and each batch is used
            for five steps. There to be compared with, not to be used.
        kinds: Groups of clients in the second phase.
        kind_rounds: Rounds of the second phase, a number or a fraction below 1 of the run; none if ``kinds`` is 1.
        kind_lr: Its learning rate; None for ``lr``.
        kind_schedule: Its schedule, down to ``lr_final``.
        personal_rounds: Rounds of the third phase, a number or a fraction below 1 of the run; None for one if clients
            restart from w (whose q^i is otherwise too close to it), and for none if they carry on.
        personal_start: Where the personal phase begins: at the ``"server"``'s w, or the ``"own"`` q^i; None for what
            ``start`` says.
        personal_lr: Its learning rate; None for ``lr``.
        personal_schedule: Its schedule, down to ``lr_final``.

    Raises:
        UserError: A setting out of range, named with the range.
    """

    zeta: Positive = 1.0
    local_steps: Count = 20
    draws: Count = 1
    batch_size: Count = 100
    lr: Positive = 3e-3
    lr_schedule: Schedule = "cosine"
    lr_final: NonNegative = 0.0
    start: Literal["own", "server"] = "server"
    optimizer_state: Literal["shared", "kept", "reset"] = "shared"
    server_rule: Literal["closed-form", "gradient"] = "closed-form"
    server_lr: Positive = 1e-3
    beta: Annotated[float, "(0, 1]"] = 1.0
    weighting: Literal["uniform", "examples"] = "uniform"
    screening: Screening = "none"
    estimator: EstimatorKind = "plain"
    objective: Literal["paper", "unofficial"] = "paper"
    kinds: Count = 1
    kind_rounds: Annotated[int | float, 0] = 0
    kind_lr: Positive | None = None
    kind_schedule: Schedule = "cosine"
    personal_rounds: Annotated[int | float, 0] | None = None
    personal_start: Literal["own", "server"] | None = None
    personal_lr: Positive | None = None
    personal_schedule: Schedule = "cosine"

    name = "pfedbayes"
    models: ClassVar[tuple[Judged, ...]] = ("personal", "global")

    def __post_init__(self) -> None:
        check_settings(self)
        gradient, problem = self.server_rule == "gradient", ""
        if self.kinds > 1 and self.kind_rounds == 0:
            problem = f"kinds is {self.kinds}, but kind_rounds is 0; give the phase some rounds"
        elif self.kinds > 1 and gradient:
            problem = "kinds needs server_rule 'closed-form'; the gradient rule knows one w only"
        elif self.screening != "none" and gradient:
            problem = f"screening {self.screening!r} needs server_rule 'closed-form'; set screening to 'none'"
        if problem:
            raise UserError(problem)

    def check(self, rounds: int, clients: int) -> None:
        """Refuse phases longer than the run, and more kinds than clients."""
        kinds, personal = self._lengths(rounds)
        if kinds + personal >= rounds:
            raise UserError(
                f"rounds is {rounds}, but kind_rounds takes {kinds} and personal_rounds {personal}; "
                "leave at least one shared round (kinds=1 and personal_rounds=0 turn those phases off)"
            )
        if self.kinds > clients:
            raise UserError(f"kinds is {self.kinds}, but there are only {clients} clients")

    def init(self, model: DeclaredModel) -> Tensors:
        """The server's first w and points, and Adam's averages over them if they are shared."""
        check_families(model, self.kinds, self.server_rule, self.screening)
        server = sites.server_start(model)
        if self.optimizer_state == "shared":
            rows = sites.restarted(model, server, 1)
            fresh = RowAdam.fresh_state([rows[name] for name in sites.parameter_names(model)])
            server |= prefixed({name: row[0] for name, row in fresh.items()}, "adam.")
        return server

    def client_init(self, model: DeclaredModel, server: Tensors, count: int) -> Tensors:
        """A client that has never trained believes what the server believes."""
        rows = sites.restarted(model, server, count) | sites.fresh_private(model, count)
        # Shared moments are the server's, but in the personal phase every client has its own.
        if self.optimizer_state != "reset":
            fresh = RowAdam.fresh_state([rows[name] for name in sites.all_names(model)])
            rows |= prefixed(fresh, "adam.")
            if self.server_rule == "gradient":
                rows |= prefixed(RowAdam.fresh_state([rows["loc"], rows["rho"]]), FOLLOWER)
        return rows

    def phase(self, at: Round) -> str:
        """``"shared"``, ``"kinds"`` or ``"personal"``."""
        return self._phase(at).name

    def needs_everyone(self, at: Round) -> bool:
        """Personal rounds are everybody's own, and kinds are told apart once for all clients."""
        phase = self._phase(at)
        return phase.name == "personal" or (phase.name == "kinds" and phase.first)

    def gradient_steps(self, at: Round) -> int:
        """Gradient evaluations of q^i by one client in this round."""
        return self.local_steps * self.draws * self._steps_per_batch

    def client_update(
        self, engine: GradientEngine, server: Tensors, cohort: Cohort, at: Round
    ) -> ClientUpdate:
        """R minibatches of Adam on the client objective; the localized w_i follows if the rule asks for it."""
        phase, model = self._phase(at), engine.model
        believed = of_clients(server, cohort.clients)
        w = sites.w_of(believed)
        state = self._starting_rows(model, believed, cohort, phase)
        names = sites.all_names(model)
        params = {name: state[name] for name in names}
        adam = RowAdam(list(params.values()), self._adam_state(model, believed, state, phase))
        localized = None
        if self.server_rule == "gradient" and phase.name != "personal":
            moments = under(cohort.state, FOLLOWER)
            localized = LocalizedGaussian.begin(w, len(cohort.clients), moments, self.server_lr)
        own_prior = model.declaration.own_prior and at.index == 0
        plan, first = cohort.plan, params[names[0]]
        size = engine.noise_size(params, w, *plan.batch(0), own_prior=own_prior)
        names_of_streams = at.seed, at.index, cohort.clients, self.draws
        noise = NoiseStreams(*names_of_streams, width=size, like=first, scale=self.noise_scale)
        weights, mask = self._weights(cohort, first), plan.needed_mask
        total = torch.zeros(len(first), device=first.device)
        for step in range(self.local_steps):
            x, y = plan.batch(step)
            lr = phase.rate(step, self.local_steps, self.lr_final)
            for _ in range(self._steps_per_batch):
                eps = noise.draw()
                loss, gradients = engine(params, w, *weights, eps, x, y, mask, own_prior=own_prior)
                adam.step([gradients[name] for name in names], lr)
                total += loss
            if localized is not None:
                localized.step(state["loc"], F.softplus(state["rho"]), weights[0])
        moments = adam.state()
        upload = sites.shared_upload(model, params)
        if localized is not None:
            upload = {"loc": localized.loc, "rho": localized.rho}
        stay: dict[str, Tensor] = {}
        if self._shares(phase):
            common, own = split_moments(moments, len(sites.parameter_names(model)))
            upload |= prefixed(common, "adam.")
            stay = prefixed(own, "adam.")
        elif self.optimizer_state != "reset" and at.index + 1 < at.total:
            stay = prefixed(moments, "adam.")
            if localized is not None:
                stay |= prefixed(localized.adam.state(), FOLLOWER)
        if self.screening == "held-out" and phase.name != "personal":
            beliefs, clients = self.personal_belief(model, params), cohort.clients
            examples = [cohort.examples(i, "validation") for i in clients]
            keys = {"seed": at.seed, "round": at.index}
            upload |= held_out_scores(model, beliefs, clients, examples, **keys)
        loss = total / (self.local_steps * self._steps_per_batch)
        return ClientUpdate({**params, **stay}, upload, loss)

    def server_update(
        self, model: DeclaredModel, server: Tensors, uploads: Iterable[Upload], at: Round
    ) -> Tensors:
        """The next w; in the second phase the next w_k, in the third none."""
        phase = self._phase(at)
        if phase.name == "personal":
            for _ in uploads:
                pass
            return unscreened(server)
        out: list[Upload] = []
        stored: Tensors = {}
        if self.screening != "none":
            uploads, out, stored = screen(self.screening, server, list(uploads), self.kinds)

        def aggregate(*some: Upload) -> Tensors:
            return self._aggregate(model, server, some)

        if phase.name == "shared":
            return {**self._aggregate(model, server, uploads), **stored}
        after = update_kinds(
            server, list(uploads), self.kinds, regroup=phase.first, aggregate=aggregate
        )
        return {**(placed(after, out) if phase.first else after), **stored}

    def personal_belief(self, model: DeclaredModel, clients: Tensors) -> Belief:
        """Stacked q^i."""
        if isinstance(model, BayesianModel) and model.plain:
            return model.layout.gaussian(clients["loc"], F.softplus(clients["rho"]))
        params = {name: clients[name] for name in sites.all_names(model)}
        return sites.SiteBelief(model, params, stacked=True)

    def global_belief(self, model: DeclaredModel, server: Tensors) -> Belief:
        """The server's w."""
        if isinstance(model, BayesianModel) and model.plain:
            return model.layout.gaussian(server["loc"], server["scale"])
        points = {POINT: server[POINT]} if POINT in server else {}
        return sites.SiteBelief(model, {**sites.w_of(server), **points}, of_server=True)

    @property
    def noise_scale(self) -> float:
        """Factor on the standard normal noise of the weights."""
        return UNOFFICIAL_NOISE if self.objective == "unofficial" else 1.0

    @property
    def _steps_per_batch(self) -> int:
        return UNOFFICIAL_STEPS_PER_BATCH if self.objective == "unofficial" else 1

    def _lengths(self, rounds: int) -> tuple[int, int]:
        """Rounds of the second and the third phase."""
        personal = self.personal_rounds
        if personal is None:
            personal = 1 if self.start == "server" else 0
        kinds = self.kind_rounds if self.kinds > 1 else 0
        kinds, personal = (round(n * rounds) if n < 1 else int(n) for n in (kinds, personal))
        return kinds, personal

    def _phase(self, at: Round) -> Phase:
        kinds, personal = self._lengths(at.total)
        shared = at.total - kinds - personal
        begun = at.index - shared
        if begun < 0:
            return Phase("shared", at.index, shared, self.lr, self.lr_schedule)
        if begun < kinds:
            return Phase("kinds", begun, kinds, self.kind_lr or self.lr, self.kind_schedule)
        lr = self.personal_lr or self.lr
        return Phase("personal", begun - kinds, personal, lr, self.personal_schedule)

    def _shares(self, phase: Phase) -> bool:
        return self.optimizer_state == "shared" and phase.name != "personal"

    def _adam_state(
        self, model: DeclaredModel, believed: Tensors, state: Tensors, phase: Phase
    ) -> Tensors:
        """Where Adam begins a round; every phase begins afresh."""
        if phase.first:
            return {}
        own, averages = under(state, "adam."), under(believed, "adam.")
        if not self._shares(phase):
            return own
        if phase.name != "kinds":
            clients = len(state[sites.all_names(model)[0]])
            averages = {k: v.expand(clients, *v.shape) for k, v in averages.items()}
        return {**split_moments(own, len(sites.parameter_names(model)))[1], **averages}

    def _weights(self, cohort: Cohort, like: Tensor) -> tuple[Tensor, Tensor]:
        """Factors of the KL divergence (scalar) and of the log-likelihood ``[S]``."""
        scale = cohort.plan.scale.to(like.dtype)
        if self.objective == "unofficial":
            return like.new_tensor(self.zeta / self.local_steps), torch.ones_like(scale)
        return like.new_tensor(self.zeta), scale

    def _starting_rows(
        self, model: DeclaredModel, believed: Tensors, cohort: Cohort, phase: Phase
    ) -> dict[str, Tensor]:
        restart = self.start == "server"
        if phase.name == "personal":
            restart = phase.first and (self.personal_start or self.start) == "server"
        fresh = sites.restarted(model, believed, len(cohort.clients), cohort.state)
        if not restart:
            # A point that carried on before the personal phase would never hear of the others.
            points = {POINT} if phase.name != "personal" else set()
            fresh = {name: value for name, value in fresh.items() if name in points}
        names = (name for name in sites.all_names(model) if name not in fresh)
        return {**cohort.state, **{name: cohort.state[name].clone() for name in names}, **fresh}

    def _importance(self, upload: Upload) -> Tensor:
        return upload.sizes if self.weighting == "examples" else torch.ones_like(upload.sizes)

    def _aggregate(
        self, model: DeclaredModel, server: Tensors, uploads: Iterable[Upload]
    ) -> dict[str, Tensor]:
        """The next w, with points and Adam's averages, from a stream of uploads."""
        weighed = ((upload.tensors, self._importance(upload)) for upload in uploads)
        if self.server_rule == "closed-form":
            return project(model.declaration, weighed, sites.w_of(server))
        averages = averaged(weighed)
        rho = momentum_step(inverse_softplus(server["scale"]), averages.pop("rho"), self.beta)
        loc = momentum_step(server["loc"], averages.pop("loc"), self.beta)
        return {"loc": loc, "scale": F.softplus(rho), **averages}
