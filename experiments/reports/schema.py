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
    """A measure of all examples together, and its 95 % interval over clients and examples.

    Attributes:
        value: The measure; NaN where it is not defined.
        lower: Lower end; NaN if there is no interval.
        upper: Upper end; NaN likewise.
    """

    value: float
    lower: float = math.nan
    upper: float = math.nan


@dataclass(frozen=True)
class Reliability:
    """Confidence and accuracy by bins of confidence, lists over the bins.

    Attributes:
        edges: Ends of the bins, one more than there are bins.
        confidence: Mean confidence in each; NaN where it is empty.
        accuracy: Share of right predictions in each; NaN likewise.
        count: Examples in each.
    """

    edges: tuple[float, ...]
    confidence: tuple[float, ...]
    accuracy: tuple[float, ...]
    count: tuple[int, ...]


@dataclass(frozen=True)
class Selective:
    """How the error falls when the least certain examples are left to a person.

    Attributes:
        coverage: Shares of examples that are answered.
        risk: Error rate (for numbers: RMSE) among those.
        at: Accuracy (for numbers: RMSE) at 80, 90 and 95 % coverage, by ``"80"``, ``"90"``, ``"95"``.
        aurc: Area under the curve of the error rate (for numbers: of the squared error, in squared units of the
            outcome).
        excess_aurc: What of it a better order of the examples would take away.
    """

    coverage: tuple[float, ...]
    risk: tuple[float, ...]
    at: Mapping[str, Estimate]
    aurc: Estimate
    excess_aurc: Estimate


@dataclass(frozen=True)
class ModelReport:
    """One kind of model on all test examples.

    Attributes:
        measures: By name. Classes: accuracy, nll (nats), brier, ece, adaptive_ece, classwise_ece, confidence (mean
            of the largest probability), entropy, aleatoric, epistemic (nats). Numbers: rmse, mae, nll, coverage90, sd
            (mean predictive standard deviation), crps.
        reliability: Of classes.
        selective: Risk by coverage.
    """

    measures: Mapping[str, Estimate]
    reliability: Reliability | None = None
    selective: Selective | None = None


@dataclass(frozen=True)
class ClientRow:
    """How one client fares.

    Attributes:
        client: Its number.
        name: Its name.
        train: Training examples; None if the data could not be loaded again.
        test: Test examples.
        judged: Those with a known outcome.
        broken: Those whose prediction by the lead model is no number, or no probability; the client's measures are not
            defined then.
        personal: Measures of its personal model, named as in `ModelReport`.
        global_: Those of the global model; None if they were not stored.
        lower: Lower end of a 95 % interval of the accuracy (Bayesian) or RMSE (bootstrap) of the lead model
            (`ReportData.lead`).
        upper: Upper end.
        gain: Information gain KL(q^i‖w) of its posterior, in nats; None if not stored.
        dropped: Rounds in which its update diverged and was left out.
        reasons: Why it needs a person's attention, in words; none if it does not. They are about the lead model.
        unsound: Of the ``broken``, those that are numbers but no probabilities.
    """

    client: int
    name: str
    train: int | None
    test: int
    judged: int
    broken: int
    personal: Mapping[str, float]
    global_: Mapping[str, float] | None
    lower: float = math.nan
    upper: float = math.nan
    gain: float | None = None
    dropped: int = 0
    reasons: tuple[str, ...] = ()
    unsound: int = 0

    def measures(self, model: str) -> Mapping[str, float]:
        """Those of its ``personal`` model, or of the ``global`` one; none if they were not stored."""
        return self.personal if model == "personal" else self.global_ or {}


@dataclass(frozen=True)
class OodScore:
    """How well one score tells examples that are unlike a client's from its own test examples.

    Attributes:
        name: ``epistemic``, ``total`` or ``max_probability``.
        auroc: Over all clients' examples together.
        fpr95: Share of the unlike examples that a threshold accepting 95 % of the clients' own accepts.
        client_auroc: Mean over clients of each one's own AUROC.
    """

    name: str
    auroc: Estimate
    fpr95: Estimate
    client_auroc: float


@dataclass(frozen=True)
class Unseen:
    """Classes that clients never saw, as natural out-of-distribution examples of the personal models.

    Attributes:
        examples: Number of examples of unseen classes.
        clients: Number of clients that have unseen classes.
        scores: The scores compared.
    """

    examples: int
    clients: int
    scores: tuple[OodScore, ...]


@dataclass(frozen=True)
class Foreign:
    """Examples of another data set, each asked of every client's personal model.

    Attributes:
        data: Name of the other data set.
        examples: Number of its examples.
        clients: Number of clients.
        scores: The scores compared.
    """

    data: str
    examples: int
    clients: int
    scores: tuple[OodScore, ...]


@dataclass(frozen=True)
class ShiftLevel:
    """The personal models on test examples that were damaged in one way.

    Attributes:
        corruption: ``noise``, ``blur`` or ``rotation``.
        strength: 1 (mild) to 5 (severe); 0 for the same examples as they are.
        examples: Number of examples whose prediction is a number.
        accuracy: Share of right predictions, of those with a known label.
        ece: Expected calibration error of the same.
        total: Mean total entropy in nats.
        epistemic: Mean epistemic part in nats.
        auroc: By score, the AUROC of telling these examples from the clients' own; none at strength 0.
    """

    corruption: str
    strength: int
    examples: int
    accuracy: float
    ece: float
    total: float
    epistemic: float
    auroc: Mapping[str, float]


@dataclass(frozen=True)
class Corrupted(Unseen):
    """The same of damaged test examples: each in every way, and the scores over all ways and strengths together.

    Attributes:
        levels: By corruption and strength.
    """

    levels: tuple[ShiftLevel, ...]


@dataclass(frozen=True)
class TemperatureReport:
    """Temperature scaling fitted on validation examples, judged on test examples.

    Attributes:
        model: ``personal`` or ``global``.
        validation: Validation examples it was fitted on.
        shared: The temperature of all clients together; NaN where none is best.
        by_client: Each client's own, by number; NaN where none is best (the shared one serves then).
        measures: nll, ece and adaptive_ece under ``raw``, ``shared`` and ``by_client``.
    """

    model: str
    validation: int
    shared: float
    by_client: Mapping[str, float]
    measures: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class GainMap:
    """Information gain of clients by site.

    Attributes:
        clients: Names of the clients.
        sites: Names of the sites; a single "all" where it cannot be split.
        kl: KL(q^i‖w) in nats, a row a client.
    """

    clients: tuple[str, ...]
    sites: tuple[str, ...]
    kl: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Example:
    """One of the least certain test examples.

    Attributes:
        index: Where it lies in its data set.
        client: Whose it is, by name.
        label: Its outcome, by name or as a number.
        predicted: What the personal model says.
        probability: Of the predicted class; NaN for numbers.
        uncertainty: Total entropy in nats, or the predictive standard deviation.
        epistemic: Its epistemic part: nats, or a standard deviation.
        image: Grey (rows of pixels) or coloured (rows of triples) in [0, 1]; None if there is none. Not in JSON.
    """

    index: int
    client: str
    label: str
    predicted: str
    probability: float
    uncertainty: float
    epistemic: float
    image: Any = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class NumberFit:
    """How predicted numbers compare with those observed, by the lead model.

    Attributes:
        observed: Outcomes of at most 2,000 test examples, evenly spread over all.
        predicted: Predictive means of the same.
        sd: Predictive standard deviations of the same.
        levels: Probabilities of central intervals.
        coverage: Shares of outcomes inside; NaN where there are too few draws for a level.
        width: Mean widths; NaN likewise, and where no draws are stored one by one.
        pit: Counts of the probability integral transform in ten equal bins.
    """

    observed: tuple[float, ...]
    predicted: tuple[float, ...]
    sd: tuple[float, ...]
    levels: tuple[float, ...] = ()
    coverage: tuple[float, ...] = ()
    width: tuple[float, ...] = ()
    pit: tuple[int, ...] = ()


@dataclass(frozen=True)
class ReportData:
    """All numbers of one run's report.

    Attributes:
        folder: Of the run.
        outcome: ``class`` or ``number``; None if nothing tells.
        finished: Whether the run reached its end.
        summary: As in ``summary.json``; empty if the run is not finished.
        settings: As in ``config.toml``.
        attrs: What ``posterior.nc`` remembers of the run: method, zeta, seed, versions.
        draws: Draws of the weights that statistics are over; 0 without predictions.
        kept_draws: Of these, those that intervals, PIT and CRPS of numbers are from.
        classes: Names of the classes.
        personal: The personal models; None without predictions.
        global_: The global model (``global`` in JSON); None if not stored.
        interval: What the intervals of pooled measures were drawn over: ``both`` (clients, and examples within them),
            ``clients`` or ``examples``; empty if there are none.
        clients: One a client, those in greatest need first.
        unseen: Out-of-distribution detection, by classes that clients never saw.
        foreign: The same, by another data set.
        corrupted: The same, by damaged test examples; and how accuracy and certainty fall.
        temperature: Calibration on top, of the personal and of the global model.
        gain: Information gain.
        least_certain: Examples, the least certain first.
        numbers: Of outcomes that are numbers.
        history: The records of ``metrics.jsonl``.
        missing: Parts that are not there, and why.
        notes: What else a reader should know.
        about: The models that the method is about, ``personal`` and ``global``; both of a method unknown here. The
            other is judged all the same, but is no result of the method.
        point: Whether one set of weights made all predictions, so that none of their uncertainty is epistemic.
        damaged: Files, or parts of them, that are there but could not be read, and why.
        absent: Files that are not there, and what that means.
    """

    folder: str
    outcome: Literal["class", "number"] | None
    finished: bool
    summary: Mapping[str, Any]
    settings: Mapping[str, Any]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    draws: int = 0
    kept_draws: int = 0
    classes: tuple[str, ...] = ()
    personal: ModelReport | None = None
    global_: ModelReport | None = None
    interval: str = ""
    clients: tuple[ClientRow, ...] = ()
    unseen: Unseen | None = None
    foreign: Foreign | None = None
    corrupted: Corrupted | None = None
    temperature: tuple[TemperatureReport, ...] = ()
    gain: GainMap | None = None
    least_certain: tuple[Example, ...] = ()
    numbers: NumberFit | None = None
    history: tuple[Mapping[str, Any], ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    about: tuple[str, ...] = ("personal", "global")
    point: bool = False
    damaged: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()

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
