import json

import ase.io
import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk

import torchmdx
from torchmdx import Calculator
from torchmdx.commands import cli
from torchmdx.structures.units import GPA

LENGTH, WIDTH, CUTOFF = 2.5, 0.3, 4.5  # Å, of the bonds


class Wells(torch.nn.Module):
    """A well of 1 eV for each pair, which only nearest neighbours in a crystal feel."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("depth", torch.tensor(1.0))

    def forward(self, vectors, edge_index, atomic_numbers):
        r = torch.linalg.vector_norm(vectors, dim=-1)
        energies = -0.5 * self.depth * torch.exp(-(((r - LENGTH) / WIDTH) ** 2))
        return energies.new_zeros(len(atomic_numbers)).index_add(0, edge_index[1], energies)


@pytest.fixture
def command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torchmdx.save(torchmdx.wrap(Wells(), cutoff=CUTOFF, elements=[1, 6]).double(), "wells.safetensors")
    ase.io.write("crystal.xyz", bulk("C", "fcc", a=1.01 * LENGTH * np.sqrt(2), cubic=True))
    return ["properties", "crystal.xyz", "--model", "wells.safetensors", "--device", "cpu", "-o", "out"]


def test_a_table_and_files_with_the_numbers_of_the_functions(command, capsys, tmp_path):
    pytest.importorskip("matplotlib")
    assert cli.main([*command, "--eos", "--elastic"]) == 0
    out = capsys.readouterr().out
    found = json.loads((tmp_path / "out.json").read_text())
    relaxed = ase.io.read("out.xyz")
    assert relaxed.info["potential"] == found["potential"]["potential"]
    relaxed.calc = Calculator("wells.safetensors", dtype="float64", device="cpu")
    assert np.abs(relaxed.get_stress()).max() < 1e-3
    # Nearest neighbours with springs, in closed form.
    edge = LENGTH * np.sqrt(2)
    exact = 2 / WIDTH**2 / edge / GPA
    stiffness = np.array(found["elastic"]["stiffness"])
    assert stiffness[0, 0] == pytest.approx(2 * exact, rel=0.01)
    assert (stiffness[0, 1], stiffness[3, 3]) == (pytest.approx(exact, rel=0.01),) * 2
    assert found["eos"]["bulk_modulus"] == pytest.approx(4 / 3 * exact, rel=0.02)
    assert found["eos"]["volume"] == pytest.approx(edge**3, rel=2e-3)
    assert f"bulk modulus {found['eos']['bulk_modulus']:.2f} GPa" in out
    assert f"the constants differ from their transpose by up to {found['elastic']['asymmetry']:.2g} GPa" in out
    assert "wrote out.json, out.xyz, out.eos.png" in out
    assert cli.main([*command, "--eos"]) == 2
    assert "output files must not exist, got out.json, out.xyz, out.eos.png" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ([], "properties needs some of --eos, --elastic, --phonons, --vacancy, got none"),
        (["--vacancy", "--chemical-potential", "H=0"], "need a chemical potential of each element, eV, got none for C"),
        (["--vacancy", "--chemical-potential", "C"], "--chemical-potential must be such as O=-4.93, got 'C'"),
        (["--eos", "--chemical-potential", "C=1"], "--chemical-potential needs --vacancy"),
        (["--phonons", "--supercell", "0", "1", "1"], "--supercell must be three numbers >= 1, got 0 1 1"),
        (["--eos", "--fmax", "0"], "--fmax must be > 0 eV/Å, got 0.0"),
    ],
)
def test_options_that_do_not_fit(command, capsys, more, said):
    assert cli.main([*command, "--no-relax", *more]) == 2
    assert said in capsys.readouterr().err


def test_a_cell_under_pressure_says_so(command, capsys):
    pytest.importorskip("phonopy")
    assert cli.main([*command, "--no-relax", "--phonons", "--supercell", "1", "1", "1"]) == 0
    out = capsys.readouterr().out
    crystal = ase.io.read("crystal.xyz")
    crystal.calc = Calculator("wells.safetensors", dtype="float64", device="cpu")
    pressure = -crystal.get_stress()[:3].mean() / GPA
    assert abs(pressure) > 0.1
    assert f"pressure {pressure:.2g} GPa" in out


def test_a_molecule_is_no_crystal(command, capsys):
    ase.io.write("crystal.xyz", Atoms("CH", [[0, 0, 0], [1, 0, 0]]))
    assert cli.main([*command, "--eos"]) == 2
    assert "properties of crystals need atoms periodic in all directions" in capsys.readouterr().err
