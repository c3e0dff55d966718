"""What must not change the energy does not, and forces and stress turn with the structure."""

import numpy as np
import pytest
import torch
from ase import Atoms
from model_kinds import FEW, KINDS, NO_WIRES, kinds

from torchmdx import System, evaluate

MODELS = [
    pytest.param(
        (torch.float64 if dtype == "float64" else torch.float32, *kind.values),
        marks=kind.marks,
        id=f"{dtype}-{kind.id}",
    )
    for dtype, chosen in (("float64", KINDS), ("float32", ("tensornet", "tensornet-SO(3)", "everything")))
    for kind in kinds()
    if kind.id in chosen
]


# Of each network and of each way in which cells are used: edges, and waves.
OF_CELLS = ("float32-tensornet", *(f"float64-{name}" for name in (*FEW, NO_WIRES)))


@pytest.fixture(params=MODELS)
def model(request, make_kind):
    dtype, kind = request.param
    return make_kind(kind, dtype)


def orthogonal(determinant: int, seed: int = 0) -> np.ndarray:
    turn = np.linalg.qr(np.random.default_rng(seed).normal(size=(3, 3)))[0]
    return turn * np.linalg.det(turn) * determinant


def outputs(model, atoms):
    """Energy and energies without the constants, forces and stress, as float64 arrays."""
    has_volume = atoms.cell.rank == 3
    result = evaluate(model, System.from_ase(atoms), stress=has_volume)
    stress = result.stress[0].double().numpy() if has_volume else np.zeros((3, 3))
    return float(result.energy[0]), result.energies.numpy(), result.forces.double().numpy(), stress


def assert_equal(model, got, wanted):
    for a, b in zip(got, wanted, strict=True):
        # In float32 charges miss their total by rounding, and each of a crystal's images feels that.
        least = 0.5 if model.predicts_charges else 1e-2
        tolerance = 1e-10 if model.dtype == torch.float64 else 1e-4 * np.abs(b).max(initial=least)
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance)


def turned(atoms, turn):
    other = atoms.copy()
    other.set_cell(atoms.cell.array @ turn.T)
    other.positions = atoms.positions @ turn.T
    return other


def assert_turns(model, atoms, turn):
    energy, energies, forces, stress = outputs(model, atoms)
    wanted = energy, energies, forces @ turn.T, turn @ stress @ turn.T
    assert_equal(model, outputs(model, turned(atoms, turn)), wanted)


def test_rotation(model, structure):
    assert_turns(model, structure, orthogonal(1))


def test_reflection(model, structure):
    if model.config.group == "O(3)":
        assert_turns(model, structure, orthogonal(-1))


def test_a_model_of_rotations_alone_tells_mirror_images_apart(make_potential, chiral):
    mirror = turned(chiral, np.diag([1.0, 1.0, -1.0]))
    energies = {}
    for group in ("O(3)", "SO(3)"):
        model = make_potential(group=group)
        energies[group] = [outputs(model, atoms)[0] for atoms in (chiral, mirror)]
    assert abs(np.diff(energies["O(3)"])[0]) < 1e-10
    assert abs(np.diff(energies["SO(3)"])[0]) > 1e-4


def test_translation(model, structure):
    before = outputs(model, structure)
    structure.positions += [3.7, -12.2, 0.9]
    assert_equal(model, outputs(model, structure), before)


def test_permutation(model, structure):
    energy, energies, forces, stress = outputs(model, structure)
    order = np.random.default_rng(1).permutation(len(structure))
    assert_equal(model, outputs(model, structure[order]), (energy, energies[order], forces[order], stress))


def test_shifts_of_single_atoms_by_lattice_vectors(model, structure):
    before = outputs(model, structure)
    shifts = np.random.default_rng(2).integers(-3, 4, (len(structure), 3)) * structure.pbc
    structure.positions += shifts @ structure.cell.array
    assert_equal(model, outputs(model, structure), before)


@pytest.mark.nightly
@pytest.mark.parametrize("model", [kind for kind in MODELS if kind.id in OF_CELLS], indirect=True)
@pytest.mark.parametrize("order", [(1, 2, 0), (1, 0, 2)])  # which make all others
def test_permuted_lattice_vectors(model, structure, order):
    before = outputs(model, structure)
    order = list(order)
    structure.set_cell(structure.cell.array[order])
    structure.pbc = structure.pbc[order]
    assert_equal(model, outputs(model, structure), before)


@pytest.mark.parametrize("change", [[[1, 2, 0], [0, 1, 0], [1, 0, -1]], [[1, 0, 0], [-3, 1, 0], [0, 2, 1]]])
def test_other_lattice_vectors_of_the_same_crystal(model, crystal, change):
    before = outputs(model, crystal)
    crystal.set_cell(np.array(change) @ crystal.cell.array)
    assert_equal(model, outputs(model, crystal), before)


def test_one_atom_equals_its_supercell(model):
    cell = [[2.3, 0.2, 0.0], [0.4, 2.5, -0.3], [-0.2, 0.5, 2.4]]
    one = Atoms("C", [[0.3, 0.2, 0.1]], cell=cell, pbc=True)
    many = one * (3, 3, 3)
    energy, energies, forces, stress = outputs(model, many)
    one_energy, _, one_forces, one_stress = outputs(model, one)
    shift = float(model.shift)
    assert_equal(model, [(energy - shift) / 27, stress, forces], [one_energy - shift, one_stress, forces * 0])
    assert_equal(model, [np.ptp(energies), one_forces], [0.0, 0 * one_forces])


@pytest.mark.parametrize("name", ["crystal", "slab", "bare_slab", "wire"])
def test_several_atoms_equal_their_supercell(model, name, request):
    atoms = request.getfixturevalue(name)
    repeats = np.where(atoms.pbc, [2, 1, 3], 1)
    many, count = atoms * repeats, int(np.prod(repeats))
    energy, _, forces, stress = outputs(model, atoms)
    shift = float(model.shift)
    got = outputs(model, many)
    wanted = (energy - shift, np.tile(forces, (count, 1)), stress)
    assert_equal(model, ((got[0] - shift) / count, got[2], got[3]), wanted)


def stretched(model, distance):
    """Energy without shift, and the force that stretches, of two atoms and a third one close to the first."""
    positions = [[0, 0, 0], [0, 0, distance], [0.3, -0.8, -0.7]]
    result = evaluate(model, System.create(positions, [6, 8, 1]))
    return float(result.energy[0]), float(result.forces[1, 2])


@pytest.mark.parametrize("settings", [dict(), dict(radial_basis="gauss"), dict(num_layers=0)], ids=str)
def test_energy_and_force_are_smooth_through_the_cutoff(make_potential, settings):
    model = make_potential(**settings)
    outside = stretched(model, model.cutoff)
    assert outside[1] == 0.0
    assert stretched(model, model.cutoff + 1e-3) == outside
    # Inside, the energy leaves as the square of the distance to the cutoff and the force linearly.
    steps = (1e-2, 1e-3, 1e-4)
    inside = [stretched(model, model.cutoff - step) for step in steps]
    energies = [abs(energy - outside[0]) / step**2 for (energy, _), step in zip(inside, steps, strict=True)]
    forces = [force / step for (_, force), step in zip(inside, steps, strict=True)]
    assert energies[-1] > 1e-6
    np.testing.assert_allclose(energies, energies[-1], rtol=0.15)
    np.testing.assert_allclose(forces, forces[-1], rtol=0.15)


def test_energy_and_forces_are_continuous_as_atoms_cross_the_cutoff(potential, ethanol):
    far = ethanol.get_all_distances().max()
    ethanol.positions *= (potential.cutoff + 1e-7) / far
    outside = outputs(potential, ethanol)
    ethanol.positions *= (potential.cutoff - 1e-7) / (potential.cutoff + 1e-7)
    inside = outputs(potential, ethanol)
    np.testing.assert_allclose(inside[2], outside[2], atol=1e-5)
    assert inside[0] == pytest.approx(outside[0], abs=1e-5)
