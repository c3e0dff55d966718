"""The precision that commands choose, and what they print when memory does not suffice."""

import ase.build
import ase.io
import pytest

from torchmdx.commands import cli, options
from torchmdx.commands.options import dtype_of
from torchmdx.evaluation import blocks


@pytest.mark.parametrize(
    ("asked", "num_atoms", "precise", "wanted"),
    [
        ("auto", 100, False, "float64"),
        ("auto", 101, False, "float32"),
        ("auto", 10_000, True, "float64"),
        ("float64", 10_000, False, "float64"),
        ("float32", 3, True, "float32"),
    ],
)
def test_auto_takes_float64_for_few_atoms_and_sharp_minima(asked, num_atoms, precise, wanted):
    assert dtype_of(asked, num_atoms, precise=precise) == wanted


@pytest.fixture
def molecule_file(tmp_path) -> str:
    path = tmp_path / "ethanol.xyz"
    ase.io.write(path, ase.build.molecule("CH3CH2OH"))
    return str(path)


def test_energy_and_relax_say_when_they_take_float32(data, molecule_file, tmp_path, capsys, monkeypatch):
    model = str(data / "tensornet.safetensors")
    assert cli.main(["energy", molecule_file, "--model", model]) == 0
    exact = capsys.readouterr()
    assert "float32" not in exact.err
    monkeypatch.setattr(options, "MOST_ATOMS_IN_FLOAT64", 8)
    assert cli.main(["energy", molecule_file, "--model", model]) == 0
    rounded = capsys.readouterr()
    assert "9 atoms are evaluated in float32; --dtype float64 is exact and slower" in rounded.err
    assert rounded.out != exact.out
    relax = ["relax", molecule_file, "--model", model, "--steps", "1", "-o", str(tmp_path / "out.xyz")]
    cli.main(relax)
    assert "evaluated in float32" in capsys.readouterr().err
    cli.main([*relax, "--fmax", "0.0005", "--overwrite"])
    assert "float32" not in capsys.readouterr().err


def test_too_little_memory_is_one_line(data, molecule_file, capsys, monkeypatch):
    """Where nothing is compiled, and float64 is the exact model."""
    monkeypatch.setattr("torchmdx.runtime.c_library.c_library", lambda name: None)
    monkeypatch.setattr(blocks, "LEAST_ESTIMATE", 0)
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 1.0)
    monkeypatch.setattr(blocks, "available_bytes", lambda: 10)
    assert cli.main(["energy", molecule_file, "--model", str(data / "tensornet.safetensors")]) == 2
    first = capsys.readouterr().err.splitlines()[0]
    assert first.startswith("torchmdx: error: an evaluation of 9 atoms in float64 on the CPU needs about")
    assert first.endswith("use float32, a GPU or fewer atoms")
