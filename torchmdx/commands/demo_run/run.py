"""`torchmdx demo`: molecular dynamics for a given wall-clock time, and plots of it."""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from torchmdx.checkpoints.potentials import DEFAULT_POTENTIAL
from torchmdx.checkpoints.save_load import load_one
from torchmdx.commands.demo_run.molecule import DemoMolecule
from torchmdx.commands.demo_run.pictures import PHI, PSI, draw_ramachandran
from torchmdx.dynamics.dynamics import Dynamics
from torchmdx.dynamics.integrators import Langevin
from torchmdx.dynamics.log import Log, LogRow, columns_of, read_log
from torchmdx.dynamics.relaxation.run import relax
from torchmdx.dynamics.run.outputs import MOST_TEMPERATURE
from torchmdx.dynamics.run.plot import plot_log
from torchmdx.dynamics.run.progress import SimulationProgress, ns_per_day
from torchmdx.dynamics.run.recorded import rows_of
from torchmdx.dynamics.run.recording import Unstable
from torchmdx.dynamics.snapshot import Snapshot
from torchmdx.dynamics.trajectory import Trajectory, TrajectoryFrame, read_frames
from torchmdx.evaluation.derivatives import evaluate
from torchmdx.models.potential import Potential
from torchmdx.report.view.run_page import write_run_page
from torchmdx.report.view.torsions import torsion
from torchmdx.runtime.devices import choose_device
from torchmdx.runtime.interrupt import Interrupts
from torchmdx.runtime.wording import number
from torchmdx.structures.system import System
from torchmdx.structures.units import PICOSECOND

# Hydrogens of 3 amu vibrate with periods of at least 16 fs; with a thermostat, an eighth of that is a safe timestep.
HYDROGEN, TIMESTEP = 3.0, 2.0
FRICTION, EQUILIBRATION_FRICTION = 1.0, 10.0  # 1/ps; the second heats faster
EQUILIBRATION = 500  # steps, so that a seed gives the same run whatever its speed; the second half measures that
ROUGH, MOST_MINIMIZATION_STEPS = 0.1, 100  # eV/Å: where the minimization before it ends
STEPS_A_FRAME, MOST_FRAMES, FRAMES_A_ROW = 10, 10_000, 5
ENDLESS = 10**12  # steps
NAME = "alanine_dipeptide"

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Run:
    """The molecule, its potential and the settings. title: of pictures."""

    options: argparse.Namespace
    molecule: DemoMolecule
    potential: Potential
    folder: Path

    @property
    def title(self) -> str:
        return f"alanine dipeptide, {self.options.temperature:g} K"

    def path(self, ending: str) -> Path:
        return self.folder / f"{NAME}{ending}"


def run(options: argparse.Namespace) -> int:
    """Runs the demo of the command line; returns the exit status."""
    if not options.seconds > 0:
        raise ValueError(f"--seconds must be > 0, got {options.seconds}")
    if not options.temperature > 0:
        raise ValueError(f"--temperature must be > 0 K, got {options.temperature}")
    if options.seed < 0:
        raise ValueError(f"--seed must be >= 0, got {options.seed}")
    device = choose_device(options.device, "--device")
    treatment = {name: getattr(options, name) for name in ("coulomb_cutoff", "coulomb", "coulomb_accuracy")}
    potential = load_one(options.model, dtype=torch.float32, device=device, **treatment)
    folder = Path(options.output)
    folder.mkdir(parents=True, exist_ok=True)
    demo = Run(options, DemoMolecule(folder / f"{NAME}.start.pdb"), potential, folder)
    print(_introduction(demo))
    with Interrupts() as interrupts:
        dynamics, rate = _equilibrated(demo)
        last = _record(demo, dynamics, rate, interrupts)
    _report(demo, last)
    return interrupts.status


def _introduction(demo: Run) -> str:
    options, atoms, card = demo.options, demo.molecule.atoms, demo.potential.card
    name = card.name or Path(options.model or DEFAULT_POTENTIAL).name
    return "\n".join(
        [
            f"alanine dipeptide, {atoms.get_chemical_formula()}, {len(atoms)} atoms, in vacuum at "
            f"{options.temperature:g} K",
            f"potential: {': '.join(filter(None, (name, card.description)))}",
            f"torchmdx.Dynamics on {demo.potential.device}: Langevin thermostat, timestep {TIMESTEP:g} fs with "
            f"hydrogens of {HYDROGEN:g} amu",
        ]
    )


def _equilibrated(demo: Run) -> tuple[Dynamics, float]:
    """Minimizes and equilibrates; returns the dynamics at its step 0, and steps per second."""
    potential, system = demo.potential, System.from_ase(demo.molecule.atoms)
    for doubt in potential.doubts(system.atomic_numbers.tolist(), system.charge, False):
        warnings.warn(doubt, stacklevel=2)
    (found,) = relax(
        [demo.molecule.atoms], potential, fmax=ROUGH, steps=MOST_MINIMIZATION_STEPS, device=potential.device
    )
    relaxed = System.from_ase(found.atoms)
    before, after = (float(evaluate(potential, one).energy) for one in (system, relaxed))
    print(f"minimized: {before:.4f} -> {after:.4f} eV; equilibrating for {EQUILIBRATION * TIMESTEP / PICOSECOND:g} ps")
    first_seed, second_seed = np.random.SeedSequence(demo.options.seed).generate_state(2).tolist()
    common = dict(timestep=TIMESTEP, temperature=demo.options.temperature, steps_per_replay=STEPS_A_FRAME)
    heating = Dynamics(
        potential, relaxed,
        integrator=Langevin(EQUILIBRATION_FRICTION), seed=first_seed, hydrogen_mass=HYDROGEN, **common,
    )  # fmt: skip
    heating.run(EQUILIBRATION // 2)  # compiles and captures
    start = time.perf_counter()
    state = heating.run(EQUILIBRATION - EQUILIBRATION // 2)
    rate = (EQUILIBRATION - EQUILIBRATION // 2) / (time.perf_counter() - start)
    _require_stable(_row(state))
    print(f"{rate:.0f} steps/s, {number(ns_per_day(rate, TIMESTEP))} ns/day")
    warm = System.create(state.positions, demo.molecule.atoms.numbers)
    masses = heating.motion.particles.masses
    dynamics = Dynamics(
        potential, warm,
        integrator=Langevin(FRICTION), seed=second_seed, masses=masses, velocities=state.velocities, **common,
    )  # fmt: skip
    return dynamics, rate


def _record(demo: Run, dynamics: Dynamics, rate: float, interrupts: Interrupts) -> Snapshot:
    """Runs until the time is over or a signal comes, and writes files; returns the last state.

    Args:
        rate: Steps per second, about. Other programs can make a machine faster or slower in between.
    """
    seconds = demo.options.seconds
    steps = max(1, round(rate * seconds / STEPS_A_FRAME)) * STEPS_A_FRAME
    every = STEPS_A_FRAME * -(-steps // (STEPS_A_FRAME * MOST_FRAMES))
    last = dynamics.snapshot()
    row, centre = _row(last), _centre(last)
    trajectory = Trajectory.create(demo.path(".dcd"), len(last.positions), every, False, TIMESTEP)
    log = Log.create(demo.path(".log"), columns_of(periodic=False, ensemble=False))
    progress = SimulationProgress(sys.stderr, 0, steps, TIMESTEP)
    start = clock = time.perf_counter()
    try:
        log.write(row)
        trajectory.append(TrajectoryFrame(last.positions, None))
        for last in dynamics.snapshots(ENDLESS, every):
            trajectory.append(TrajectoryFrame(last.positions - _centre(last) + centre, None))
            now = time.perf_counter()
            if last.step // every % FRAMES_A_ROW == 0:
                speed = ns_per_day(FRAMES_A_ROW * every / (now - clock), TIMESTEP)
                row, clock = _row(last, speed), now
                _require_stable(row)
                log.write(row)
            over = now - start >= seconds
            progress.expect(max(last.step, round(last.step * seconds / max(now - start, 1e-9))))
            progress.update(last.step, row, last=over)
            if over or interrupts.received is not None:
                break
    finally:
        progress.finish()
        log.close()
        trajectory.close()
    return last


def _row(state: Snapshot, speed: float | None = None) -> LogRow:
    (row,) = rows_of(state, [False], exchange=False)
    return row if speed is None else row.with_speed(speed)


def _centre(state: Snapshot) -> Floats:
    """The centre of mass [3] Å. The thermostat lets it diffuse, which trajectories leave out."""
    found: Floats = np.average(state.positions, axis=0, weights=state.particles.masses)
    return found


def _require_stable(row: LogRow) -> None:
    if not row.temperature < MOST_TEMPERATURE:
        raise Unstable(
            f"step {row.step}: the run is unstable: it has a temperature of {row.temperature:.3g} K; another --model "
            "or a lower --temperature may help"
        )


def _report(demo: Run, last: Snapshot) -> None:
    """Writes plots and the final structure, and prints a list of the files."""
    molecule, temperature = demo.molecule, demo.options.temperature
    trajectory, log, page = demo.path(".dcd"), demo.path(".log"), demo.path(".html")
    frames = read_frames(trajectory, len(molecule.atoms))
    molecule.write(demo.path(".final.pdb"), frames[-1])
    energies, picture = demo.folder / "energy.png", demo.folder / "ramachandran.png"
    plot_log(log, energies, demo.title, temperature)
    phi, psi = (torsion(frames, molecule.atoms_named(names)) for names in (PHI, PSI))
    length = last.time / PICOSECOND
    draw_ramachandran(picture, phi, psi, length, f"{demo.title}, {length:.3g} ps in vacuum")
    paged = write_run_page(
        page, trajectory, molecule.atoms.numbers,
        title=demo.title, labels=molecule.labels(), log=log, temperature=temperature,
    )  # fmt: skip
    rows = read_log(log)
    speed = rows["ns_per_day"][np.isfinite(rows["ns_per_day"])]
    fast = f" at {number(float(np.median(speed)))} ns/day" if len(speed) else ""
    print(f"{length:.4g} ps{fast}, mean temperature {rows['temperature_K'].mean():.0f} K, {len(frames)} frames")
    written = {
        demo.path(".start.pdb"): "initial structure, to open with the trajectory",
        trajectory: "trajectory",
        demo.path(".final.pdb"): "final structure",
        log: "energies, temperature and speed, as CSV",
        energies: "plot of the log",
        picture: "density of the angles φ and ψ, and the path",
    }
    if paged:
        written[page] = "interactive page of all of these, for a browser"
    width = max(len(str(path)) for path in written)
    print("wrote", *(f"  {path!s:<{width}}  {what}" for path, what in written.items()), sep="\n")
