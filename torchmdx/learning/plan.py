"""What a run will do, and what it will cost at most: `torchmdx learn --dry-run`."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from torchmdx.datasets.labelling.calculators import CLASSICAL, XTB, Choice
from torchmdx.datasets.labelling.geometry import UnlabelledStructure
from torchmdx.datasets.labelling.labeller import Labeller
from torchmdx.datasets.labelling.workers import usable_cores
from torchmdx.learning.config import LearnConfig
from torchmdx.learning.replicas import Replica, batches_of, dynamics_of, replicas_of, require_periodic
from torchmdx.learning.run_folder import RunFolder
from torchmdx.learning.stage import DONE
from torchmdx.learning.stages import require_possible
from torchmdx.learning.structures import starting_structures, system_of
from torchmdx.models.ensemble import Ensemble
from torchmdx.models.potential import Potential
from torchmdx.runtime.interrupt import Interrupts
from torchmdx.runtime.progress_line import duration
from torchmdx.runtime.wording import counted, number
from torchmdx.structures.system import System
from torchmdx.training.distillation.frames import seconds_of_a_step

MEASURED = 0.5  # s of dynamics
UNKNOWN = "the calculator's time is not measured"


def print_plan(config: LearnConfig) -> int:
    """Prints the plan of a run, with times measured on this machine; writes nothing.

    Raises:
        ValueError, ImportError, OSError: As the run does at its beginning.
    """
    for line in plan(config):
        print(line)
    return 0


def plan(config: LearnConfig) -> list[str]:
    """The lines of `print_plan`."""
    require_possible(config)
    run = RunFolder(config, Interrupts(), print)
    structures, names = starting_structures(config.start)
    explore, stop, uncertainty = config.explore, config.stop, config.uncertainty
    systems = [system_of(one) for one in structures]
    require_periodic(explore, systems, names)
    replicas = replicas_of(explore, len(systems), config.start.seed, 1)
    batches = batches_of(explore, systems, replicas, run.device.type)
    frames = len(replicas) * (explore.steps // explore.every)
    labels = config.first_labels + stop.rounds * config.select.count
    labels = labels if stop.labels is None else min(labels, max(stop.labels, config.first_labels))
    atoms = sorted({len(one.numbers) for one in structures})
    step, label = _seconds_of_dynamics(run, systems, batches), _seconds_of_a_label(config, structures)
    workers = config.label.workers or usable_cores()
    exploration = step * explore.steps * len(batches)
    lines = [
        f"start    {counted(len(structures), 'structure')} of {atoms[0]}"
        + (f" to {atoms[-1]}" * (len(atoms) > 1))
        + f" atoms; {counted(config.first_labels, 'frame')} to label first",
        f"explore  a round: {counted(len(replicas), 'replica')} in {counted(len(batches), 'batch', 'batches')} on "
        f"{run.device}, {explore.steps:,} steps of {explore.timestep:g} fs, {frames:,} frames; at most "
        f"{duration(exploration)} ({number(1e3 * step)} ms for a step of a batch)",
        f"select   a round: at most {counted(config.select.count, 'frame')}, {config.select.random} of them at random",
        f"label    at most {counted(labels, 'label')} by {config.label.calculator} in "
        f"{counted(workers, 'process', 'processes')}; "
        + (UNKNOWN if label is None else f"{duration(label * labels / workers)} ({number(label)} s a label)"),
        f"train    {stop.rounds + 1} times {counted(uncertainty.num_potentials, 'potential')}, {config.train.start}, "
        f"{counted(config.train.training.epochs, 'epoch')} of up to {counted(labels, 'frame')}"
        + (f" and those of {config.start.data}" if config.start.data else ""),
        f"stop     {_stop(config)}",
        f"output   {config.output.directory}{_done(Path(config.output.directory))}",
    ]
    return lines


def _stop(config: LearnConfig) -> str:
    stop, unit = config.stop, config.uncertainty.unit
    targets = [f"uncertainty at most {stop.uncertainty:g} {unit}"] if stop.uncertainty is not None else []
    targets += [f"force error at most {stop.error:g} eV/Å"] if stop.error is not None else []
    budgets = [counted(stop.rounds, "round")]
    budgets += [counted(stop.labels, "label")] if stop.labels is not None else []
    budgets += [f"{stop.hours:g} h"] if stop.hours is not None else []
    rows = f" in {counted(stop.patience, 'round')} in a row" if stop.patience > 1 else ""
    return f"{' and '.join(targets) + rows if targets else 'no target'}; at most {', '.join(budgets)}"


def _done(folder: Path) -> str:
    """What a folder already has."""
    rounds = sorted(folder.glob("round-*"))
    if not rounds:
        return ", new"
    done = [path.name for path in rounds[-1].iterdir() if (path / DONE).exists()]
    return f", continues in {rounds[-1].name.replace('-', ' ')} after {', '.join(sorted(done)) or 'no stage'}"


def _seconds_of_dynamics(run: RunFolder, systems: list[System], batches: list[list[Replica]]) -> float:
    """Of a step of the largest batch, with a potential of the run's kind; its weights do not matter for the time."""
    counts = [sum(systems[one.structure].num_atoms for one in batch) for batch in batches]
    largest = batches[int(np.argmax(counts))]
    dynamics = dynamics_of(run.config.explore, _any_potential(run), systems, largest)
    try:
        return seconds_of_a_step(dynamics, least=MEASURED)
    finally:
        dynamics.close()


def _any_potential(run: RunFolder) -> Potential | Ensemble:
    """An ensemble of the base potential, or of untrained ones."""
    config, start = run.config.train, run.config.start
    if start.checkpoint is not None:
        base = run.load(start.checkpoint)
        if isinstance(base, Ensemble):
            return base
    else:
        base = Potential(config.model.network(), config.model.prior_configs())
        base.scale.fill_(1e-3)  # so that no atom moves far
        base = base.to(run.device).eval().requires_grad_(False)
    members = run.config.uncertainty.num_potentials
    return base if members == 1 else Ensemble([base] * members)


def _seconds_of_a_label(config: LearnConfig, structures: list[UnlabelledStructure]) -> float | None:
    """Of the largest structure, by a fast calculator that comes along; None for others, which may take hours."""
    if config.label.calculator not in (*XTB, *CLASSICAL):
        return None
    labeller = Labeller(Choice(config.label.calculator, dict(config.label.options)))
    began = time.perf_counter()
    labeller.labels(max(structures, key=lambda one: len(one.numbers)))
    return time.perf_counter() - began
