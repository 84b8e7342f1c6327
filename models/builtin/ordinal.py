"""A belief about ordered classes, such as grades or stages."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_pfedbayes.models.builtin.parts import check, normal, observe
from pyro_pfedbayes.models.likelihoods import ordinal_logits
from pyro_pfedbayes.models.likelihoods.base import Missing
from pyro_pfedbayes.models.program import ProgramModel
from pyro_pfedbayes.models.spec import DataSpec

__all__ = ["ordinal_regression"]


def ordinal_regression(
    data: DataSpec, *, prior_scale: float = 1.0, cut_scale: float = 2.0, missing: Missing = "refuse"
) -> ProgramModel:
    """A hidden score, linear in the features, shows only as the grade it falls into; the grades' borders are learnt.

    ``P(y <= c) = 1 / (1 + exp(-(cut_c - b · x))),  cut_0 ~ Normal(0, cut_scale²),  cut_c = cut_{c-1} + gap_c,``
    ``log gap_c ~ Normal(0, 1),  b_j ~ Normal(0, prior_scale²)`` (McCullagh 1980)

    Sites ``slopes`` [p], ``first_cut`` and ``gaps`` [C - 2] (for two classes there are none) are shared. Gaps are
    positive, so cutpoints stay in order. There is no intercept: it could not be told from the cutpoints. Scales are in
    log-odds.

    Example:
        >>> ordinal_regression(DataSpec((4,), num_classes=5)).declaration.shapes
        {'slopes': (4,), 'first_cut': (), 'gaps': (3,)}
    """
    features = check(data, "class", "ordinal", prior_scale=prior_scale, cut_scale=cut_scale)
    between = data.num_classes - 2

    def ordinal(x: Tensor, y: Tensor | None = None) -> None:
        slopes = normal("slopes", prior_scale, features)
        cuts = normal("first_cut", cut_scale)[None]
        if between:
            gaps = pyro.sample("gaps", dist.LogNormal(0.0, 1.0).expand([between]).to_event(1))
            cuts = torch.cat([cuts, cuts + gaps.cumsum(-1)])
        observe(dist.Categorical(logits=ordinal_logits(x.flatten(1) @ slopes, cuts)), y)

    return ProgramModel(ordinal, data, missing=missing)
