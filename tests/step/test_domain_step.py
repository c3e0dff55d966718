"""DomainStep: parts of a structure add up to the whole, with any engine, also while atoms change hands."""

import numpy as np
import pytest
import torch
from ase import Atoms
from domains import divide

from torchmdx import Potential, System, TensorNetConfig, evaluate
from torchmdx.engines.pairs.engine import PairEngine
from torchmdx.lammps.example import water
from torchmdx.models.ensemble import Ensemble
from torchmdx.models.priors.coulomb import CoulombConfig
from torchmdx.models.priors.zbl import ZBLConfig
from torchmdx.models.tensornet2 import TensorNet2Config
from torchmdx.step.domain_reach import num_hops, reach
from torchmdx.step.domain_step import DomainStep
from torchmdx.step.results import NonFiniteError

SETTINGS = dict(num_channels=16, num_radial=8, num_layers=1, cutoff=3.0)


def potential(dtype=torch.float64, priors=(), seed=0, **settings) -> Potential:
    torch.manual_seed(seed)
    made = Potential(TensorNetConfig(**{**SETTINGS, **settings}), priors).to(dtype)
    made.shift.fill_(3.0)
    made.reference_energies[:9] = torch.linspace(-20, 5, 9)
    return made


def triclinic() -> Atoms:
    atoms = water(64)
    atoms.set_cell(atoms.cell.array @ np.array([[1, 0, 0], [0.3, 1, 0], [0.1, 0.2, 1]]), scale_atoms=True)
    return atoms


def summed(step_of, parts, atoms: Atoms):
    """(energy, energies, forces, virial) of the whole from the steps of its parts."""
    energy, energies = 0.0, np.zeros(len(atoms))
    forces, virial = np.zeros((len(atoms), 3)), np.zeros((3, 3))
    for number, part in enumerate(parts):
        step = step_of(number)
        step.assign(
            part.positions, atoms.numbers[part.atoms], part.num_owned, atoms.cell.array, num_total=len(atoms),
            hops=part.hops,
        )  # fmt: skip
        found = step(part.positions, atoms.cell.array)
        energy, virial = energy + found.energy, virial + found.virial
        energies[part.atoms[: part.num_owned]] = found.energies
        np.add.at(forces, part.atoms, found.forces)
    return energy, energies, forces, virial


def require_equal(found, model, atoms: Atoms, bound: float) -> None:
    """Compares with the whole structure; bound: relative, for energies in units of eV per atom."""
    energy, energies, forces, virial = found
    periodic = bool(atoms.pbc.all())
    exact = evaluate(model, System.from_ase(atoms), stress=periodic)
    assert abs(energy - float(exact.energy)) < bound * max(len(atoms), abs(float(exact.energy)))
    assert np.abs(energies - exact.energies.numpy()).max() < bound * np.abs(exact.energies.numpy()).max()
    assert np.abs(forces - exact.forces.numpy()).max() < bound * np.abs(exact.forces.numpy()).max()
    if periodic:
        stress = exact.stress[0].double().numpy()
        assert np.abs(virial / atoms.get_volume() - stress).max() < bound * np.abs(stress).max()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["exact", "compiled"])
@pytest.mark.parametrize("structure", [lambda: water(64), triclinic], ids=["orthogonal", "triclinic"])
@pytest.mark.parametrize("parts", [1, 3])
def test_parts_add_up_to_the_whole(dtype, structure, parts):
    atoms, model = structure(), potential(dtype)
    divided = divide(atoms, parts, reach(model), 3.0)
    found = summed(lambda _: DomainStep(model, (False, True, True)), divided, atoms)
    require_equal(found, model.double(), atoms, 2e-13 if dtype == torch.float64 else 3e-6)


def test_a_box_smaller_than_the_reach():
    atoms, model = water(8), potential(num_layers=2)
    assert atoms.cell.lengths()[0] < reach(model)
    found = summed(lambda _: DomainStep(model, (False, True, True)), divide(atoms, 2, reach(model), 3.0), atoms)
    require_equal(found, model, atoms, 2e-13)


def test_an_open_structure():
    atoms, model = water(27), potential()
    atoms.pbc = False
    found = summed(lambda _: DomainStep(model, (False, False, False)), divide(atoms, 2, reach(model), 3.0), atoms)
    require_equal(found, model, atoms, 2e-13)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["exact", "compiled"])
def test_priors(dtype):
    model = potential(dtype, [ZBLConfig(cutoff=4.0)])
    atoms = water(64)
    assert reach(model) == 6.0
    found = summed(lambda _: DomainStep(model, (False, True, True)), divide(atoms, 2, reach(model), 3.0), atoms)
    require_equal(found, model.double(), atoms, 2e-13 if dtype == torch.float64 else 3e-6)


@pytest.mark.parametrize("engine", ["exact", "compiled", "pairs"])
def test_messages_of_an_atoms_own_tensors_reach_one_cutoff(engine, monkeypatch):
    model, atoms = potential(torch.float32, num_layers=2, messages="target"), water(64)
    if engine == "pairs":  # as on a GPU
        monkeypatch.setattr(
            "torchmdx.engines.choose.choose_engine",
            lambda potential, batch, *, stress, **_: (PairEngine(potential, batch, stress=stress), "asked for"),
        )
    if engine != "compiled":
        model = model.double()
    assert (num_hops(model), reach(model)) == (1, 3.0)
    found = summed(lambda _: DomainStep(model, (False, True, True)), divide(atoms, 3, reach(model), 3.0), atoms)
    require_equal(found, model.double(), atoms, 3e-6 if engine == "compiled" else 2e-13)


def test_an_ensemble():
    atoms, models = water(27), Ensemble([potential(seed=seed) for seed in (1, 2)])
    found = summed(lambda _: DomainStep(models, (False, True, True)), divide(atoms, 2, reach(models), 3.0), atoms)
    require_equal(found, models, atoms, 2e-13)


def test_virials_can_be_omitted():
    atoms, model = water(64), potential()
    part = divide(atoms, 2, reach(model), 3.0)[0]
    steps = DomainStep(model, (False, True, True)), DomainStep(model, (False, True, True), virials=False)
    for step in steps:
        step.assign(
            part.positions, atoms.numbers[part.atoms], part.num_owned, atoms.cell.array, num_total=len(atoms),
            hops=part.hops,
        )  # fmt: skip
    found, fewer = (step(part.positions, atoms.cell.array) for step in steps)
    assert np.abs(found.virial).max() > 0
    np.testing.assert_array_equal(fewer.virial, np.zeros((3, 3)))
    assert fewer.energy == found.energy
    np.testing.assert_allclose(fewer.forces, found.forces, rtol=0, atol=1e-13 * np.abs(found.forces).max())
    assert steps[1].step.buffers.outputs.keys() == {"energy", "energies", "forces", "flags"}
    steps[1].inputs[:] = part.positions
    np.testing.assert_array_equal(steps[1].on_device(atoms.cell.array)[3], np.zeros((3, 3)))


def test_without_hops_the_results_are_the_same():
    atoms, model = water(27), potential()
    parts = divide(atoms, 2, reach(model), 3.0)
    for part in parts:
        part.hops = None
    require_equal(summed(lambda _: DomainStep(model, (False, True, True)), parts, atoms), model, atoms, 2e-13)


def test_atoms_change_hands_in_the_same_buffers():
    atoms, model, random = water(64), potential(), np.random.default_rng(0)
    steps = [DomainStep(model, (False, True, True)) for _ in range(2)]
    atoms.positions[:, 0] += 1.5  # the boundary lies among atoms
    owned = set()
    for _ in range(6):
        atoms.positions += random.normal(scale=0.15, size=atoms.positions.shape)
        atoms.wrap()
        found = summed(steps.__getitem__, divide(atoms, 2, reach(model), 3.0), atoms)
        require_equal(found, model, atoms, 2e-13)
        owned.add(steps[0].num_owned)
    assert [step.num_growths for step in steps] == [0, 0]
    assert len(owned) > 1


def test_the_capacity_grows():
    model, small, large = potential(), water(27), water(64)
    step = DomainStep(model, (False, True, True))
    for atoms in (small, large, small):
        found = summed(lambda _: step, divide(atoms, 1, reach(model), 3.0), atoms)
        require_equal(found, model, atoms, 2e-13)
    assert step.num_growths == 1


def test_fully_periodic_domains_follow_the_number_of_atoms():
    model, step = potential(), None
    step = DomainStep(model, (True, True, True))
    for atoms in (water(27), water(64), water(27)):
        step.assign(atoms.positions, atoms.numbers, len(atoms), atoms.cell.array, num_total=len(atoms))
        found = step(atoms.positions, atoms.cell.array)
        require_equal((found.energy, found.energies, found.forces, found.virial), model, atoms, 2e-13)


def test_a_process_without_atoms():
    step = DomainStep(potential(), (False, True, True))
    step.assign(np.ones((2, 3)), [1, 8], 0, np.eye(3) * 9, num_total=5)
    found = step()
    assert found.energy == 0
    assert found.energies.shape == (0,)
    assert not found.forces.any()
    assert found.forces.shape == (2, 3)


def test_a_system_without_atoms():
    """As before a deposition; with a shift, which belongs to atoms only."""
    step = DomainStep(potential(), (False, True, True))
    step.assign(np.zeros((0, 3)), [], 0, np.eye(3) * 9, num_total=0)
    found = step()
    assert (found.energy, found.energies.shape, found.forces.shape) == (0.0, (0,), (0, 3))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["exact", "compiled"])
@pytest.mark.parametrize("pbc", [True, (True, True, False)], ids=["bulk", "slab"])
def test_one_process_serves_a_potential_that_depends_on_all_atoms(dtype, pbc):
    torch.manual_seed(0)
    config = TensorNet2Config(num_channels=8, num_radial=4, num_layers=1, num_charges=2, cutoff=3.0)
    model = Potential(config, [CoulombConfig(periodic="ewald", accuracy=1e-10, cutoff=6.0)]).to(dtype)
    model.shift.fill_(3.0)
    atoms = water(8)
    atoms.pbc = pbc
    step = DomainStep(model, np.broadcast_to(pbc, 3), capacity=32)  # of which no atom may be padding
    for left in (24, 21):
        atoms = atoms[:left]
        step.assign(atoms.positions, atoms.numbers, left, atoms.cell.array, num_total=left)
        found = step(atoms.positions, atoms.cell.array)
        given = (found.energy, found.energies, found.forces, found.virial)
        require_equal(given, model.double(), atoms, 1e-9 if dtype == torch.float64 else 3e-6)
    for flux in (False, True):
        with pytest.raises(ValueError, match="virials of atoms need .*: a TensorNet2 conserves the charges"):
            step.atom_virials(flux=flux)


def test_what_cannot_be_divided_is_refused_by_name():
    charged = Potential(TensorNet2Config(num_channels=16, num_radial=8, num_layers=1))
    given = potential(priors=[CoulombConfig(cutoff=6.0, charges="given")])
    for model, message in (
        (charged, "a TensorNet2 conserves the charges of the whole system; got 2 of 3 atoms, and 1 copies"),
        (given, "the prior coulomb may depend on atoms at any distance; got 2 of 3 atoms, and 1 copies"),
    ):
        step = DomainStep(model, (True, True, False))
        with pytest.raises(ValueError, match=message):
            step.assign(np.eye(3), [8, 1, 1], 2, np.eye(3) * 9, num_total=3)


def test_wrong_calls_are_refused():
    step, cell = DomainStep(potential(), (False, True, True)), np.eye(3) * 9
    with pytest.raises(ValueError, match="capacity must be >= 0 atoms, got -1"):
        DomainStep(potential(), (True, True, True), capacity=-1)
    step.num_owned = 1
    with pytest.raises(RuntimeError, match="assign must be called before an evaluation"):
        step(np.zeros((1, 3)), cell)
    with pytest.raises(ValueError, match=r"positions must have shape \[2, 3\]"):
        step.assign(np.zeros((1, 3)), [1, 8], 1, cell, num_total=2)
    with pytest.raises(ValueError, match="num_owned must be from 0 to 2, got 3"):
        step.assign(np.zeros((2, 3)), [1, 8], 3, cell, num_total=2)
    with pytest.raises(ValueError, match="atomic numbers must be from 1 to 118, got 0 to 8"):
        step.assign(np.zeros((2, 3)), [0, 8], 1, cell, num_total=2)
    with pytest.raises(ValueError, match="hops must be ascending"):
        step.assign(np.zeros((3, 3)), [1, 8, 1], 1, cell, num_total=3, hops=[0, 2, 1])


def test_evaluation_errors_leave_a_usable_step():
    atoms, model = water(27), potential()
    (part,) = divide(atoms, 1, reach(model), 3.0)
    step = DomainStep(model, (False, True, True))
    step.assign(part.positions, atoms.numbers[part.atoms], part.num_owned, atoms.cell.array, num_total=len(atoms))
    wrong = part.positions.copy()
    wrong[3] = np.nan
    with pytest.raises(NonFiniteError, match="the first is atom 3"):
        step(wrong, atoms.cell.array)
    with pytest.raises(ValueError, match="positions must have shape"):
        step(part.positions[1:], atoms.cell.array)
    found = step(part.positions, atoms.cell.array)
    assert found.energy == pytest.approx(float(evaluate(model, System.from_ase(atoms)).energy), abs=1e-10)


def test_the_reach_counts_the_embedding_and_priors():
    assert num_hops(potential(num_layers=2)) == 3
    assert reach(potential(num_layers=2)) == 9.0
    assert reach(potential(priors=[ZBLConfig(cutoff=7.0)])) == 7.0
