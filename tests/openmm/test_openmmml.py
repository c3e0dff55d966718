"""torchmdx behind openmm-ml, against the ASE calculator and against create_mixed_system."""

import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

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
from openmm import app, unit
from structures import DATA

from torchmdx import load, save
from torchmdx.openmm import find
from torchmdx.openmm.mixed import create_mixed_system

openmmml = pytest.importorskip("openmmml")
from openmmml import MLPotential  # noqa: E402

from torchmdx.openmm.openmmml import INTERPOLATE, PotentialFactory  # noqa: E402

PYTHON = dict(transport="python", device="cpu", precision="float64")


@pytest.fixture(autouse=True)
def _registered(monkeypatch) -> None:
    """What the entry point does for an installed package."""
    monkeypatch.setitem(MLPotential._implFactories, "torchmdx", PotentialFactory())


@pytest.fixture
def checkpoint(potential, tmp_path) -> Path:
    save(potential, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


@pytest.fixture
def learned(checkpoint) -> MLPotential:
    return MLPotential("torchmdx", modelPath=str(checkpoint))


def test_entry_point_of_the_package() -> None:
    pyproject = tomllib.loads((DATA.parents[1] / "pyproject.toml").read_text())
    entry = pyproject["project"]["entry-points"]["openmmml.potentials"]["torchmdx"]
    assert EntryPoint("torchmdx", entry, "openmmml.potentials").load() is PotentialFactory


# createSystem


@pytest.mark.parametrize("box", [None, BOX])
def test_create_system_gives_the_calculators_energy_and_forces(learned, potential, box) -> None:
    topology, positions = selected(SOLUTE)
    if box is not None:
        topology.setUnitCellDimensions(openmm.Vec3(box, box, box))
    system = learned.createSystem(topology, **PYTHON)
    assert [type(force).__name__ for force in system.getForces()][-1] == "CMMotionRemover"
    assert system.usesPeriodicBoundaryConditions() is (box is not None)
    wanted = ml_energy_and_forces(potential, topology, positions, SOLUTE)
    assert_same(energy_and_forces(system, positions), wanted, 1e-9)


def test_charge_reaches_a_model_that_reads_it() -> None:
    path = DATA / "tensornet-charged.ckpt"
    topology, positions = selected(SOLUTE)
    system = MLPotential("torchmdx", modelPath=path).createSystem(topology, charge=1, **PYTHON)
    wanted = ml_energy_and_forces(load(path, dtype=torch.float64), topology, positions, SOLUTE, charge=1)
    assert_same(energy_and_forces(system, positions), wanted, 1e-9)


@pytest.mark.parametrize(("precision", "same"), [("float32", "single"), ("float64", "double")])
def test_openmmmls_names_of_precisions(learned, precision, same) -> None:
    topology, positions = selected(SOLUTE)
    energies = [
        energy_and_forces(learned.createSystem(topology, **{**PYTHON, "precision": name}), positions)[0]
        for name in (precision, same)
    ]
    assert energies[0] == energies[1]


def test_a_torch_device_will_do(learned) -> None:
    topology, positions = selected(SOLUTE)
    one, other = (
        energy_and_forces(learned.createSystem(topology, **{**PYTHON, "device": device}), positions)
        for device in ("cpu", torch.device("cpu"))
    )
    assert one[0] == other[0]


# createMixedSystem


@pytest.mark.nightly_for("interpolated-PME")
@pytest.mark.parametrize("periodic", [False, True], ids=["cluster", "PME"])
@pytest.mark.parametrize("interpolate", [False, True], ids=["plain", "interpolated"])
def test_mixed_system_is_that_of_create_mixed_system(learned, checkpoint, periodic, interpolate) -> None:
    topology, positions = water_box() if periodic else cluster()
    method = app.PME if periodic else app.NoCutoff
    system = mm_system(topology, nonbondedMethod=method, nonbondedCutoff=0.75)
    got = learned.createMixedSystem(topology, system, SOLUTE, interpolate=interpolate, **PYTHON)
    wanted = create_mixed_system(
        system, topology, SOLUTE, checkpoint, interpolate=INTERPOLATE if interpolate else None, **PYTHON
    )
    for value in (0.0, 0.4, 1.0) if interpolate else (None,):
        parameters = {} if value is None else {"lambda_interpolate": value}
        ours, theirs = (energy_and_forces(one, positions, **parameters) for one in (wanted, got))
        assert_same(theirs, ours, 1e-12)
        if value == 0:
            assert_same(theirs, energy_and_forces(system, positions), 1e-8)
    # The potential is a force of the system itself: inside a CustomCVForce it would run in a context of its own.
    assert [type(force).__name__ for force in got.getForces()] == [type(force).__name__ for force in wanted.getForces()]


def test_constraints_and_force_group_are_openmmmls_to_choose(learned) -> None:
    topology, _ = cluster(1)
    system = mm_system(topology, constraints=app.HBonds, rigidWater=True)
    without = learned.createMixedSystem(topology, system, SOLUTE, forceGroup=6, **PYTHON)
    assert without.getNumConstraints() == 3
    kept = learned.createMixedSystem(topology, system, SOLUTE, removeConstraints=False, **PYTHON)
    assert kept.getNumConstraints() == system.getNumConstraints()
    assert without.getForce(without.getNumForces() - 1).getForceGroup() == 6


def test_information_on_request(learned) -> None:
    topology, _ = cluster(1)
    info = learned.createMixedSystem(topology, mm_system(topology), SOLUTE, returnInfo=True, **PYTHON)
    assert info["system"].getNumParticles() == info["topology"].getNumAtoms() == 25
    assert info["oldToNew"] == list(range(25))


@pytest.mark.nightly_for("True")
@pytest.mark.parametrize("interpolate", [False, True])
def test_a_region_that_cuts_a_bond_gets_link_atoms(learned, checkpoint, interpolate) -> None:
    """Acetyl as the region, N of alanine beyond: a hydrogen stands in for it; System and Topology keep their atoms."""
    topology, positions = selected(SOLUTE)
    for distances, request in (([(6, 4, 0.11 * unit.nanometer)], [(4, 6, 0.11)]), (None, True)):
        info = learned.createMixedSystem(
            topology,
            mm_system(topology),
            range(6),
            interpolate=interpolate,
            returnInfo=True,
            linkAtomDistances=distances,
            **PYTHON,
        )
        assert info["topology"].getNumAtoms() == 22
        wanted = create_mixed_system(
            mm_system(topology), topology, range(6), checkpoint, link_atoms=request,
            interpolate=INTERPOLATE if interpolate else None, **PYTHON
        )  # fmt: skip
        parameters = {INTERPOLATE: 0.3} if interpolate else {}
        ours, theirs = (energy_and_forces(each, positions, **parameters) for each in (wanted, info["system"]))
        assert_same(theirs, ours, 1e-12)


@pytest.mark.nightly_for("True")
@pytest.mark.parametrize("periodic", [False, True])
def test_openmmmls_own_interpolation_asks_for_the_forces_of_an_empty_system(checkpoint, potential, periodic) -> None:
    from openmmml.embeddings.mechanicalembedding import MechanicalEmbedding

    topology, positions = water_box() if periodic else cluster(2)
    system = mm_system(topology, nonbondedMethod=app.PME if periodic else app.NoCutoff, nonbondedCutoff=0.75)
    impl = PotentialFactory().createImpl("torchmdx", str(checkpoint))
    mixed = MechanicalEmbedding().createMixedSystem(impl, topology, system, list(SOLUTE), 0, True, **PYTHON)
    wanted = create_mixed_system(system, topology, SOLUTE, checkpoint, **PYTHON)
    assert_same(energy_and_forces(mixed, positions), energy_and_forces(wanted, positions), 1e-6)
    if not periodic:
        ends = energy_and_forces(mixed, positions, lambda_interpolate=0.0), energy_and_forces(system, positions)
        assert_same(*ends, 1e-6)


def test_electrostatic_embedding(make_potential, tmp_path) -> None:
    charged = make_potential(model="tensornet2", num_channels=8, num_layers=1)
    save(charged, tmp_path / "charged.safetensors")
    learned = MLPotential("torchmdx", modelPath=tmp_path / "charged.safetensors")
    topology, positions = cluster(3)
    found = learned.createMixedSystem(topology, mm_system(topology), SOLUTE, embedding="electrostatic", **PYTHON)
    wanted = create_mixed_system(mm_system(topology), topology, SOLUTE, charged, embedding="electrostatic", **PYTHON)
    assert_same(energy_and_forces(found, positions), energy_and_forces(wanted, positions), 1e-12)
    with pytest.raises(ValueError, match=r"without link atoms: atom 4 \(ACE 1 C\) is inside"):
        learned.createMixedSystem(topology, mm_system(topology), range(6), embedding="electrostatic", **PYTHON)


def test_precision_none_and_no_link_atoms_are_defaults(learned) -> None:
    topology, _ = cluster(1)
    options = {**PYTHON, "precision": None}
    for distances in ({}, [], None):
        mixed = learned.createMixedSystem(topology, mm_system(topology), SOLUTE, linkAtomDistances=distances, **options)
        assert find(mixed)[0].evaluator.settings.precision == "float32"
    with pytest.raises(ValueError, match="link_atoms must name bonds that the ML region cuts, got atoms 0 and 1"):
        learned.createMixedSystem(topology, mm_system(topology), SOLUTE, linkAtomDistances=[(0, 1, 0.1)], **PYTHON)


def test_biases_are_kept_or_replaced_by_name(learned) -> None:
    topology, _ = cluster(1)
    system = mm_system(topology)
    spring = openmm.HarmonicBondForce()
    spring.addBond(4, 6, 0.1, 10.0)
    spring.setName("spring")
    system.addForce(spring)
    with pytest.raises(ValueError, match="HarmonicBondForce 'spring'"):
        learned.createMixedSystem(topology, system, SOLUTE, **PYTHON)
    for options, count in ((dict(keep=["spring"]), 1), (dict(replace=["spring"]), 0)):
        mixed = learned.createMixedSystem(topology, system, SOLUTE, **options, **PYTHON)
        (left,) = [force for force in mixed.getForces() if force.getName() == "spring"]
        assert left.getNumBonds() == count


# Refusals


def test_an_interpolation_that_unbinds_constrained_hydrogens_is_refused(learned) -> None:
    topology, positions = cluster(1)
    constrained = mm_system(topology, constraints=app.HBonds)
    with pytest.raises(ValueError, match=r"there is none between .* openmm-ml does not pass its option"):
        learned.createMixedSystem(topology, constrained, SOLUTE, interpolate=True, **PYTHON)
    flexible = mm_system(topology, constraints=app.HBonds, flexibleConstraints=True)
    mixed = learned.createMixedSystem(topology, flexible, SOLUTE, interpolate=True, **PYTHON)
    ends = energy_and_forces(mixed, positions, lambda_interpolate=0.0), energy_and_forces(flexible, positions)
    assert_same(*ends, 1e-8)


def test_model_path_is_checked(tmp_path, checkpoint) -> None:
    with pytest.raises(FileNotFoundError, match="no checkpoint at .*missing"):
        MLPotential("torchmdx", modelPath=tmp_path / "missing.safetensors")
    with pytest.raises(
        ValueError, match="takes modelPath, lengthScale and energyScale, got cutoff; options of createSys"
    ):
        MLPotential("torchmdx", modelPath=checkpoint, cutoff=1)
    with pytest.raises(ValueError, match="energyScale must be that of eV"):
        MLPotential("torchmdx", modelPath=checkpoint, energyScale=4.184)


def test_unknown_options_are_refused_by_name(learned) -> None:
    topology, _ = cluster(1)
    message = "options of this potential are charge, transport, .*, got multiplicty, tranport"
    with pytest.raises(ValueError, match=message):
        learned.createSystem(topology, multiplicty=1, tranport="python")
    with pytest.raises(ValueError, match=message):
        learned.createMixedSystem(topology, mm_system(topology), SOLUTE, multiplicty=1, tranport="python")
    with pytest.raises(ValueError, match="got mlLong"):
        learned.createMixedSystem(topology, mm_system(topology), SOLUTE, mlLong=True)
