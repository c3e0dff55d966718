from ase.build import bulk, molecule
from ase.io import write

from torchmdx.commands.cli import main

WATER_PDB = """\
MODEL        1
ATOM      1  O   HOH     1       0.000   0.000   0.119  1.00  0.00           O
ATOM      2  H1  HOH     1       0.000   0.763  -0.477  1.00  0.00           H
ATOM      3  H2  HOH     1       0.000  -0.763  -0.477  1.00  0.00           H
ENDMDL
END
"""


def test_neighbors_counts_a_crystal(tmp_path, capsys):
    write(tmp_path / "salt.cif", bulk("NaCl", "rocksalt", a=5.64))
    assert main(["neighbors", str(tmp_path / "salt.cif"), "--cutoff", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("2 atoms, 12 edges within 3 Å")
    assert "6.0 on average, minimum 6, maximum 6" in lines[2]
    assert lines[3].split()[:2] == ["6", "2"]
    assert "capacity: 128 edges" in lines[-1]


def test_neighbors_shows_a_histogram_of_all_atoms(tmp_path, capsys):
    write(tmp_path / "c60.xyz", molecule("C60") + molecule("H2O"))
    assert main(["neighbors", str(tmp_path / "c60.xyz"), "--cutoff", "4", "--skin", "0.5"]) == 0
    out = capsys.readouterr().out
    assert "within 4.5 Å" in out
    bars = [line.split() for line in out.splitlines() if line.startswith("  ")]
    assert sum(int(words[1]) for words in bars) == 63


def test_neighbors_reports_invalid_input(tmp_path, capsys):
    write(tmp_path / "water.xyz", molecule("H2O"))
    assert main(["neighbors", str(tmp_path / "water.xyz"), "--cutoff", "-1"]) == 2
    assert "cutoff must be > 0 Å and finite, got -1.0" in capsys.readouterr().err
    assert main(["neighbors", str(tmp_path / "water.xyz"), "--cutoff", "3", "--backend", "magic"]) == 2
    assert "backend must be auto or one of" in capsys.readouterr().err


def test_a_pdb_file_that_ends_its_model_has_a_last_structure(tmp_path, capsys):
    (tmp_path / "water.pdb").write_text(WATER_PDB)
    assert main(["neighbors", str(tmp_path / "water.pdb"), "--cutoff", "2"]) == 0
    assert "H2O: 3 atoms, 6 edges" in capsys.readouterr().out
