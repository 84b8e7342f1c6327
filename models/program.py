"""Free-form beliefs: any Pyro program of one client, with no network at all."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, Literal

import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.poutine.messenger import Messenger
from torch import Tensor

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.families.base import ClientFamily, ServerFamily
from pyro_pfedbayes.gaussians.mean_field import MeanFieldGaussian
from pyro_pfedbayes.models import sites as latent
from pyro_pfedbayes.models.declared import Declaration, PrivateGuide
from pyro_pfedbayes.models.likelihoods import Outcome, check_exposure
from pyro_pfedbayes.models.roles import Role, assign_roles
from pyro_pfedbayes.models.spec import DataSpec

START_SCALE = 0.1
MAX_CLASSES = 1_000


class ProgramModel(latent.HasSites):
    """A client's belief as a Pyro program; its latent sites are what the federation learns.

    The program is written for one client. It samples the observation, site ``"y"``, in a plate over the rows of
    ``x``; its latent sites may have any continuous support, and are learnt in unconstrained coordinates. Their
    priors in the program are those of the first round; then the server's w takes their place for shared sites. A
    private site keeps the program's own prior, which may depend on other sites (a hierarchical model).

    The program runs under ``torch.func.vmap``, a client a row: it must not branch on values.

    Args:
        program: ``program(x, y=None)``. Further parameters name data columns: ``program(x, y=None, *, exposure)``.
        data: Shape of the inputs and number of classes.
        roles: Roles by name pattern; the default is shared.
        server: Family of the server's w; default mean-field Gaussian.
        guide: Family of the clients' q^i over the shared sites; default mean-field Gaussian.
        private_guide: Makes a Pyro AutoGuide for the private sites, such as ``AutoMultivariateNormal``.
        start: Where sites begin, in their own coordinates; by default at medians of their priors.
        scale: Standard deviation of q^i in the beginning, in unconstrained coordinates.
        missing: ``"mask"`` leaves examples without a known outcome (NaN, or label -1) out of the likelihood;
            ``"refuse"`` does not take such data.

    Raises:
        UserError: No latent site, a discrete one, one whose shape depends on the data, no site ``"y"`` in a plate over
            the rows, or what `assign_roles` and `Declaration` refuse.

    Example:
        >>> import pyro
        >>> def coin(x, y=None):
        ...     p = pyro.sample("p", dist.Beta(2.0, 2.0))
        ...     with pyro.plate("data", len(x)):
        ...         pyro.sample("y", dist.Bernoulli(p), obs=y)
        >>> model = ProgramModel(coin, DataSpec((1,), num_classes=2))
        >>> model.declaration.shapes, model.outcome
        ({'p': ()}, 'class')
    """

    def __init__(
        self,
        program: Callable[..., Any],
        data: DataSpec,
        *,
        roles: Mapping[str, Role | str] | None = None,
        server: ServerFamily | None = None,
        guide: ClientFamily | None = None,
        private_guide: PrivateGuide | None = None,
        start: Mapping[str, Any] | None = None,
        scale: float = START_SCALE,
        missing: Literal["refuse", "mask"] = "refuse",
    ) -> None:
        if missing not in ("refuse", "mask"):
            raise UserError(f"missing is {missing!r}; give 'refuse' or 'mask'")
        if not 0 < scale < float("inf"):
            raise UserError(f"scale is {scale}; it must be a positive number")
        self.program = program
        self.data, self.missing = data, missing
        self.name = getattr(program, "__name__", "program")
        parameters = tuple(inspect.signature(program).parameters)
        if len(parameters) < 2:
            raise UserError(f"a program takes x and y, as in def {self.name}(x, y=None)")
        self.covariates = parameters[2:]
        nodes = self._prototype()
        self.sites = latent.find_sites(nodes)
        _check_observation(nodes, self.name)
        for name, site in latent.find_sites(self._prototype(rows=3)).items():
            if name not in self.sites or self.sites[name].shape != site.shape:
                raise UserError(
                    f"program {self.name!r}: the shape of site {name!r} depends on the number of examples; "
                    "sites are what clients share, so it must be fixed (only 'y' goes into the plate over the data)"
                )
        y = nodes[latent.OBSERVATION]["value"]
        with latent.seeded(0):
            observed = latent.site_trace(self._run, self._inputs(len(y)), y)[latent.OBSERVATION][
                "is_observed"
            ]
        if not observed:
            raise UserError(f"program {self.name!r} draws site 'y' whatever y is; give it obs=y")
        assigned = assign_roles(self.sites, roles)
        for name, role in assigned.items():
            if role.prior is not None:
                raise UserError(
                    f"roles: site {name!r}: the program says its prior itself; give 'private' alone"
                )
        families = {"server": server, "guide": guide}
        self.declaration = Declaration(
            {name: site.shape for name, site in self.sites.items()},
            assigned,
            private_guide=private_guide,
            own_prior=True,
            **{k: v for k, v in families.items() if v is not None},  # type: ignore[arg-type]
        )
        fn = nodes[latent.OBSERVATION]["fn"]
        self.outcome: Outcome = outcome_of(fn)
        self.num_classes, self._label_dtype = 0, torch.float32
        if self.outcome == "class":
            # Labels are integers; a Bernoulli wants them as floats.
            support = fn.enumerate_support(expand=False)
            self.num_classes, self._label_dtype = len(support), support.dtype
        self.support = fn.support
        self.start = self._start(start or {}, scale)

    def client_program(self, x: Tensor, y: Tensor | None = None) -> Any:
        """Run the program; the last columns of ``x`` are its covariates."""
        if y is not None and self.outcome == "class":
            y = y.to(x.dtype if self._label_dtype.is_floating_point else self._label_dtype)
        if y is not None and self.missing == "mask":
            known = self.known(y)
            # A masked term must still be finite, and within the support, or its gradient is not.
            harmless = y[known.int().argmax()] if y.dim() else y
            with Unmasked(known):
                return self._run(x, torch.where(known, y, harmless))
        return self._run(x, y)

    def known(self, y: Tensor) -> Tensor:
        """True where an outcome is known."""
        return ~y.isnan() if y.is_floating_point() else y >= 0

    def _run(self, x: Tensor, y: Tensor | None) -> Any:
        # What a program makes without saying where belongs to where its data are.
        with x.device if x.device.type != "cpu" else nullcontext():
            if not self.covariates:
                return self.program(x, y)
            count = len(self.covariates)
            columns = dict(zip(self.covariates, x[..., -count:].unbind(-1), strict=True))
            return self.program(x[..., :-count], y, **columns)

    def sites_program(self) -> Any:
        """Draw the latent sites, on inputs that are nobody's."""
        return self.client_program(self._inputs().to(self.start.device))

    def observation(self, values: Mapping[str, Tensor], x: Tensor) -> dist.TorchDistribution:
        """Distribution of the observations, batch ``[n]``, for given values of all sites."""
        given = poutine.condition(self.client_program, data=dict(values))
        fn: dist.TorchDistribution = latent.site_trace(given, x, None)[latent.OBSERVATION]["fn"]
        return fn

    def predict(self, values: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Class probabilities ``[n, C]`` or predictive means ``[n]``."""
        distribution = self.observation(values, x)
        if self.outcome == "class":
            return class_probabilities(distribution)
        mean: Tensor = distribution.mean.contiguous()
        return mean

    def moved(self, device: Any) -> ProgramModel:
        """The same model with its start on a device."""
        copy = object.__new__(ProgramModel)
        vars(copy).update(vars(self) | {"start": self.start.to(device)})
        return copy

    def check_covariates(self, columns: Mapping[str, Tensor]) -> None:
        """Refuse a column ``exposure`` that is not positive; of other columns only the program knows what they mean."""
        if "exposure" in columns:
            check_exposure(columns["exposure"])

    def check_fits(self, x: Tensor, y: Tensor, where: str) -> None:
        """Refuse inputs that the program cannot take and observations outside its support."""
        try:
            with torch.no_grad(), latent.seeded(0):
                latent.site_trace(self.client_program, x, None)
        except (RuntimeError, ValueError, TypeError, IndexError) as problem:
            raise UserError(
                f"program {self.name!r} does not take inputs of shape {list(x.shape[1:])} from {where}: "
                + _reason(problem)
            ) from problem
        if self.outcome == "class" and y.is_floating_point():
            raise UserError(
                f"{where}: the outcomes are numbers, but program {self.name!r} observes classes"
            )
        if self.outcome == "number" and not y.is_floating_point():
            raise UserError(
                f"{where}: the outcomes are classes, but program {self.name!r} observes numbers; "
                "data.target = 'number' reads labels as numbers"
            )
        fits = self.support.check(y) & (y.abs() != float("inf"))
        if self.missing == "mask":
            fits = fits | ~self.known(y)
        if not bool(fits.all()):
            row = int((~fits).int().argmax())
            hint = "" if self.known(y[row]) else "; missing='mask' leaves such examples out"
            raise UserError(
                f"{where}: outcome {y[row].item():g} of row {row} lies outside the support of site 'y' "
                f"of program {self.name!r} ({self.support}){hint}"
            )

    def _inputs(self, rows: int = 2) -> Tensor:
        """Inputs that are nobody's."""
        shape = self.data.feature_shape
        if self.covariates:
            if len(shape) != 1:
                raise UserError(
                    f"program {self.name!r} takes the columns {', '.join(self.covariates)}, which only tables have"
                )
            shape = (shape[0] + len(self.covariates),)
        return torch.ones(rows, *shape)

    def _prototype(self, rows: int = 2) -> dict[str, dict[str, Any]]:
        x = self._inputs(rows)
        try:
            with latent.seeded(0):
                return latent.site_trace(self.client_program, x, None)
        except UserError:
            raise
        except Exception as problem:
            raise UserError(
                f"program {self.name!r} does not run on inputs of shape {list(x.shape)}: "
                + _reason(problem)
            ) from problem

    def _start(self, given: Mapping[str, Any], scale: float) -> MeanFieldGaussian:
        values = latent.typical_values(
            self.client_program, (self._inputs(), None), self.sites, self.data.seed
        )
        for name, value in given.items():
            if name not in self.sites:
                raise UserError(
                    f"start: there is no site {name!r} (there are: {', '.join(self.sites)})"
                )
            tensor = torch.as_tensor(value, dtype=values[name].dtype)
            transform = self.transform(name)
            free = tensor if transform is None else transform.inv(tensor)
            if free.shape != values[name].shape or not bool(free.isfinite().all()):
                raise UserError(
                    f"start: site {name!r} begins at {value!r}, which does not fit its shape or support"
                )
            values[name] = free
        spread = {name: torch.full_like(value, scale) for name, value in values.items()}
        return MeanFieldGaussian(values, spread)


def _check_observation(nodes: Mapping[str, Mapping[str, Any]], name: str) -> None:
    if latent.OBSERVATION not in nodes:
        raise UserError(f"program {name!r} has no site 'y'; observe the outcomes there, with obs=y")
    node, rows = nodes[latent.OBSERVATION], 2
    plates = [frame for frame in node["cond_indep_stack"] if frame.vectorized]
    if tuple(node["fn"].batch_shape) != (rows,) or [frame.size for frame in plates] != [rows]:
        raise UserError(
            f"program {name!r}: site 'y' has batch shape {list(node['fn'].batch_shape)} for {rows} examples, in "
            f"{len(plates)} plates; sample it in one plate over the rows of x: with pyro.plate('data', len(x))"
        )
    if node["fn"].event_shape:
        raise UserError(
            f"program {name!r}: site 'y' has event shape {list(node['fn'].event_shape)}; "
            "an outcome is one number or one class a row"
        )
    others = [k for k, n in nodes.items() if n["is_observed"] and k != latent.OBSERVATION]
    if others:
        raise UserError(f"program {name!r}: site {others[0]!r} is observed too; only 'y' may be")


def _reason(problem: Exception) -> str:
    return f"{type(problem).__name__}: {latent.plain_reason(problem)}"


class Unmasked(Messenger):  # type: ignore[misc]
    """Let only the rows ``known [b]`` of the observation count."""

    def __init__(self, known: Tensor) -> None:
        super().__init__()
        self._known = known

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        if msg["name"] == latent.OBSERVATION:
            msg["mask"] = self._known if msg["mask"] is None else self._known & msg["mask"]


def outcome_of(fn: dist.TorchDistribution) -> Outcome:
    """Whether a distribution is over classes 0 … C - 1 or over numbers."""
    if not fn.has_enumerate_support:
        return "number"
    support = fn.enumerate_support(expand=False).reshape(-1)
    plain = torch.arange(len(support), dtype=support.dtype)
    return "class" if len(support) <= MAX_CLASSES and torch.equal(support, plain) else "number"


def class_probabilities(fn: dist.TorchDistribution) -> Tensor:
    """Probabilities ``[..., n, C]`` of classes 0 … C - 1 under a distribution with batch shape ``[..., n]``."""
    if isinstance(fn, dist.Categorical):
        # A plate expands what its rows share; callers may add to what they get in place.
        probs: Tensor = fn.probs.contiguous()
        return probs
    by_class: Tensor = fn.log_prob(fn.enumerate_support(expand=True)).exp()
    return by_class.movedim(0, -1)
