from pathlib import Path

import ase.io
import numpy as np
import pytest
import toys
from ase import Atoms
from ase.build import molecule

from torchmdx.datasets.labelling.sources import StructureFiles, find_files, read, read_smiles


def test_patterns_and_names_in_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("b/2.xyz", "b/1.xyz", "a.xyz", "odd[1].xyz"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text("")
    assert find_files(["odd[1].xyz", "**/*.xyz"][:1]) == [Path("odd[1].xyz")]
    assert find_files(["b/*.xyz", "a.xyz"]) == [Path("b/1.xyz"), Path("b/2.xyz"), Path("a.xyz")]
    with pytest.raises(FileNotFoundError, match="no structure file at 'c/\\*.xyz'"):
        find_files(["a.xyz", "c/*.xyz"])
    with pytest.raises(ValueError, match="each file must be given once, got a.xyz again"):
        find_files(["a.xyz", "*.xyz"])


@pytest.mark.parametrize("index", [":", "2", "-1", "-3", "1:4", "::2", "-3:", "::-1", "3:1:-1", "7", "9", ":-2"])
def test_frames_keep_the_numbers_they_have_in_the_file(tmp_path, index):
    path = tmp_path / "a.xyz"
    made = toys.write_frames(path, 8)
    wanted = np.arange(8)[toys.slice_of(index)]
    found = list(read(path, index))
    assert [number for number, _ in found] == list(wanted)
    for number, atoms in found:
        np.testing.assert_array_equal(atoms.positions, made[number].positions)


def test_a_senseless_index_is_refused(tmp_path):
    toys.write_frames(tmp_path / "a.xyz", 1)
    with pytest.raises(ValueError, match="--index must be a number or a slice such as ::10, got 'all'"):
        list(read(tmp_path / "a.xyz", "all"))
    with pytest.raises(ValueError, match="has no structure at index '5:'"):
        StructureFiles((tmp_path / "a.xyz",), "5:").survey()


@pytest.mark.parametrize(
    "name", ["a.xyz", "a.traj", "a.db", "a.pdb"]
)  # ASE writes models of PDB with the atoms of the first
def test_formats(tmp_path, name):
    path = tmp_path / name
    made = [molecule("H2O"), molecule("H2O" if name == "a.pdb" else "CH4")]
    made[1].rattle(0.1)
    if name == "a.db":
        for atoms in made:
            ase.io.write(path, atoms, append=True)
    else:
        ase.io.write(path, made)
    found = [geometry for _, _, geometry in StructureFiles((path,)).frames(0)]
    assert [len(geometry.numbers) for geometry in found] == [len(atoms) for atoms in made]
    np.testing.assert_allclose(found[1].positions, made[1].positions, atol=1e-3)


def test_every_record_of_sdf_with_its_charge(tmp_path):
    atom = "    0.0000    0.0000    0.0000 O   0  5"
    record = f"\n     made        3D\n\n  1  0  0  0  0  0  0  0  0  0999 V2000\n{atom}\nM  END\n$$$$\n"
    path = tmp_path / "ions.sdf"
    path.write_text(record + record.replace("O   0  5", "O   0  6"))
    assert [geometry.charge for _, _, geometry in StructureFiles((path,)).frames(0)] == [-1.0, -2.0]
    assert [geometry.charge for _, _, geometry in StructureFiles((path,), charge=0).frames(0)] == [0.0, 0.0]


def test_a_broken_file_names_its_frame(tmp_path):
    path = tmp_path / "a.xyz"
    toys.write_frames(path, 3)
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:-2]))
    with pytest.raises(ValueError, match=r"frame 2 of '.*a.xyz' must have 3 atoms, got 1"):
        StructureFiles((path,)).survey()
    atoms = Atoms("H")
    atoms.set_initial_charges([0.4])
    ase.io.write(tmp_path / "b.xyz", [Atoms("H"), atoms])
    with pytest.raises(ValueError, match=r"frame 1 of '.*b.xyz': initial charges must add up"):
        StructureFiles((tmp_path / "b.xyz",)).survey()


def test_the_digest_knows_every_atom_and_charge(tmp_path):
    path = tmp_path / "a.xyz"
    toys.write_frames(path, 3)
    counts, digest = StructureFiles((path,)).survey()
    assert counts == [3]
    ase.io.write(tmp_path / "b.traj", ase.io.read(path, ":"))
    assert StructureFiles((tmp_path / "b.traj",)).survey()[1] == digest
    others = [
        StructureFiles((path,), charge=1.0),
        StructureFiles((path,), multiplicity=3),
        StructureFiles((path,), "::-1"),
    ]
    digests = {files.survey()[1] for files in others}
    path.write_text(path.read_text().replace("1.0", "1.1", 1))
    digests.add(StructureFiles((path,)).survey()[1])
    assert len(digests | {digest}) == 5


def test_smiles_files(tmp_path):
    path = tmp_path / "a.smi"
    path.write_text("CCO ethanol\n\n# a remark\nO\twater\n")
    assert read_smiles(path) == ["CCO", "O"]
    path.write_text("\n")
    with pytest.raises(ValueError, match="must hold a SMILES on each line, got none"):
        read_smiles(path)
