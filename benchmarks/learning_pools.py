"""Pools of labelled frames to choose from, and test frames, for benchmarks/learning_pool.py."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import ase
from ase.build import molecule
from ase.calculators.calculator import Calculator as AseCalculator
from ase.calculators.emt import EMT
from ase.io import write

from benchmarks.learning_cases import FREE_ROOM, SHARES, Sampled, alloy, organic, slab

COMMON = ("C3H8", "CH3CH2OH", "C6H6", "CH3OCH3")
OTHERS = (
    "CH3CHO", "CH3CN", "CH3COOH", "CH3CONH2", "CH3CH2NH2", "HCOOCH3", "C4H4O", "C4H4NH", "CH3SH", "CH3SCH3", "C2H6SO",
    "CH3CH2SH", "C4H4S", "CH2NHCH2", "CH3NO2", "C5H5N", "OCHCHO", "CH2OCH2", "CH3COCH3", "H2CCHCN",
)  # fmt: skip
OF_TESTS = 700  # added to seeds


@dataclass(frozen=True)
class Part:
    """Trajectories of one kind of structure.

    Attributes:
        structures: Given a seed, which differs between the pool and the test frames.
        frames: Of each trajectory, by case; of a longer one frames at equal distances are taken.
        tests: Frames of each trajectory in the test set.
    """

    structures: Callable[[int], list[ase.Atoms]]
    calculator: Callable[[], AseCalculator]
    temperatures: tuple[float, ...]
    timestep: float
    frames: dict[str, int]
    tests: int
    melt: float | None = None
    equilibration: int = 600
    every: int = 25

    def jobs(self, name: str, seed: int) -> list[tuple[Sampled, ase.Atoms, float, int, str]]:
        """All trajectories, of the pool (seed 0) or of the tests."""
        frames = self.tests if seed else max(self.frames.values())
        sampled = Sampled(
            list, self.calculator, self.temperatures, self.timestep, self.melt, self.equilibration, self.every, frames
        )
        made = enumerate(self.structures(seed))
        return [(sampled, atoms, kelvin, seed + k, name) for k, atoms in made for kelvin in self.temperatures]


def _solids(seed: int) -> list[ase.Atoms]:
    return [alloy(share, seed + 10 + k, room) for k, share in enumerate(SHARES) for room in (1.0, 1.015)]


def _surfaces(seed: int) -> list[ase.Atoms]:
    return [slab(share, seed + 20 + k) for k, share in enumerate(SHARES)]


def _melts(seed: int) -> list[ase.Atoms]:
    return [alloy(share, seed + 30 + k, FREE_ROOM) for k, share in enumerate(SHARES)]


def _common(seed: int) -> list[ase.Atoms]:
    return [molecule(name) for name in COMMON]


def _others(seed: int) -> list[ase.Atoms]:
    return [molecule(name) for name in OTHERS]


RARE, EVEN = "rare", "even"
# rare: eight tenths of the frames are of one kind; even: all kinds have as many. The test frames are the same.
PARTS: dict[str, dict[str, Part]] = {
    "alloy": {
        "solid": Part(_solids, EMT, (300.0, 900.0), 2.0, {RARE: 100, EVEN: 42}, 8),
        "surface": Part(_surfaces, EMT, (300.0, 900.0), 2.0, {RARE: 25, EVEN: 84}, 16),
        "melt": Part(_melts, EMT, (1600.0, 2000.0), 2.0, {RARE: 25, EVEN: 84}, 16, melt=4000.0, equilibration=2000),
    },
    "molecules": {
        "common": Part(_common, organic, (300.0, 800.0), 0.5, {RARE: 100, EVEN: 20}, 6, every=40),
        "others": Part(_others, organic, (300.0, 800.0), 0.5, {RARE: 5, EVEN: 20}, 6, every=40),
    },
}


def pool_file(folder: Path, system: str, kind: str) -> Path:
    """Of a pool; its frames have info["set"], and info["start"], the structure that dynamics began with."""
    return folder / f"{system}-{kind}.pool.extxyz"


def test_file(folder: Path, system: str) -> Path:
    """Of the test frames, for all pools of the same kind of system."""
    return folder / f"{system}.test.extxyz"


def _frames(job: tuple[Sampled, ase.Atoms, float, int, str], share: float) -> list[ase.Atoms]:
    import torch

    torch.set_num_threads(1)
    sampled, atoms, kelvin, seed, name = job
    steps, every = (max(1, int(share * one)) for one in (sampled.equilibration, sampled.every))
    found = sampled.trajectory(atoms, kelvin, seed, steps, every)
    for frame in found:
        frame.info |= {"set": name, "start": f"{name} {seed}"}
    return found


def write_pools(folder: Path, systems: list[str], workers: int, share: float = 1.0) -> None:
    """Runs all trajectories, and writes what is not there. share: of the steps, for a trial."""
    jobs = {}
    for system in systems:
        if test_file(folder, system).exists():
            continue
        for seed in (0, OF_TESTS):
            for name, part in PARTS[system].items():
                for number, job in enumerate(part.jobs(name, seed)):
                    jobs[system, seed, name, number] = job
    longest = sorted(jobs, key=lambda key: -jobs[key][0].frames * jobs[key][0].every)
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        made = {key: pool.submit(_frames, jobs[key], share) for key in longest}
        results = {key: made[key].result() for key in jobs}
    for system in {key[0] for key in results}:
        own = {key: frames for key, frames in results.items() if key[0] == system}
        for kind in (RARE, EVEN):
            found = []
            for (_, seed, name, _), frames in own.items():
                if not seed:
                    count = PARTS[system][name].frames[kind]
                    found += frames[:: max(1, len(frames) // count)][:count]
            write(pool_file(folder, system, kind), found, format="extxyz")
        tests = [frame for key, frames in own.items() if key[1] for frame in frames]
        write(test_file(folder, system), tests, format="extxyz")


if __name__ == "__main__":
    import sys

    write_pools(Path(sys.argv[1]), sys.argv[2].split(","), int(sys.argv[3]), float(sys.argv[4]))
