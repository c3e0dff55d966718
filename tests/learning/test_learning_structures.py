"""Starting structures and displaced copies."""

import numpy as np
import pytest
from ase.build import bulk, molecule
from ase.io import write

from torchmdx.learning.sections import StartSection
from torchmdx.learning.structures import (
    first_frames,
    read_structures,
    starting_structures,
    system_of,
    write_structures,
)


@pytest.fixture
def start(tmp_path):
    write(tmp_path / "two.xyz", [molecule("H2O"), molecule("CH4")])
    write(tmp_path / "cu.xyz", bulk("Cu", cubic=True))
    return StartSection(structures=[str(tmp_path / "two.xyz"), str(tmp_path / "cu.xyz")])


def test_structures_of_files_are_named(start):
    found, names = starting_structures(start)
    assert [len(one.numbers) for one in found] == [3, 5, 4]
    assert names == ["two.xyz, frame 0", "two.xyz, frame 1", "cu.xyz"]


def test_smiles_are_structures_with_their_charge():
    pytest.importorskip("rdkit")
    found, names = starting_structures(StartSection(smiles=["C[SiH3]", "CC(=O)[O-]"], conformers=1))
    assert sorted(found[0].numbers.tolist()) == [1] * 6 + [6, 14]
    assert found[1].charge == -1
    assert names == ["C[SiH3]", "CC(=O)[O-]"]
    again, _ = starting_structures(StartSection(smiles=["C[SiH3]"]))
    np.testing.assert_array_equal(found[0].positions, again[0].positions)


def test_bad_smiles_and_missing_files_are_refused():
    pytest.importorskip("rdkit")
    with pytest.raises(ValueError, match="SMILES that RDKit understands, got 'C\\(C'"):
        starting_structures(StartSection(smiles=["C(C"]))
    with pytest.raises(FileNotFoundError, match=r"no structure file at 'none\.xyz'"):
        starting_structures(StartSection(structures="none.xyz"))


def test_first_frames_are_the_structures_and_then_copies_of_the_asked_size(start):
    structures, _ = starting_structures(start)
    assert [one.positions.tolist() for one in first_frames(structures, start, 2)] == [
        one.positions.tolist() for one in structures[:2]
    ]
    wide = start.model_copy(update={"rattle": 0.03, "strain": 0.01})
    found = first_frames(structures, wide, 600)
    assert [len(one.numbers) for one in found[3:6]] == [3, 5, 4]
    moved = np.concatenate([one.positions - structures[0].positions for one in found[3::3]])
    assert moved.std() == pytest.approx(0.03, rel=0.05)
    assert abs(moved.mean()) < 2e-3
    lengths = np.array([one.cell[0, 0] / structures[2].cell[0, 0] - 1 for one in found[5::3]])
    assert lengths.std() == pytest.approx(0.01, rel=0.15)
    for one in found[5::3][:20]:
        np.testing.assert_allclose(one.cell, one.cell.T, atol=1e-12)


def test_structures_come_back_from_a_file(tmp_path, start):
    structures, _ = starting_structures(start)
    write_structures(tmp_path / "out.extxyz", structures)
    for one, other in zip(read_structures(tmp_path / "out.extxyz"), structures, strict=True):
        np.testing.assert_allclose(one.positions, other.positions, atol=1e-8)
        np.testing.assert_allclose(one.cell, other.cell, atol=1e-8)
        assert one.charge == other.charge
        assert one.pbc.tolist() == other.pbc.tolist()


def test_systems_have_charge_and_cell(start):
    structures, _ = starting_structures(start)
    water, copper = system_of(structures[0]), system_of(structures[2])
    assert not water.pbc.any()
    assert copper.pbc.all()
    np.testing.assert_array_equal(copper.cell.numpy(), structures[2].cell)
