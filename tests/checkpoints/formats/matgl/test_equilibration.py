"""QETs of matgl: numbers of matgl 4.1.2 for its newer form, and an oracle for that of DGL."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import oracles
import pytest
import torch
from ase import Atoms
from ase.build import bulk
from matgl_folders import description, errors, frames, state, structure, write
from matgl_qet_oracle import QETOracle
from released_files import released

from torchmdx import Batch, Calculator, System, evaluate, load, save
from torchmdx.checkpoints.formats.reading import UnsupportedCheckpoint
from torchmdx.checkpoints.save_load import read

NAMES = ("qet-environment", "qet-element")
QET = "QET-MatQ-PES"


def on_dgl(name: str) -> tuple[dict, dict]:
    told = description(name)
    told["kwargs"]["model"]["@module"] = "matgl.models._qet_dgl"
    return told, state(name)


@pytest.mark.parametrize("name", NAMES)
def test_results_are_those_of_matgl(name, tmp_path):
    reading = read(Path(__file__).parents[3] / "data" / "matgl" / name)
    save(reading.potential, tmp_path / "own.safetensors", report=reading.report)
    for potential in (reading.potential.double(), load(tmp_path / "own.safetensors", dtype=torch.float64)):
        for frame in frames(name):
            system = replace(structure(frame), charge=frame["charge"])
            result = evaluate(potential, Batch.of(system), stress=True)
            assert max(errors(result, frame)) < 1e-10
            np.testing.assert_allclose(result.charges, frame["charges"], rtol=0, atol=1e-12)
    assert "electrostatic potential from neighbours' charges, within the cutoff" in reading.report.read


@pytest.mark.nightly_for("qet-element")
@pytest.mark.parametrize("name", NAMES)
def test_on_dgl_the_potential_is_that_of_an_atoms_own_charge(name, tmp_path):
    told, tensors = on_dgl(name)
    reading = read(write(tmp_path / "dgl", told, tensors))
    assert "electrostatic potential from an atom's own charge, within the cutoff" in reading.report.read
    oracle, potential = QETOracle(told, tensors), reading.potential.double()
    molecule = Atoms("HOFNaP", [[0, 0, 0], [1.1, 0.1, 0], [0.2, 1.4, 0.3], [-0.9, 0.4, 2.0], [0.3, -1.2, 0.8]])
    salt = bulk("NaCl", "rocksalt", 5.6)
    salt.rattle(0.1, seed=2)
    for atoms, charge in ((molecule, -0.5), (salt, 0.0)):
        energy, charges = oracle.results(
            atoms.get_chemical_symbols(), atoms.positions, atoms.cell.array, atoms.pbc, charge
        )
        result = evaluate(potential, System.from_ase(atoms, charge))
        assert float(result.energy[0]) == pytest.approx(energy, abs=1e-10)
        np.testing.assert_allclose(result.charges, charges, rtol=0, atol=1e-12)
        assert np.ptp(charges) > 1e-3


@pytest.fixture(scope="module")
def equilibrated():
    return load(released(QET), dtype=torch.float64)


def test_the_released_potential_is_exact(equilibrated):
    import json

    told = json.loads((released(QET) / "model.json").read_text())
    tensors = torch.load(released(QET) / "state.pt", weights_only=True, map_location="cpu")
    oracle = QETOracle(told, tensors)
    salt = bulk("NaCl", "rocksalt", 5.69)
    salt.rattle(0.1, seed=2)
    cluster = Atoms("LiFH", [[0, 0, 0], [1.6, 0.1, 0], [0.3, 1.9, 0.4]])

    def energy(positions):
        return oracle.results(cluster.get_chemical_symbols(), positions, cluster.cell.array, cluster.pbc, 1.0)[0]

    for atoms, charge in ((salt, 0.0), (cluster, 1.0)):
        wanted, charges = oracle.results(
            atoms.get_chemical_symbols(), atoms.positions, atoms.cell.array, atoms.pbc, charge
        )
        result = evaluate(equilibrated, System.from_ase(atoms, charge))
        assert float(result.energy[0]) == pytest.approx(wanted, abs=1e-9)
        np.testing.assert_allclose(result.charges, charges, rtol=0, atol=1e-10)
    forces = oracles.central_forces(lambda moved: [energy(p) for p, _ in moved], cluster.positions)
    np.testing.assert_allclose(result.forces, forces, rtol=0, atol=2e-6)


# Lattice constants of PBE, Å, and energies of Materials Project's kind, eV per atom: read in another form, this
# potential is 0.3 to 2 eV per atom and 10 to 30 GPa off.
@pytest.mark.parametrize(
    ("symbols", "lattice", "constant", "energy"),
    [("MgO", "rocksalt", 4.25, -5.95), ("NaCl", "rocksalt", 5.69, -3.39), ("Si", "diamond", 5.43, -5.42)],
)
def test_the_released_potential_gives_crystals_of_pbe(equilibrated, symbols, lattice, constant, energy):
    atoms = bulk(symbols, lattice, constant)
    atoms.calc = Calculator(equilibrated, dtype="float64", device="cpu")
    assert atoms.get_potential_energy() / len(atoms) == pytest.approx(energy, abs=0.05)
    assert abs(np.trace(atoms.get_stress(voigt=False)) / 3 * 160.2) < 1.5
    charges = atoms.get_charges()
    assert abs(charges.sum()) < 1e-12
    assert (charges[0] > 0.5) == (symbols != "Si")


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"@module": "matgl.models._qet_pyg"}, "@module of a QET must be matgl.models._qet_dgl or matgl.models._qet"),
        ({"@model_version": 2}, "@model_version of the QET must be 1, got 2"),
        ({"include_magmom": True}, "include_magmom must be False, got True"),
        ({"spins": 2}, "torchmdx does not know the settings spins"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(tmp_path, changed, text):
    told = description("qet-element")
    network = told["kwargs"]["model"]
    for name, value in changed.items():
        (network if name.startswith("@") else network["init_args"])[name] = value
    with pytest.raises(UnsupportedCheckpoint, match=text):
        read(write(tmp_path / "other", told, state("qet-element")))


def test_widths_must_be_positive(tmp_path):
    tensors = state("qet-element")
    tensors["model.sigma"][0] = 0.0
    with pytest.raises(ValueError, match=r"model.sigma must be > 0 Å, got 0.0"):
        read(write(tmp_path / "flat", description("qet-element"), tensors))
