"""Calculators with faults for the tests of labelling; worker processes import them by name.

Atom 0 of frame k stands at x = k, which tells these calculators which frame they have.
"""

import os
import signal
import time
from pathlib import Path

import ase.io
import numpy as np
from ase import Atoms
from ase.calculators.calculator import Calculator, FileIOCalculator, all_changes

STIFFNESS = 2.0  # eV/Å²


class Springs(Calculator):
    """Each atom on a spring to the origin; can fail, crash, hang, end or talk at given frames.

    log: a file that gets a line for every evaluation begun. once: a folder; faults happen once for each frame only.
    """

    implemented_properties = ["energy", "forces"]

    def __init__(self, log=None, once=None, delay=0.0, nan=(), fail=(), crash=(), kill=(), leave=(), hang=(), talk=()):
        super().__init__()
        self.log, self.once, self.delay = log, once, delay
        self.faults = {
            "nan": nan,
            "fail": fail,
            "crash": crash,
            "kill": kill,
            "leave": leave,
            "hang": hang,
            "talk": talk,
        }

    def calculate(self, atoms=None, properties=("energy",), system_changes=all_changes):
        super().calculate(atoms, properties, system_changes)
        number = round(atoms.positions[0, 0])
        if self.log:
            with open(self.log, "a") as file:
                file.write(f"{number} {os.getpid()} {os.environ['OMP_NUM_THREADS']}\n")
        time.sleep(self.delay)
        for fault, frames in self.faults.items():
            if number in frames and self._first_time(number):
                getattr(self, f"_{fault}")()
        self.results = {
            "energy": STIFFNESS / 2 * float((atoms.positions**2).sum()) + atoms.info["charge"],
            "forces": -STIFFNESS * atoms.positions,
        }
        if number in self.faults["nan"]:
            self.results["forces"] = self.results["forces"] * np.nan

    def _first_time(self, number) -> bool:
        if self.once is None:
            return True
        try:
            Path(self.once, str(number)).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def _nan(self):
        pass

    def _fail(self):
        raise RuntimeError("SCF not\nconverged")

    def _crash(self):
        os._exit(3)

    def _kill(self):
        os.kill(os.getpid(), signal.SIGSEGV)

    def _leave(self):
        raise SystemExit("the licence server is down")

    def _hang(self):
        time.sleep(1000)

    def _talk(self):
        os.write(2, b"words of a library\n")


class Bonds(Calculator):
    """A spring of 1.5 Å between any two atoms; forces by differences of `energy_of_bonds`."""

    implemented_properties = ["energy", "forces"]

    def calculate(self, atoms=None, properties=("energy",), system_changes=all_changes):
        super().calculate(atoms, properties, system_changes)
        forces, step = np.zeros((len(atoms), 3)), 1e-4
        for index in np.ndindex(forces.shape):
            for sign in (1, -1):
                moved = atoms.positions.copy()
                moved[index] += sign * step
                forces[index] -= sign * energy_of_bonds(moved) / (2 * step)
        self.results = {"energy": energy_of_bonds(atoms.positions), "forces": forces}


class Files(FileIOCalculator):
    """The springs of `Springs`, by a program that reads and writes files of one name in its directory, slowly."""

    implemented_properties = ["energy", "forces"]

    def __init__(self, **options):
        super().__init__(command="true", label="springs", **options)

    def calculate(self, atoms=None, properties=("energy",), system_changes=all_changes):
        self.atoms = atoms.copy()
        written, read = (Path(self.directory, f"springs.{ending}") for ending in ("in", "out"))
        np.savetxt(written, atoms.positions, fmt="%.17g")
        time.sleep(0.02)
        np.savetxt(read, [float((np.loadtxt(written) ** 2).sum())], fmt="%.17g")
        time.sleep(0.02)
        energy = STIFFNESS / 2 * float(np.loadtxt(read))
        self.results = {"energy": energy, "forces": -STIFFNESS * np.loadtxt(written)}


def energy_of_bonds(positions) -> float:
    distances = [np.linalg.norm(a - b) for k, a in enumerate(positions) for b in positions[:k]]
    return float(sum(10.0 * (distance - 1.5) ** 2 for distance in distances))


def not_made():
    raise RuntimeError("no parameters here")


def dies():
    os._exit(9)


def frames(count, num_atoms=3) -> list[Atoms]:
    rng = np.random.default_rng(5)
    found = []
    for number in range(count):
        positions = rng.normal(size=(num_atoms, 3))
        positions[0, 0] = number
        found.append(Atoms("CHO"[:num_atoms], positions))
    return found


def write_frames(path, count, **options) -> list[Atoms]:
    made = frames(count, **options)
    ase.io.write(path, made, format="extxyz")
    return ase.io.read(path, ":")  # as the file has them, rounded


def assert_labelled(path, wanted) -> None:
    """A file holds the frames, in order and with the labels of Springs, and nothing else."""
    found = ase.io.read(path, ":")
    assert len(found) == len(wanted)
    for atoms, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(atoms.positions, other.positions, atol=1e-8)
        np.testing.assert_allclose(atoms.get_forces(), -STIFFNESS * other.positions, atol=1e-7)
        energy = STIFFNESS / 2 * (other.positions**2).sum() + other.info.get("charge", 0)
        assert abs(atoms.get_potential_energy() - energy) < 1e-9


def slice_of(index):
    """What NumPy takes for ASE's index, always as a slice."""
    if ":" in index:
        return slice(*(int(part) if part else None for part in index.split(":")))
    start = int(index)
    return slice(start, start + 1 or None)
