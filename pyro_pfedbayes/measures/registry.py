"""Every measure that is reported, declared once: its name, headings, unit, better side and plain-language gloss."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:  # what only names measures, such as a list of runs, need not wait for torch
    from torch import Tensor


@dataclass(frozen=True)
class Measure:
    """How a measure is shown, and for a mean over examples of classes how each example counts."""

    title: str
    """Heading in a report, with the unit."""
    short: str
    """Heading of a narrow column."""
    unit: Literal["%", "nats", "outcome", ""]
    """``%``: a share, shown in per cent; ``outcome``: the outcome's own unit."""
    better: Literal["higher", "lower"] | None
    """None: neither end is better."""
    gloss: str = ""
    score: Callable[[Tensor, Tensor], Tensor] | None = None
    """From probabilities ``[n, C]`` and labels ``[n]`` to float64 ``[n]``, whose mean the measure is."""

    @property
    def percent(self) -> bool:
        """Whether it is shown in per cent."""
        return self.unit == "%"

    def called(self, short: str) -> Measure:
        """The same under another short heading."""
        return dataclasses.replace(self, short=short)


def _nll(probs: Tensor, y: Tensor) -> Tensor:
    import torch

    chosen = probs.gather(-1, y[:, None])[:, 0].clamp_min(torch.finfo(probs.dtype).tiny)
    return -chosen.double().log()


def _brier(probs: Tensor, y: Tensor) -> Tensor:
    from torch.nn.functional import one_hot

    truth = one_hot(y, probs.shape[1])
    return (probs.double() - truth).square().sum(-1)


MEASURES: Mapping[str, Measure] = MappingProxyType(
    {
        "accuracy": Measure(
            "accuracy %",
            "accuracy %",
            "%",
            "higher",
            "higher is better",
            score=lambda probs, y: (probs.argmax(-1) == y).double(),
        ),
        "nll": Measure(
            "NLL, nats", "NLL", "nats", "lower", "negative log-likelihood; lower is better", _nll
        ),
        "brier": Measure("Brier score, 0 to 2", "Brier", "", "lower", "lower is better", _brier),
        "ece": Measure("ECE %", "ECE %", "%", "lower", "calibration error; lower is better"),
        "adaptive_ece": Measure(
            "adaptive ECE %", "adaptive ECE %", "%", "lower", "the same over bins of equal mass"
        ),
        "classwise_ece": Measure(
            "classwise ECE %", "classwise ECE %", "%", "lower", "the same, mean over classes"
        ),
        "confidence": Measure(
            "mean confidence %", "confidence %", "%", None, "near the accuracy is better"
        ),
        "entropy": Measure("total entropy, nats", "entropy", "nats", None),
        "aleatoric": Measure(
            "aleatoric part, nats", "aleatoric", "nats", None, "noise in the data"
        ),
        "epistemic": Measure(
            "epistemic part, nats", "epistemic", "nats", None, "more data would remove it"
        ),
        "rmse": Measure(
            "RMSE", "RMSE", "outcome", "lower", "root mean squared error; lower is better"
        ),
        "mae": Measure("MAE", "MAE", "outcome", "lower", "mean absolute error; lower is better"),
        "coverage90": Measure("in the 90 % interval, %", "in 90 %", "%", None, "near 90 is better"),
        "crps": Measure(
            "CRPS", "CRPS", "outcome", "lower", "units of the outcome; lower is better"
        ),
        "sd": Measure("mean predictive sd", "sd", "outcome", None),
        "aurc": Measure("AURC", "AURC", "", "lower"),
    }
)
SUMMARIZED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "class": ("accuracy", "nll", "ece", "brier"),
        "number": ("rmse", "mae", "nll", "coverage90", "crps"),
    }
)
"""What a run's summary holds of each kind of outcome, the measure that models are chosen by first."""


def class_scores(probs: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Each example's own part of the measures that are means, float64 ``[n]``: what bootstraps are made from.

    Example:
        >>> import torch
        >>> scores = class_scores(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]))
        >>> scores["accuracy"].tolist(), scores["brier"]
        ([1.0, 0.0], tensor([0.0200, 0.7200], dtype=torch.float64))
    """
    from pyro_pfedbayes.measures.validation import labels, probabilities

    probs = probabilities(probs)
    y = labels(y, probs)
    return {name: m.score(probs, y) for name, m in MEASURES.items() if m.score is not None}
