"""Five molecules of water, and what stores of their files must hold."""

import numpy as np
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator

from torchmdx.datasets.conversion import convert
from torchmdx.datasets.store import Store

HARTREE, BOHR, KCAL = 27.211386245981, 0.529177210544, 4.184 / 96.48533212331
GPA = 1 / 160.2176634
NUMBERS = np.array([8, 1, 1])
WATER = np.array([[0.0, 0, 0], [0.76, 0.59, 0], [-0.76, 0.59, 0]])


def opened(tmp_path, *files, **options) -> Store:
    lines: list[str] = []
    convert(files, tmp_path / "out", log=lines.append, **options)
    return Store.open(tmp_path / "out")


def same(store, water, atol=0.0) -> None:
    positions, energy, forces = water
    frames = store.gather(np.arange(len(store)))
    assert frames.counts.tolist() == [3] * 5
    assert frames.atomic_numbers.tolist() == [8, 1, 1] * 5
    np.testing.assert_allclose(frames.positions, positions.reshape(-1, 3), rtol=1e-9, atol=atol)
    np.testing.assert_allclose(frames.energy, energy, rtol=1e-9)
    np.testing.assert_allclose(frames.forces, forces.reshape(-1, 3), rtol=2e-6, atol=1e-7)
    assert not frames.has_stress.any()
    assert [store.origin(k)[1] for k in range(5)] == list(range(5))


def structures(water, scale_energy=1.0, scale_length=1.0, named=False) -> list[Atoms]:
    found = []
    for positions, energy, forces in zip(*water, strict=True):
        atoms = Atoms(NUMBERS, positions * scale_length)
        energy, forces = energy * scale_energy, forces * scale_energy / scale_length
        if named:
            atoms.info["REF_energy"] = energy
            atoms.set_array("REF_forces", forces)
        else:
            atoms.calc = SinglePointCalculator(atoms, energy=energy, forces=forces)
        found.append(atoms)
    return found
