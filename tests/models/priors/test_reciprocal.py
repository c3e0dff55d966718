"""Ewald sums against published constants, independent lattice sums, OpenMM, and their own derivatives."""

import itertools
import math
from dataclasses import replace

import lattice_sums
import numpy as np
import oracles
import pytest
import torch
from ase import Atoms
from ase.build import bulk

from torchmdx import Batch, Potential, System, TensorNetConfig, evaluate
from torchmdx.models.priors import reciprocal
from torchmdx.models.priors.coulomb import CoulombConfig
from torchmdx.models.priors.ewald import KVectors
from torchmdx.models.priors.reciprocal import reciprocal_energies
from torchmdx.models.priors.splitting import Splitting
from torchmdx.structures.units import COULOMB

BARE = (0.05, 0.1)  # a switch that is over where atoms begin


def only(**settings) -> Potential:
    """Given charges in a potential whose network gives nothing."""
    config = CoulombConfig(**{"charges": "given", "periodic": "ewald", "accuracy": 1e-12, "switch": BARE, **settings})
    network = TensorNetConfig(num_channels=2, num_layers=0, num_radial=2, cutoff=2.0, max_z=60)
    potential = Potential(network, [config])
    potential.scale.zero_()
    return potential.double().eval().requires_grad_(False)


def ions(*, pairs=4, pbc=True, seed=5, size=9.0) -> System:
    """Ions of two elements in a triclinic cell, charges that are not whole and add up to zero."""
    draw = np.random.default_rng(seed)
    cell = size * np.array([[1.0, 0.1, 0.0], [0.3, 0.9, 0.0], [0.2, -0.25, 1.1]])
    if pbc is not True:
        cell[2] = 0.0
    count = 2 * pairs
    places = np.stack([*np.meshgrid(*3 * [np.arange(3)], indexing="ij")], -1).reshape(-1, 3)
    chosen = draw.permutation(places)[:count] / 3 + draw.uniform(-0.05, 0.05, (count, 3))
    full = cell.copy()
    if pbc is not True:
        full[2] = [0, 0, 5.0]
    charges = draw.uniform(0.3, 1.0, pairs)
    charges = np.concatenate([charges, -draw.permutation(charges)])
    return System.create(chosen @ full, [11, 17] * pairs, cell, pbc, partial_charges=charges)


def supercell(system: System) -> System:
    """Two periods of a system, along its first lattice vector."""
    cell = system.cell.numpy()
    return System.create(
        np.concatenate([system.positions.numpy(), system.positions.numpy() + cell[0]]),
        np.tile(system.atomic_numbers.numpy(), 2), cell * [[2], [1], [1]], True,
        partial_charges=np.tile(system.partial_charges.numpy(), 2),
    )  # fmt: skip


SLAB = (True, True, False)


@pytest.mark.parametrize("kind", lattice_sums.MADELUNG)
@pytest.mark.parametrize("cutoff", [5.0, 9.0])
def test_madelung_constants(kind, cutoff):
    atoms = bulk("NaCl", kind, a=5.0)
    system = System.create(atoms.positions, atoms.numbers, atoms.cell.array, True, partial_charges=[1.0, -1.0])
    wanted = -lattice_sums.MADELUNG[kind] * COULOMB / atoms.get_distance(0, 1, mic=True)
    assert float(evaluate(only(cutoff=cutoff), system).energy[0]) == pytest.approx(wanted, rel=1e-11)
    if kind == "rocksalt":
        assert lattice_sums.benson() == pytest.approx(lattice_sums.MADELUNG[kind], rel=1e-12)


def test_a_charged_cell_has_a_uniform_background():
    system = System.create([[0.3, 0.1, 0.2]], [11], 7.0 * np.eye(3), True, partial_charges=[2.0])
    wanted = -COULOMB * 4 * lattice_sums.WIGNER / (2 * 7.0)
    assert float(evaluate(only(), system).energy[0]) == pytest.approx(wanted, rel=1e-11)


@pytest.mark.parametrize("pbc", [True, SLAB], ids=["bulk", "slab"])
def test_ions_are_an_independent_lattice_sum(pbc):
    system = ions(pbc=pbc)
    x, q = system.positions.numpy(), system.partial_charges.numpy()
    sums = lattice_sums.bulk_potentials if pbc is True else lattice_sums.slab_potentials
    potentials = COULOMB * sums(x, system.cell.numpy()) @ q
    result = evaluate(only(), system)
    np.testing.assert_allclose(result.energies, 0.5 * q * potentials, rtol=0, atol=2e-10)
    step = 1e-4
    for atom, axis in ((0, 0), (3, 2)):
        moved = [x.copy(), x.copy()]
        moved[0][atom, axis] += step
        moved[1][atom, axis] -= step
        up, down = (0.5 * COULOMB * q @ sums(each, system.cell.numpy()) @ q for each in moved)
        assert float(result.forces[atom, axis]) == pytest.approx(-(up - down) / (2 * step), abs=1e-6)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_slab_across_any_axis(axis):
    system = ions(pbc=SLAB)
    order = np.roll([0, 1, 2], axis - 2)
    turned = System.create(
        system.positions.numpy()[:, order], system.atomic_numbers.numpy(), system.cell.numpy()[order][:, order],
        np.array(SLAB)[order], partial_charges=system.partial_charges.numpy(),
    )  # fmt: skip
    assert not turned.pbc[axis]
    wanted, found = evaluate(only(), system), evaluate(only(), turned)
    np.testing.assert_allclose(found.energies, wanted.energies, rtol=0, atol=1e-10)
    np.testing.assert_allclose(found.forces, wanted.forces[:, order], rtol=0, atol=1e-10)


@pytest.mark.parametrize("pbc", [True, SLAB], ids=["bulk", "slab"])
def test_energies_do_not_depend_on_the_splitting(pbc):
    system = ions(pbc=pbc)
    results = [evaluate(only(accuracy=1e-11, cutoff=cutoff), system) for cutoff in (5.0, 7.5, 11.0)]
    for other in results[1:]:
        assert float(other.energy[0]) == pytest.approx(float(results[0].energy[0]), rel=1e-8)
        np.testing.assert_allclose(other.forces, results[0].forces, rtol=0, atol=1e-8)


@pytest.mark.parametrize("accuracy", [1e-3, 1e-5, 1e-7])
@pytest.mark.parametrize("cutoff", [6.0, 9.0])
def test_forces_are_as_accurate_as_requested(accuracy, cutoff):
    system = ions(pairs=13, size=11.0)
    exact = evaluate(only(), system).forces
    error = (evaluate(only(accuracy=accuracy, cutoff=cutoff), system).forces - exact).norm() / exact.norm()
    assert accuracy / 100 < error < accuracy


def test_a_supercell_has_twice_the_energy():
    system = ions()
    doubled = supercell(system)
    one, two = evaluate(only(), system, stress=True), evaluate(only(), doubled, stress=True)
    assert float(two.energy[0]) == pytest.approx(2 * float(one.energy[0]), rel=1e-9)
    np.testing.assert_allclose(two.stress, one.stress, rtol=0, atol=1e-11)


def assert_stress_is_the_derivative(potential, system, extra, step=1e-4):
    """extra: charge added to that of every ion."""
    given = system.partial_charges.numpy() + extra

    def strained(i, j, size):
        deformation = np.eye(3)
        deformation[i, j] += size / 2
        deformation[j, i] += size / 2
        x, cell = system.positions.numpy() @ deformation, system.cell.numpy() @ deformation
        return System.create(x, system.atomic_numbers.numpy(), cell, True, partial_charges=given)

    stress = evaluate(potential, strained(0, 0, 0.0), stress=True).stress[0]
    volume = abs(float(torch.linalg.det(system.cell)))
    for i, j in itertools.combinations_with_replacement(range(3), 2):
        up, down = (float(evaluate(potential, strained(i, j, sign * step)).energy[0]) for sign in (1, -1))
        assert float(stress[i, j]) == pytest.approx((up - down) / (2 * step * volume), abs=1e-8)


@pytest.mark.parametrize("charge", [0.0, 1.5])
def test_stress_is_the_derivative_of_the_energy(charge):
    system = ions()
    assert_stress_is_the_derivative(only(), system, charge / system.num_atoms)


def test_the_stress_of_a_slab_in_its_plane():
    system, potential, step = ions(pbc=SLAB), only(), 1e-4

    def energy_at(size):
        x, cell = system.positions.numpy().copy(), system.cell.numpy().copy()
        x[:, 0] *= 1 + size
        cell[:, 0] *= 1 + size
        cell[2] = [0, 0, 20.0]  # for a volume
        charges = system.partial_charges.numpy()
        given = System.create(x, system.atomic_numbers.numpy(), cell, SLAB, partial_charges=charges)
        return evaluate(potential, given, stress=True)

    volume = 20.0 * abs(float(torch.linalg.det(system.cell[:2, :2])))
    slope = float(energy_at(step).energy[0] - energy_at(-step).energy[0]) / (2 * step)
    assert float(energy_at(0.0).stress[0, 0, 0]) * volume == pytest.approx(slope, abs=1e-6)


@pytest.mark.nightly
def test_first_and_second_derivatives_in_positions_cell_and_charges():
    systems = [ions(pairs=2, size=6.0), ions(pairs=1, pbc=SLAB, size=6.0)]
    batch = Batch.from_systems(systems)
    weights = torch.tensor([0.7, 0.3], dtype=torch.float64)
    charges = torch.stack([batch.partial_charges, 0.5 * batch.partial_charges.flip(0)], -1)
    charges[4:, 1] = 0.5 * charges[4:, 0]  # each set of the slab is neutral
    vectors = KVectors.of(batch, Splitting.of(1e-2, 4.0), charges)

    def energies(positions, cell, q):
        return reciprocal_energies(vectors, batch, positions, cell, q, weights)

    inputs = [x.clone().requires_grad_() for x in (batch.positions, batch.cell, charges)]
    assert torch.autograd.gradcheck(energies, inputs, atol=1e-7)
    assert torch.autograd.gradgradcheck(energies, inputs, atol=1e-7)


def test_sums_are_not_rounded_where_other_products_are():
    batch = Batch.of(ions())
    charges, weights = batch.partial_charges[:, None].float(), torch.ones(1)
    vectors = KVectors.of(batch, Splitting.of(1e-5, 6.0), charges)
    given = (vectors, batch, batch.positions, batch.cell, charges, weights)
    with torch.autocast("cpu", torch.bfloat16):
        energies = reciprocal_energies(*given)
    assert torch.equal(energies, reciprocal_energies(*given))


def test_vectors_by_parts_give_the_same(monkeypatch, predicted, crystal):
    system = System.from_ase(crystal)

    def derivatives():
        batch = Batch.of(System.from_ase(crystal))
        batch = replace(batch, positions=batch.positions.clone().requires_grad_())
        result = evaluate(predicted(), batch, stress=True, create_graph=True)
        (second,) = torch.autograd.grad(result.forces.square().sum() + result.stress.square().sum(), batch.positions)
        return result.forces.detach(), result.stress.detach(), second

    whole = derivatives()
    monkeypatch.setattr(reciprocal, "MOST_PHASES", 40 * system.num_atoms)
    for found, wanted in zip(derivatives(), whole, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-10)


def test_a_batch_of_different_cells_and_none_is_that_of_each_system():
    molecule = Atoms("NaCl", [[0, 0, 0], [0, 0, 14.0]])
    apart = System.create(molecule.positions, molecule.numbers, partial_charges=[0.6, -0.2])
    systems = [ions(), apart, ions(pairs=3, pbc=SLAB, seed=2), ions(pairs=2, seed=7, size=6.5)]
    potential = only()
    together = evaluate(potential, Batch.from_systems(systems), stress=True)
    alone = [evaluate(potential, system, stress=True) for system in systems]
    for name in ("energy", "energies", "forces", "stress"):
        joined = torch.cat([getattr(result, name) for result in alone])
        np.testing.assert_allclose(getattr(together, name), joined, rtol=0, atol=1e-11)
    assert float(alone[1].energy[0]) == pytest.approx(-COULOMB * 0.12 / 14, rel=1e-12)


@pytest.mark.nightly
def test_ions_are_those_of_openmm():
    openmm = pytest.importorskip("openmm")
    system = ions(pairs=13, size=24.0)
    box = 24.0 * np.array([[1.0, 0, 0], [0.2, 0.9, 0], [0.1, -0.2, 1.1]])  # the form that OpenMM asks for
    x = np.linalg.solve(system.cell.numpy().T, system.positions.numpy().T).T @ box
    charges = system.partial_charges.numpy()
    theirs, force = openmm.System(), openmm.NonbondedForce()
    theirs.setDefaultPeriodicBoxVectors(*(openmm.Vec3(*row) for row in box / 10))
    for charge in charges:
        theirs.addParticle(1.0)
        force.addParticle(charge, 1.0, 0.0)
    force.setNonbondedMethod(openmm.NonbondedForce.PME)
    force.setCutoffDistance(1.0)
    force.setEwaldErrorTolerance(1e-8)
    theirs.addForce(force)
    platform = openmm.Platform.getPlatformByName("Reference")
    context = openmm.Context(theirs, openmm.VerletIntegrator(0.001), platform)
    context.setPositions(x / 10)
    state = context.getState(getEnergy=True, getForces=True)
    # OpenMM's constant is 138.935456 kJ/mol nm.
    unit = 1 / 138.93545764438198 * COULOMB / 10
    energy = state.getPotentialEnergy()._value * unit
    forces = np.array(state.getForces()._value) * unit / 10
    system = System.create(x, [11, 17] * 13, box, True, partial_charges=charges)
    for potential in (only(accuracy=1e-10), only(accuracy=1e-7, periodic="pme")):
        found = evaluate(potential, system)
        assert float(found.energy[0]) == pytest.approx(energy, rel=1e-7)
        assert np.linalg.norm(found.forces.numpy() - forces) < 2e-7 * np.linalg.norm(forces)


@pytest.fixture
def predicted(make_potential):
    """A TensorNet2 of one layer with 3 charges a layer, its Coulomb prior alone left of its energy."""

    def make(**settings):
        config = CoulombConfig(periodic="ewald", accuracy=1e-11, cutoff=6.0, **settings)
        potential = make_potential(model="tensornet2", num_layers=1, priors=[lambda: config])
        for constant in (potential.scale, potential.shift, potential.reference_energies):
            constant.zero_()
        return potential

    return make


@pytest.mark.parametrize("settings", [dict(damping=4.6), dict(switch=(1.0, 3.5))], ids=["damped", "switched"])
def test_predicted_sets_with_damping_are_an_independent_lattice_sum(predicted, settings, crystal):
    weights = np.repeat([1.0, 0.5], 3)
    potential = predicted(weights=(1.0, 0.5), **settings)
    reference = oracles.TensorNet2(potential)
    x, cell = crystal.positions, crystal.cell.array
    reference.energies(x, crystal.numbers, cell, crystal.pbc, 0)
    q = np.concatenate(reference.charges, axis=1)
    products = (q * weights / weights.sum()) @ q.T
    wanted = 0.5 * COULOMB * (products * lattice_sums.bulk_potentials(x, cell)).sum(-1)
    for i, j, shift in oracles.neighbours(x, cell, crystal.pbc, 4.6):
        r = math.dist(x[j] + np.array(shift) @ cell, x[i])
        damped = math.exp(1 - 1 / (1 - (r / 4.6) ** 2))
        if "switch" in settings:
            damped = 1 - (0.5 - 0.5 * math.cos(math.pi * min(max((r - 1.0) / 2.5, 0.0), 1.0)))
        wanted[i] -= 0.5 * COULOMB * products[i, j] * damped / r
    assert np.abs(wanted).max() > 1e-3
    result = evaluate(potential, System.from_ase(crystal))
    np.testing.assert_allclose(result.energies, wanted, rtol=0, atol=1e-9)


def test_forces_and_second_derivatives_through_predicted_charges(predicted, crystal):
    potential, batch = predicted(), Batch.of(System.from_ase(crystal))
    batch = replace(batch, positions=batch.positions.clone().requires_grad_())
    result, step = evaluate(potential, batch, create_graph=True), 1e-4
    direction = torch.randn(batch.num_atoms, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    places = batch.positions.detach()
    up, down = (evaluate(potential, System.from_ase(crystal).at(places + s * step * direction)) for s in (1, -1))
    along = (result.forces * direction).sum()
    assert float(along.detach()) == pytest.approx(-float(up.energy - down.energy) / (2 * step), rel=1e-6)
    (curve,) = torch.autograd.grad(along, batch.positions)
    np.testing.assert_allclose(curve, (up.forces - down.forces) / (2 * step), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("pbc", "charge", "message"),
    [
        ((True, False, False), 0.0, r"needs two or three periodic directions, got one \(a wire, system 0\)"),
        (SLAB, 0.5, r"of a slab needs charges that add up to 0 e, got 0.5 \(system 0\)"),
    ],
)
def test_wires_and_charged_slabs_are_refused(pbc, charge, message):
    x, cell = [[0, 0, 0], [0, 0, 2.5]], 6.0 * np.eye(3)
    system = System.create(x, [11, 17], cell, pbc, partial_charges=[0.8, charge - 0.8])
    with pytest.raises(ValueError, match=message):
        evaluate(only(), system)
