"""Test examples as pictures."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.figure import Figure

from pyro_pfedbayes.experiments.reports.figures import style
from pyro_pfedbayes.experiments.reports.schema import Example


def plot_examples(examples: Sequence[Example]) -> Figure:
    """Pictures of examples with outcome, prediction and uncertainty; those without a picture are left out."""
    shown = [example for example in examples if example.image is not None]
    columns = 3
    lines = max(1, math.ceil(len(shown) / columns))
    figure = Figure(figsize=(style.WIDTH, 2.15 * lines), layout="constrained")
    for place, example in enumerate(shown, 1):
        axes = figure.add_subplot(lines, columns, place, xticks=[], yticks=[])
        axes.imshow(example.image, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        sure = "" if math.isnan(example.probability) else f" ({100 * example.probability:.0f} %)"
        label, said, client = (
            style.shortened(text, 14) for text in (example.label, example.predicted, example.client)
        )
        title = f"is {label}\nsaid {said}{sure}\nclient {client}"
        axes.set_title(title, fontsize=8, parse_math=False)
    return figure
