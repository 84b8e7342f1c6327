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
    """A measure of all examples together, and its 95 % interval over clients and examples."""

    value: float  # the measure; NaN where it is not defined
    lower: float = math.nan  # lower end; NaN if there is no interval
    upper: float = math.nan  # upper end; NaN likewise


@dataclass(frozen=True)
class Reliability:
    """Confidence and accuracy by bins of confidence, lists over the bins."""

    edges: tuple[float, ...]  # ends of the bins, one more than there are bins
    confidence: tuple[float, ...]  # mean confidence in each; NaN where it is empty
    accuracy: tuple[float, ...]  # share of right predictions in each; NaN likewise
    count: tuple[int, ...]  # examples in each


@dataclass(frozen=True)
class Selective:
    """How the error falls when the least certain examples are left to a person."""

    coverage: tuple[float, ...]  # shares of examples that are answered
    risk: tuple[float, ...]  # error rate (for numbers: RMSE) among those
    at: Mapping[str, Estimate]
    """Accuracy (for numbers: RMSE) at 80, 90 and 95 % coverage, by ``"80"``, ``"90"``, ``"95"``."""
    aurc: Estimate
    """Area under the curve of the error rate (for numbers: of the squared error, in squared units of the outcome)."""
    excess_aurc: Estimate  # what of it a better order of the examples would take away


@dataclass(frozen=True)
class ModelReport:
    """One kind of model on all test examples."""

    measures: Mapping[str, Estimate]
    """By name. Classes: accuracy, nll (nats), brier, ece, adaptive_ece, classwise_ece, confidence (mean of the largest
    probability), entropy, aleatoric, epistemic (nats). Numbers: rmse, mae, nll, coverage90, sd (mean predictive
    standard deviation), crps."""
    reliability: Reliability | None = None  # of classes
    selective: Selective | None = None  # risk by coverage


@dataclass(frozen=True)
class ClientRow:
    """How one client fares."""

    client: int  # its number
    name: str  # its name
    train: int | None  # training examples; None if the data could not be loaded again
    test: int  # test examples
    judged: int  # those with a known outcome
    broken: int
    """Those whose prediction by the lead model is no number, or no probability; the client's measures are not defined
    then."""
    personal: Mapping[str, float]  # measures of its personal model, named as in `ModelReport`
    global_: Mapping[str, float] | None  # those of the global model; None if they were not stored
    lower: float = math.nan
    """Lower end of a 95 % interval of the accuracy (Bayesian) or RMSE (bootstrap) of the lead model
    (`ReportData.lead`)."""
    upper: float = math.nan  # upper end
    gain: float | None = None
    """Information gain KL(q^i‖w) of its posterior, in nats; None if not stored."""
    dropped: int = 0  # rounds in which its update diverged and was left out
    reasons: tuple[str, ...] = ()
    """Why it needs a person's attention, in words; none if it does not. They are about the lead model."""
    unsound: int = 0  # of the ``broken``, those that are numbers but no probabilities

    def measures(self, model: str) -> Mapping[str, float]:
        """Those of its ``personal`` model, or of the ``global`` one; none if they were not stored."""
        return self.personal if model == "personal" else self.global_ or {}


@dataclass(frozen=True)
class OodScore:
    """How well one score tells examples that are unlike a client's from its own test examples."""

    name: str  # ``epistemic``, ``total`` or ``max_probability``
    auroc: Estimate  # over all clients' examples together
    fpr95: Estimate  # share of the unlike examples that a threshold accepting 95 % of the clients' own accepts
    client_auroc: float  # mean over clients of each one's own AUROC


@dataclass(frozen=True)
class Unseen:
    """Classes that clients never saw, as natural out-of-distribution examples of the personal models."""

    examples: int  # number of examples of unseen classes
    clients: int  # number of clients that have unseen classes
    scores: tuple[OodScore, ...]  # the scores compared


@dataclass(frozen=True)
class Foreign:
    """Examples of another data set, each asked of every client's personal model."""

    data: str  # name of the other data set
    examples: int  # number of its examples
    clients: int  # number of clients
    scores: tuple[OodScore, ...]  # the scores compared


@dataclass(frozen=True)
class ShiftLevel:
    """The personal models on test examples that were damaged in one way."""

    corruption: str  # ``noise``, ``blur`` or ``rotation``
    strength: int  # 1 (mild) to 5 (severe); 0 for the same examples as they are
    examples: int  # number of examples whose prediction is a number
    accuracy: float  # share of right predictions, of those with a known label
    ece: float  # expected calibration error of the same
    total: float  # mean total entropy in nats
    epistemic: float  # mean epistemic part in nats
    auroc: Mapping[str, float]
    """By score, the AUROC of telling these examples from the clients' own; none at strength 0."""


@dataclass(frozen=True)
class Corrupted(Unseen):
    """The same of damaged test examples: each in every way, and the scores over all ways and strengths together."""

    levels: tuple[ShiftLevel, ...]  # by corruption and strength


@dataclass(frozen=True)
class TemperatureReport:
    """Temperature scaling fitted on validation examples, judged on test examples."""

    model: str  # ``personal`` or ``global``
    validation: int  # validation examples it was fitted on
    shared: float  # the temperature of all clients together; NaN where none is best
    by_client: Mapping[str, float]
    """Each client's own, by number; NaN where none is best (the shared one serves then)."""
    measures: Mapping[str, Mapping[str, float]]
    """nll, ece and adaptive_ece under ``raw``, ``shared`` and ``by_client``."""


@dataclass(frozen=True)
class GainMap:
    """Information gain of clients by site."""

    clients: tuple[str, ...]  # names of the clients
    sites: tuple[str, ...]  # names of the sites; a single "all" where it cannot be split
    kl: tuple[tuple[float, ...], ...]  # KL(q^i‖w) in nats, a row a client


@dataclass(frozen=True)
class Example:
    """One of the least certain test examples."""

    index: int  # where it lies in its data set
    client: str  # whose it is, by name
    label: str  # its outcome, by name or as a number
    predicted: str  # what the personal model says
    probability: float  # of the predicted class; NaN for numbers
    uncertainty: float  # total entropy in nats, or the predictive standard deviation
    epistemic: float  # its epistemic part: nats, or a standard deviation
    image: Any = field(default=None, repr=False, compare=False)
    """Grey (rows of pixels) or coloured (rows of triples) in [0, 1]; None if there is none. Not in JSON."""


@dataclass(frozen=True)
class NumberFit:
    """How predicted numbers compare with those observed, by the lead model."""

    observed: tuple[float, ...]  # outcomes of at most 2,000 test examples, evenly spread over all
    predicted: tuple[float, ...]  # predictive means of the same
    sd: tuple[float, ...]  # predictive standard deviations of the same
    levels: tuple[float, ...] = ()  # probabilities of central intervals
    coverage: tuple[float, ...] = ()
    """Shares of outcomes inside; NaN where there are too few draws for a level."""
    width: tuple[float, ...] = ()
    """Mean widths; NaN likewise, and where no draws are stored one by one."""
    pit: tuple[int, ...] = ()  # counts of the probability integral transform in ten equal bins


@dataclass(frozen=True)
class ReportData:
    """All numbers of one run's report."""

    folder: str  # of the run
    outcome: Literal["class", "number"] | None  # ``class`` or ``number``; None if nothing tells
    finished: bool  # whether the run reached its end
    summary: Mapping[str, Any]  # as in ``summary.json``; empty if the run is not finished
    settings: Mapping[str, Any]  # as in ``config.toml``
    attrs: Mapping[str, Any] = field(default_factory=dict)
    """What ``posterior.nc`` remembers of the run: method, zeta, seed, versions."""
    draws: int = 0  # draws of the weights that statistics are over; 0 without predictions
    kept_draws: int = 0  # of these, those that intervals, PIT and CRPS of numbers are from
    classes: tuple[str, ...] = ()  # names of the classes
    personal: ModelReport | None = None  # the personal models; None without predictions
    global_: ModelReport | None = None  # the global model (``global`` in JSON); None if not stored
    interval: str = ""
    """What the intervals of pooled measures were drawn over: ``both`` (clients, and examples within them), ``clients``
    or ``examples``; empty if there are none."""
    clients: tuple[ClientRow, ...] = ()  # one a client, those in greatest need first
    unseen: Unseen | None = None  # out-of-distribution detection, by classes that clients never saw
    foreign: Foreign | None = None  # the same, by another data set
    corrupted: Corrupted | None = None
    """The same, by damaged test examples; and how accuracy and certainty fall."""
    temperature: tuple[TemperatureReport, ...] = ()
    """Calibration on top, of the personal and of the global model."""
    gain: GainMap | None = None  # information gain
    least_certain: tuple[Example, ...] = ()  # examples, the least certain first
    numbers: NumberFit | None = None  # of outcomes that are numbers
    history: tuple[Mapping[str, Any], ...] = ()  # the records of ``metrics.jsonl``
    missing: Mapping[str, str] = field(default_factory=dict)  # parts that are not there, and why
    notes: tuple[str, ...] = ()  # what else a reader should know
    about: tuple[str, ...] = ("personal", "global")
    """The models that the method is about, ``personal`` and ``global``; both of a method unknown here. The other is
    judged all the same, but is no result of the method."""
    point: bool = False
    """Whether one set of weights made all predictions, so that none of their uncertainty is epistemic."""
    damaged: tuple[str, ...] = ()
    """Files, or parts of them, that are there but could not be read, and why."""
    absent: tuple[str, ...] = ()  # files that are not there, and what that means

    @property
    def lead(self) -> str:
        """The model that speaks for the method: ``personal``, unless the method is about the global one alone."""
        return "global" if self.about == ("global",) and self.global_ is not None else "personal"

    @property
    def led(self) -> ModelReport | None:
        """Measures of that model."""
        return self.global_ if self.lead == "global" else self.personal

    def as_json(self) -> dict[str, Any]:
        """JSON values, named as the attributes; pictures are left out.

        Example:
            >>> empty = ReportData("runs/x", None, False, {}, {})
            >>> empty.as_json()["finished"], "global" in empty.as_json()
            (False, True)
        """
        found: dict[str, Any] = _plain(self)
        return found


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {
            _IN_JSON.get(part.name, part.name): _plain(getattr(value, part.name))
            for part in dataclasses.fields(value)
            if part.name != "image"
        }
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value
