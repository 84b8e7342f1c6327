"""Learning-rate schedules as plain functions of the progress of a phase."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Schedule = Literal["constant", "cosine", "linear"]


@dataclass(frozen=True)
class Phase:
    """A stretch of rounds with a learning-rate schedule of its own."""

    name: str
    begun: int  # rounds of the phase that are finished
    length: int  # rounds of the phase
    lr: float  # learning rate at its beginning
    schedule: Schedule

    @property
    def first(self) -> bool:
        """Whether this is the phase's first round."""
        return self.begun == 0

    def rate(self, step: int, steps: int, final: float) -> float:
        """Learning rate at ``step`` of ``steps`` in the present round; ``final`` at the phase's end."""
        progress = (self.begun + step / steps) / self.length
        return learning_rate(self.schedule, self.lr, final, progress)


def learning_rate(schedule: Schedule, start: float, final: float, progress: float) -> float:
    """Learning rate at ``progress`` in [0, 1] of a phase.

    ``constant`` stays at ``start``; ``linear`` goes straight, ``cosine`` along half a cosine (Loshchilov & Hutter
    2017), both from ``start`` to ``final``.
    """
    if schedule == "constant":
        return start
    done = min(max(progress, 0.0), 1.0)
    share = 1.0 - done if schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
    return final + (start - final) * share
