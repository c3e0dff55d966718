import numpy as np
import pytest
from ase import Atoms, units
from ase.build import bulk

from torchmdx.report.view.observables import (
    density_profile,
    diffusion,
    observables,
    pair_distribution,
    spectrum,
    unwrapped,
)
from torchmdx.report.view.read import of_structures

EVERYWHERE = np.ones(3, dtype=bool)


def test_pairs_of_an_ideal_gas_and_of_a_crystal():
    rng = np.random.default_rng(0)
    cells = np.broadcast_to(np.diag([20.0, 21, 22]), (20, 3, 3))
    gas = rng.random((20, 300, 3)) @ cells
    numbers = np.array([18] * 200 + [10] * 100)
    lines = {line.name: line for line in pair_distribution(numbers, gas, cells).lines}
    assert set(lines) == {"Ar-Ar", "Ar-Ne", "Ne-Ne"}
    for line in lines.values():
        far = line.x > 4
        assert line.y[far].mean() == pytest.approx(1, abs=0.05)
    copper = bulk("Cu", cubic=True) * (4, 4, 4)
    found = pair_distribution(copper.numbers, copper.positions[None], copper.cell.array[None]).lines[0]
    neighbours = found.y * 4 * np.pi * found.x**2 * (found.x[1] - found.x[0]) * len(copper) / copper.get_volume()
    assert neighbours[found.x < 3].sum() == pytest.approx(12, rel=0.02)
    assert found.x[found.y.argmax()] == pytest.approx(3.61 / np.sqrt(2), abs=0.03)


@pytest.mark.nightly
def test_a_random_walk_diffuses_through_the_faces():
    rng = np.random.default_rng(1)
    step, deviation = 0.5, 0.3  # ps, Å
    walk = np.cumsum(rng.normal(scale=deviation, size=(400, 300, 3)), axis=0)
    cells = np.broadcast_to(np.diag([8.0, 9, 10]), (400, 3, 3))
    wrapped = walk - np.floor(walk / [8, 9, 10]) * [8, 9, 10]
    whole = unwrapped(wrapped, cells, EVERYWHERE)
    assert np.diff(whole, axis=0) == pytest.approx(np.diff(walk, axis=0))
    found = diffusion(np.full(300, 18), whole, step, np.eye(3))
    slope = 3 * deviation**2 / step * (1 - 1 / 300)
    assert found.lines[0].y == pytest.approx(slope * found.lines[0].x, rel=0.1)
    coefficient = float(found.title.split("Ar ")[1].split(" cm²/s")[0])
    assert coefficient == pytest.approx(slope / 6 * 1e-4, rel=0.1)


def test_atoms_of_a_slab_diffuse_in_its_plane():
    rng = np.random.default_rng(2)
    steps = rng.normal(scale=0.3, size=(400, 300, 3)) * [1, 1, 0]
    upright = np.cumsum(steps, axis=0) + rng.normal(scale=3.0, size=(400, 300, 3)) * [0, 0, 1]
    vectors = np.array([[8.0, 0, 0], [4, 7, 0]])
    turn = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    found = diffusion(np.full(300, 18), upright @ turn, 0.5, vectors @ turn)
    coefficient = float(found.title.split("Ar ")[1].split(" cm²/s")[0])
    assert coefficient == pytest.approx(0.3**2 / 0.5 / 2 * 1e-4, rel=0.1)
    assert found.title.startswith("mean square displacement in the periodic plane / Å²")


def test_a_cell_that_breathes_moves_no_atoms():
    rng = np.random.default_rng(3)
    cells = np.diag([8.0, 9, 10]) * (1 + 0.05 * np.sin(np.arange(50)))[:, None, None]
    fractional = rng.random((1, 20, 3)) + rng.integers(-1, 2, (50, 20, 3))
    whole = unwrapped(fractional @ cells, cells, EVERYWHERE)
    assert np.ptp(whole, axis=0) == pytest.approx(0, abs=1e-9)


def test_the_spectrum_of_an_oscillator():
    step, wavenumber = 0.001, 1500.0  # ps, 1/cm
    times = np.arange(2000) * step
    velocities = np.sin(2 * np.pi * wavenumber / 33.35641 * times)[:, None, None] * np.ones((1, 2, 3))
    found = spectrum(np.array([6, 1]), velocities, step).lines[0]
    assert found.x[found.y.argmax()] == pytest.approx(wavenumber, abs=20)
    assert found.y.max() == 1
    assert found.x.max() <= 4500


def test_the_density_of_a_slab():
    slab = bulk("Cu", cubic=True) * (2, 2, 4)
    thickness = slab.cell[2, 2]
    density = slab.get_masses().sum() * units._amu / slab.get_volume() * 1e27  # g/cm³
    slab.center(vacuum=thickness / 2, axis=2)
    slab.pbc = [True, True, False]
    rng = np.random.default_rng(0)
    positions = slab.positions + rng.normal(scale=0.3, size=(50, len(slab), 3))
    cells = np.broadcast_to(slab.cell.array, (50, 3, 3))
    for lifted in (0.0, thickness):  # the second one is outside of the cell in part
        found = density_profile(slab.numbers, positions + np.array([0, 0, lifted]), cells, slab.pbc)
        assert found.axis == "height along c / Å"
        (line,) = found.lines
        assert np.trapezoid(line.y, line.x) == pytest.approx(density * thickness, rel=0.02)
        middle = np.abs(line.x - slab.cell[2, 2] / 2 - lifted) < thickness / 4
        assert line.y[middle].mean() == pytest.approx(density, rel=0.1)


def test_which_frames_have_which():
    frames = []
    for k in range(25):
        atoms = bulk("Cu", cubic=True) * (2, 2, 2)
        atoms.rattle(0.1, seed=k)
        frames.append(atoms)
    assert observables(of_structures(frames, title="no times")) == []
    timed = observables(of_structures(frames, title="MD", frame_time=10.0))
    assert [one.title.split(";")[0] for one in timed] == [
        "pair distribution g(r)", "density profile / g/cm³", "mean square displacement / Å²",
    ]  # fmt: skip
    assert len(observables(of_structures(frames, title="MD", frame_time=1.0))) == 4  # and a spectrum
    ending = of_structures(frames, title="every fourth and the last", frame_time=1.0)
    ending.x[-1] -= 0.0007
    assert len(observables(ending)) == 4
    ending.x[5] -= 0.0007
    assert len(observables(ending)) == 2
    for atoms in frames:
        atoms.set_velocities(np.ones((len(atoms), 3)))
    assert len(observables(of_structures(frames, title="MD", frame_time=10.0))) == 3  # vibrations are faster
    for atoms in frames:
        atoms.pbc = False
    alone = observables(of_structures(frames, title="a cluster", frame_time=2.0))
    assert [one.title for one in alone] == ["spectrum of velocities"]
    assert observables(of_structures(frames[:5], title="MD", frame_time=10.0)) == []
    assert observables(of_structures([*frames, Atoms("Cu")], title="mixed", frame_time=10.0)) == []
