"""An offset of the energy: the same by every transport, with a scale, over XML; forces do not depend on it."""

import openmm
import pytest
import torch
from mixed_systems import mix
from mm_systems import SOLUTE, cluster, energy_and_forces, ml_energy_and_forces, mm_system, selected
from openmm import unit
from structures import DATA
from transports import EXACT, TRANSPORTS

from torchmdx import Ensemble, save
from torchmdx.openmm import add_potential, find, request_derivative, transport_torch
from torchmdx.openmm.energy_offset import offset_in_ev
from torchmdx.structures.units import KJ_PER_MOL


@pytest.fixture
def plain(make_potential):
    potential = make_potential()
    potential.reference_energies.zero_()
    return potential


@pytest.fixture
def heavy(make_potential):
    """The same potential with the energies of separate atoms, as trained ones have."""
    potential = make_potential()
    potential.reference_energies.zero_()
    potential.reference_energies[[1, 6, 7, 8]] = torch.tensor([-13.6, -1029.4, -1485.3, -2042.6]).double()
    return potential


def particles(count: int) -> openmm.System:
    system = openmm.System()
    for _ in range(count):
        system.addParticle(12.0)
    return system


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_energies_without_those_of_separate_atoms(heavy, plain, tmp_path, transport):
    path = tmp_path / "model.safetensors"
    save(heavy, path)
    topology, positions = selected(SOLUTE)
    wanted = ml_energy_and_forces(plain, topology, positions, SOLUTE)
    total = ml_energy_and_forces(heavy, topology, positions, SOLUTE)[0]
    assert total < -1e6  # kJ/mol
    system = particles(22)
    force = add_potential(system, topology, path, transport=transport, energy_offset="atoms", **EXACT)
    assert force.energy_offset == pytest.approx(total - wanted[0], rel=1e-12)
    for each in (system, openmm.XmlSerializer.deserialize(openmm.XmlSerializer.serialize(system))):
        energy, forces = energy_and_forces(each, positions)
        assert energy == pytest.approx(wanted[0], abs=1e-6)
        assert forces == pytest.approx(wanted[1], abs=1e-6)
        assert find(each)[0].energy_offset == force.energy_offset


@pytest.mark.nightly_for("python")
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_numbers_quantities_scales_and_derivatives(potential, transport):
    topology, positions = selected(SOLUTE)
    energy = ml_energy_and_forces(potential, topology, positions, SOLUTE)[0]
    for offset in (-120.5, -120.5 * unit.kilojoule_per_mole, -28.80019120458891 * unit.kilocalorie_per_mole):
        system = particles(22)
        options = dict(transport=transport, scale_parameter="s", energy_offset=offset, **EXACT)
        force = add_potential(system, topology, potential, **options)
        assert force.energy_offset == pytest.approx(-120.5)
        assert energy_and_forces(system, positions, s=0.3)[0] == pytest.approx(0.3 * (energy + 120.5), rel=1e-9)
    request_derivative(system, "s")
    context = openmm.Context(system, openmm.VerletIntegrator(0.001), openmm.Platform.getPlatformByName("Reference"))
    context.setPositions(positions)
    derivative = context.getState(parameterDerivatives=True).getEnergyParameterDerivatives()["s"]
    assert derivative == pytest.approx(energy + 120.5, rel=1e-9)


@pytest.mark.nightly
def test_mixed_systems_interpolate_without_the_constant(heavy, plain):
    topology, positions = cluster(1)
    shifted, bare = (
        mix(mm_system(topology), topology, SOLUTE, given, interpolate="lam", energy_offset=offset)
        for given, offset in ((heavy, "atoms"), (plain, 0.0))
    )
    for value in (0.0, 0.5, 1.0):
        one, other = (energy_and_forces(each, positions, lam=value)[0] for each in (shifted, bare))
        assert one == pytest.approx(other, abs=1e-6)


def test_openmm_torch_subtracts_it_in_float64(heavy, plain):
    topology, positions = selected(SOLUTE)
    force = add_potential(
        particles(22), topology, heavy, transport="python", energy_offset="atoms", device="cpu", precision="float32"
    )
    energy, _ = transport_torch.TensorEvaluator(force.evaluator)(
        torch.tensor(positions, dtype=torch.float32), torch.empty(0)
    )
    wanted = ml_energy_and_forces(plain, topology, positions, SOLUTE)
    assert energy.item() == pytest.approx(wanted[0], abs=0.05)


def test_what_is_no_offset(heavy, make_potential):
    other = make_potential(seed=3)
    other.reference_energies.copy_(0.5 * heavy.reference_energies)
    assert offset_in_ev("atoms", Ensemble([heavy, other]), (1, 1)) == pytest.approx(-1.5 * 13.6)
    assert offset_in_ev(2.0, heavy, ()) == pytest.approx(2 * KJ_PER_MOL)
    for given, error, message in [
        ("atom", ValueError, "must be in kJ/mol, a Quantity, 'atoms' or 'total', got 'atom'"),
        (None, TypeError, "must be in kJ/mol, a Quantity or 'atoms', got None"),
        (float("nan"), ValueError, "energy_offset must be finite, got nan"),
        (1 * unit.nanometer, TypeError, "in a unit of molar energy, got 1 nm"),
    ]:
        with pytest.raises(error, match=message):
            offset_in_ev(given, heavy, (1,))


def test_total_energies_of_a_file_that_disables_its_reference_energies(tmp_path):
    """Of torchmd-net's `remove_ref_energy`: by a table of energies that the test writes into the file."""
    content = torch.load(DATA / "tensornet.ckpt", weights_only=True)
    energies = torch.linspace(-5, 3, 20)[:, None]
    content["hyper_parameters"].update(
        remove_ref_energy=True, prior_model=[{"Atomref": {"enable": False}}], prior_args=[{"enable": False}]
    )
    prefix = "model." if all(name.startswith("model.") for name in content["state_dict"]) else ""
    for name in ("initial_atomref", "atomref.weight"):
        content["state_dict"][f"{prefix}prior_model.0.{name}"] = energies.clone()
    path = tmp_path / "removed.ckpt"
    torch.save(content, path)
    topology, positions = selected(SOLUTE)
    found = []
    for offset in (0.0, "total"):
        system = particles(22)
        add_potential(system, topology, path, transport="python", energy_offset=offset, **EXACT)
        found.append(energy_and_forces(system, positions)[0])
    numbers = [atom.element.atomic_number for atom in topology.atoms()]
    assert found[1] - found[0] == pytest.approx(float(energies[numbers].sum()) / KJ_PER_MOL, rel=1e-6)


def test_total_energies_need_a_file_with_reference_energies(plain, tmp_path):
    topology, _ = selected(SOLUTE)
    with pytest.raises(ValueError, match='energy_offset="total" needs a potential given as a file, got Potential'):
        add_potential(particles(22), topology, plain, transport="python", energy_offset="total", **EXACT)
    save(plain, tmp_path / "plain.safetensors")
    with pytest.raises(ValueError, match='energy_offset="total" needs a file with reference energies of atoms'):
        add_potential(particles(22), topology, tmp_path / "plain.safetensors", energy_offset="total", **EXACT)
