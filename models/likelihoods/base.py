"""What every likelihood offers, and what those of classes and those of numbers have in common."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Protocol, get_args

import pyro.distributions as dist
import torch
from pyro.distributions import constraints
from torch import Tensor

from pyro_pfedbayes.errors import UserError, nearest

Outcome = Literal["class", "number"]
"""What is observed: one of C classes (int64, -1 where unknown), or a number (float32, NaN where missing)."""

Missing = Literal["refuse", "mask"]
"""What to do with examples whose outcome is unknown: refuse the data, or leave those examples out of the loss."""


class Likelihood(Protocol):
    """What the model and the predictive need to know about an observation.

    ``distribution`` and ``predict`` run under ``torch.func.vmap`` and in recordings: they never branch on values.
    """

    @property
    def outcome(self) -> Outcome:
        """``"class"`` or ``"number"``."""
        ...

    @property
    def missing(self) -> Missing:
        """What becomes of unknown outcomes."""
        ...

    @property
    def exposure(self) -> str | None:
        """Name of the data column that ``distribution`` and ``predict`` want as ``exposure``, or None."""
        ...

    @property
    def num_outputs(self) -> int:
        """Outputs k of the network for one example."""
        ...

    @property
    def error_measure(self) -> Literal["accuracy", "rmse"]:
        """How a prediction is judged."""
        ...

    @property
    def support(self) -> constraints.Constraint:
        """The values that an observation can take."""
        ...

    def distribution(
        self, outputs: Tensor, exposure: Tensor | None = None
    ) -> dist.TorchDistribution:
        """Distribution of the observations ``[..., n]`` given network outputs ``[..., n, k]``."""
        ...

    def predict(self, outputs: Tensor, exposure: Tensor | None = None) -> Tensor:
        """What is averaged over draws: probabilities ``[..., n, C]`` of classes, the mean ``[..., n]`` of numbers."""
        ...

    def known(self, y: Tensor) -> Tensor:
        """bool, shaped like ``y``: False where the outcome is unknown.

        Put something harmless in those places before ``log_prob``, even if its result is masked: NaN passes through
        a mask into the gradient. 0 lies in the support of every likelihood of this package.
        """
        ...

    def check(self, y: Tensor, where: str = "y") -> None:
        """Refuse observations that have no probability under this likelihood (UserError)."""
        ...

    def check_outputs(self, outputs: object, examples: int) -> None:
        """Refuse what a network returned for so many examples if it is of the wrong kind or shape (UserError)."""
        ...


@dataclass(frozen=True)
class ClassLikelihood:
    """What likelihoods of classes 0 … C - 1 share: everything but the distribution.

    Attributes:
        missing: ``"refuse"`` data with the label -1 (unknown), or ``"mask"`` it: such examples do not count.
    """

    missing: Missing = field(default="refuse", kw_only=True)

    def __post_init__(self) -> None:
        _check_missing(self, self.missing)

    @property
    def classes(self) -> int:
        """Number of classes C."""
        raise NotImplementedError

    @property
    def num_outputs(self) -> int:
        """Outputs of the network for one example: a single score, unless a likelihood says otherwise."""
        return 1

    @property
    def outcome(self) -> Outcome:
        """``"class"``."""
        return "class"

    @property
    def exposure(self) -> str | None:
        """None: classes have no exposure."""
        return None

    @property
    def error_measure(self) -> Literal["accuracy", "rmse"]:
        """``"accuracy"``."""
        return "accuracy"

    @property
    def support(self) -> constraints.Constraint:
        """The integers 0 … C - 1."""
        return constraints.integer_interval(0, self.classes - 1)

    def known(self, y: Tensor) -> Tensor:
        """True where a label is not -1."""
        return y != -1

    def check(self, y: Tensor, where: str = "y") -> None:
        """Check that labels are integers in 0 … C - 1, or -1 if such labels are to be masked."""
        if y.is_floating_point() or y.is_complex():
            raise UserError(
                f"{where}: labels are {y.dtype}; class labels are integers 0 to {self.classes - 1} (torch.int64)"
            )
        wrong = (y < 0) | (y >= self.classes)
        if self.missing == "mask":
            wrong = wrong & self.known(y)
        if bool(wrong.any()):
            label = int(y[wrong][0])
            hint = (
                "; for unknown labels drop the row, or declare missing='mask'"
                if label == -1
                else ""
            )
            raise UserError(
                f"{where}, row {_first(wrong)}: label {label} is out of range; {type(self).__name__} has "
                f"classes 0 to {self.classes - 1}{hint}"
            )

    def check_outputs(self, outputs: object, examples: int) -> None:
        """Check that a network gives ``num_outputs`` numbers an example."""
        _check_shape(self, outputs, examples, self.num_outputs)


@dataclass(frozen=True)
class NumberLikelihood:
    """What likelihoods of numbers share: everything but the distribution.

    Attributes:
        missing: ``"refuse"`` data with a NaN outcome, or ``"mask"`` it: such examples do not count.
    """

    missing: Missing = field(default="refuse", kw_only=True)

    def __post_init__(self) -> None:
        _check_missing(self, self.missing)

    @property
    def num_outputs(self) -> int:
        """Outputs of the network for one example: the predictor alone, unless a likelihood says otherwise."""
        return 1

    @property
    def outcome(self) -> Outcome:
        """``"number"``."""
        return "number"

    @property
    def error_measure(self) -> Literal["accuracy", "rmse"]:
        """``"rmse"``, in the unit of the outcome."""
        return "rmse"

    @property
    def support(self) -> constraints.Constraint:
        """The real numbers."""
        return constraints.real

    def known(self, y: Tensor) -> Tensor:
        """True where an outcome is not NaN."""
        return ~y.isnan()

    def check(self, y: Tensor, where: str = "y") -> None:
        """Check that outcomes are finite floating-point numbers in the support, or NaN if those are to be masked."""
        if not y.is_floating_point():
            raise UserError(
                f"{where}: outcomes are {y.dtype}; {type(self).__name__} wants floating-point numbers "
                "(torch.float32), and class labels want a likelihood of classes"
            )
        missing = ~self.known(y)
        if self.missing == "refuse" and bool(missing.any()):
            raise UserError(
                f"{where}, row {_first(missing)}: the outcome is missing (NaN); drop the row, or declare missing='mask'"
            )
        infinite = y.isinf()
        if bool(infinite.any()):
            raise UserError(
                f"{where}, row {_first(infinite)}: the outcome is {float(y[infinite][0])}; it must be finite"
            )
        # NaN lies in no support; by now it is allowed.
        outside = ~self.support.check(torch.where(missing, 0.0, y))
        if bool(outside.any()):
            raise UserError(
                f"{where}, row {_first(outside)}: the outcome is {float(y[outside][0]):g}; "
                f"{type(self).__name__} counts 0, 1, 2, … only"
            )

    def check_outputs(self, outputs: object, examples: int) -> None:
        """Check that a network gives ``num_outputs`` numbers an example."""
        _check_shape(self, outputs, examples, self.num_outputs)


def check_exposure(values: Tensor, where: str = "exposure") -> None:
    """Check a column of exposures: time at risk, area, visits; the expected count is proportional to it.

    Args:
        values: Exposures ``[n]``, in any unit.
        where: Name of the column, for the message.

    Example:
        >>> check_exposure(torch.tensor([1.0, 0.5]))
        >>> check_exposure(torch.tensor([1.0, 0.0]), "years")
        Traceback (most recent call last):
        ...
        pyro_pfedbayes.errors.UserError: years, row 1: the exposure is 0; it must be positive and finite
    """
    wrong = ~((values > 0) & (values < float("inf")))
    if bool(wrong.any()):
        raise UserError(
            f"{where}, row {_first(wrong)}: the exposure is {float(values[wrong][0]):g}; "
            "it must be positive and finite"
        )


def check_positive(owner: str, least: float = 0.0, /, **settings: float) -> None:
    """Check settings of a likelihood or a model.

    Args:
        owner: Whose settings, for the message.
        least: What they must exceed.
        settings: By name.

    Example:
        >>> check_positive("Normal", scale=0.0)
        Traceback (most recent call last):
        ...
        pyro_pfedbayes.errors.UserError: Normal: scale is 0.0; it must be a finite number above 0
    """
    for name, value in settings.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not least < value < float("inf"):
            raise UserError(
                f"{owner}: {name} is {value!r}; it must be a finite number above {least:g}"
            )


def _check_missing(likelihood: object, missing: str) -> None:
    options = get_args(Missing)
    if missing not in options:
        raise UserError(
            f"{type(likelihood).__name__}: missing is {missing!r}; it must be 'refuse' or 'mask'"
            f"{nearest(str(missing), options)}"
        )


def _check_shape(likelihood: object, outputs: object, examples: int, width: int) -> None:
    wanted = [examples, width]
    found = list(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
    if found != wanted:
        raise UserError(
            f"the network gives {found} for {examples} examples; likelihood {type(likelihood).__name__} "
            f"wants outputs of shape {wanted}"
        )


def _first(wrong: Tensor) -> str:
    """Where the first True is: ``3``, or ``[0, 3]`` in a stack."""
    index = wrong.nonzero()[0].tolist()
    return str(index[0] if len(index) == 1 else index)
