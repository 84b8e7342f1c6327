"""What a report does with outcomes of one kind; ``classes.py`` and ``numbers.py`` fill it in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pyro_pfedbayes.experiments.reports.files.run_files import Columns
from pyro_pfedbayes.experiments.reports.schema import ModelReport

Array = NDArray[Any]
Scores = Mapping[str, Array]
"""What each example adds to measures that need draws, ``[n]`` each; nothing for classes."""


@dataclass(frozen=True)
class OutcomeKind:
    """Functions take predictions ``columns``, known outcomes ``y [n]``, clients ``owner [n]``, and `Scores`."""

    name: Literal["class", "number"]
    stored: type[np.generic]  # type of outcomes
    uncertainty: str  # the column that the least certain examples are found by
    required: Callable[[Columns], Columns]  # columns without which an example can't be judged
    scores: Callable[[Columns, Array, Array | None, Array | None, int], Scores]
    """Of columns, outcomes, drawn outcomes ``[K, n]``, log-likelihoods ``[K, n]`` and the number of draws."""
    model: Callable[[Columns, Array, Array, Scores], ModelReport]
    client: Callable[[Columns, Array, Scores], dict[str, float]]
    client_intervals: Callable[[Columns, Array, Array, int], tuple[Array, Array]]
    """95 % intervals ``[N]`` of each client's first measure."""
    described: Callable[[Columns, Any, int, Sequence[str]], tuple[str, str, float]]
    """An example's outcome and prediction in words, and the prediction's probability."""
    epistemic: Callable[[float], float] = float
    """From the column ``epistemic`` to the unit of the uncertainty."""
