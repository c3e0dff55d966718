"""Hydrogens at the bonds that a region cuts: positions and forces, by every transport, against independent sums."""

import copy
import itertools

import numpy as np
import openmm
import pytest
import torch
from ase import Atoms
from mixed_systems import LAMBDA, mix
from mm_systems import BOX, SOLUTE, assert_same, cluster, energy_and_forces, mm_system, selected, water_box
from openmm import app, unit

from torchmdx import Calculator, load, save
from torchmdx.openmm import LinkAtom, MixedRegion, add_potential, create_mixed_regions, find, request_derivative
from torchmdx.openmm.transport_torch import module_of
from torchmdx.structures.units import KJ_PER_MOL, NANOMETER

ALANINE = tuple(range(8, 14))  # CA, HA and CB with its hydrogens
CUTS = ((8, 6), (8, 14))  # to N and C
EXACT = dict(device="cpu", precision="float64")


def capped(positions: np.ndarray, atoms: tuple[int, ...], cuts: tuple[tuple[int, int], ...], distance=0.107):
    """Å [n+L,3]: the region and a hydrogen at each cut, with OpenMM's positions in nm and whole molecules."""
    ends = []
    for inner, outer in cuts:
        bond = positions[outer] - positions[inner]
        ends.append(positions[inner] + distance * bond / np.sqrt(bond @ bond))
    return NANOMETER * np.vstack([positions[list(atoms)], *ends])


def learned(potential, topology, positions, atoms=ALANINE, cuts=CUTS, distance=0.107, charge=0.0):
    """Energy (kJ/mol) and forces (kJ/mol/nm) on all particles: the ASE calculator's, and the chain rule in numbers."""
    numbers = [atom.element.atomic_number for atom in topology.atoms()]
    box = topology.getPeriodicBoxVectors()
    cell = None if box is None else np.array(box.value_in_unit(unit.angstrom))
    elements = [numbers[i] for i in atoms] + [1] * len(cuts)
    molecule = Atoms(elements, capped(positions, atoms, cuts, distance), cell=cell, pbc=cell is not None)
    molecule.calc = Calculator(potential, dtype="float64", device="cpu", charge=charge)
    found, forces, step = molecule.get_forces(), np.zeros_like(positions), 1e-6
    involved = sorted({*atoms, *itertools.chain(*cuts)})
    for particle, axis in itertools.product(involved, range(3)):
        ends = []
        for sign in (1, -1):
            moved = positions.copy()
            moved[particle, axis] += sign * step
            ends.append(capped(moved, atoms, cuts, distance))
        forces[particle, axis] = (found * (ends[0] - ends[1])).sum() / (2 * step)
    return molecule.get_potential_energy() / KJ_PER_MOL, forces / KJ_PER_MOL


def of_group(system, positions, group, platform="Reference"):
    context = openmm.Context(system, openmm.VerletIntegrator(0.001), openmm.Platform.getPlatformByName(platform))
    context.setPositions(positions)
    state = context.getState(energy=True, forces=True, groups={group})
    return state.getPotentialEnergy()._value, np.array(state.getForces(asNumpy=True)._value)


def slopes(system, positions, atoms, **parameters):
    """-dE/dr of some atoms by differences of the whole system's energy, kJ/mol/nm."""
    context = openmm.Context(system, openmm.VerletIntegrator(0.001), openmm.Platform.getPlatformByName("Reference"))
    context.setPositions(positions)
    for name, value in parameters.items():
        context.setParameter(name, value)
    found, step = np.zeros((len(atoms), 3)), 1e-5
    for (row, atom), axis in itertools.product(enumerate(atoms), range(3)):
        energies = []
        for sign in (1, -1):
            moved = positions.copy()
            moved[atom, axis] += sign * step
            context.setPositions(moved)
            energies.append(context.getState(energy=True).getPotentialEnergy()._value)
        found[row, axis] = (energies[1] - energies[0]) / (2 * step)
    return found


@pytest.mark.parametrize("periodic", [False, True], ids=["cluster", "PME"])
@pytest.mark.parametrize("transport", ["python", "native"])
def test_the_potential_sees_the_region_and_a_hydrogen_at_each_cut(potential, transport, periodic) -> None:
    topology, positions = water_box() if periodic else cluster(3)
    system = mm_system(topology, nonbondedMethod=app.PME if periodic else app.NoCutoff, nonbondedCutoff=0.75)
    mixed = mix(system, topology, ALANINE, potential, link_atoms=True, force_group=9, transport=transport)
    assert mixed.getNumParticles() == system.getNumParticles()
    wanted = learned(potential, topology, positions)
    assert_same(of_group(mixed, positions, 9), wanted, 1e-8)
    if transport == "native":
        assert_same(of_group(mixed, positions, 9, "CPU"), wanted, 1e-6)


@pytest.mark.nightly_for("PME-python")
@pytest.mark.parametrize("transport", ["python", "native"])
@pytest.mark.parametrize("periodic", [False, True], ids=["vacuum", "PME"])
def test_forces_are_the_slopes_of_the_whole_energy(potential, transport, periodic) -> None:
    topology, positions = water_box() if periodic else selected(SOLUTE)
    system = mm_system(topology, nonbondedMethod=app.PME if periodic else app.NoCutoff, nonbondedCutoff=0.75)
    mixed = mix(system, topology, ALANINE, potential, link_atoms=True, interpolate=LAMBDA, transport=transport)
    near = (6, 8, 10, 14) if periodic else (4, 6, 7, 8, 9, 10, 14, 15, 16)
    forces = energy_and_forces(mixed, positions, **{LAMBDA: 0.7})[1][list(near)]
    found = slopes(mixed, positions, near, **{LAMBDA: 0.7})
    assert np.abs(found - forces).max() < 2e-5 * np.abs(forces).max()


@pytest.mark.parametrize("transport", ["python", "native"])
def test_interpolation_and_its_derivative(potential, transport) -> None:
    topology, positions = cluster(3)
    system = mm_system(topology)
    options = dict(link_atoms=True, transport=transport)
    both = mix(system, topology, ALANINE, potential, interpolate=LAMBDA, **options)
    mechanical = energy_and_forces(system, positions)
    mixed = energy_and_forces(mix(system, topology, ALANINE, potential, **options), positions)
    assert_same(energy_and_forces(both, positions, **{LAMBDA: 0.0}), mechanical, 1e-8)
    assert_same(energy_and_forces(both, positions), mixed, 1e-10)
    request_derivative(both, LAMBDA)
    context = openmm.Context(both, openmm.VerletIntegrator(0.001), openmm.Platform.getPlatformByName("Reference"))
    context.setPositions(positions)
    context.setParameter(LAMBDA, 0.4)
    found = context.getState(parameterDerivatives=True).getEnergyParameterDerivatives()[LAMBDA]
    assert found == pytest.approx(mixed[0] - mechanical[0], rel=1e-9)


def test_the_difference_has_a_group_of_its_own(potential) -> None:
    topology, positions = cluster(2)
    system = mm_system(topology)
    split = mix(system, topology, ALANINE, potential, link_atoms=True, difference_group=4)
    whole = energy_and_forces(mix(system, topology, ALANINE, potential, link_atoms=True), positions)
    assert_same(energy_and_forces(split, positions), whole, 1e-9)
    assert_same(of_group(split, positions, 0), energy_and_forces(system, positions), 1e-9)


@pytest.mark.parametrize("transport", ["python", "native"])
def test_copies_and_xml_keep_the_link_atoms(potential, tmp_path, transport) -> None:
    save(potential, tmp_path / "model.safetensors")
    topology, positions = cluster(2)
    links = [(14, 8, 0.12), (8, 6, 1.0 * unit.angstrom)]
    options = dict(link_atoms=links, interpolate=LAMBDA, transport=transport)
    mixed = mix(mm_system(topology), topology, ALANINE, tmp_path / "model.safetensors", **options)
    text = openmm.XmlSerializer.serialize(mixed)
    again = openmm.XmlSerializer.deserialize(text)
    assert_same(energy_and_forces(again, positions), energy_and_forces(mixed, positions), 1e-12)
    for each in (mixed, again):
        (found,) = find(each)
        assert found.atoms == ALANINE
        assert found.link_atoms == (LinkAtom(8, 6, pytest.approx(0.1)), LinkAtom(8, 14, pytest.approx(0.12)))


def test_a_bond_across_the_border_of_the_box(potential) -> None:
    """Where a file wraps every atom on its own: a periodic potential and its link atoms accept any image."""
    topology, positions = water_box()
    system = mm_system(topology, nonbondedMethod=app.PME, nonbondedCutoff=0.75)
    mixed = mix(system, topology, ALANINE, potential, link_atoms=True, force_group=9)
    wrapped = positions + np.array([0.0, BOX, -2 * BOX])
    wrapped[[6, 10]] += np.array([[BOX, 0.0, -BOX], [-BOX, 0.0, BOX]])
    assert_same(of_group(mixed, wrapped, 9), of_group(mixed, positions, 9), 1e-9)


def test_images_in_a_triclinic_box() -> None:
    from torchmdx.openmm.link_atoms import LinkAtoms

    cell = torch.tensor([[21.0, 0.0, 0.0], [9.0, 22.0, 0.0], [-8.0, 7.0, 26.0]], dtype=torch.float64)
    rng = np.random.default_rng(4)
    start = torch.from_numpy(rng.normal(size=(5, 3)) * 20)
    bonds = torch.from_numpy(rng.normal(size=(5, 3)))
    moved = start + bonds + torch.from_numpy(rng.integers(-2, 3, size=(5, 3)).astype(float)) @ cell
    links = [LinkAtom(k, 5 + k, 0.109) for k in range(5)]
    placed = LinkAtoms(links, range(5), "cpu").place(torch.cat([start, moved]), cell)
    wanted = start + 1.09 * bonds / bonds.norm(dim=1, keepdim=True)
    torch.testing.assert_close(placed.positions[5:], wanted)


def test_a_molecule_in_a_periodic_system_without_images(potential) -> None:
    topology, positions = water_box()
    system = mm_system(topology, nonbondedMethod=app.PME, nonbondedCutoff=0.75)
    alone = copy.deepcopy(topology)
    alone.setPeriodicBoxVectors(None)
    for scale in (None, "s"):
        options = dict(link_atoms=True, periodic=False, scale_parameter=scale, force_group=9)
        mixed = mix(system, topology, ALANINE, potential, **options)
        assert_same(of_group(mixed, positions, 9), learned(potential, alone, positions), 1e-8)


def test_the_module_of_the_torch_transport(potential) -> None:
    topology, positions = selected(SOLUTE)
    links = [LinkAtom(inner, outer, 0.107) for inner, outer in CUTS]
    system = openmm.System()
    for _ in SOLUTE:
        system.addParticle(12.0)
    force = add_potential(system, topology, potential, ALANINE, link_atoms=links, transport="python", **EXACT)
    energy, forces = module_of(force.evaluator)(torch.from_numpy(positions))
    assert_same((energy.item(), forces.numpy()), learned(potential, topology, positions), 1e-8)


def test_regions_beside_each_other(potential) -> None:
    """The outer atom of one region's link atom is in the other region."""
    topology, positions = selected(SOLUTE)
    acetyl, amide = tuple(range(6)), tuple(range(6, 22))
    regions = [MixedRegion(acetyl, potential, link_atoms=True, interpolate="first")]
    regions += [MixedRegion(amide, potential, link_atoms=[(4, 6, 0.103)], interpolate="second", name="other")]
    both = create_mixed_regions(mm_system(topology), topology, regions, transport="python", **EXACT)
    assert [found.atoms for found in find(both)] == [acetyl, amide]
    near = (1, 4, 5, 6, 7, 8)
    parameters = dict(first=0.6, second=0.3)
    forces = energy_and_forces(both, positions, **parameters)[1][list(near)]
    assert np.abs(slopes(both, positions, near, **parameters) - forces).max() < 2e-5 * np.abs(forces).max()
    none = energy_and_forces(both, positions, first=0.0, second=0.0)
    assert_same(none, energy_and_forces(mm_system(topology), positions), 1e-8)


@pytest.mark.nightly
def test_energy_is_conserved() -> None:
    """In single precision, as by default: a trained potential, the cut between it and the force field."""
    topology, positions = selected(SOLUTE)
    mixed = mix(mm_system(topology), topology, ALANINE, load(), link_atoms=True, precision="float32")
    platform = openmm.Platform.getPlatformByName("Reference")
    context = openmm.Context(mixed, openmm.VerletIntegrator(0.0002), platform)
    context.setPositions(positions)
    openmm.LocalEnergyMinimizer.minimize(context, 10, 30)
    context.setVelocitiesToTemperature(300, 1)
    totals = []
    for _ in range(40):
        context.getIntegrator().step(10)
        state = context.getState(energy=True)
        totals.append(state.getPotentialEnergy()._value + state.getKineticEnergy()._value)
    kinetic = context.getState(energy=True).getKineticEnergy()._value
    assert kinetic > 20
    assert np.ptp(totals) < 0.02 * kinetic


def test_links_that_are_no_bonds_of_the_region_are_refused(potential) -> None:
    topology, _ = selected(SOLUTE)
    cases = {
        "from an atom of the region to one outside, got": [LinkAtom(6, 8, 0.1)],
        "can have one link atom, got several at 6": [LinkAtom(8, 6, 0.1), LinkAtom(9, 6, 0.1)],
        "must be > 0 nm and finite, got -0.1": [LinkAtom(8, 6, -0.1)],
    }
    for message, links in cases.items():
        system = openmm.System()
        for _ in SOLUTE:
            system.addParticle(12.0)
        with pytest.raises(ValueError, match=message):
            add_potential(system, topology, potential, ALANINE, link_atoms=links, transport="python", **EXACT)
