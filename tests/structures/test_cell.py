import numpy as np
import pytest
import torch

from torchmdx.structures import cell as lattice

CELL = torch.tensor([[3.1, 0.1, 0.0], [0.7, 2.9, -0.2], [-0.5, 0.9, 3.3]], dtype=torch.float64)
ALL_PBC = [(x, y, z) for x in (True, False) for y in (True, False) for z in (True, False)]
ONE_SYSTEM = torch.zeros(20, dtype=torch.int64)


def pair(pbc):
    return CELL[None], torch.tensor([pbc])


@pytest.fixture
def scattered():
    return torch.tensor(np.random.default_rng(0).normal(0, 15, (20, 3)))


def test_volume_is_the_triple_product_for_either_handedness():
    a, b, c = CELL.numpy()
    wanted = a @ np.cross(b, c)
    assert wanted > 0
    both = torch.stack([CELL, CELL[[1, 0, 2]]])
    np.testing.assert_allclose(lattice.volume(both), [wanted, wanted], rtol=1e-14)


@pytest.mark.parametrize("pbc", ALL_PBC)
def test_missing_directions_become_orthogonal_unit_vectors(pbc):
    full = lattice.complete(*pair(pbc))[0]
    for k in range(3):
        if pbc[k]:
            assert torch.equal(full[k], CELL[k])
            continue
        assert full[k].norm().item() == pytest.approx(1, rel=1e-13)
        for other in set(range(3)) - {k}:
            assert abs(float(full[k] @ full[other])) < 1e-13


@pytest.mark.parametrize("axis", range(3))
def test_a_wire_along_a_coordinate_axis_is_completed(axis):
    cell = torch.zeros(1, 3, 3, dtype=torch.float64)
    cell[0, 1, axis] = 2.5
    full = lattice.complete(cell, torch.tensor([[False, True, False]]))
    assert lattice.volume(full).item() == pytest.approx(2.5)


@pytest.mark.parametrize("pbc", ALL_PBC)
def test_wrapping_moves_by_whole_vectors_into_the_cell(pbc, scattered):
    cell, flags = pair(pbc)
    wrapped, images = lattice.wrap(scattered, cell, flags, ONE_SYSTEM)
    np.testing.assert_allclose(wrapped + images.double() @ CELL, scattered, atol=1e-12)
    fractional = np.linalg.solve(lattice.complete(cell, flags)[0].T, wrapped.T).T
    periodic = np.array(pbc)
    assert (images.numpy()[:, ~periodic] == 0).all()
    assert (fractional[:, periodic] > -1e-12).all()
    assert (fractional[:, periodic] < 1 + 1e-12).all()


def test_each_atom_wraps_into_the_cell_of_its_own_system():
    cells = torch.stack([CELL, 2 * CELL])
    pbc = torch.ones(2, 3, dtype=torch.bool)
    positions = (CELL[0] * 1.5).expand(2, 3)
    wrapped, images = lattice.wrap(positions, cells, pbc, torch.tensor([0, 1]))
    assert images[:, 0].tolist() == [1, 0]
    np.testing.assert_allclose(wrapped, torch.stack([CELL[0] * 0.5, CELL[0] * 1.5]), atol=1e-13)


@pytest.mark.parametrize("pbc", ALL_PBC)
def test_recentring_keeps_the_structure_and_brings_it_to_the_origin(pbc, scattered):
    cell, flags = pair(pbc)
    near = lattice.recentre(scattered + 1e6, cell, flags, ONE_SYSTEM)
    # What is left after taking whole lattice vectors out is one translation for all.
    full = lattice.complete(cell, flags)[0].numpy()
    moves = np.linalg.solve(full.T, (scattered + 1e6 - near).numpy().T).T
    periodic = np.array(pbc)
    np.testing.assert_allclose(moves[:, periodic], np.round(moves[:, periodic]), atol=1e-6)
    np.testing.assert_allclose(np.ptp(moves[:, ~periodic], axis=0), 0, atol=1e-6)
    assert near.abs().max() < 80


def test_a_finite_lattice_that_spans_its_directions_is_accepted():
    for pbc in ALL_PBC:
        lattice.require_lattice(*pair(pbc))
    lattice.require_lattice(torch.zeros(1, 3, 3), torch.zeros(1, 3, dtype=torch.bool))


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e4])
def test_a_flat_lattice_is_refused_whatever_its_size(size):
    flat = torch.tensor([[[1.0, 0, 0], [2.0, 0, 0], [0, 0, 1.0]]]) * size
    with pytest.raises(ValueError, match="linearly independent"):
        lattice.require_lattice(flat, torch.ones(1, 3, dtype=torch.bool))
    lattice.require_lattice(flat, torch.tensor([[True, False, True]]))


def test_a_lattice_that_is_not_finite_is_refused():
    with pytest.raises(ValueError, match="cell must be finite"):
        lattice.require_lattice(torch.full((1, 3, 3), torch.inf), torch.zeros(1, 3, dtype=torch.bool))


def test_the_refused_system_of_a_batch_is_named():
    cells = torch.stack([CELL, torch.zeros(3, 3)])
    with pytest.raises(ValueError, match=r"pbc is True along direction 1 but cell\[1\] is zero \(system 1\)"):
        lattice.require_lattice(cells, torch.tensor([[True] * 3, [False, True, False]]))
