"""pFedBayes (Zhang et al., ICML 2022): personalized federated learning by variational Bayesian inference."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args, get_type_hints

import torch
import torch.nn.functional as F
from torch import Tensor

from pyro_pfedbayes.errors import UserError, nearest
from pyro_pfedbayes.gaussian import MeanFieldGaussian
from pyro_pfedbayes.inference.algorithms.base import ClientUpdate, Cohort, Round, Tensors, Upload
from pyro_pfedbayes.inference.engine import GradientEngine
from pyro_pfedbayes.inference.follower import Follower
from pyro_pfedbayes.inference.guides import inverse_softplus
from pyro_pfedbayes.inference.kinds import discover_kinds
from pyro_pfedbayes.inference.noise import NoiseStreams
from pyro_pfedbayes.inference.optimizer import RowAdam
from pyro_pfedbayes.inference.schedules import Phase, Schedule
from pyro_pfedbayes.inference.server import MeanAccumulator, momentum_step
from pyro_pfedbayes.layout import FlatLayout
from pyro_pfedbayes.models.bayesian import BayesianModel
from pyro_pfedbayes.moments import MomentAccumulator

__all__ = ["PFedBayes"]

KINDS = "kinds."
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
        objective: ``"paper"``, or ``"unofficial"``: what the public unofficial code optimizes. Its noise is scaled by
            0.001, a batch's log-likelihood is not scaled to n_i, the KL is divided by R, and each batch is used
            for five steps. There to be compared with, not to be used.
        kinds: Groups of clients in the second phase.
        kind_rounds: Rounds of the second phase, a number or a fraction below 1 of the run; none if ``kinds`` is 1.
        kind_lr: Its learning rate; None for ``lr``.
        kind_schedule: Its schedule, down to ``lr_final``.
        personal_rounds: Rounds of the third phase, a number or a fraction below 1 of the run.
        personal_start: Where the personal phase begins: at the ``"server"``'s w, or the ``"own"`` q^i.
        personal_lr: Its learning rate; None for ``lr``.
        personal_schedule: Its schedule, down to ``lr_final``.

    Raises:
        UserError: A setting out of range, named with the range.
    """

    zeta: float = 1.0
    local_steps: int = 20
    draws: int = 1
    batch_size: int = 100
    lr: float = 3e-3
    lr_schedule: Schedule = "cosine"
    lr_final: float = 0.0
    start: Literal["own", "server"] = "server"
    optimizer_state: Literal["shared", "kept", "reset"] = "shared"
    server_rule: Literal["closed-form", "gradient"] = "closed-form"
    server_lr: float = 1e-3
    beta: float = 1.0
    weighting: Literal["uniform", "examples"] = "uniform"
    objective: Literal["paper", "unofficial"] = "paper"
    kinds: int = 1
    kind_rounds: int | float = 0
    kind_lr: float | None = None
    kind_schedule: Schedule = "cosine"
    personal_rounds: int | float = 1
    personal_start: Literal["own", "server"] = "server"
    personal_lr: float | None = None
    personal_schedule: Schedule = "cosine"

    @property
    def name(self) -> str:
        """Name on the command line."""
        return "pfedbayes"

    def __post_init__(self) -> None:
        for field in ("zeta", "lr", "server_lr", "kind_lr", "personal_lr"):
            value = getattr(self, field)
            if value is not None and not 0 < value < float("inf"):
                raise UserError(f"{field} is {value}; it must be a positive number")
        for field, least in (
            ("local_steps", 1),
            ("draws", 1),
            ("batch_size", 1),
            ("kinds", 1),
            ("kind_rounds", 0),
            ("personal_rounds", 0),
        ):
            value = getattr(self, field)
            if value < least:
                raise UserError(f"{field} is {value}; it must be at least {least}")
            if value >= 1 and value != int(value):
                raise UserError(f"{field} is {value}; it must be a whole number")
        for field, hint in get_type_hints(type(self)).items():
            value, options = getattr(self, field), get_args(hint)
            if isinstance(value, str) and value not in options:
                raise UserError(
                    f"{field} is {value!r}{nearest(value, options)}; give one of {', '.join(options)}"
                )
        if not 0 <= self.lr_final < float("inf"):
            raise UserError(f"lr_final is {self.lr_final}; it must be a number >= 0")
        if not 0 < self.beta <= 1:
            raise UserError(f"beta is {self.beta}; it must lie in (0, 1]")
        if self.kinds > 1 and self.kind_rounds == 0:
            raise UserError(
                f"kinds is {self.kinds}, but kind_rounds is 0; give the phase some rounds"
            )
        if self.kinds > 1 and self.server_rule != "closed-form":
            raise UserError(
                "kinds needs server_rule 'closed-form'; the gradient rule knows one w only"
            )

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

    def init(self, model: BayesianModel) -> Tensors:
        """The server's first w: the model's own prior, as ``loc [T]`` and ``scale [T]``."""
        prior, layout = model.prior, model.layout
        w = {"loc": layout.flatten(prior.loc), "scale": layout.flatten(prior.scale)}
        if self.optimizer_state == "shared":
            rows = [w["loc"][None], w["scale"][None]]
            w |= {k: v[0] for k, v in _add(RowAdam.fresh_state(rows), "adam.").items()}
        return w

    def client_init(self, server: Tensors, count: int) -> Tensors:
        """A client that has never trained believes what the server believes."""
        rows = _copies(server["loc"], server["scale"], count)
        # Shared moments are the server's, but in the personal phase every client has its own.
        if self.optimizer_state != "reset":
            fresh = RowAdam.fresh_state([rows["loc"], rows["rho"]])
            rows |= _add(fresh, "adam.")
            if self.server_rule == "gradient":
                rows |= _add(fresh, "follower.")
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
        del at
        return self.local_steps * self.draws * self._steps_per_batch

    def client_update(
        self, engine: GradientEngine, server: Tensors, cohort: Cohort, at: Round
    ) -> ClientUpdate:
        """R minibatches of Adam on the client objective; the localized w_i follows if the rule asks for it."""
        phase = self._phase(at)
        believed = _of_clients(server, cohort)
        prior = believed["loc"], believed["scale"]
        state = self._starting_rows(prior, cohort, phase)
        loc, rho = state["loc"], state["rho"]
        adam = RowAdam([loc, rho], self._adam_state(believed, state, phase))
        follower = self._follower(prior, cohort, phase)
        noise = NoiseStreams(
            at.seed, at.index, cohort.clients, self.draws, like=loc, scale=self.noise_scale
        )
        zeta, data_scale = self._weights(cohort, loc)
        mask = None if bool(cohort.plan.mask.all()) else cohort.plan.mask
        total = torch.zeros(len(loc), device=loc.device)
        for step in range(self.local_steps):
            x, y = cohort.plan.batch(step)
            lr = phase.rate(step, self.local_steps, self.lr_final)
            for _ in range(self._steps_per_batch):
                loss, *gradients = engine(
                    loc, rho, *prior, zeta, data_scale, noise.draw(), x, y, mask
                )
                adam.step(gradients, lr)
                total += loss
            if follower is not None:
                follower.step(loc, F.softplus(rho), zeta)
        moments = _add(adam.state(), "adam.")
        upload = {"loc": loc, "scale": F.softplus(rho)}
        if follower is not None:
            upload = {"loc": follower.loc, "rho": follower.rho}
        kept: dict[str, Tensor] = {}
        if self._shares(phase):
            upload |= moments
        elif self.optimizer_state != "reset" and at.index + 1 < at.total:
            kept = moments
            if follower is not None:
                kept |= _add(follower.adam.state(), "follower.")
        loss = total / (self.local_steps * self._steps_per_batch)
        return ClientUpdate({"loc": loc, "rho": rho, **kept}, upload, loss)

    def server_update(self, server: Tensors, uploads: Iterable[Upload], at: Round) -> Tensors:
        """The next w; in the second phase the next w_k, in the third none."""
        phase = self._phase(at)
        if phase.name == "personal":
            for _ in uploads:
                pass
            return server
        if phase.name == "kinds":
            return self._kinds_update(server, list(uploads), phase)
        return self._aggregate(server, uploads)

    def personal_belief(self, layout: FlatLayout, clients: Tensors) -> MeanFieldGaussian:
        """Stacked q^i."""
        return layout.gaussian(clients["loc"], F.softplus(clients["rho"]))

    def global_belief(self, layout: FlatLayout, server: Tensors) -> MeanFieldGaussian:
        """The server's w."""
        return layout.gaussian(server["loc"], server["scale"])

    @property
    def noise_scale(self) -> float:
        """Factor on the standard normal noise of the weights."""
        return UNOFFICIAL_NOISE if self.objective == "unofficial" else 1.0

    @property
    def _steps_per_batch(self) -> int:
        return UNOFFICIAL_STEPS_PER_BATCH if self.objective == "unofficial" else 1

    def _lengths(self, rounds: int) -> tuple[int, int]:
        """Rounds of the second and the third phase."""
        kinds, personal = (
            round(value * rounds) if value < 1 else int(value)
            for value in (self.kind_rounds, self.personal_rounds)
        )
        return kinds if self.kinds > 1 else 0, personal

    def _phase(self, at: Round) -> Phase:
        kinds, personal = self._lengths(at.total)
        shared = at.total - kinds - personal
        if at.index < shared:
            return Phase("shared", at.index, shared, self.lr, self.lr_schedule)
        begun = at.index - shared
        if begun < kinds:
            return Phase("kinds", begun, kinds, self.kind_lr or self.lr, self.kind_schedule)
        lr = self.personal_lr or self.lr
        return Phase("personal", begun - kinds, personal, lr, self.personal_schedule)

    def _shares(self, phase: Phase) -> bool:
        return self.optimizer_state == "shared" and phase.name != "personal"

    def _adam_state(self, believed: Tensors, state: Tensors, phase: Phase) -> Tensors:
        """Where Adam begins a round; every phase begins afresh."""
        if phase.first:
            return {}
        if not self._shares(phase):
            return _sub(state, "adam.")
        clients = len(state["loc"])
        averages = _sub(believed, "adam.")
        if phase.name == "kinds":
            return averages
        return {name: value.expand(clients, *value.shape) for name, value in averages.items()}

    def _weights(self, cohort: Cohort, like: Tensor) -> tuple[Tensor, Tensor]:
        """Factors of the KL divergence (scalar) and of the log-likelihood ``[S]``."""
        scale = cohort.plan.scale.to(like.dtype)
        if self.objective == "unofficial":
            return like.new_tensor(self.zeta / self.local_steps), torch.ones_like(scale)
        return like.new_tensor(self.zeta), scale

    def _starting_rows(
        self, prior: tuple[Tensor, Tensor], cohort: Cohort, phase: Phase
    ) -> dict[str, Tensor]:
        restart = self.start == "server"
        if phase.name == "personal":
            restart = phase.first and self.personal_start == "server"
        if restart:
            return {**cohort.state, **_copies(*prior, len(cohort.clients))}
        own = {name: cohort.state[name].clone() for name in ("loc", "rho")}
        return {**cohort.state, **own}

    def _follower(
        self, prior: tuple[Tensor, Tensor], cohort: Cohort, phase: Phase
    ) -> Follower | None:
        if self.server_rule != "gradient" or phase.name == "personal":
            return None
        rows = _copies(*prior, len(cohort.clients))
        adam = RowAdam([rows["loc"], rows["rho"]], _sub(cohort.state, "follower."))
        return Follower(rows["loc"], rows["rho"], adam, self.server_lr)

    def _importance(self, upload: Upload) -> Tensor:
        return upload.sizes if self.weighting == "examples" else torch.ones_like(upload.sizes)

    def _aggregate(self, server: Tensors, uploads: Iterable[Upload]) -> dict[str, Tensor]:
        """The next w, with Adam's averages if they are shared, from a stream of uploads."""
        moments, mean = MomentAccumulator(), MeanAccumulator()
        for upload in uploads:
            sent, importance = dict(upload.tensors), self._importance(upload)
            if self.server_rule == "closed-form":
                locs, scales = {"theta": sent.pop("loc")}, {"theta": sent.pop("scale")}
                moments.add(MeanFieldGaussian.unchecked(locs, scales, stacked=True), importance)
            mean.add(sent, importance)
        averages = mean.result()
        if self.server_rule == "closed-form":
            w = moments.result()
            return {"loc": w.loc["theta"], "scale": w.scale["theta"], **averages}
        rho = momentum_step(inverse_softplus(server["scale"]), averages.pop("rho"), self.beta)
        loc = momentum_step(server["loc"], averages.pop("loc"), self.beta)
        return {"loc": loc, "scale": F.softplus(rho), **averages}

    def _kinds_update(self, server: Tensors, uploads: list[Upload], phase: Phase) -> Tensors:
        clients = [i for upload in uploads for i in upload.clients]
        sizes = torch.cat([upload.sizes for upload in uploads])
        sent = {k: torch.cat([u.tensors[k] for u in uploads]) for k in uploads[0].tensors}
        kinds = _sub(server, KINDS)
        if phase.first:
            found = discover_kinds(sent["loc"], sent["scale"], self.kinds)
            # A client that diverged just now sent nothing; it counts with the first kind.
            kinds["of"] = torch.zeros(max(clients) + 1, dtype=torch.int64, device=found.device)
            kinds["of"][clients] = found
        group = kinds["of"].cpu()[clients]
        for k in range(self.kinds):
            rows = (group == k).nonzero()[:, 0].to(sizes.device)
            if len(rows) == 0:
                continue
            members = tuple(clients[i] for i in rows.tolist())
            own = Upload(members, {name: v[rows] for name, v in sent.items()}, sizes[rows])
            for name, value in self._aggregate(server, [own]).items():
                blank = value.expand(self.kinds, *value.shape)
                kinds[name] = kinds.get(name, blank).clone()
                kinds[name][k] = value
        return {**server, **_add(kinds, KINDS)}


def _of_clients(server: Tensors, cohort: Cohort) -> Tensors:
    """What the server holds for a cohort: w and its averages as they are, or its clients' kinds ``[S, ...]``."""
    kinds = _sub(server, KINDS)
    if not kinds:
        return server
    of = kinds.pop("of").tolist()
    index = [of[i] if i < len(of) else 0 for i in cohort.clients]
    return {name: value[index] for name, value in kinds.items()}


def _copies(loc: Tensor, scale: Tensor, count: int) -> dict[str, Tensor]:
    """Rows of clients at q^i = w, from w ``[T]`` or a w_k for each ``[S, T]``."""
    return {
        "loc": loc.expand(count, -1).clone(),
        "rho": inverse_softplus(scale).expand(count, -1).clone(),
    }


def _sub(tensors: Tensors, prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def _add(tensors: Tensors, prefix: str) -> dict[str, Tensor]:
    return {prefix + k: v for k, v in tensors.items()}
