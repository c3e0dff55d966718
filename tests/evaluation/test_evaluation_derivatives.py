from dataclasses import replace

import numpy as np
import pytest
import torch
from model_kinds import kinds

from torchmdx import Batch, System, evaluate
from torchmdx.neighbors.brute_force import brute_force


def outputs(result):
    return [x for x in (result.energy, result.energies, result.forces, result.stress) if x is not None]


def test_a_batch_equals_its_systems_one_by_one(conforming, ethanol, cation, crystal, slab, wire):
    sums_lattice = any(getattr(config, "sums_lattice", False) for config in conforming.prior_configs)
    given = (ethanol, cation, crystal, slab) if sums_lattice else (ethanol, cation, crystal, slab, wire)
    systems = [System.from_ase(atoms) for atoms in given]
    together = evaluate(conforming, Batch.from_systems(systems), stress=True)
    alone = [evaluate(conforming, system, stress=True) for system in systems]
    for name in ("energy", "energies", "forces", "stress"):
        joined = torch.cat([getattr(result, name) for result in alone])
        np.testing.assert_allclose(getattr(together, name), joined, rtol=0, atol=1e-10)


def test_forces_add_up_to_zero(conforming, structure):
    forces = evaluate(conforming, System.from_ase(structure)).forces
    assert forces.abs().max() > 1e-3
    assert forces.sum(0).abs().max() < 1e-10


def test_stress_is_symmetric(conforming, crystal):
    stress = evaluate(conforming, System.from_ase(crystal), stress=True).stress[0]
    assert stress.abs().max() > 1e-4
    assert torch.equal(stress, stress.T)


def test_stress_is_positive_when_the_structure_would_shrink(potential, crystal):
    def energy_at(scale):
        crystal.set_cell(cell * scale, scale_atoms=True)
        return float(evaluate(potential, System.from_ase(crystal)).energy[0])

    cell = crystal.cell.array.copy()
    grows = (energy_at(1.001) - energy_at(0.999)) / 0.002
    crystal.set_cell(cell, scale_atoms=True)
    stress = evaluate(potential, System.from_ase(crystal), stress=True).stress[0]
    assert float(stress.trace()) * crystal.get_volume() == pytest.approx(grows, rel=1e-4)


def test_stress_without_a_volume_is_nan_and_spares_the_others(potential, ethanol, bare_slab, crystal):
    batch = Batch.from_systems([System.from_ase(atoms) for atoms in (ethanol, bare_slab, crystal)])
    stress = evaluate(potential, batch, stress=True).stress
    assert torch.isnan(stress).all((1, 2)).tolist() == [True, True, False]
    assert torch.isfinite(stress[2]).all()


def test_only_what_is_asked_for_is_computed(potential, crystal):
    system = System.from_ase(crystal)
    full = evaluate(potential, system, stress=True)
    energy = evaluate(potential, system, forces=False)
    stress = evaluate(potential, system, forces=False, stress=True)
    assert energy.forces is None
    assert energy.stress is None
    assert stress.forces is None
    assert torch.equal(energy.energy, full.energy)
    assert torch.equal(stress.stress, full.stress)
    assert not any(x.requires_grad for x in outputs(full))


def test_nothing_of_the_caller_is_changed(make_potential, crystal):
    potential, system = make_potential().requires_grad_(True), System.from_ase(crystal)
    before = system.positions.clone()
    with torch.no_grad():
        evaluate(potential, system, stress=True)
    assert torch.equal(system.positions, before)
    assert not system.positions.requires_grad
    assert all(parameter.grad is None for parameter in potential.parameters())


def test_an_evaluation_is_reproducible_to_the_bit(potential, crystal):
    first, second = (evaluate(potential, System.from_ase(crystal), stress=True) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(outputs(first), outputs(second), strict=True))


def test_a_list_of_edges_gives_what_a_search_gives(conforming, crystal):
    batch = Batch.from_systems([System.from_ase(crystal)])
    searched = evaluate(conforming, batch, stress=True)
    given = evaluate(conforming, batch, brute_force(batch, conforming.cutoff), stress=True)
    for a, b in zip(outputs(searched), outputs(given), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", ["tensornet", "coulomb"])  # the second: an energy of all pairs, from positions
@pytest.mark.parametrize("name", ["ethanol", "crystal"])
def test_a_float32_potential_with_a_list_takes_differences_before_rounding(make_kind, kind, name, request):
    atoms = request.getfixturevalue(name)
    exact, potential = make_kind(kind), make_kind(kind, torch.float32)
    wanted = evaluate(exact, System.from_ase(atoms), stress=True)
    atoms.positions += [1e6, -3e5, 2e5]
    batch = Batch.of(System.from_ase(atoms))
    result = evaluate(potential, batch, brute_force(batch, exact.cutoff), stress=name == "crystal")
    assert result.forces.dtype == torch.float32
    assert (result.forces - wanted.forces).abs().max() < 2e-5 * wanted.forces.abs().max()
    assert abs(float(result.energy - wanted.energy)) < 2e-5 * len(atoms)
    if name == "crystal":
        assert result.stress.dtype == torch.float32
        assert (result.stress - wanted.stress).abs().max() < 2e-5 * wanted.stress.abs().max()


def test_edges_beyond_the_cutoff_and_padding_change_nothing(conforming, crystal):
    batch = Batch.from_systems([System.from_ase(crystal)])
    exact = evaluate(conforming, batch, brute_force(batch, conforming.cutoff), stress=True)
    wide = brute_force(batch, conforming.cutoff + 1)
    padded = brute_force(batch, conforming.cutoff + 1, wide.capacity + 17)
    for edges in (wide, padded):
        result = evaluate(conforming, batch, edges, stress=True)
        for a, b in zip(outputs(result), outputs(exact), strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-12)


def test_an_overflowed_list_is_refused(potential, crystal):
    batch = Batch.from_systems([System.from_ase(crystal)])
    needed = brute_force(batch, potential.cutoff).capacity
    with pytest.raises(ValueError, match=f"edges needs room for {needed} edges, its capacity is 10"):
        evaluate(potential, batch, brute_force(batch, potential.cutoff, 10))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_two_atoms_at_one_place_are_refused(make_potential, dtype, ethanol):
    ethanol.positions[4] = ethanol.positions[2]
    with pytest.raises(ValueError, match="atoms must not coincide, got atoms 2 and 4 at the same position"):
        evaluate(make_potential(dtype), System.from_ase(ethanol))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shift", [(1, 0, 0), (-1, 0, 2), (7, -5, 3)])
def test_two_atoms_at_one_place_in_different_cells_are_refused(make_potential, dtype, shift, crystal):
    crystal.positions[2] = crystal.positions[0] + shift @ crystal.cell.array
    with pytest.raises(ValueError, match="atoms must not coincide, got atoms 0 and 2 at the same position"):
        evaluate(make_potential(dtype), System.from_ase(crystal))


def test_padding_is_not_two_atoms_at_one_place(potential, ethanol):
    batch = Batch.from_systems([System.from_ase(ethanol)])
    evaluate(potential, batch, brute_force(batch, potential.cutoff, 500))


@pytest.mark.parametrize("kind", kinds())
def test_float32_is_close_to_float64(make_kind, kind, structure):
    system = System.from_ase(structure)
    exact, single = (evaluate(make_kind(kind, dtype), system) for dtype in (torch.float64, torch.float32))
    assert single.energy.dtype == torch.float64
    assert abs(float(exact.energy[0] - single.energy[0])) < 1e-5 + 1e-6 * float(exact.energies.abs().sum())
    error = (single.forces - exact.forces).abs().max() / exact.forces.abs().max()
    assert error < 1e-5


def test_gradients_reach_the_callers_positions_and_cell(conforming, crystal):
    batch = Batch.from_systems([System.from_ase(crystal)])
    positions, cell = batch.positions.requires_grad_(), batch.cell.requires_grad_()
    result = evaluate(conforming, replace(batch, positions=positions, cell=cell), stress=True, create_graph=True)
    to_positions, to_cell = torch.autograd.grad(result.energy.sum(), [positions, cell])
    np.testing.assert_allclose(-to_positions, result.forces.detach(), atol=1e-12)
    # Straining both: ∂E/∂ε = rᵀ ∂E/∂r + hᵀ ∂E/∂h.
    virial = positions.T @ to_positions + cell[0].T @ to_cell[0]
    wanted = result.stress[0] * crystal.get_volume()
    np.testing.assert_allclose(virial.detach(), wanted.detach(), atol=1e-10)
