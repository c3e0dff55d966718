import numpy as np
import pytest
import torch

from torchmdx import Batch, System, evaluate


def test_energies_of_the_atoms_sum_to_the_energy_of_their_system(potential, ethanol, crystal, cation):
    batch = Batch.from_systems([System.from_ase(atoms) for atoms in (ethanol, crystal, cation)])
    result = evaluate(potential, batch, forces=False)
    sums = torch.zeros(3, dtype=torch.float64).index_add(0, batch.system_index, result.energies)
    np.testing.assert_allclose(sums, result.energy, rtol=1e-14)


def test_scale_references_and_shift_enter_as_documented(make_potential, ethanol):
    potential, system = make_potential(), System.from_ase(ethanol)
    plain = make_potential()
    plain.scale.fill_(1)
    plain.shift.fill_(0)
    plain.reference_energies.fill_(0)
    output = evaluate(plain, system).energies
    references = potential.reference_energies[system.atomic_numbers]
    wanted = potential.scale * output.sum() + references.sum() + potential.shift
    assert float(evaluate(potential, system).energy[0]) == pytest.approx(float(wanted), rel=1e-13)
    shift_only = make_potential()
    shift_only.shift.add_(5)
    difference = evaluate(shift_only, system).energy - evaluate(potential, system).energy
    assert float(difference[0]) == pytest.approx(5, rel=1e-12)


def test_a_lone_atom_has_an_energy_and_no_force(potential):
    result = evaluate(potential, System.create([[1.0, 2.0, 3.0]], [6]))
    assert torch.isfinite(result.energy).all()
    assert result.forces.tolist() == [[0, 0, 0]]


def test_no_atoms_have_no_energy(potential):
    result = evaluate(potential, System.create([], []), stress=True)
    assert result.energy.tolist() == [0.0]
    assert result.forces.shape == (0, 3)


def test_large_constants_are_never_rounded_to_float32(make_potential, ethanol):
    exact = make_potential()
    exact.reference_energies.sub_(1e6 + 1 / 3)
    before = exact.reference_energies.clone()
    single = exact.to(torch.float32)
    assert single.dtype == torch.float32
    assert single.reference_energies.dtype == single.scale.dtype == single.shift.dtype == torch.float64
    assert torch.equal(single.reference_energies, before)
    wanted = evaluate(make_potential(), System.from_ase(ethanol)).energy - 9 * (1e6 + 1 / 3)
    got = evaluate(single, System.from_ase(ethanol))
    assert float(got.energy[0]) == pytest.approx(float(wanted[0]), abs=1e-4)
    assert got.forces.dtype == torch.float32
    assert single.double().half().reference_energies.dtype == torch.float64


def test_an_element_beyond_the_model_is_refused(potential):
    beyond = System.create([[0, 0, 0], [0, 0, 2.7]], [1, 36])
    with pytest.raises(ValueError, match="this potential knows atomic numbers up to 35, got 36 for atom 1"):
        evaluate(potential, beyond)


def test_the_largest_element_of_the_model_is_accepted(potential):
    result = evaluate(potential, System.create([[0, 0, 0]], [35]))
    assert torch.isfinite(result.energy).all()
