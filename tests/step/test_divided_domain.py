"""A device's part of a divided structure: forces of copies are added in one order, positions are checked by domains."""

import numpy as np
import pytest
import torch

from torchmdx import Batch, System
from torchmdx.lammps.example import water
from torchmdx.step.divided_domain import DomainSums
from torchmdx.step.divided_structure import DividedStructure
from torchmdx.step.division import Division, Share


def shares(*atoms_of_shares: tuple[int, list[int]]) -> list[Share]:
    """Shares with this number of owned atoms, and all of their atoms."""
    return [
        Share(np.array(atoms), np.zeros((len(atoms), 3)), np.zeros(len(atoms), dtype=np.int32), owned)
        for owned, atoms in atoms_of_shares
    ]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_copies_of_an_atom_in_one_part_are_added_one_after_the_other(device):
    """Also an atom that a part has three copies of, without races between them."""
    given = shares((2, [0, 1, 3, 2, 3, 3, 2]), (2, [3, 2, 0, 1, 0]))
    sums = DomainSums(Division(given, np.zeros((4, 3)), np.eye(3), 1.0, 1.0), torch.device(device))
    assert [len(atoms) for _, atoms in sums.ghosts] == [4, 3, 1]
    assert all(len(atoms.unique()) == len(atoms) for _, atoms in sums.ghosts)
    rng = np.random.default_rng(0)
    parts, wanted = [rng.normal(size=(len(share.atoms), 3)) for share in given], np.zeros((4, 3))
    for share, part in zip(given, parts, strict=True):
        np.add.at(wanted, share.atoms, part)
    found = sums.forces([torch.from_numpy(part).to(device) for part in parts]).cpu().numpy()
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-14)
    energies = sums.energies([torch.tensor([1.0, 2.0]).double(), torch.tensor([4.0, 3.0]).double()])
    assert energies.tolist() == [1.0, 2.0, 3.0, 4.0]


def test_parts_without_atoms():
    empty = Share(np.zeros(0, dtype=np.int64), np.zeros((0, 3)), np.zeros(0, dtype=np.int32), 0)
    sums = DomainSums(Division([empty, *shares((1, [0]))], np.zeros((1, 3)), np.eye(3), 1.0, 1.0), torch.device("cpu"))
    forces = sums.forces([torch.zeros(0, 3).double(), torch.ones(1, 3).double()])
    assert forces.tolist() == [[1.0, 1.0, 1.0]]


@pytest.mark.parametrize("deformed", [False, True])
def test_a_domain_notices_atoms_that_have_moved_too_far(potential, deformed):
    """Each atom is checked by its owner, in a cell that has changed as well."""
    atoms = water(27)
    options = dict(mode="auto", precision=None, audit_every=0)
    devices = [torch.device("cpu")] * 2
    taken = DividedStructure(Batch.of(System.from_ase(atoms)), potential, devices, (2, 1, 1), 1.0, options)
    taken.divide()
    if deformed:
        atoms.set_cell(atoms.cell.array * 1.02, scale_atoms=True)
    for moved, kept in ((0.49, True), (0.51, False)):
        for atom in (0, 40, 80):
            places = atoms.positions.copy()
            places[atom, 1] += moved
            taken.take_in(places, atoms.cell.array, 1)
            held = [work().held for work in taken.works()]
            assert sum(held) == 1 + kept
            assert taken.holds() == kept
