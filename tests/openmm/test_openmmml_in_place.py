"""In the place of openmm-ml's own potentials: their arguments, defaults and embeddings, by what openmm-ml requires."""

import numpy as np
import openmm
import pytest
import torch
from mm_systems import (
    BOX,
    SOLUTE,
    assert_same,
    cluster,
    energy_and_forces,
    ml_energy_and_forces,
    mm_system,
    selected,
    water_box,
)
from model_kinds import coulomb
from openmm import app
from released_files import released, upstream
from structures import DATA

from torchmdx import load, save
from torchmdx.openmm import register_openmmml
from torchmdx.structures.units import KJ_PER_MOL

openmmml = pytest.importorskip("openmmml")
from openmmml import MLPotential  # noqa: E402

from torchmdx.openmm.openmmml import INTERPOLATE, PotentialFactory  # noqa: E402

PYTHON = dict(transport="python", device="cpu", precision="float64")
EVERYWHERE = "reaction_field_everywhere"
TRUNCATED = pytest.mark.filterwarnings("ignore:.*truncates the Coulomb energy:UserWarning")


@pytest.fixture(autouse=True)
def _registered(monkeypatch) -> None:
    """What the entry point does for an installed package."""
    monkeypatch.setitem(MLPotential._implFactories, "torchmdx", PotentialFactory())


@pytest.fixture
def learned(potential, tmp_path) -> MLPotential:
    save(potential, tmp_path / "model.safetensors")
    return MLPotential("torchmdx", modelPath=tmp_path / "model.safetensors")


def standard(learned, topology, positions, method, long_range, **options):
    """Energies of the whole by the force field, and by mechanical embedding: whole - region by force field + by ML.

    The region is in its box where its images are left to the potential, and isolated elsewhere.
    """
    whole = mm_system(topology, nonbondedMethod=method, nonbondedCutoff=0.75)
    region, own = selected(SOLUTE)
    region.setPeriodicBoxVectors(topology.getPeriodicBoxVectors())
    part = mm_system(region, nonbondedMethod=method if long_range else app.NoCutoff, nonbondedCutoff=0.75)
    for system in (whole, part):
        for force in system.getForces():
            if isinstance(force, openmm.NonbondedForce):
                force.setUseDispersionCorrection(False)
    by_ml = energy_and_forces(learned.createSystem(region, **options), own)[0]
    by_force_field = energy_and_forces(whole, positions)[0]
    return whole, by_force_field, by_force_field - energy_and_forces(part, own)[0] + by_ml


@pytest.mark.nightly_for(
    "True-True-mechanical", "True-True-openmm-ml", "False-True-openmm-ml", "None-True-openmm-ml", "None-False-openmm-ml"
)
@pytest.mark.parametrize("embedding", ["mechanical", "openmm-ml"])
@pytest.mark.parametrize("interpolate", [False, True])
@pytest.mark.parametrize("long_range", [None, False, True])
def test_energies_of_mechanical_embedding(learned, long_range, interpolate, embedding) -> None:
    """What openmm-ml requires of an embedding, by ours and by its own. None: without a box."""
    topology, positions = cluster() if long_range is None else water_box()
    method = app.NoCutoff if long_range is None else app.PME
    system, start, end = standard(learned, topology, positions, method, long_range, **PYTHON)
    mixed = learned.createMixedSystem(
        topology, system, SOLUTE, interpolate=interpolate, embedding=embedding, mlLongRange=long_range, **PYTHON
    )
    for value in (0.0, 0.25, 1.0) if interpolate else (None,):
        parameters = {} if value is None else {INTERPOLATE: value}
        wanted = end if value is None else (1 - value) * start + value * end
        assert energy_and_forces(mixed, positions, **parameters)[0] == pytest.approx(wanted, abs=0.02)


def test_the_range_must_be_known_for_openmmmls_own_embedding(make_potential, tmp_path) -> None:
    charged = make_potential(model="tensornet2", num_layers=2, priors=[lambda: coulomb(periodic="ewald")])
    save(charged, tmp_path / "charged.safetensors")
    learned = MLPotential("torchmdx", modelPath=tmp_path / "charged.safetensors")
    topology, positions = water_box()
    system = mm_system(topology, nonbondedMethod=app.PME, nonbondedCutoff=0.75)
    with pytest.raises(ValueError, match="it is unknown if the ML model uses long-range interactions"):
        learned.createMixedSystem(topology, system, SOLUTE, embedding="openmm-ml", **PYTHON)
    own, theirs = (
        learned.createMixedSystem(topology, system, SOLUTE, embedding=name, mlLongRange=True, **PYTHON)
        for name in ("mechanical", "openmm-ml")
    )
    assert_same(energy_and_forces(own, positions), energy_and_forces(theirs, positions), 1e-5)


@TRUNCATED
@pytest.mark.parametrize("box", [None, BOX])
def test_coulomb_cutoffs_are_in_nm(box) -> None:
    path = DATA / "tensornet2-coulomb.ckpt"
    topology, positions = selected(SOLUTE)
    if box is not None:
        topology.setUnitCellDimensions(openmm.Vec3(box, box, box))
    learned = MLPotential("torchmdx", modelPath=path)
    for args, treatment in (
        (
            dict(useCoulombCutoff=True, coulomb_cutoff=0.6),
            dict(coulomb=EVERYWHERE, coulomb_cutoff=6.0),
        ),
        (dict(useCoulombCutoff=False), dict(coulomb="ewald")),
    ):
        found = energy_and_forces(learned.createSystem(topology, **args, **PYTHON), positions)
        potential = load(path, dtype=torch.float64, **treatment)
        wanted = ml_energy_and_forces(potential, topology, positions, SOLUTE)
        assert_same(found, wanted, 1e-9)


@TRUNCATED
def test_registered_under_openmmmls_name_it_has_openmmmls_defaults(monkeypatch) -> None:
    """A reaction field of 1.2 nm in a box, all pairs without."""
    monkeypatch.setattr(MLPotential, "_implFactories", dict(MLPotential._implFactories))
    register_openmmml("torchmdnet")
    path = DATA / "tensornet2-coulomb.ckpt"
    learned = MLPotential("torchmdnet", modelPath=path, lengthScale=0.1, energyScale=96.4916)
    for box, treatment in ((BOX, dict(coulomb="reaction_field", coulomb_cutoff=12.0)), (None, dict(coulomb="ewald"))):
        topology, positions = selected(SOLUTE)
        if box is not None:
            topology.setUnitCellDimensions(openmm.Vec3(box, box, box))
        found = energy_and_forces(learned.createSystem(topology, **PYTHON), positions)
        potential = load(path, dtype=torch.float64, **treatment)
        assert_same(found, ml_energy_and_forces(potential, topology, positions, SOLUTE), 1e-9)


def test_energies_with_and_without_those_of_atoms(learned, potential) -> None:
    topology, positions = selected(SOLUTE)
    potential = potential.double()
    constants = float(potential.reference_energies[[atom.element.atomic_number for atom in topology.atoms()]].sum())
    whole = energy_and_forces(learned.createSystem(topology, returnEnergyType="energy", **PYTHON), positions)
    less = energy_and_forces(learned.createSystem(topology, returnEnergyType="interaction_energy", **PYTHON), positions)
    assert constants
    assert whole[0] - less[0] == pytest.approx(constants / KJ_PER_MOL, rel=1e-6)


@TRUNCATED
@pytest.mark.parametrize("name", ["aceff-1.1", "aceff-2.0"])
def test_energies_of_released_potentials(name, monkeypatch) -> None:
    """Those that torchmd-net computed in float64: a molecule, and a peptide in water."""
    monkeypatch.setattr(MLPotential, "_implFactories", dict(MLPotential._implFactories))
    register_openmmml("torchmdnet")
    learned = MLPotential("torchmdnet", modelPath=released(name))
    cut = dict(useCoulombCutoff=True, coulomb_cutoff=1.2) if name == "aceff-2.0" else {}
    for case in upstream(name):
        topology = app.Topology()
        residue = topology.addResidue("MOL", topology.addChain())
        for number in case["numbers"]:
            topology.addAtom("X", app.Element.getByAtomicNumber(number), residue)
        if case["cell"] is not None:
            topology.setPeriodicBoxVectors(0.1 * np.array(case["cell"]))
        system = learned.createSystem(topology, returnEnergyType="energy", charge=case["charge"] or 0, **cut, **PYTHON)
        energy, forces = energy_and_forces(system, 0.1 * np.array(case["positions"]))
        assert energy * KJ_PER_MOL == pytest.approx(case["energy"], rel=1e-6)
        wanted = np.array(case["forces"])
        assert np.abs(0.1 * forces * KJ_PER_MOL - wanted).max() < 1e-4 * np.abs(wanted).max()
