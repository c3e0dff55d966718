import math

import ase.build
import numpy as np
import pytest
import torch
from ase import Atoms
from ase.calculators.emt import EMT
from ase.filters import UnitCellFilter
from ase.optimize import FIRE

from torchmdx.dynamics.relaxation import fire as module
from torchmdx.dynamics.relaxation.cell_space import ANY_STRAIN
from torchmdx.dynamics.relaxation.fire import CONVERGED, OUT_OF_STEPS, RUNNING, Fire, FireSettings


def copper(seed: int = 1, sizes=(1, 1, 1)) -> Atoms:
    atoms = ase.build.bulk("Cu", cubic=True) * sizes
    atoms.rattle(0.08, seed=seed)
    return atoms


def state_of(structures: list[Atoms], **settings) -> Fire:
    """Structures one after the other in the buffers of a Fire, without padding."""
    counts = [len(atoms) for atoms in structures]
    fire = Fire(sum(counts), len(counts), max(counts), torch.device("cpu"), FireSettings(**settings))
    rows = np.full((len(counts), max(counts)), sum(counts))
    for k, count in enumerate(counts):
        rows[k, :count] = sum(counts[:k]) + np.arange(count)
    values = dict(
        positions=np.concatenate([atoms.positions for atoms in structures]),
        free=np.ones((sum(counts), 3), dtype=bool),
        system_index=np.repeat(np.arange(len(counts)), counts),
        rows=rows,
        cell=np.array([atoms.cell.array for atoms in structures]),
        dt=np.full(len(counts), module.START_DT),
        mixing=np.full(len(counts), module.START_MIXING),
        start_volume=np.array([atoms.get_volume() for atoms in structures]),
        count=np.array(counts, dtype=float),
        cell_space=np.array([ANY_STRAIN.projector(atoms.cell.array, True) for atoms in structures]),
    )
    fire.load({name: torch.from_numpy(value) for name, value in values.items()})
    return fire


def evaluated(fire: Fire, structures: list[Atoms]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Moves the structures to the state, and evaluates them with EMT."""
    energies, forces, stresses = [], [], []
    for k, atoms in enumerate(structures):
        atoms.set_cell(fire.cell[k].numpy())
        atoms.positions = fire.positions[fire.system_index == k].numpy()
        atoms.calc = EMT()
        energies.append(atoms.get_potential_energy())
        forces.append(atoms.get_forces())
        stresses.append(atoms.get_stress(voigt=False))
    return tuple(torch.from_numpy(np.asarray(x)) for x in (energies, np.concatenate(forces), stresses))


def test_steps_are_those_of_ase_for_each_system_alone():
    structures = [copper(1), copper(2, (2, 1, 1)), copper(3)]
    alone = [atoms.copy() for atoms in structures]
    # ASE limits the step of a whole structure, ours that of an atom: neither limit is reached here.
    optimizers = [FIRE(atoms, logfile=None, maxstep=100) for atoms in alone]
    for atoms in alone:
        atoms.calc = EMT()
    fire = state_of(structures, fmax=1e-9, steps=1000)
    for _ in range(60):
        fire.advance(*evaluated(fire, structures))
        for optimizer in optimizers:
            optimizer.step()
        expected = np.concatenate([atoms.positions for atoms in alone])
        np.testing.assert_allclose(fire.positions.numpy(), expected, atol=1e-12)
    assert (fire.downhill < 60).all()  # all have gone uphill on the way, and slowed down
    assert (fire.energy.numpy() < [atoms.get_potential_energy() + 0.05 for atoms in structures]).all()


def test_no_atom_moves_farther_than_the_longest_step():
    fire = state_of([copper(1), copper(2)], fmax=1e-3)
    before = fire.positions.clone()
    forces = torch.full((8, 3), 1e6, dtype=torch.float64)
    forces[4:] = 1e-1
    fire.advance(torch.zeros(2), forces, None)
    moved = torch.linalg.vector_norm(fire.positions - before, dim=1)
    torch.testing.assert_close(moved[:4], torch.full((4,), module.MOST_STEP, dtype=torch.float64))
    torch.testing.assert_close(moved[4:], torch.full((4,), 0.1**2 * 0.1 * math.sqrt(3), dtype=torch.float64))


def test_a_cell_relaxes_to_the_minimum_that_ase_finds_under_pressure():
    pressure = 0.05  # eV/Å³, 8 GPa
    structures = [copper(1), copper(2, (2, 1, 1))]
    for atoms in structures:
        atoms.set_cell(atoms.cell.array @ [[1.03, 0.01, 0], [0, 0.99, 0.02], [0, 0, 1.01]], scale_atoms=True)
    alone = [atoms.copy() for atoms in structures]
    fire = state_of(structures, fmax=1e-3, steps=500, cell=True, pressure=pressure)
    while (fire.status == RUNNING).any():
        fire.advance(*evaluated(fire, structures))
    assert fire.status.tolist() == [CONVERGED] * 2
    for ours, atoms in zip(structures, alone, strict=True):
        atoms.calc = EMT()
        FIRE(UnitCellFilter(atoms, scalar_pressure=pressure), logfile=None).run(fmax=1e-4, steps=1000)
        enthalpies = [x.get_potential_energy() + pressure * x.get_volume() for x in (ours, atoms)]
        assert enthalpies[0] == pytest.approx(enthalpies[1], abs=1e-5)
        assert ours.get_volume() == pytest.approx(atoms.get_volume(), rel=2e-4)
        np.testing.assert_allclose(ours.get_stress()[:3], -pressure, atol=3e-4)


def test_a_system_that_has_ended_stays_where_it_is():
    fire = state_of([copper(1), copper(2)], fmax=0.5, steps=2)
    forces = torch.ones(8, 3, dtype=torch.float64)
    forces[:4] = 0.1
    start = fire.positions.clone()
    for _ in range(4):
        fire.advance(torch.zeros(2), forces, None)
    assert fire.status.tolist() == [CONVERGED, OUT_OF_STEPS]
    assert fire.steps.tolist() == [0, 2]
    torch.testing.assert_close(fire.positions[:4], start[:4], rtol=0, atol=0)


@pytest.mark.parametrize("wrong", ["energy", "forces"])
def test_results_that_are_not_finite_end_their_system_only(wrong):
    fire = state_of([copper(1), copper(2)], fmax=0.01)
    energy, forces = torch.zeros(2), torch.ones(8, 3, dtype=torch.float64)
    if wrong == "energy":
        energy[0] = math.nan
    else:
        forces[2, 1] = math.inf
    start = fire.positions.clone()
    fire.advance(energy, forces, None)
    assert fire.status.tolist() == [module.NOT_FINITE, RUNNING]
    torch.testing.assert_close(fire.positions[:4], start[:4], rtol=0, atol=0)
    assert torch.isfinite(fire.velocities).all()


def test_an_atom_that_flies_away_and_a_cell_that_collapses_end_their_system():
    fire = state_of([copper(1), copper(2), copper(3)], fmax=0.01, steps=1000, cell=True)
    forces, stress = torch.zeros(12, 3, dtype=torch.float64), torch.zeros(3, 3, 3, dtype=torch.float64)
    forces[0, 0] = 50.0
    stress[1] = 50 * torch.eye(3)
    stress[2] = -50 * torch.eye(3)
    for _ in range(500):
        fire.advance(torch.zeros(3), forces, stress)
    assert fire.status.tolist() == [module.TOO_FAR, module.CELL_LOST, module.CELL_LOST]
    volume = module.volumes(fire.cell) / fire.start_volume
    assert 1 / module.MOST_VOLUME_RATIO <= volume[1] < 0.3
    assert 3 < volume[2] <= module.MOST_VOLUME_RATIO
    assert fire.travel[0, 0] > module.MOST_TRAVEL - module.MOST_STEP


def test_coordinates_that_are_not_free_do_not_move_and_do_not_count():
    fire = state_of([copper(1)], fmax=0.5)
    fire.free[0] = False
    fire.free[1, 2] = False
    forces = torch.zeros(4, 3, dtype=torch.float64)
    forces[0], forces[1, 2] = 9.0, 9.0
    fire.advance(torch.zeros(1), forces, None)
    assert fire.status.tolist() == [CONVERGED]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (dict(fmax=0.0), "fmax must be > 0 eV/Å, got 0.0"),
        (dict(fmax=math.nan), "fmax must be > 0 eV/Å, got nan"),
        (dict(steps=0), "steps must be >= 1, got 0"),
        (dict(cell=True, pressure=math.inf), "pressure must be finite, got inf"),
        (dict(pressure=1.0), "a pressure needs cell=True, got pressure 1.0 alone"),
    ],
)
def test_settings_out_of_range(settings, text):
    with pytest.raises(ValueError, match=text):
        FireSettings(**settings)
