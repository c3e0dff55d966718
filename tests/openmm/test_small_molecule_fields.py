"""Molecules with OpenFF and GAFF: files of tests/data/make_paracetamol.py, and a complex of openmmtools."""

from pathlib import Path

import numpy as np
import openmm
import pytest
from mixed_systems import LAMBDA, mix
from mm_systems import assert_same, energy_and_forces, ml_energy_and_forces
from openmm import app, unit
from structures import DATA

ATOMS = range(20)  # paracetamol; three waters follow
FIELDS = ("openff", "gaff")


def system_of(field: str) -> tuple[openmm.System, app.Topology, np.ndarray]:
    pdb = app.PDBFile(str(DATA / "paracetamol.pdb"))
    if field == "gaff":
        system = app.AmberPrmtopFile(str(DATA / "paracetamol_gaff.prmtop")).createSystem(rigidWater=False)
    else:
        system = openmm.XmlSerializer.deserialize((DATA / "paracetamol_openff.xml").read_text())
    return system, pdb.topology, np.array(pdb.positions.value_in_unit(unit.nanometer))


@pytest.mark.parametrize("field", FIELDS)
def test_only_terms_inside_the_molecule_are_replaced(potential, field) -> None:
    system, topology, positions = system_of(field)
    mixed = mix(system, topology, ATOMS, potential)
    apart = positions.copy()
    apart[20:] += 1e5  # the waters have gone
    near, far = ([energy_and_forces(each, places) for each in (mixed, system)] for places in (positions, apart))
    learned = ml_energy_and_forces(potential, topology, positions, ATOMS)
    assert np.abs(far[0][1][:20] - learned[1]).max() < 1e-6 * np.abs(learned[1]).max()
    assert np.abs(far[0][1][20:] - far[1][1][20:]).max() < 1e-6 * np.abs(far[1][1][20:]).max()
    assert abs(near[1][0] - far[1][0]) > 1
    assert near[0][0] - far[0][0] == pytest.approx(near[1][0] - far[1][0], abs=1e-6 * abs(learned[0]))
    across = [of_near[1] - of_far[1] for of_near, of_far in zip(near, far, strict=True)]
    assert np.abs(across[0] - across[1]).max() < 1e-6 * np.abs(across[1]).max()
    both = mix(system, topology, ATOMS, potential, interpolate=LAMBDA)
    assert_same(energy_and_forces(both, positions, **{LAMBDA: 0.0}), near[1], 1e-8)


@pytest.mark.nightly
def test_a_ligand_of_gaff_in_a_protein(potential) -> None:
    """p-xylene in T4 lysozyme with implicit solvent, which stays: the mixed system has no other term of the ligand."""
    openmmtools = pytest.importorskip("openmmtools")
    folder = Path(openmmtools.__file__).parent / "data" / "T4-lysozyme-L99A-implicit"
    whole, ligand = (app.AmberPrmtopFile(str(folder / f"{name}.prmtop")) for name in ("complex", "ligand"))
    positions = (
        app.AmberInpcrdFile(str(folder / "complex.crd")).getPositions(asNumpy=True).value_in_unit(unit.nanometer)
    )
    atoms = [atom.index for atom in whole.topology.atoms() if atom.residue.name == "TMP"]
    system = whole.createSystem(implicitSolvent=app.OBC2)
    mixed = mix(system, whole.topology, atoms, potential)
    both, learned = (
        energy_and_forces(mixed, positions),
        ml_energy_and_forces(potential, whole.topology, positions, atoms),
    )
    expected = energy_and_forces(system, positions)
    inside = energy_and_forces(ligand.createSystem(), positions[atoms])
    assert both[0] == pytest.approx(expected[0] - inside[0] + learned[0], rel=1e-8)
    forces = expected[1].copy()
    forces[atoms] += learned[1] - inside[1]
    assert np.abs(both[1] - forces).max() < 1e-6 * np.abs(forces).max()
