"""GRO files: every frame, elements of ions, velocities, triclinic boxes."""

import ase.io
import numpy as np
import pytest
from ase import Atoms, units
from ase.build import molecule

from torchmdx.structures.files import read_structures

SALT = """\
sodium chloride t= 0.0
    3
    1NA      NA    1   0.100   0.200   0.300  0.1000 -0.2000  0.3000
    2CL      CL    2   0.400   0.500   0.600  0.0000  0.0000  0.4000
    3ALA     CA    3   0.700   0.800   0.900  0.0000  0.5000  0.0000
   2.00000   2.10000   2.20000   0.00000   0.00000   0.10000   0.00000   0.20000   0.30000
"""


def read(tmp_path, text):
    path = tmp_path / "made.gro"
    path.write_text(text)
    return read_structures(str(path), ":")


def test_every_frame_with_elements_velocities_and_box(tmp_path):
    second = SALT.replace("0.100   0.200   0.300", "0.111   0.200   0.300")
    first, moved = read(tmp_path, SALT + second)
    assert str(first.symbols) == "NaClC"
    np.testing.assert_allclose(first.positions[0], [1, 2, 3])
    np.testing.assert_allclose(moved.positions[0], [1.11, 2, 3])
    # 0.1 nm/ps is 0.001 Å/fs.
    np.testing.assert_allclose(first.get_velocities()[0] * units.fs, [1e-3, -2e-3, 3e-3])
    np.testing.assert_allclose(first.cell.array, [[20, 0, 0], [1, 21, 0], [2, 3, 22]])
    assert first.pbc.all()


def test_more_digits_and_no_velocities(tmp_path):
    row = "    1SOL     OW    1   0.10000   0.20000   0.30000\n"
    (atoms,) = read(tmp_path, f"precise\n1\n{row}   0.0   0.0   0.0\n")
    np.testing.assert_allclose(atoms.positions, [[1, 2, 3]])
    assert not atoms.has("momenta")
    assert not atoms.pbc.any()


def test_files_of_ase_are_read(tmp_path):
    atoms = molecule("CH3CH2OH", cell=[20, 21, 22], pbc=True)
    path = tmp_path / "ethanol.gro"
    ase.io.write(path, atoms)
    (found,) = read_structures(str(path), ":")
    assert found.numbers.tolist() == atoms.numbers.tolist()
    np.testing.assert_allclose(found.positions, atoms.positions, atol=6e-3)
    assert isinstance(found, Atoms)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (SALT + SALT.replace("    3\n", "    9\n", 1), "frame 2: it must have 9 atoms and a box, but the file ends"),
        (SALT.replace("ALA     CA", "SOL     MW"), r"frame 1: every atom needs an element, got none for atom 2 \('MW'"),
        (SALT.replace("   2.00000   2.10000", "   2.00000"), "frame 1: a box must have 3 or 9 numbers, got 8"),
    ],
)
def test_damaged_files_are_refused(tmp_path, text, words):
    with pytest.raises(ValueError, match=f"can't read '.*made.gro': {words}"):
        read(tmp_path, text)
