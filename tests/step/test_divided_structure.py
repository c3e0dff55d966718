"""DividedStructure: positions and cells are taken in whole or not at all, and sums of domains have a fixed order."""

import numpy as np
import pytest
import torch

from torchmdx import Batch, System
from torchmdx.lammps.example import water
from torchmdx.step import divided_structure
from torchmdx.step.divided_domain import DomainPart
from torchmdx.step.divided_structure import DividedStructure


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
    assert not taken.holds()
    taken.divide()
    assert taken.holds()
    taken.positions += 0.1
    assert taken.holds()
    taken.positions[-1] += 1.0
    assert not taken.holds()
    assert [work().held for work in taken.works()].count(False) == 1
    taken.divide()
    assert taken.holds()
    assert all(work().held for work in taken.works())


def test_a_sample_notices_another_structure(potential, monkeypatch):
    monkeypatch.setattr(divided_structure, "SAMPLE", 9)
    taken = structure(potential)
    taken.divide()
    taken.positions[1] += 1.0
    assert taken.holds(sample=True)
    assert not taken.holds()
    taken.positions += 1.0
    assert not taken.holds(sample=True)


def test_sums(potential):
    """Forces on copies are added to those of the atoms that they are copies of."""
    taken = structure(potential)
    taken.divide()
    parts, wanted = [], np.zeros((81, 3))
    for share in taken.division.shares:
        forces = np.random.default_rng(len(parts)).normal(size=(len(share.atoms), 3))
        np.add.at(wanted, share.atoms, forces)
        energies = torch.from_numpy(share.atoms[: share.num_owned] * 2.0)
        parts.append(DomainPart(1.5, energies, torch.from_numpy(forces), np.eye(3)))
    result = taken.result(parts, taken.summed(parts, energies=True), stress=True)
    assert result.energy.tolist() == [3.0]
    np.testing.assert_allclose(result.forces, wanted, rtol=0, atol=1e-13)
    np.testing.assert_array_equal(result.energies, np.arange(81) * 2.0)
    np.testing.assert_allclose(result.stress[0], 2 * np.eye(3) / abs(np.linalg.det(taken.frame)))
    fewer = taken.result(parts, taken.summed(parts, energies=False), stress=False)
    assert fewer.stress is None
    assert fewer.energies is None


def test_stress_needs_a_volume(potential):
    taken = structure(potential, (True, True, False), (1, 2, 1))
    taken.take_in(taken.positions.numpy(), taken.cell.numpy() * [[[1], [1], [0]]], 1)
    taken.divide()
    parts = [
        DomainPart(0.0, torch.zeros(s.num_owned), torch.zeros(len(s.atoms), 3).double(), np.eye(3))
        for s in taken.division.shares
    ]
    assert np.isnan(taken.result(parts, taken.summed(parts, energies=False), stress=True).stress).all()
