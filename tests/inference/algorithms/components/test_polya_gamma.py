import math

import numpy as np
import pytest
import torch
from scipy import integrate, special, stats

from pyro_pfedbayes.inference.algorithms.components.polya_gamma import (
    bound,
    conditional,
    mean_field,
    mean_sigmoid,
    rbf,
    tilt,
)


def problem(n: int = 6) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    stream = torch.Generator().manual_seed(3)
    z = torch.randn(n, 2, generator=stream, dtype=torch.float64)
    kappa = (torch.arange(n) % 2).double() - 0.5
    return z, rbf(z, z, 8.0, 1.0), kappa


def test_kernel_by_hand() -> None:
    a, b = torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    expected = torch.tensor([[2.0, 2.0 * math.exp(-25 / (2 * 25))]])
    torch.testing.assert_close(rbf(a, b, 2.0, 5.0), expected)


def test_posterior_given_omega_is_that_of_dense_algebra() -> None:
    z, kernel, kappa = problem()
    omega = torch.linspace(0.05, 0.25, 6, dtype=torch.float64)
    q = conditional(kernel, kappa, omega)
    k, w = kernel.numpy(), omega.numpy()
    covariance = np.linalg.inv(np.linalg.inv(k) + np.diag(w))
    np.testing.assert_allclose(q.mean.numpy(), covariance @ kappa.numpy(), rtol=1e-6, atol=1e-8)
    diagonal = q.variance(kernel, torch.diagonal(kernel)).numpy()
    np.testing.assert_allclose(diagonal, np.diag(covariance), rtol=1e-6, atol=1e-8)
    # Elsewhere: regression on kappa / omega with noise 1 / omega.
    other = z[:2] + 0.3
    cross = rbf(z, other, 8.0, 1.0)
    mean, variance = q.at(cross, 8.0)
    noisy = np.linalg.inv(k + np.diag(1 / w))
    expected = cross.numpy().T @ noisy @ (kappa.numpy() / w)
    np.testing.assert_allclose(mean.numpy(), expected, rtol=1e-6)
    spread = 8.0 - np.einsum("nm,nk,km->m", cross.numpy(), noisy, cross.numpy())
    np.testing.assert_allclose(variance.numpy(), spread, rtol=1e-6)


def test_rows_that_are_no_examples_change_nothing() -> None:
    _, kernel, kappa = problem()
    fewer = kappa.clone()
    fewer[4:] = 0
    c = mean_field(kernel, fewer, 7)
    small = mean_field(kernel[:4, :4], kappa[:4], 7)
    torch.testing.assert_close(c[:4], small)
    assert tilt(c, fewer)[4:].tolist() == [0, 0]
    torch.testing.assert_close(bound(kernel, fewer, c), bound(kernel[:4, :4], kappa[:4], small))


def test_bound_is_below_the_evidence_and_best_at_the_mean_field() -> None:
    """One and two examples, where the evidence can be had by quadrature."""
    kernel = torch.tensor([[2.0, 1.2], [1.2, 2.0]], dtype=torch.float64)
    kappa = torch.tensor([0.5, -0.5], dtype=torch.float64)

    def both(f: float, g: float) -> float:
        density = stats.multivariate_normal([0, 0], kernel.numpy()).pdf([f, g])
        return float(special.expit(f) * special.expit(-g) * density)

    evidence = math.log(integrate.dblquad(both, -9, 9, -9, 9, epsabs=1e-6)[0])
    c = mean_field(kernel, kappa, 60)
    found = float(bound(kernel, kappa, c))
    assert evidence - 0.05 < found < evidence
    for factor in (0.5, 0.9, 1.1, 2.0):
        assert float(bound(kernel, kappa, factor * c)) < found


def test_bound_at_no_information_is_exact() -> None:
    """Under a kernel of 0 both sides are n log(1/2)."""
    kernel, kappa = torch.zeros(3, 3), torch.tensor([0.5, -0.5, 0.5])
    found = bound(kernel, kappa, mean_field(kernel, kappa, 3))
    assert float(found) == pytest.approx(3 * math.log(0.5), abs=1e-6)


def test_mean_of_the_sigmoid_against_quadrature_and_far_from_data() -> None:
    mean, variance = torch.tensor([0.0, 1.5], dtype=torch.float64), torch.tensor([8.0, 2.0])
    found = mean_sigmoid(mean, variance.double())
    assert float(found[0]) == pytest.approx(0.5, abs=1e-12)
    normal = stats.norm(1.5, math.sqrt(2.0))
    expected = integrate.quad(lambda f: special.expit(f) * normal.pdf(f), -15, 15)[0]
    assert float(found[1]) == pytest.approx(expected, abs=1e-6)
