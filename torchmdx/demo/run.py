"""`torchmdx demo`: molecular dynamics for a given wall-clock time, and plots of it."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from importlib.resources import files as package_files
from pathlib import Path

import numpy as np
import openmm

from torchmdx.checkpoints.locate import locate
from torchmdx.checkpoints.save_load import load_one
from torchmdx.demo.pictures import draw_ramachandran
from torchmdx.demo.torsions import PHI, PSI
from torchmdx.dynamics.log import Log, read_log
from torchmdx.dynamics.trajectory import Trajectory, read_frames
from torchmdx.md.plot import plot_log
from torchmdx.md.progress import SimulationProgress, ns_per_day
from torchmdx.md.settings import Dynamics, PotentialSettings
from torchmdx.md.simulation import Simulation
from torchmdx.md.structure import Structure, read, with_heavy_hydrogens, write_structure
from torchmdx.potentials import DEFAULT_POTENTIAL
from torchmdx.runtime.interrupt import Interrupts
from torchmdx.units import PICOSECOND
from torchmdx.view.run_page import write_run_page
from torchmdx.view.torsions import torsion
from torchmdx.wording import number

STRUCTURE = "alanine_dipeptide.pdb"
# Hydrogens of 3 amu vibrate with periods of at least 16 fs; with a thermostat, an eighth of that is a safe timestep.
HYDROGEN, TIMESTEP = 3.0, 2.0
FRICTION, EQUILIBRATION_FRICTION = 1.0, 10.0  # 1/ps
EQUILIBRATION = 0.1  # fraction of the time for equilibration; its second half measures the speed
STEPS_A_FRAME, MOST_FRAMES, FRAMES_A_ROW = 10, 10_000, 5
NAME = "alanine_dipeptide"


def run(options: argparse.Namespace) -> int:
    """Runs the demo of the command line; returns the exit status."""
    if not options.seconds > 0:
        raise ValueError(f"--seconds must be > 0, got {options.seconds}")
    if not options.temperature > 0:
        raise ValueError(f"--temperature must be > 0 K, got {options.temperature}")
    folder = Path(options.output)
    folder.mkdir(parents=True, exist_ok=True)
    started = folder / f"{NAME}.start.pdb"
    with package_files("torchmdx.demo").joinpath(STRUCTURE).open("rb") as source, started.open("wb") as target:
        shutil.copyfileobj(source, target)
    structure = with_heavy_hydrogens(read(str(started)), HYDROGEN)
    simulation = _simulation(structure, options)
    print(_introduction(options, structure, simulation))
    with Interrupts() as interrupts:
        steps = _equilibrate(simulation, options.seconds)
        log = _integrate(simulation, folder, steps, (1 - EQUILIBRATION) * options.seconds, interrupts)
    _report(options, simulation, folder, started, log)
    return interrupts.status


def _simulation(structure: Structure, options: argparse.Namespace) -> Simulation:
    dynamics = Dynamics(
        ensemble="nvt", timestep=TIMESTEP, num_steps=0, temperature=options.temperature, friction=FRICTION,
        pressure=None, barostat=None, seed=options.seed,
    )  # fmt: skip
    potential_settings = PotentialSettings(
        models=(locate(options.model),), precision="float32", transport="auto", device=options.device, platform=None,
        skin=0.0, audit_every=0, max_force_spread=None, spread_file=None,
    )  # fmt: skip
    return Simulation(structure, dynamics, potential_settings, options.seed)


def _introduction(options: argparse.Namespace, structure: Structure, simulation: Simulation) -> str:
    card = load_one(options.model).card
    about = ": ".join(filter(None, (card.name or Path(options.model or DEFAULT_POTENTIAL).name, card.description)))
    device = simulation.force.evaluator.potential.device
    return "\n".join(
        [
            f"alanine dipeptide, {structure.formula}, {structure.num_atoms} atoms, in vacuum at "
            f"{options.temperature:g} K",
            f"potential: {about}",
            f"OpenMM {openmm.__version__}, {simulation.platform} platform; the network runs on {device}; Langevin "
            f"thermostat, timestep {TIMESTEP:g} fs with hydrogens of {HYDROGEN:g} amu",
        ]
    )


def _equilibrate(simulation: Simulation, seconds: float) -> int:
    """Minimizes and equilibrates; returns the number of steps that the rest of the time is expected to take."""
    simulation.start(minimize=False)
    before, after = simulation.minimize(max_iterations=50)
    print(f"minimized: {before:.4f} -> {after:.4f} eV; equilibrating for {EQUILIBRATION * seconds:.0f} s")
    simulation.draw_velocities()
    simulation.context.getIntegrator().setFriction(
        EQUILIBRATION_FRICTION
    )  # heats faster: half of the heat becomes potential energy
    simulation.step(STEPS_A_FRAME)  # compiles and captures
    start, done, timed, since = time.perf_counter(), 0, 0, 0.0
    while (passed := time.perf_counter() - start) < EQUILIBRATION * seconds or not timed:
        simulation.step(STEPS_A_FRAME)
        done += STEPS_A_FRAME
        if passed > EQUILIBRATION * seconds / 2:
            timed, since = timed + STEPS_A_FRAME, since + time.perf_counter() - start - passed
    context = simulation.context
    context.getIntegrator().setFriction(FRICTION)
    context.setStepCount(0)
    context.setTime(0.0)
    rate = timed / since
    print(f"{rate:.0f} steps/s, {number(ns_per_day(rate, TIMESTEP))} ns/day")
    frames = max(1, int(rate * (1 - EQUILIBRATION) * seconds / STEPS_A_FRAME))
    return frames * STEPS_A_FRAME


def _integrate(simulation: Simulation, folder: Path, steps: int, seconds: float, interrupts: Interrupts) -> Path:
    """Runs until the time is over or a signal comes, and writes files; returns the path of the log.

    steps: about how many that will be. Other programs can make a machine faster or slower in between.
    """
    every = STEPS_A_FRAME * -(-steps // (STEPS_A_FRAME * MOST_FRAMES))
    log_path, structure = folder / f"{NAME}.log", simulation.structure
    trajectory = Trajectory.create(folder / f"{NAME}.dcd", structure.num_atoms, every, False, TIMESTEP)
    log = Log.create(log_path, simulation.log_columns)
    progress = SimulationProgress(sys.stderr, 0, steps, TIMESTEP)
    start = clock = now = time.perf_counter()
    step = 0
    try:
        row = simulation.measure()
        log.write(row)
        trajectory.write(*simulation.geometry())
        while now - start < seconds and interrupts.received is None:
            simulation.step(every)
            step += every
            trajectory.write(*simulation.geometry())
            now = time.perf_counter()
            if step // every % FRAMES_A_ROW == 0:
                speed = ns_per_day(FRAMES_A_ROW * every / (now - clock), TIMESTEP)
                row, clock = simulation.measure().with_speed(speed), now
                log.write(row)
            progress.expect(max(step, round(step * seconds / max(now - start, 1e-9))))
            progress.update(step, row, last=now - start >= seconds)
    finally:
        progress.finish()
        log.close()
        trajectory.close()
    return log_path


def _report(options: argparse.Namespace, simulation: Simulation, folder: Path, started: Path, log: Path) -> None:
    """Writes plots and the final structure, and prints a list of the files."""
    structure, title = simulation.structure, f"alanine dipeptide, {options.temperature:g} K"
    final, energies = folder / f"{NAME}.final.pdb", folder / "energy.png"
    write_structure(structure, final, *simulation.geometry())
    plot_log(log, energies, title, options.temperature)
    frames = read_frames(log.with_suffix(".dcd"), structure.num_atoms)
    phi, psi = (torsion(frames, atoms_named(structure, names)) for names in (PHI, PSI))
    length = simulation.current_step * TIMESTEP / PICOSECOND
    picture = folder / "ramachandran.png"
    draw_ramachandran(picture, phi, psi, length, f"{title}, {length:.3g} ps in vacuum")
    page = folder / f"{NAME}.html"
    paged = write_run_page(
        page, log.with_suffix(".dcd"), structure.atomic_numbers,
        title=title, labels=structure.labels(), log=log, temperature=options.temperature,
    )  # fmt: skip
    rows = read_log(log)
    speed = rows["ns_per_day"][np.isfinite(rows["ns_per_day"])]
    fast = f" at {number(float(np.median(speed)))} ns/day" if len(speed) else ""
    print(f"{length:.4g} ps{fast}, mean temperature {rows['temperature_K'].mean():.0f} K, {len(frames)} frames")
    written = {
        started: "initial structure, to open with the trajectory",
        log.with_suffix(".dcd"): "trajectory",
        final: "final structure",
        log: "energies, temperature and speed, as CSV",
        energies: "plot of the log",
        picture: "density of the angles φ and ψ, and the path",
    }
    if paged:
        written[page] = "interactive page of all of these, for a browser"
    width = max(len(str(path)) for path in written)
    print("wrote", *(f"  {path!s:<{width}}  {what}" for path, what in written.items()), sep="\n")


def atoms_named(structure: Structure, names: tuple[tuple[str, str], ...]) -> tuple[int, int, int, int]:
    """Indices of four atoms by residue and name."""
    indices = {(atom.residue.name, atom.name): atom.index for atom in structure.topology.atoms()}
    first, second, third, fourth = (indices[name] for name in names)
    return first, second, third, fourth
