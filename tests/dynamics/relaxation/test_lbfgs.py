"""The update of L-BFGS, against the two-loop recursion and ASE's optimizer."""

import ase.build
import numpy as np
import pytest
import torch
from ase import Atoms
from ase.optimize import LBFGS

import torchmdx
from torchmdx.dynamics.relaxation.fire import CONVERGED, RUNNING, FireSettings
from torchmdx.dynamics.relaxation.lbfgs import FIRE_STEPS, FIRST_STIFFNESS, MEMORY, MOST_UPHILL, Lbfgs

CPU = torch.device("cpu")
NUM_ATOMS, COUNTS = 9, (4, 5)


def minimizer(**settings) -> Lbfgs:
    """Two systems of 4 and 5 atoms at random positions, in cells."""
    found = Lbfgs(NUM_ATOMS, 2, 5, CPU, FireSettings(fmax=1e-6, **settings))
    rows = torch.full((2, 5), NUM_ATOMS)
    rows[0, :4], rows[1] = torch.arange(4), torch.arange(4, 9)
    random = torch.Generator().manual_seed(1)
    found.load(
        {
            "positions": torch.rand(NUM_ATOMS, 3, dtype=torch.float64, generator=random),
            "free": torch.ones(NUM_ATOMS, 3, dtype=torch.bool),
            "system_index": torch.repeat_interleave(torch.arange(2), torch.tensor(COUNTS)),
            "rows": rows,
            "cell": 10 * torch.eye(3, dtype=torch.float64).repeat(2, 1, 1),
            "count": torch.tensor(COUNTS, dtype=torch.float64),
            "status": torch.full((2,), RUNNING),
        }
    )
    return found


def springs() -> torch.Tensor:
    """Stiffness [N,3] of independent springs to the origin, 1 to 60 eV/Å²."""
    return torch.linspace(1, 60, 3 * NUM_ATOMS, dtype=torch.float64).reshape(NUM_ATOMS, 3)


def energies(stiffness: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    each = (stiffness * positions**2).sum(1) / 2
    return torch.stack([each[:4].sum(), each[4:].sum()])


def two_loops(force: np.ndarray, moves: list[np.ndarray], turns: list[np.ndarray]) -> np.ndarray:
    """Nocedal's recursion: Algorithm 7.4 of Nocedal and Wright, with downhill forces."""
    q, factors = force.copy(), []
    for move, turn in zip(reversed(moves), reversed(turns), strict=True):
        factors.append((move * q).sum() / (move * turn).sum())
        q -= factors[-1] * turn
    q *= (moves[-1] * turns[-1]).sum() / (turns[-1] ** 2).sum() if moves else 1 / FIRST_STIFFNESS
    for move, turn, factor in zip(moves, turns, reversed(factors), strict=True):
        q += move * (factor - (turn * q).sum() / (move * turn).sum())
    return q


def test_steps_are_those_of_the_two_loop_recursion():
    found, random = minimizer(), torch.Generator().manual_seed(1)
    stiffness = torch.logspace(-3, 2, 3 * NUM_ATOMS, dtype=torch.float64)[
        torch.randperm(3 * NUM_ATOMS, generator=random)
    ].reshape(-1, 3)
    parts = (slice(0, 4), slice(4, 9))
    moves, turns = ([], []), ([], [])
    for step in range(MEMORY + 5):
        before, forces = found.positions.numpy().copy(), -(stiffness * found.positions)
        found.advance(torch.zeros(2, dtype=torch.float64), forces, None)  # never uphill
        after = found.positions.numpy().copy()
        for part, move, turn in zip(parts, moves, turns, strict=True):
            expected = two_loops(forces.numpy()[part], move[-MEMORY:], turn[-MEMORY:])
            expected *= min(1, 0.2 / np.linalg.norm(expected, axis=1).max())
            np.testing.assert_allclose((after - before)[part], expected, rtol=1e-4, atol=1e-6, err_msg=str(step))
            move.append((after - before)[part])
            turn.append(stiffness.numpy()[part] * (after - before)[part])


def test_a_system_that_goes_uphill_again_and_again_is_handed_to_fire():
    """Energies of the first rise although its forces shrink; the second is not affected."""
    found, stiffness = minimizer(), springs()
    alone, taken = minimizer(), []
    for step in range(MOST_UPHILL + 2):
        rising = energies(stiffness, found.positions)
        rising[0] = 0.5 * step
        found.advance(rising, -(stiffness * found.positions), None)
        alone.advance(energies(stiffness, alone.positions), -(stiffness * alone.positions), None)
        taken.append(found.fire_left.tolist())
    assert taken[MOST_UPHILL] == [FIRE_STEPS, 0]
    assert taken[MOST_UPHILL - 1] == [0, 0]
    assert taken[-1] == [FIRE_STEPS - 1, 0]
    assert found.velocities[:4].abs().max() > 0
    assert not found.velocities[4:].any()
    assert found.reach[0] < 0.05 < found.reach[1]
    assert torch.equal(found.positions[4:], alone.positions[4:])


def test_fire_hands_back_and_the_minimum_is_found():
    found, stiffness = minimizer(), springs()
    for step in range(300):
        energy = energies(stiffness, found.positions) + (50.0 * step if step < 6 else 0.0)
        found.advance(energy, -(stiffness * found.positions), None)
    assert found.status.tolist() == [CONVERGED, CONVERGED]
    assert found.steps.max() > FIRE_STEPS


def conformers() -> list[Atoms]:
    found = []
    for k, name in enumerate(("CH3CH2OH", "CH3CONH2", "C2H6", "CH3COOH", "H2O", "C6H6")):
        atoms = ase.build.molecule(name)
        atoms.rattle(0.08, seed=k)
        found.append(atoms)
    return found


@pytest.fixture(scope="module")
def by_lbfgs() -> list:
    return torchmdx.relax(conformers(), fmax=0.005, dtype="float64", device="cpu", batch_atoms=24)


def test_molecules_reach_the_minima_of_ase(by_lbfgs):
    calculator = torchmdx.Calculator(dtype="float64", device="cpu")
    for atoms, one in zip(conformers(), by_lbfgs, strict=True):
        atoms.calc = calculator
        optimizer = LBFGS(atoms, logfile=None)
        assert optimizer.run(fmax=0.005, steps=300)
        assert one.converged
        assert one.atoms.get_potential_energy() == pytest.approx(atoms.get_potential_energy(), abs=5e-4)
        assert one.num_steps <= 1.3 * optimizer.nsteps + 5


@pytest.mark.nightly
def test_it_takes_fewer_steps_than_fire(by_lbfgs):
    fire = torchmdx.relax(conformers(), fmax=0.005, dtype="float64", device="cpu", optimizer="fire")
    assert all(one.converged for one in fire)
    assert 2 * sum(one.num_steps for one in by_lbfgs) < sum(one.num_steps for one in fire)


def test_a_batch_does_not_change_the_way_of_a_structure(by_lbfgs):
    for index in (0, 4):
        (alone,) = torchmdx.relax([conformers()[index]], fmax=0.005, dtype="float64", device="cpu")
        assert alone.num_steps == by_lbfgs[index].num_steps
        np.testing.assert_allclose(alone.atoms.positions, by_lbfgs[index].atoms.positions, atol=1e-6)


def test_unknown_optimizers_are_refused():
    with pytest.raises(ValueError, match="optimizer must be one of lbfgs, fire, got 'bfgs'"):
        torchmdx.relax(conformers(), optimizer="bfgs")
