"""The charge of a region: that of the force field, in every door; a differing or a doubtful one is refused."""

import openmm
import pytest
from mixed_systems import mix, nonbonded_of
from mm_systems import SOLUTE, mm_system, selected
from openmm import app, unit
from other_force_fields import alchemical

from torchmdx import save
from torchmdx.openmm import MixedRegion, add_potential, create_mixed_regions, find
from torchmdx.openmm.region_charge import charge_of, mm_charge

EXACT = dict(device="cpu", precision="float64", transport="python")
ALANINE = range(8, 14)
IGNORED = pytest.mark.filterwarnings("ignore")  # of the force field, and of electrons


def charged_by(charge: float) -> tuple[openmm.System, app.Topology]:
    """The dipeptide with this total MM charge."""
    topology, _ = selected(SOLUTE)
    system = mm_system(topology)
    force = nonbonded_of(system)
    own, *others = force.getParticleParameters(0)
    force.setParticleParameters(0, own._value + charge, *others)
    return system, topology


def settings_of(system: openmm.System):
    (found,) = find(system)
    return found.evaluator.settings


def through_create_mixed_system(potential, system, topology, **options):
    return mix(system, topology, SOLUTE, potential, **options)


def through_regions(potential, system, topology, **options):
    return create_mixed_regions(system, topology, [MixedRegion(SOLUTE, potential, **options)], **EXACT)


def through_add_potential(potential, system, topology, **options):
    add_potential(system, topology, potential, SOLUTE, **EXACT, **options)
    return system


def through_openmmml(potential, system, topology, path, embedding="mechanical", **options):
    pytest.importorskip("openmmml")
    from torchmdx.openmm.openmmml import PotentialImpl

    save(potential, path)
    return PotentialImpl(path).createMixedSystem(
        topology, system, list(SOLUTE), 0, False, embedding, **EXACT, **options
    )


@IGNORED
@pytest.mark.parametrize("door", ["mixed", "regions", "add", "openmm-ml"])
def test_every_door_takes_the_charge_of_the_force_field(potential, tmp_path, door) -> None:
    doors = {"mixed": through_create_mixed_system, "regions": through_regions, "add": through_add_potential}

    def opened(mm: float, **options) -> openmm.System:
        system, topology = charged_by(mm)
        if door == "openmm-ml":
            return through_openmmml(potential, system, topology, tmp_path / "model.safetensors", **options)
        return doors[door](potential, system, topology, **options)

    assert settings_of(opened(2.0004)).charge == 2
    assert settings_of(opened(-1, charge=-1 * unit.elementary_charge)).charge == -1
    with pytest.raises(
        ValueError, match=r"charges of these atoms add up to 2.0000 e, got 0 e: leave it out, or change"
    ):
        opened(2, charge=0)
    with pytest.raises(ValueError, match=r"must be given .* atoms, 0.3000 e, are not within 0.01 .* such as charge=0"):
        opened(0.3)
    assert settings_of(opened(0.3, charge=1)).charge == 1


def test_a_region_that_cuts_bonds(potential) -> None:
    system, topology = charged_by(0)
    with pytest.raises(ValueError, match=r"of the region with its link atoms, such as charge=0"):
        mix(system, topology, ALANINE, potential, link_atoms=True, charge="auto")
    assert settings_of(mix(system, topology, ALANINE, potential, link_atoms=True, charge=0)).charge == 0


@IGNORED
def test_electrostatic_embedding_takes_it_before_it_takes_the_charges(make_potential) -> None:
    charged = make_potential(model="tensornet2", num_channels=8, num_layers=1)
    system, topology = charged_by(1)
    mixed = mix(system, topology, SOLUTE, charged, embedding="electrostatic")
    assert settings_of(mixed).charge == 1
    assert mm_charge(mixed, SOLUTE) is None


@IGNORED
@pytest.mark.parametrize("atoms", [SOLUTE, range(6)], ids=["all", "some"])
def test_alchemical_systems_have_charges_elsewhere(atoms) -> None:
    system, _ = charged_by(-1)
    assert charge_of(alchemical(system, atoms), SOLUTE, "auto") == -1
    exact = openmm.NonbondedForce()  # as openmmtools writes it with a lattice sum
    exact.addGlobalParameter("lambda_electrostatics", 1.0)
    moved = openmm.System()
    for index in SOLUTE:
        charge, *others = nonbonded_of(system).getParticleParameters(index)
        exact.addParticle(0.0, *others)
        exact.addParticleParameterOffset("lambda_electrostatics", index, charge, 0.0, 0.0)
        moved.addParticle(12.0)
    moved.addForce(exact)
    assert charge_of(moved, SOLUTE, "auto") == -1


def test_a_system_without_charges_knows_none() -> None:
    system = openmm.System()
    for _ in range(3):
        system.addParticle(1.0)
    assert charge_of(system, None, "auto") == 0
    assert charge_of(system, None, 2) == 2
    neutral = openmm.NonbondedForce()
    for _ in range(3):
        neutral.addParticle(0.0, 0.3, 0.5)
    system.addForce(neutral)
    assert mm_charge(system, range(3)) is None
    assert charge_of(system, range(3), -1) == -1


@pytest.mark.parametrize("wrong", ["none", None, [1]])
def test_something_else_is_refused(wrong) -> None:
    with pytest.raises(TypeError, match="charge must be a number of elementary charges"):
        charge_of(openmm.System(), (), wrong)
