import math

import numpy as np
import oracles
import pytest
import torch

from torchmdx.models.radial import RADIAL_BASES

CUTOFF = 4.5


@pytest.mark.parametrize("kind", RADIAL_BASES)
def test_a_basis_agrees_with_its_formula(kind):
    basis = RADIAL_BASES[kind](6, CUTOFF).double()
    weights = {f"network.basis.{name}": value.numpy() for name, value in basis.state_dict().items()}
    distances = [0.0, 0.7, 2.0, 4.4]
    wanted = [oracles.radial(kind, weights, CUTOFF, r, 6) for r in distances]
    got = basis(torch.tensor(distances, dtype=torch.float64)).detach()
    np.testing.assert_allclose(got, wanted, rtol=1e-12)


def test_gaussians_cover_the_range_evenly():
    basis = RADIAL_BASES["gauss"](4, 3.0).double()
    values = basis(torch.tensor([0.0, 1.0, 2.0, 3.0], dtype=torch.float64)).detach()
    np.testing.assert_allclose(values.diagonal(), 1, rtol=1e-6)
    assert values[0, 1].item() == pytest.approx(math.exp(-0.5), rel=1e-6)


def test_exponential_bumps_start_at_the_nucleus_and_end_at_the_cutoff():
    basis = RADIAL_BASES["expnorm"](5, 3.0)
    np.testing.assert_allclose(basis.means.detach(), np.linspace(math.exp(-3.0), 1, 5), rtol=1e-6)
    np.testing.assert_allclose(basis.betas.detach(), (2 / 5 * (1 - math.exp(-3.0))) ** -2, rtol=1e-6)
    assert (basis(torch.tensor([3.0])) == 0).all()


@pytest.mark.parametrize("kind", RADIAL_BASES)
@pytest.mark.parametrize("trainable", [True, False])
def test_a_basis_is_trained_only_on_request(kind, trainable):
    if kind == "bessel":
        pytest.skip("has no parameters")
    parameters = RADIAL_BASES[kind](4, CUTOFF, trainable).parameters()
    assert {parameter.requires_grad for parameter in parameters} == {trainable}


def test_bessel_functions_have_no_parameters():
    assert not RADIAL_BASES["bessel"](4, CUTOFF).state_dict()
    with pytest.raises(ValueError, match="trainable must be False for a BesselBasis"):
        RADIAL_BASES["bessel"](4, CUTOFF, True)


def test_bessel_functions_are_orthonormal_and_end_smoothly():
    basis = RADIAL_BASES["bessel"](5, CUTOFF).double()
    nodes, weights = np.polynomial.legendre.leggauss(200)
    r = CUTOFF / 2 * (nodes + 1)
    values = basis(torch.tensor(r)).numpy()
    np.testing.assert_allclose(
        np.einsum("r,ri,rj->ij", weights * CUTOFF / 2 * r**2, values, values), np.eye(5), atol=1e-12
    )
    end = torch.tensor([CUTOFF], dtype=torch.float64, requires_grad=True)
    for k in range(5):
        (slope,) = torch.autograd.grad(basis(end)[0, k], end)
        assert abs(float(slope)) < 1e-12
    np.testing.assert_allclose(basis(end).detach(), 0, atol=1e-14)


def test_constants_of_bessel_functions_are_not_rounded_by_conversions():
    once, twice = RADIAL_BASES["bessel"](4, CUTOFF).double(), RADIAL_BASES["bessel"](4, CUTOFF).float().double()
    r = torch.linspace(0, CUTOFF, 50, dtype=torch.float64)
    assert torch.equal(once(r), twice(r))


def test_second_derivatives_of_bessel_functions_are_finite_at_zero_distance():
    r = torch.tensor([0.0, 1e-9, 1e-3, 0.5], dtype=torch.float64, requires_grad=True)
    basis = RADIAL_BASES["bessel"](3, CUTOFF).double()
    (slope,) = torch.autograd.grad(basis(r).sum(), r, create_graph=True)
    (second,) = torch.autograd.grad(slope.sum(), r)
    assert slope.isfinite().all()
    assert second.isfinite().all()
    # d²/dr² of sinc(m r / c) at 0 is -(m π / c)² / 3.
    wanted = -((torch.pi * basis.frequencies) ** 2) / 3 @ basis.mix.T
    torch.testing.assert_close(second[0], wanted.sum())
