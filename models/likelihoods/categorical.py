"""One of two classes by one logit; one of C classes, with or without weights of the classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.models.likelihoods.base import ClassLikelihood, check_positive


@dataclass(frozen=True)
class Bernoulli(ClassLikelihood):
    """Class 1 or class 0; the network's one output is the logit of class 1.

    ``p(y = 1 | f) = 1 / (1 + exp(-f))``

    Args:
        missing: ``"refuse"`` or ``"mask"`` labels of -1.

    Example:
        >>> Bernoulli().predict(torch.tensor([[0.0], [2.0]]))
        tensor([[0.5000, 0.5000],
                [0.1192, 0.8808]])
    """

    num_classes: int = field(default=2, init=False, repr=False)

    def logits(self, outputs: Tensor) -> Tensor:
        """``(0, f)``."""
        return torch.cat([torch.zeros_like(outputs), outputs], -1)


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

    class_weights: Sequence[float] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
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
    def num_outputs(self) -> int:
        """One logit a class."""
        return self.num_classes

    def distribution(
        self, outputs: Tensor, exposure: Tensor | None = None
    ) -> dist.TorchDistribution:
        """Categorical with logits ``outputs [..., n, C]``, batch shape ``[..., n]``; weighted if so declared."""
        if self.class_weights is None:
            return super().distribution(outputs)
        weights = torch.tensor(self.class_weights, dtype=outputs.dtype, device=outputs.device)
        return WeightedCategorical(outputs, weights)


class WeightedCategorical(dist.Categorical):  # type: ignore[misc]
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

    def __init__(self, logits: Tensor, weights: Tensor, validate_args: bool | None = None) -> None:
        super().__init__(logits=logits, validate_args=validate_args)
        self.weights = weights

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> WeightedCategorical:
        """The same distribution at each place of a larger batch."""
        if torch.Size(batch_shape) == self.batch_shape:
            return self
        new: WeightedCategorical = self._get_checked_instance(WeightedCategorical, _instance)
        new.weights = self.weights
        super().expand(torch.Size(batch_shape), _instance=new)
        return new

    def log_prob(self, value: Tensor) -> Tensor:
        """Weighted log-probability of classes ``[*batch]``, in nats times a weight."""
        log_prob: Tensor = super().log_prob(value)
        return log_prob * self.weights[value.long()]
