"""What a table's page shows of the cost of runs: seconds, bytes sent, gradient steps."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pyro_pfedbayes.experiments.tables.declaration.plan import point_text
from pyro_pfedbayes.experiments.tables.pages.document import Mark
from pyro_pfedbayes.experiments.tables.pages.formatting import ABSENT
from pyro_pfedbayes.experiments.tables.results.collect import CellResult

OWN = " (its own)"


def costs(result: CellResult) -> dict[str, Mark]:
    """What a run of a cell costs, by heading: means over the finished ones."""
    method, found = result.cell.method, result.figures
    sent = [math.nan if f.bytes_uploaded is None else f.bytes_uploaded / 1e3 for f in found]
    places = [f.clients * f.rounds for f in found]
    own_rounds = OWN if method.rounds is not None else ""
    own_steps = OWN if {"local_steps"} & (method.settings.keys() | method.grid.keys()) else ""
    steps = _mean([f.gradient_steps / n for f, n in zip(found, places, strict=True)], "{:.4g}")
    tuned = result.point
    settings = [point_text(part) for part in (tuned or {}, method.settings, method.model) if part]
    return {
        "seconds of training": _mean([f.seconds for f in found], "{:.1f}"),
        "MB sent": _mean([kilobytes / 1e3 for kilobytes in sent], "{:.2f}"),
        "kB sent a client and round": _mean(
            [kilobytes / n for kilobytes, n in zip(sent, places, strict=True)], "{:.1f}"
        ),
        "gradient steps a client and round": Mark(f"{steps.text}{own_steps}"),
        "rounds": Mark(f"{result.cell.final[0][0].rounds}{own_rounds}"),
        "points tried": Mark(f"{len(result.cell.points)}"),
        "settings": Mark("not chosen" if tuned is None else "; ".join(settings) or "defaults"),
    }


def _mean(values: Sequence[float], form: str) -> Mark:
    finite = [value for value in values if math.isfinite(value)]
    return Mark(form.format(sum(finite) / len(finite)) if finite else ABSENT)
