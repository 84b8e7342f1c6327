"""What every likelihood offers, and what those of classes and those of numbers have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, Literal, get_args

import torch
from pyro.distributions import Categorical, TorchDistribution, constraints
from torch import Tensor

from pyro_pfedbayes.errors import UserError, nearest

Outcome = Literal["class", "number"]
"""What is observed: one of C classes (int64, -1 where unknown), or a number (float32, NaN where missing)."""

Missing = Literal["refuse", "mask"]
"""What to do with examples whose outcome is unknown: refuse the data, or leave those examples out of the loss."""


@dataclass(frozen=True)
class Likelihood(ABC):
    """What the model and the predictive need to know about an observation.

    ``distribution`` and ``predict`` run under ``torch.func.vmap`` and in recordings: they never branch on values.
    """

    missing: Missing = field(default="refuse", kw_only=True)
    outcome: ClassVar[Outcome]
    error_measure: ClassVar[Literal["accuracy", "rmse"]]  # how a prediction is judged

    def __post_init__(self) -> None:
        options = get_args(Missing)
        if self.missing not in options:
            raise UserError(
                f"{type(self).__name__}: missing is {self.missing!r}; it must be 'refuse' or 'mask'"
                f"{nearest(str(self.missing), options)}"
            )

    @property
    def exposure(self) -> str | None:
        """Name of the data column that ``distribution`` and ``predict`` want as ``exposure``; None without one."""
        return None

    @property
    def num_outputs(self) -> int:
        """Outputs k of the network for one example."""
        return 1

    @property
    @abstractmethod
    def support(self) -> constraints.Constraint:
        """The values that an observation can take."""

    @abstractmethod
    def distribution(self, outputs: Tensor, exposure: Tensor | None = None) -> TorchDistribution:
        """Distribution of batch ``[..., n]`` given outputs ``[..., n, k]`` and, if declared, exposures ``[..., n]``."""

    @abstractmethod
    def predict(self, outputs: Tensor, exposure: Tensor | None = None) -> Tensor:
        """What is averaged over draws: probabilities ``[..., n, C]`` of classes, the mean ``[..., n]`` of numbers."""

    @abstractmethod
    def known(self, y: Tensor) -> Tensor:
        """bool, shaped like ``y``: False where the outcome is unknown.

        Put something harmless in those places before ``log_prob``, even if its result is masked: NaN passes through
        a mask into the gradient. 0 lies in the support of every likelihood of this package.
        """

    @abstractmethod
    def check(self, y: Tensor, where: str = "y") -> None:
        """Refuse observations that have no probability under this likelihood (UserError)."""

    def check_outputs(self, outputs: object, examples: int) -> None:
        """Refuse what a network returned for so many examples if it is of the wrong kind or shape (UserError)."""
        wanted = [examples, self.num_outputs]
        found = list(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        if found != wanted:
            raise UserError(
                f"the network gives {found} for {examples} examples; likelihood {type(self).__name__} "
                f"wants outputs of shape {wanted}"
            )


@dataclass(frozen=True)
class ClassLikelihood(Likelihood):
    """One of the classes 0 … C - 1; a likelihood says how outputs become their logits."""

    outcome: ClassVar[Outcome] = "class"
    error_measure: ClassVar[Literal["accuracy", "rmse"]] = "accuracy"
    num_classes: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_classes < 2:
            raise UserError(
                f"{type(self).__name__}: num_classes is {self.num_classes}; at least 2 are needed"
            )

    @property
    def support(self) -> constraints.Constraint:
        """The integers 0 … C - 1."""
        return constraints.integer_interval(0, self.num_classes - 1)

    def logits(self, outputs: Tensor) -> Tensor:
        """Logits ``[..., n, C]``; the outputs themselves unless a likelihood says otherwise."""
        return outputs

    def distribution(self, outputs: Tensor, exposure: Tensor | None = None) -> TorchDistribution:
        """Categorical of batch ``[..., n]``; integers, which torch's Bernoulli would not take."""
        return Categorical(logits=self.logits(outputs))

    def predict(self, outputs: Tensor, exposure: Tensor | None = None) -> Tensor:
        """Class probabilities ``[..., n, C]``."""
        return self.logits(outputs).softmax(-1)

    def known(self, y: Tensor) -> Tensor:
        """True where a label is not -1."""
        return y != -1

    def check(self, y: Tensor, where: str = "y") -> None:
        """Check that labels are integers in 0 … C - 1, or -1 if such labels are to be masked."""
        last = self.num_classes - 1
        if y.is_floating_point() or y.is_complex():
            raise UserError(
                f"{where}: labels are {y.dtype}; class labels are integers 0 to {last} (torch.int64)"
            )
        wrong = (y < 0) | (y > last)
        if self.missing == "mask":
            wrong = wrong & self.known(y)
        if bool(wrong.any()):
            label = int(y[wrong][0])
            hint = "; for unknown labels drop the row, or declare missing='mask'"
            raise UserError(
                f"{where}, row {_first(wrong)}: label {label} is out of range; {type(self).__name__} has "
                f"classes 0 to {last}{hint if label == -1 else ''}"
            )


@dataclass(frozen=True)
class NumberLikelihood(Likelihood):
    """A number whose mean is the first output."""

    outcome: ClassVar[Outcome] = "number"
    error_measure: ClassVar[Literal["accuracy", "rmse"]] = "rmse"

    @property
    def support(self) -> constraints.Constraint:
        """The real numbers."""
        return constraints.real

    def predict(self, outputs: Tensor, exposure: Tensor | None = None) -> Tensor:
        """The mean ``[..., n]``."""
        return outputs[..., 0]

    def known(self, y: Tensor) -> Tensor:
        """True where an outcome is not NaN."""
        return ~y.isnan()

    def check(self, y: Tensor, where: str = "y") -> None:
        """Check that outcomes are finite floating-point numbers in the support, or NaN if those are to be masked."""
        name = type(self).__name__
        if not y.is_floating_point():
            raise UserError(
                f"{where}: outcomes are {y.dtype}; {name} wants floating-point numbers "
                "(torch.float32), and class labels want a likelihood of classes"
            )
        missing = ~self.known(y)
        if self.missing == "refuse" and bool(missing.any()):
            raise UserError(
                f"{where}, row {_first(missing)}: the outcome is missing (NaN); drop the row, or declare missing='mask'"
            )
        # NaN lies in no support; by now it is allowed.
        outside = ~self.support.check(torch.where(missing, 0.0, y))
        for wrong, rule in (
            (y.isinf(), "it must be finite"),
            (outside, f"{name} counts 0, 1, 2, … only"),
        ):
            if bool(wrong.any()):
                raise UserError(
                    f"{where}, row {_first(wrong)}: the outcome is {float(y[wrong][0]):g}; {rule}"
                )


def check_exposure(values: Tensor, where: str = "exposure") -> None:
    """Check a column of exposures ``[n]``: time at risk, area, visits; the expected count is proportional to it."""
    wrong = ~((values > 0) & (values < float("inf")))
    if bool(wrong.any()):
        raise UserError(
            f"{where}, row {_first(wrong)}: the exposure is {float(values[wrong][0]):g}; "
            "it must be positive and finite"
        )


def check_positive(owner: str, least: float = 0.0, /, **settings: float) -> None:
    """Check that settings of a likelihood or a model are finite numbers above ``least``."""
    for name, value in settings.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not least < value < float("inf"):
            raise UserError(
                f"{owner}: {name} is {value!r}; it must be a finite number above {least:g}"
            )


def _first(wrong: Tensor) -> str:
    """Where the first True is: ``3``, or ``[0, 3]`` in a stack."""
    index = wrong.nonzero()[0].tolist()
    return str(index[0] if len(index) == 1 else index)
