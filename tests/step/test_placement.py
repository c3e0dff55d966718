"""Images and origins against their definition, atom by atom."""

import numpy as np
import pytest
import torch
from structures import STRUCTURES

from torchmdx import Batch, System
from torchmdx.step.placement import FAR_FACTOR, LEAST_EXTENT, far_from, place


def by_hand(system: System) -> tuple[np.ndarray, np.ndarray]:
    """(images, origin) of one system: fractional coordinates floored, and the mean along other directions."""
    cell, pbc, positions = (getattr(system, name).numpy() for name in ("cell", "pbc", "positions"))
    rows = [cell[k] if pbc[k] else None for k in range(3)]
    known = np.array([row for row in rows if row is not None]).reshape(-1, 3)
    orthogonal = np.linalg.svd(known)[2][len(known) :] if len(known) else np.eye(3)
    full = np.array([row if row is not None else None for row in rows], dtype=object)
    free = iter(orthogonal)
    full = np.array([next(free) if row is None else row for row in full], dtype=float)
    fractional = np.linalg.solve(full.T, positions.T).T
    images = np.where(pbc, np.floor(fractional), 0)
    mean = fractional.mean(0) if len(positions) else np.zeros(3)
    return images, np.where(pbc, 0, mean) @ full


@pytest.mark.parametrize("name", STRUCTURES)
def test_every_kind_of_structure(name, request):
    atoms = request.getfixturevalue(name)
    atoms.positions += 37.0
    system = System.from_ase(atoms)
    found = place(Batch.of(system), torch.float32)
    images, origin = by_hand(system)
    np.testing.assert_array_equal(found.images, images)
    np.testing.assert_allclose(found.origin, origin[None], atol=1e-9)
    moved = atoms.positions - images @ atoms.cell.array - origin
    assert found.far == pytest.approx(FAR_FACTOR * max(np.abs(moved).max(), LEAST_EXTENT))


def test_systems_have_their_own_origins(ethanol, cation):
    systems = [System.from_ase(atoms) for atoms in (ethanol, ethanol[:0], cation)]
    found = place(Batch.from_systems(systems), torch.float32)
    wanted = [ethanol.positions.mean(0), np.zeros(3), cation.positions.mean(0)]
    np.testing.assert_allclose(found.origin, wanted, atol=1e-12)
    assert found.images.dtype == np.int32
    assert not found.images.any()


@pytest.mark.parametrize("periodic", [False, True])
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e39])
def test_atoms_that_are_not_finite_have_no_placement(ethanol, crystal, periodic, value):
    batch = Batch.of(System.from_ase(crystal if periodic else ethanol))
    batch.positions[1, 2] = value
    assert place(batch, torch.float32) is None


def test_what_float64_holds_float32_may_not():
    batch = Batch.of(System.create([[0.0, 0, 0], [0, 0, 2e39]], [1, 1]))
    assert place(batch, torch.float32) is None
    assert place(batch, torch.float64).far == far_from(1e39)
