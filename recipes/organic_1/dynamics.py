"""Molecular dynamics of twenty molecules that training never saw, in one OpenMM context; counts bonds that change.

python dynamics.py --checkpoint best.safetensors --output card/dynamics.json

With several GPUs, a part of the molecules on each, and one record of all:

CUDA_VISIBLE_DEVICES=0 python dynamics.py --part 1/2 --output first.json & (as many as there are GPUs)
python dynamics.py --join first.json second.json --output card/dynamics.json

Langevin at 300 K and 1/ps, steps of 1.6 fs with hydrogens of 3 amu, 625,000 of them: 1 ns of each molecule. The
molecules stand on a grid, far beyond the potential's cutoff of each other; a spring holds each one's centre, and leaves
its inner motion alone. Needs torchmdx, OpenMM and ASE; start structures are in dynamics_start.xyz.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openmm
import torch
from dynamics_molecules import HYDROGEN, Molecule, joined, part_of, read_molecules, weights_hash
from openmm import app, unit

import torchmdx
from torchmdx.checkpoints.save_load import located
from torchmdx.models.tensornet import TensorNetConfig
from torchmdx.openmm import add_potential
from torchmdx.structures.units import BOLTZMANN, KJ_PER_MOL

FRICTION = 1.0  # 1/ps
SPACING = 60.0  # Å between centres
CENTRE = 3.0  # Å, how far a centre goes from its place, root of the mean square of a coordinate
FINER = (40, 1)  # steps between checks, where a run has failed


class World:
    """The molecules that are still intact, in one context, on the sites of a grid."""

    def __init__(self, molecules: list[Molecule], args: argparse.Namespace) -> None:
        self.molecules = molecules
        ends = np.cumsum([len(m.numbers) for m in molecules])
        self.slices = [slice(int(e) - len(m.numbers), int(e)) for e, m in zip(ends, molecules, strict=True)]
        side = int(np.ceil(len(molecules) ** (1 / 3)))
        places = np.array([(k % side, k // side % side, k // side**2) for k in range(len(molecules))], float)
        self.places = SPACING * (places - places.mean(0))
        system, topology = self._system()
        self.forces = self._add_potential(system, topology, args)
        self._hold(system, args.temperature)
        integrator = openmm.LangevinMiddleIntegrator(args.temperature, FRICTION, args.timestep * 1e-3)
        integrator.setRandomNumberSeed(args.seed)
        platform = openmm.Platform.getPlatformByName("CUDA" if torch.cuda.is_available() else "CPU")
        settings = {"Precision": "mixed"} if platform.getName() == "CUDA" else {"Threads": "1"}
        self.context = openmm.Context(system, integrator, platform, settings)
        self.step = integrator.step

    def place(self, positions: list[np.ndarray], velocities: list[np.ndarray] | None, args: argparse.Namespace) -> None:
        """Positions Å about each molecule's own place; velocities nm/ps, None to draw them."""
        there = [x + place for x, place in zip(positions, self.places, strict=True)]
        self.context.setPositions(np.concatenate(there) / 10)
        if velocities is None:
            self.context.setVelocitiesToTemperature(args.temperature, args.seed)
        else:
            self.context.setVelocities(np.concatenate(velocities))

    def state(self) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Positions Å about each one's place, and velocities nm/ps."""
        state = self.context.getState(positions=True, velocities=True)
        positions = 10 * state.getPositions(asNumpy=True).value_in_unit(unit.nanometer)
        velocities = state.getVelocities(asNumpy=True).value_in_unit(unit.nanometer / unit.picosecond)
        apart = [positions[part] - place for part, place in zip(self.slices, self.places, strict=True)]
        return apart, [velocities[part] for part in self.slices]

    def _system(self) -> tuple[openmm.System, app.Topology]:
        system, topology = openmm.System(), app.Topology()
        for molecule in self.molecules:
            residue = topology.addResidue("MOL", topology.addChain())
            for number, mass in zip(molecule.numbers, molecule.masses, strict=True):
                system.addParticle(float(mass))
                element = app.Element.getByAtomicNumber(int(number))
                topology.addAtom(element.symbol, element, residue)
        return system, topology

    def _add_potential(self, system: openmm.System, topology: app.Topology, args: argparse.Namespace) -> list[Any]:
        """One force for all molecules of a charge: nothing else of a system, beyond the cutoff, reaches a TensorNet."""
        potential = torchmdx.load(args.checkpoint, dtype=torch.float32)
        if not isinstance(potential.config, TensorNetConfig):
            raise ValueError(f"the potential must be a TensorNet, got {type(potential.config).__name__}")
        # So two cations are one region of charge +1, whose electrons do not add up: nothing to be warned of.
        warnings.filterwarnings("ignore", message=".*closed shells.*")
        found = []
        for charge in sorted({m.charge for m in self.molecules}):
            parts = [s for s, m in zip(self.slices, self.molecules, strict=True) if m.charge == charge]
            atoms = [k for part in parts for k in range(part.start, part.stop)]
            found.append(
                add_potential(
                    system, topology, args.checkpoint, atoms, charge=charge, transport=args.transport, periodic=False
                )
            )
        return found

    def _hold(self, system: openmm.System, temperature: float) -> None:
        spring = openmm.CustomCentroidBondForce(1, "0.5*k*((x1-x0)^2+(y1-y0)^2+(z1-z0)^2)")
        spring.addGlobalParameter("k", BOLTZMANN * temperature / KJ_PER_MOL / (CENTRE / 10) ** 2)
        for name in ("x0", "y0", "z0"):
            spring.addPerBondParameter(name)
        for part, place in zip(self.slices, self.places, strict=True):
            group = spring.addGroup(range(part.start, part.stop))
            spring.addBond([group], place / 10)
        system.addForce(spring)


class Run:
    """Continues with the intact molecules, whatever happens to the others."""

    def __init__(self, molecules: list[Molecule], args: argparse.Namespace) -> None:
        self.args = args
        self.world = World(molecules, args)
        self.world.place([m.positions for m in molecules], None, args)
        self.done, self.seconds, self.timed = 0, 0.0, 0
        self.kept = self.world.state()

    def to_end(self, keep: Callable[[], None]) -> None:
        """All steps, with regular checks. keep: called from time to time, for a record of interrupted runs."""
        warm = False
        while self.done < self.args.steps and self.world.molecules:
            number = min(self.args.check_every, self.args.steps - self.done)
            began = time.perf_counter()
            whole = self._advance(number)
            if whole and warm:  # the first stretch includes compilation and capture
                self.seconds += time.perf_counter() - began
                self.timed += number
            warm = whole
            if self.done % (20 * self.args.check_every) == 0:
                print(f"{self._ps():8.1f} ps, {len(self.world.molecules)} molecules whole", flush=True)
                keep()

    def _advance(self, number: int) -> bool:
        """Runs this number of steps and checks. False if a molecule was lost."""
        try:
            self.world.step(number)
            state = self.world.state()
            if not all(np.isfinite(x).all() for x in state[0]):
                raise openmm.OpenMMException("positions are not finite")
        except openmm.OpenMMException as error:
            self._search(number, str(error))
            return False
        self.done += number
        return self._accept(state)

    def _accept(self, state: tuple[list[np.ndarray], list[np.ndarray]]) -> bool:
        """Checks bonds, notes temperatures, and continues without the molecules that broke."""
        for molecule, positions, velocities in zip(self.world.molecules, *state, strict=True):
            fault = molecule.check(positions)
            if fault:
                self._lose(molecule, fault)
            twice = (molecule.masses[:, None] * velocities**2).sum()  # kJ/mol
            molecule.temperatures.append(float(twice * KJ_PER_MOL / BOLTZMANN / velocities.size))
        self.kept = state
        return self._drop()

    def _search(self, number: int, error: str) -> None:
        """After a failure since the last check: repeats that stretch with more checks, to find the molecule."""
        state = self.kept
        for stride in FINER:
            self._restart(self.world.molecules, state)
            try:
                for _ in range(0, number, stride):
                    self.world.step(stride)
                    self.done += stride
                    now = self.world.state()
                    if not self._accept(now):
                        return
                    state = now
                return
            except openmm.OpenMMException as again:
                error = str(again)
        speeds = [float(np.abs(v).max()) for v in state[1]]
        self._lose(self.world.molecules[int(np.argmax(speeds))], error.splitlines()[0][:200])
        self._drop()

    def _lose(self, molecule: Molecule, fault: str) -> None:
        molecule.fault, molecule.ended_ps = fault, self._ps()
        print(f"{self._ps():8.1f} ps: {molecule.name}: {fault}", flush=True)

    def _drop(self) -> bool:
        lost = [m.fault is not None for m in self.world.molecules]
        if any(lost):
            left = [k for k, gone in enumerate(lost) if not gone]
            self.kept = tuple([part[k] for k in left] for part in self.kept)  # type: ignore[assignment]
            self._restart([self.world.molecules[k] for k in left], self.kept)
        return not any(lost)

    def _restart(self, molecules: list[Molecule], state: tuple[list[np.ndarray], list[np.ndarray]]) -> None:
        self.args.seed += 1
        if molecules:
            self.world = World(molecules, self.args)
            self.world.place(*state, self.args)
        else:
            self.world.molecules = []

    def _ps(self) -> float:
        return self.done * self.args.timestep * 1e-3


def result(molecules: list[Molecule], run: Run, args: argparse.Namespace, seed: int) -> dict[str, Any]:
    """What is written."""
    days = run.seconds / 86400
    rows = [
        {
            "molecule": m.name,
            "charge": m.charge,
            "atoms": len(m.numbers),
            "broken": m.fault is not None,
            "fault": m.fault,
            "ended_ps": m.ended_ps,
            "reached_ps": run.done * args.timestep * 1e-3,
            "longest_bond": round(m.longest, 3),
            "temperature": float(np.mean(m.temperatures[len(m.temperatures) // 2 :])) if m.temperatures else None,
        }
        for m in molecules
    ]
    return {
        "weights": weights_hash(located(args.checkpoint)),
        "length_ps": args.steps * args.timestep * 1e-3,
        "reached_ps": run.done * args.timestep * 1e-3,
        "timestep_fs": args.timestep,
        "hydrogen_amu": HYDROGEN,
        "temperature": args.temperature,
        "check_every_ps": args.check_every * args.timestep * 1e-3,
        "seed": seed,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        "transport": run.world.forces[0].transport,
        "seconds": run.seconds,
        "ns_per_day": run.timed * args.timestep * 1e-6 / days if days else None,
        "atoms": sum(len(m.numbers) for m in molecules),
        "molecules": rows,
    }


def main() -> None:
    """Runs, and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = Path(__file__).parent
    parser.add_argument("--checkpoint", default="organic-1", help="a path or a name")
    parser.add_argument("--start", type=Path, default=here / "dynamics_start.xyz")
    parser.add_argument("--output", type=Path, default=here / "card" / "dynamics.json")
    parser.add_argument("--steps", type=int, default=625_000)
    parser.add_argument("--check-every", type=int, default=3125, help="steps")
    parser.add_argument("--timestep", type=float, default=1.6, help="fs")
    parser.add_argument("--temperature", type=float, default=300.0, help="K")
    parser.add_argument("--transport", default="auto")
    parser.add_argument("--seed", type=int, default=20264)
    parser.add_argument("--part", default="1/1", help="K/N: this part of the molecules")
    parser.add_argument("--join", type=Path, nargs="+", help="records of all parts: writes one of them, runs nothing")
    args = parser.parse_args()
    args.output.parent.mkdir(parents=True, exist_ok=True)
    if args.join:
        names = [molecule.name for molecule in read_molecules(args.start)]
        record = joined([json.loads(path.read_text()) for path in args.join], names)
        args.output.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
        return
    molecules, seed = part_of(read_molecules(args.start), args.part), args.seed
    run = Run(molecules, args)

    def keep() -> None:
        found = result(molecules, run, args, seed)
        args.output.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")

    run.to_end(keep)
    keep()
    found = result(molecules, run, args, seed)
    broken = sum(row["broken"] for row in found["molecules"])
    print(f"{found['reached_ps']:.1f} ps; {broken} of {len(molecules)} molecules changed; {found['ns_per_day']} ns/day")


if __name__ == "__main__":
    main()
