"""What a report holds: plain numbers, which ``pfedbayes report --json`` prints under the names given here.

A number that is not defined (a measure of no examples, of one class only) is NaN, and null in JSON; a part that the
run's folder does not hold is None, and ``missing`` says why.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

NOT_STORED = "not stored in this run"
_IN_JSON = {"global_": "global"}


@dataclass(frozen=True)
class Estimate:
    """A measure of all examples together, and its 95 % interval over clients and examples; NaN if there is none."""

    value: float
    lower: float = math.nan
    upper: float = math.nan


@dataclass(frozen=True)
class Reliability:
    """Confidence and accuracy by bins of confidence."""

    edges: tuple[float, ...]  # one more than there are bins
    confidence: tuple[float, ...]  # mean in each bin; NaN where it is empty
    accuracy: tuple[float, ...]  # likewise
    count: tuple[int, ...]


@dataclass(frozen=True)
class Selective:
    """How the error falls when the least certain examples are left to a person."""

    coverage: tuple[float, ...]  # shares of examples that are answered
    risk: tuple[float, ...]  # error rate (of numbers: RMSE) among those
    at: Mapping[str, Estimate]  # accuracy (or RMSE) at "80", "90" and "95" % coverage
    aurc: Estimate  # area under the curve of the error rate, or of the squared error
    excess_aurc: Estimate  # what of it a better order of the examples would take away


@dataclass(frozen=True)
class ModelReport:
    """One kind of model on all test examples.

    Measures of classes: accuracy, nll (nats), brier, ece, adaptive_ece, classwise_ece, confidence (mean of the largest
    probability), entropy, aleatoric, epistemic (nats). Of numbers: rmse, mae, nll, coverage90, sd (mean predictive
    standard deviation), crps.
    """

    measures: Mapping[str, Estimate]
    reliability: Reliability | None = None  # of classes
    selective: Selective | None = None


@dataclass(frozen=True)
class ClientRow:
    """How one client fares."""

    client: int  # its number
    name: str
    train: int | None  # training examples; None if the data could not be loaded again
    test: int
    judged: int  # test examples with a known outcome
    broken: int  # those whose prediction by the lead model is no number, or no probability
    personal: Mapping[str, float]  # named as in `ModelReport`; not defined if any is broken
    global_: Mapping[str, float] | None
    # 95 % interval of the lead model's accuracy (Bayesian) or RMSE (bootstrap).
    lower: float = math.nan
    upper: float = math.nan
    gain: float | None = None  # information gain KL(q^i‖w) of its posterior, in nats
    dropped: int = 0  # rounds in which its update diverged and was left out
    reasons: tuple[str, ...] = ()  # why it needs a person's attention, by the lead model
    unsound: int = 0  # of the broken ones, those that are numbers but no probabilities

    def measures(self, model: str) -> Mapping[str, float]:
        """Those of its ``personal`` model, or of the ``global`` one; none if they were not stored."""
        return self.personal if model == "personal" else self.global_ or {}


@dataclass(frozen=True)
class OodScore:
    """How well one score tells examples that are unlike a client's from its own test examples."""

    name: str  # epistemic, total or max_probability
    auroc: Estimate  # over all clients' examples together
    fpr95: Estimate  # share of unlike examples accepted where 95 % of the clients' own are
    client_auroc: float  # mean over clients of each one's own AUROC


@dataclass(frozen=True)
class Unseen:
    """Classes that clients never saw, as natural out-of-distribution examples of the personal models."""

    examples: int
    clients: int
    scores: tuple[OodScore, ...]


@dataclass(frozen=True)
class Foreign:
    """Examples of another data set, each shown to every client's personal model."""

    data: str  # its name
    examples: int
    clients: int
    scores: tuple[OodScore, ...]


@dataclass(frozen=True)
class ShiftLevel:
    """The personal models on test examples that were damaged in one way."""

    corruption: str  # noise, blur or rotation
    strength: int  # 1 (mild) to 5 (severe); 0 for the same examples as they are
    examples: int  # those whose prediction is a number
    accuracy: float
    ece: float
    total: float  # mean entropy in nats
    epistemic: float  # its mean epistemic part
    auroc: Mapping[str, float]  # of each score, against the clients' own; none at strength 0


@dataclass(frozen=True)
class Corrupted(Unseen):
    """The same of damaged test examples: each in every way, and the scores over all ways and strengths together."""

    levels: tuple[ShiftLevel, ...]

    @property
    def by_corruption(self) -> dict[str, list[ShiftLevel]]:
        """The levels of each corruption, in their order."""
        found: dict[str, list[ShiftLevel]] = {}
        for level in self.levels:
            found.setdefault(level.corruption, []).append(level)
        return found


@dataclass(frozen=True)
class TemperatureReport:
    """Temperature scaling fitted on validation examples, judged on test examples."""

    model: str
    validation: int  # examples it was fitted on
    shared: float  # temperature of all clients together; NaN where none is best
    by_client: Mapping[str, float]  # each client's own, by number; where NaN, the shared one serves
    measures: Mapping[str, Mapping[str, float]]  # nll, ece, adaptive_ece by raw, shared, by_client


@dataclass(frozen=True)
class GainMap:
    """Information gain KL(q^i‖w) of clients by site, in nats."""

    clients: tuple[str, ...]
    sites: tuple[str, ...]  # a single "all" where it cannot be split
    kl: tuple[tuple[float, ...], ...]  # a row a client


@dataclass(frozen=True)
class Example:
    """One of the least certain test examples."""

    index: int  # place in its data set
    client: str
    label: str
    predicted: str  # by the lead model
    probability: float  # of the predicted class; NaN for numbers
    uncertainty: float  # total entropy in nats, or the predictive standard deviation
    epistemic: float  # its epistemic part
    # Grey or RGB in [0, 1]; not in JSON.
    image: Any = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class NumberFit:
    """How predicted numbers compare with those observed, by the lead model."""

    observed: tuple[float, ...]  # of at most 2,000 test examples, evenly spread over all
    predicted: tuple[float, ...]  # predictive means
    sd: tuple[float, ...]
    levels: tuple[float, ...] = ()  # probabilities of central intervals
    coverage: tuple[float, ...] = ()  # shares of outcomes inside; NaN with too few draws
    width: tuple[float, ...] = ()  # mean widths; NaN likewise, and without single draws
    pit: tuple[int, ...] = ()  # counts of the probability integral transform in ten equal bins


@dataclass(frozen=True)
class ReportData:
    """All numbers of one run's report."""

    folder: str
    outcome: Literal["class", "number"] | None
    finished: bool
    summary: Mapping[str, Any]  # summary.json; empty if the run is not finished
    settings: Mapping[str, Any]  # config.toml
    attrs: Mapping[str, Any] = field(default_factory=dict)  # of posterior.nc
    draws: int = 0  # of the weights; 0 without predictions
    kept_draws: int = 0  # those that intervals, PIT and CRPS of numbers are from
    classes: tuple[str, ...] = ()
    personal: ModelReport | None = None
    global_: ModelReport | None = None
    # What was resampled for intervals: both (clients, and their examples), clients or examples.
    interval: str = ""
    clients: tuple[ClientRow, ...] = ()  # those in greatest need first
    unseen: Unseen | None = None
    foreign: Foreign | None = None
    corrupted: Corrupted | None = None
    temperature: tuple[TemperatureReport, ...] = ()
    gain: GainMap | None = None
    least_certain: tuple[Example, ...] = ()
    numbers: NumberFit | None = None
    history: tuple[Mapping[str, Any], ...] = ()  # metrics.jsonl
    missing: Mapping[str, str] = field(default_factory=dict)  # parts that are not there, and why
    notes: tuple[str, ...] = ()  # what else a reader should know
    # The models that the method is about; the other is judged all the same, but is no result of it.
    about: tuple[str, ...] = ("personal", "global")
    point: bool = False  # one set of weights made all predictions: no uncertainty is epistemic
    damaged: tuple[str, ...] = ()  # files, or parts of them, that could not be read, and why
    absent: tuple[str, ...] = ()  # files that are not there, and what that means

    @property
    def numeric(self) -> bool:
        """Whether outcomes are numbers rather than classes."""
        return self.outcome == "number"

    @property
    def lead(self) -> str:
        """The model that speaks for the method: ``personal``, unless the method is about the global one alone."""
        return "global" if self.about == ("global",) and self.global_ is not None else "personal"

    @property
    def led(self) -> ModelReport | None:
        """Measures of that model."""
        return self.models.get(self.lead)

    @property
    def models(self) -> dict[str, ModelReport]:
        """The models that there are measures of, the one that the method is about first."""
        both = {"personal": self.personal, "global": self.global_}
        order = sorted(both, key=lambda name: name != self.lead)
        return {name: found for name in order if (found := both[name]) is not None}

    @property
    def served(self) -> list[ClientRow]:
        """Clients whose predictions could be judged."""
        return [row for row in self.clients if row.judged and not row.broken]

    @property
    def judged(self) -> int:
        """Their test examples."""
        return sum(row.judged for row in self.served)

    def as_json(self) -> dict[str, Any]:
        """JSON values, named as the attributes; pictures are left out.

        Example:
            >>> empty = ReportData("runs/x", None, False, {}, {})
            >>> empty.as_json()["finished"], "global" in empty.as_json()
            (False, True)
        """
        return dataclasses.asdict(self, dict_factory=_json_object)


def _json_object(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    return {_IN_JSON.get(name, name): value for name, value in fields if name != "image"}
