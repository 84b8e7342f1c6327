"""Entropies against torch.distributions, scipy and the definition of mutual information."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor
from torch.distributions import Categorical

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.measures.entropy import (
    entropy,
    entropy_split,
    max_probability_uncertainty,
)

PROPERTY = settings(max_examples=50, deadline=None, derandomize=True)


def draws(k: int, n: int, c: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    stream = torch.Generator().manual_seed(seed)
    return (3 * torch.randn(k, n, c, generator=stream, dtype=torch.float64)).softmax(-1).to(dtype)


def test_entropy_is_that_of_torch_and_scipy() -> None:
    probs = draws(1, 50, 7)[0]
    torch.testing.assert_close(entropy(probs), Categorical(probs).entropy())
    assert entropy(probs).numpy() == pytest.approx(stats.entropy(probs.numpy(), axis=1))


def test_exact_zeros_and_ones() -> None:
    assert entropy(torch.eye(3)).tolist() == [0.0] * 3
    assert entropy(torch.full((1, 4), 0.25)).item() == pytest.approx(math.log(4))
    assert entropy(torch.ones(2, 1)).tolist() == [0.0, 0.0]
    assert entropy(torch.zeros(0, 3)).shape == (0,)


@given(k=st.integers(1, 6), n=st.integers(1, 5), c=st.integers(1, 6), seed=st.integers(0, 10**6))
@PROPERTY
def test_the_epistemic_part_is_the_mutual_information(k: int, n: int, c: int, seed: int) -> None:
    """I(label; draw) from the joint table p(k, c) = p_k(c) / K, by definition."""
    probs = draws(k, n, c, seed)
    split = entropy_split(probs)
    joint = probs / k
    product = joint.sum(0, keepdim=True) / k
    expected = (joint * (joint / product).log()).sum((0, 2))
    torch.testing.assert_close(split.epistemic, expected, atol=1e-13, rtol=1e-9)
    torch.testing.assert_close(split.total, split.aleatoric + split.epistemic, atol=0, rtol=1e-15)
    assert bool((split.epistemic >= 0).all())
    assert bool((split.epistemic <= math.log(min(k, c)) + 1e-12).all())


def test_draws_that_agree_are_all_aleatoric_and_certain_ones_that_differ_all_epistemic() -> None:
    same = draws(1, 4, 3).expand(5, 4, 3)
    assert entropy_split(same).epistemic.abs().max() < 1e-15
    differ = torch.eye(3)[:, None, :]  # draw k is sure of class k
    split = entropy_split(differ)
    assert split.aleatoric.item() == 0.0
    assert split.epistemic.item() == pytest.approx(math.log(3))
    assert entropy_split(draws(1, 4, 3)).epistemic.tolist() == [0.0] * 4


def test_largest_probability() -> None:
    probs = draws(1, 20, 5)[0]
    assert max_probability_uncertainty(probs).tolist() == (1 - probs.max(1).values).tolist()
    assert max_probability_uncertainty(torch.eye(2)).tolist() == [0.0, 0.0]


def test_what_is_refused() -> None:
    half = torch.full((2, 2), 0.5)
    with pytest.raises(UserError, match="no draws"):
        entropy_split(torch.zeros(0, 2, 2))
    with pytest.raises(UserError, match="K, n, C"):
        entropy_split(half)
    broken = half.repeat(3, 1, 1)
    broken[2, 1, 0] = float("nan")
    with pytest.raises(UserError, match="probs of draw 2 is NaN at row 1"):
        entropy_split(broken)


@pytest.mark.cuda
def test_on_a_gpu() -> None:
    probs = draws(3, 20, 5)
    torch.testing.assert_close(
        entropy_split(probs.cuda()).epistemic.cpu(), entropy_split(probs).epistemic
    )
