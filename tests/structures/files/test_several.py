"""Several files, folders and formats; what cannot be read or evaluated is named and stops nothing else."""

import json
from pathlib import Path

import ase.build
import ase.io
import pytest

from torchmdx.commands import cli
from torchmdx.structures.files.several import files_of


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Three molecules, one of which organic-1 does not know, a file that is not readable, and others."""
    monkeypatch.chdir(tmp_path)
    Path("in").mkdir()
    for name in ("H2O", "SiH4", "CH4"):
        ase.io.write(f"in/{name}.xyz", ase.build.molecule(name))
    Path("in/broken.xyz").write_text("3\n\nH 0 0\n")
    Path("in/README.md").write_text("about")
    Path("in/.hidden.xyz").write_text("1\n\nH 0 0 0\n")
    return Path("in")


def test_a_folder_is_its_structure_files(folder):
    assert files_of(["a.xyz", "in"]) == ["a.xyz", *(f"in/{name}.xyz" for name in ("CH4", "H2O", "SiH4", "broken"))]
    Path("empty").mkdir()
    with pytest.raises(ValueError, match="'empty' must hold structure files, by their names, got none"):
        files_of(["empty"])


def test_energy_goes_on_after_failures_and_names_them(folder, capsys):
    assert cli.main(["energy", "in", "--json", "-o", "out.xyz"]) == 1
    said = capsys.readouterr()
    rows = json.loads(said.out)
    assert [(row["file"], "energy" in row) for row in rows] == [
        ("in/CH4.xyz", True), ("in/H2O.xyz", True), ("in/SiH4.xyz", False),
    ]  # fmt: skip
    assert "does not know Si (atom 0)" in rows[2]["error"]
    assert "in/broken.xyz: failed: " in said.err
    assert "2 of 4 failed" in said.err
    assert [atoms.info["file"] for atoms in ase.io.read("out.xyz", ":")] == ["in/CH4.xyz", "in/H2O.xyz"]
    assert cli.main(["energy", "in/H2O.xyz", "in/SiH4.xyz"]) == 1
    out = capsys.readouterr().out
    assert "in/H2O.xyz: 1 structure, charge 0" in out
    assert "1 H4Si                 failed: organic-1 does not know Si" in out


def test_one_structure_that_fails_is_an_error(folder, capsys):
    assert cli.main(["energy", "in/SiH4.xyz"]) == 2
    assert cli.main(["energy", "in/broken.xyz"]) == 2


def test_relax_takes_files_and_folders(folder, capsys):
    assert cli.main(["relax", "in", "-o", "out.xyz", "--fmax", "0.2"]) == 1
    said = capsys.readouterr()
    assert [atoms.info["file"] for atoms in ase.io.read("out.xyz", ":")] == ["in/CH4.xyz", "in/H2O.xyz"]
    assert ase.io.read("out.failed.xyz").info["file"] == "in/SiH4.xyz"
    assert "3 files: 3 structures" in said.out
    assert "in/broken.xyz: failed: " in said.err
    assert "in/SiH4.xyz  failed: organic-1 does not know Si" in said.out
    assert cli.main(["relax", "in", "-o", "out.xyz", "--fmax", "0.2", "--resume"]) == 1
    assert "3 already done" in capsys.readouterr().out


def test_formats_by_name(folder, capsys):
    ase.io.write("structure.dat", ase.build.molecule("H2O"), format="extxyz")
    assert cli.main(["energy", "structure.dat", "--format", "extxyz", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["formula"] == "H2O"
    assert cli.main(["relax", "structure.dat", "--format", "extxyz", "-o", "o.xyz", "--fmax", "1", "--no-page"]) == 0
    assert cli.main(["energy", "structure.dat", "--format", "extxzy"]) == 2
    assert "--format must be a format that ASE reads, such as extxyz" in capsys.readouterr().err
