"""One of C classes, with or without weights of the classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyro.distributions as dist
import torch
from pyro.distributions import constraints
from torch import Tensor

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.models.likelihoods.base import ClassLikelihood, check_positive


@dataclass(frozen=True)
class Categorical(ClassLikelihood):
    """One of ``num_classes`` classes; the network's outputs are its logits.

    ``p(y = c | f) = exp(f_c) / Σ_k exp(f_k)``

    With ``class_weights`` an example of class c counts as v_c examples: ``log p(y | f)`` is multiplied by ``v_y``. That
    is a pseudo-likelihood, no longer a density of y: posteriors become wider or narrower as if examples were fewer or
    more, and predictions, which stay the softmax, lean towards classes with large weights.

    Args:
        num_classes: C, at least 2.
        class_weights: v_c > 0, C numbers; None for ones. Weights of mean 1 over the data keep its total weight.
        missing: ``"refuse"`` or ``"mask"`` labels of -1.

    Raises:
        UserError: Fewer than two classes, weights that are not C positive numbers.

    Example:
        >>> Categorical(3).predict(torch.zeros(1, 3))
        tensor([[0.3333, 0.3333, 0.3333]])
        >>> rare = Categorical(2, class_weights=(0.5, 5.0))
        >>> rare.distribution(torch.zeros(2, 2)).log_prob(torch.tensor([0, 1]))
        tensor([-0.3466, -3.4657])
    """

    num_classes: int
    class_weights: Sequence[float] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_classes < 2:
            raise UserError(
                f"Categorical: num_classes is {self.num_classes}; at least 2 are needed"
            )
        if self.class_weights is None:
            return
        if len(self.class_weights) != self.num_classes:
            raise UserError(
                f"Categorical: there are {len(self.class_weights)} class_weights; "
                f"give one for each of the {self.num_classes} classes"
            )
        for label, weight in enumerate(self.class_weights):
            check_positive("Categorical", **{f"class_weights[{label}]": weight})
        # A list would make a frozen object that can change, and that cannot be hashed.
        object.__setattr__(self, "class_weights", tuple(float(v) for v in self.class_weights))

    @property
    def classes(self) -> int:
        """Number of classes C."""
        return self.num_classes

    @property
    def num_outputs(self) -> int:
        """One logit a class."""
        return self.num_classes

    def distribution(
        self, outputs: Tensor, exposure: Tensor | None = None
    ) -> dist.TorchDistribution:
        """Categorical with logits ``outputs [..., n, C]``, batch shape ``[..., n]``; weighted if so declared."""
        if self.class_weights is None:
            return dist.Categorical(logits=outputs)
        weights = torch.tensor(self.class_weights, dtype=outputs.dtype, device=outputs.device)
        return WeightedCategorical(outputs, weights)

    def predict(self, outputs: Tensor, exposure: Tensor | None = None) -> Tensor:
        """Class probabilities, the softmax of ``outputs [..., n, C]``."""
        return outputs.softmax(-1)


class WeightedCategorical(dist.TorchDistribution):  # type: ignore[misc]
    """A Categorical whose log-probability is multiplied by the weight of the observed class.

    ``log_prob(y) = v_y · log softmax(f)_y``. Its exponentials do not sum to one (a weighted pseudo-likelihood); draws
    come from the softmax, unweighted.

    Args:
        logits: f ``[*batch, C]``.
        weights: v ``[C]``, positive.

    Example:
        >>> weighted = WeightedCategorical(torch.zeros(5, 2), torch.tensor([1.0, 3.0]))
        >>> weighted.batch_shape, weighted.log_prob(torch.ones(5, dtype=torch.long))[0] / torch.tensor(0.5).log()
        (torch.Size([5]), tensor(3.))
    """

    arg_constraints = {"logits": constraints.real_vector, "weights": constraints.positive}  # noqa: RUF012
    has_enumerate_support = True

    def __init__(self, logits: Tensor, weights: Tensor, validate_args: bool | None = None) -> None:
        self.categorical = dist.Categorical(logits=logits, validate_args=validate_args)
        self.weights = weights
        super().__init__(self.categorical.batch_shape, validate_args=False)

    @property
    def support(self) -> constraints.Constraint:
        """The integers 0 … C - 1."""
        return self.categorical.support

    @property
    def logits(self) -> Tensor:
        """Normalised logits ``[*batch, C]``."""
        logits: Tensor = self.categorical.logits
        return logits

    @property
    def probs(self) -> Tensor:
        """Probabilities ``[*batch, C]``, unweighted."""
        probs: Tensor = self.categorical.probs
        return probs

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> WeightedCategorical:
        """The same distribution at each place of a larger batch."""
        if torch.Size(batch_shape) == self.batch_shape:
            return self
        return WeightedCategorical(
            self.logits.expand(*batch_shape, self.logits.shape[-1]), self.weights, False
        )

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draw classes by their probabilities, which the weights do not change."""
        drawn: Tensor = self.categorical.sample(torch.Size(sample_shape))
        return drawn

    def log_prob(self, value: Tensor) -> Tensor:
        """Weighted log-probability of classes ``[*batch]``, in nats times a weight."""
        log_prob: Tensor = self.categorical.log_prob(value)
        return log_prob * self.weights[value.long()]

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All classes, in a new leftmost dimension."""
        classes: Tensor = self.categorical.enumerate_support(expand)
        return classes
