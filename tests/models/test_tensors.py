import numpy as np
import pytest
import torch

from torchmdx.models import tensors

# One channel of two atoms, from a generic 3×3 matrix each.
MATRICES = torch.tensor(np.random.default_rng(0).normal(size=(2, 3, 3, 4)))


def components(matrices=MATRICES):
    return tensors.from_matrix(matrices)


def test_nine_components_are_a_matrix():
    assert components().shape == (2, 9, 4)
    np.testing.assert_allclose(tensors.to_matrix(components()), MATRICES, atol=1e-15)


def test_the_parts_are_trace_antisymmetric_and_symmetric():
    x = components()
    eye = torch.eye(3)[None, :, :, None]
    transposed = MATRICES.transpose(1, 2)
    scalar = torch.einsum("niic->nc", MATRICES)[:, None, None] / 3 * eye
    wanted = scalar, (MATRICES - transposed) / 2, (MATRICES + transposed) / 2 - scalar
    for part, matrix in zip(tensors.PARTS, wanted, strict=True):
        alone = torch.zeros_like(x)
        alone[:, part] = x[:, part]
        np.testing.assert_allclose(tensors.to_matrix(alone), matrix, atol=1e-15)


def test_norms_are_frobenius_norms():
    x = components()
    total = (MATRICES**2).sum((1, 2))
    np.testing.assert_allclose(tensors.squared_norm(x), total, rtol=1e-14)
    for norm, part in zip(tensors.part_norms(x), tensors.PARTS, strict=True):
        alone = torch.zeros_like(x)
        alone[:, part] = x[:, part]
        np.testing.assert_allclose(norm, (tensors.to_matrix(alone) ** 2).sum((1, 2)), rtol=1e-14)


def test_products_are_matrix_products_channel_by_channel():
    other = MATRICES.flip(0) + 1
    x, y = components(), components(other)
    plain = torch.einsum("nijc,njkc->nikc", MATRICES, other)
    back = torch.einsum("nijc,njkc->nikc", other, MATRICES)
    np.testing.assert_allclose(tensors.to_matrix(tensors.product(x, y)), plain, atol=1e-14)
    np.testing.assert_allclose(tensors.to_matrix(tensors.symmetric_product(x, y)), plain + back, atol=1e-14)


def test_a_direction_is_identity_cross_product_and_outer_product():
    d = torch.tensor([[2.0, -1.0, 2.0]], dtype=torch.float64) / 3
    matrix = tensors.to_matrix(tensors.from_direction(d)[..., None])[0, ..., 0]
    probe = torch.tensor([0.3, 0.5, -0.7], dtype=torch.float64)
    wanted = probe + torch.linalg.cross(d[0], probe) + d[0] * (d[0] @ probe) - probe / 3
    np.testing.assert_allclose(matrix @ probe, wanted, atol=1e-15)


def test_spreading_repeats_a_value_over_its_part():
    values = torch.arange(6.0).reshape(1, 3, 2)
    assert tensors.to_components(values)[0, :, 1].tolist() == [1, 3, 3, 3, 5, 5, 5, 5, 5]


@pytest.mark.parametrize("kind", ["rotation", "reflection"])
def test_linear_maps_and_products_turn_with_the_matrices(kind):
    turn = torch.tensor(np.linalg.qr(np.random.default_rng(1).normal(size=(3, 3)))[0])
    turn = turn * torch.det(turn) * (1 if kind == "rotation" else -1)

    def turned(x):
        return components(torch.einsum("ia,nabc,jb->nijc", turn, tensors.to_matrix(x), turn))

    mix = tensors.PartwiseLinear(4).double()
    x, y = components(), components(MATRICES.flip(0))
    np.testing.assert_allclose(mix(turned(x)).detach(), turned(mix(x)).detach(), atol=1e-14)
    for multiply in (tensors.product, tensors.symmetric_product):
        np.testing.assert_allclose(multiply(turned(x), turned(y)), turned(multiply(x, y)), atol=1e-14)


def test_linear_maps_do_not_mix_parts():
    mix = tensors.PartwiseLinear(4).double()
    for part in tensors.PARTS:
        alone = torch.zeros(2, 9, 4, dtype=torch.float64)
        alone[:, part] = components()[:, part]
        out = mix(alone)
        assert out[:, part].abs().min() > 0
        out[:, part] = 0
        assert (out == 0).all()
