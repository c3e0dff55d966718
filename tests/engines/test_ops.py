"""The readable operations, against loops over atoms, edges and 3x3 matrices in NumPy."""

import numpy as np
import pytest
import torch
from oracles import cut

from torchmdx import Batch, System
from torchmdx.engines import ops
from torchmdx.models.activations import ACTIVATIONS
from torchmdx.models.tensors import to_matrix
from torchmdx.neighbors.brute_force import brute_force

PART = (0, 1, 1, 1, 2, 2, 2, 2, 2)
CHANNELS, CUTOFF = 3, 3.0


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture
def batch(ethanol, crystal):
    return Batch.from_systems([System.from_ase(atoms) for atoms in (ethanol, crystal)])


def matrices(x):
    """[N,C,3,3], by the page of models/tensors.py, which `test_tensors` checks."""
    return to_matrix(x).permute(0, 3, 1, 2).numpy()


def test_geometry_and_cutoff():
    vectors = torch.tensor([[3.0, 0.0, 4.0], [0.0, -2.0, 0.0]], dtype=torch.float64)
    distance, direction = ops.geometry(vectors)
    assert distance.tolist() == [5.0, 2.0]
    np.testing.assert_allclose(direction, [[0.6, 0.0, 0.8], [0.0, -1.0, 0.0]])
    np.testing.assert_allclose(ops.cut(distance, 5.0), [cut(5.0, 5.0), cut(2.0, 5.0)], atol=1e-15)


def test_messages_are_sums_over_neighbours_and_the_atom_itself(batch):
    edges, n = brute_force(batch, CUTOFF).trimmed(), batch.num_atoms
    f, own, y = random(edges.capacity, 3, CHANNELS), random(1, 3, CHANNELS, seed=1), random(n, 9, CHANNELS, seed=2)
    for gathers in (True, False):
        wanted = np.stack([[own[0, PART[m]].numpy() * y[i, m].numpy() for m in range(9)] for i in range(n)])
        for e, (i, j) in enumerate(zip(edges.target.tolist(), edges.source.tolist(), strict=True)):
            for m in range(9):
                wanted[i, m] += f[e, PART[m]].numpy() * y[j if gathers else i, m].numpy()
        np.testing.assert_allclose(
            ops.message(edges.target, f, own, y, y[edges.source if gathers else edges.target]), wanted, atol=1e-12
        )


def test_the_embedding_is_a_sum_of_matrices_of_directions(batch):
    edges, n = brute_force(batch, CUTOFF).trimmed(), batch.num_atoms
    _, direction = ops.geometry(edges.vectors(batch.positions, batch.cell, batch.system_index))
    f, target, source = (random(k, *shape, CHANNELS, seed=k) for k, shape in ((edges.capacity, (3,)), (n, ()), (n, ())))
    wanted = np.zeros((n, CHANNELS, 3, 3))
    for e, (i, j) in enumerate(zip(edges.target.tolist(), edges.source.tolist(), strict=True)):
        d = direction[e].numpy()
        cross = np.array([[0, -d[2], d[1]], [d[2], 0, -d[0]], [-d[1], d[0], 0]])
        parts = np.stack([np.eye(3), cross, np.outer(d, d) - np.eye(3) / 3])
        z = (target[i] + source[j]).numpy()
        wanted[i] += np.einsum("pc,pxy,c->cxy", f[e].numpy(), parts, z)
    np.testing.assert_allclose(matrices(ops.embed(edges, f, direction, target, source)), wanted, atol=1e-12)


def test_functions_of_atoms_are_those_of_their_matrices():
    x, y = random(4, 9, CHANNELS), random(4, 9, CHANNELS, seed=1)
    a, b = matrices(x), matrices(y)
    factor = random(4, 1, 1, seed=2)
    f = factor.numpy()[..., None]
    np.testing.assert_allclose(matrices(ops.normalise(x)), a / ((a**2).sum((-1, -2), keepdims=True) + 1))
    both, one = (matrices(ops.product(x, y, factor, reflections=reflections)) for reflections in (True, False))
    np.testing.assert_allclose(both, f * (a @ b + b @ a), atol=1e-12)
    np.testing.assert_allclose(one, 2 * a @ b, atol=1e-12)
    np.testing.assert_allclose(matrices(ops.update(x, y, factor)), a + b + f * (b @ b), atol=1e-12)
    trace = np.trace(a, axis1=-2, axis2=-1)[..., None, None] * np.eye(3) / 3
    skew, symmetric = (a - a.swapaxes(-1, -2)) / 2, (a + a.swapaxes(-1, -2)) / 2 - trace
    norms = np.concatenate([(part**2).sum((-1, -2)) for part in (trace, skew, symmetric)], axis=1)
    np.testing.assert_allclose(ops.readout(x), norms, atol=1e-12)


def test_charges_add_up_to_those_of_the_systems(batch):
    batch.charge.copy_(torch.tensor([1.0, -2.0]))
    proposed, root = random(batch.num_atoms, 2), random(batch.num_atoms, 2, seed=1)
    found = ops.equilibrate(proposed, root, batch, 0.0).numpy()
    for s, charge in enumerate((1.0, -2.0)):
        here = (batch.system_index == s).numpy()
        p, weight = proposed.numpy()[here], root.numpy()[here] ** 2
        np.testing.assert_allclose(found[here], p + weight / weight.sum(0) * (charge - p.sum(0)), atol=1e-10)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_slopes_are_differences_of_activations(name):
    z, h = torch.linspace(-4, 4, 33, dtype=torch.float64), 1e-5
    activation = ACTIVATIONS[name]()
    wanted = (activation(z + h) - activation(z - h)) / (2 * h)
    np.testing.assert_allclose(ops.slope(z, name), wanted.detach(), atol=1e-9)


def test_forces_and_virials_are_derivatives_by_positions_and_strain(batch):
    edges, positions = brute_force(batch, CUTOFF).trimmed(), batch.positions.requires_grad_()
    strain = torch.zeros(2, 3, 3, dtype=torch.float64, requires_grad=True)
    plain = edges.vectors(positions, batch.cell, batch.system_index)
    symmetric = (strain + strain.mT) / 2
    vectors = plain + torch.einsum("ex,exy->ey", plain, symmetric[batch.system_index[edges.target]])
    energy = torch.exp(-vectors.pow(2).sum(-1) / 4 + vectors[:, 0] / 3).sum()
    slope, virial, gradient = torch.autograd.grad(energy, (positions, strain, vectors))
    forces, virials = ops.scatter_forces(edges, vectors.detach(), gradient, batch.system_index)
    np.testing.assert_allclose(forces, -slope, atol=1e-12)
    np.testing.assert_allclose(virials, virial, atol=1e-12)


def test_every_operation_is_named():
    assert all(callable(getattr(ops, name)) for name in ops.__all__)
    assert all(f"{name}" in ops.__doc__ for name in ops.__all__)
