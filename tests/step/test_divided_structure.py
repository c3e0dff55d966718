"""DividedStructure: positions and cells are taken in whole or not at all, and sums of domains have a fixed order."""

import numpy as np
import pytest
import torch

from torchmdx import Batch, System
from torchmdx.lammps.example import water
from torchmdx.step.divided_structure import DividedStructure
from torchmdx.step.domain_step import DomainResult


def structure(potential, pbc=True, grid=(2, 1, 1)) -> DividedStructure:
    atoms = water(27)
    atoms.pbc = pbc
    options = dict(mode="auto", precision=None, audit_every=0)
    return DividedStructure(Batch.of(System.from_ase(atoms)), potential, [torch.device("cpu")] * 2, grid, 1.0, options)


def test_a_bad_cell_is_not_kept(potential):
    taken = structure(potential)
    cell, frame = taken.cell.clone(), taken.frame.copy()
    for bad in (np.zeros((3, 3)), np.full((3, 3), np.nan)):
        with pytest.raises(ValueError, match="cell|lattice"):
            taken.take_in(taken.positions.numpy(), bad, 1)
    torch.testing.assert_close(taken.cell, cell, rtol=0, atol=0)
    np.testing.assert_array_equal(taken.frame, frame)
    taken.take_in(taken.positions.numpy(), cell.numpy() * 1.1, 1)
    torch.testing.assert_close(taken.cell, cell * 1.1)


def test_directions_that_are_not_cut_stay_periodic(potential):
    assert [domain.step.pbc.tolist() for domain in structure(potential).domains] == [[False, True, True]] * 2
    taken = structure(potential, (True, False, True), (1, 1, 2))
    assert [domain.step.pbc.tolist() for domain in taken.domains] == [[True, False, False]] * 2
    assert len(structure(potential, grid=(1, 1, 1)).domains) == 1


def test_shares_are_kept_while_they_hold(potential):
    taken = structure(potential)
    assert taken.prepare()
    first = taken.division
    taken.positions += 0.1
    assert not taken.prepare()
    assert taken.division is first
    taken.positions += 1.0
    assert taken.prepare()
    assert taken.division is not first


def test_sums(potential):
    """Forces on copies are added to those of the atoms that they are copies of."""
    taken = structure(potential)
    taken.prepare()
    parts, wanted = [], np.zeros((81, 3))
    for share in taken.division.shares:
        forces = np.random.default_rng(len(parts)).normal(size=(len(share.atoms), 3))
        np.add.at(wanted, share.atoms, forces)
        parts.append(DomainResult(1.5, share.atoms[: share.num_owned] * 2.0, forces, np.eye(3)))
    result = taken.summed(parts, stress=True, energies=True)
    assert result.energy.tolist() == [3.0]
    np.testing.assert_allclose(result.forces, wanted, rtol=0, atol=1e-13)
    np.testing.assert_array_equal(result.energies, np.arange(81) * 2.0)
    np.testing.assert_allclose(result.stress[0], 2 * np.eye(3) / abs(np.linalg.det(taken.frame)))
    fewer = taken.summed(parts, stress=False, energies=False)
    assert fewer.stress is None
    assert fewer.energies is None


def test_stress_needs_a_volume(potential):
    taken = structure(potential, (True, True, False), (1, 2, 1))
    taken.take_in(taken.positions.numpy(), taken.cell.numpy() * [[[1], [1], [0]]], 1)
    taken.prepare()
    parts = [
        DomainResult(0.0, np.zeros(s.num_owned), np.zeros((len(s.atoms), 3)), np.eye(3)) for s in taken.division.shares
    ]
    assert np.isnan(taken.summed(parts, stress=True, energies=False).stress).all()
