"""What `torchmdx md` does with either engine before the first step, and after the last one."""

from __future__ import annotations

import argparse
import signal
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from torchmdx.dynamics.log import LogRow, read_log
from torchmdx.dynamics.run.checks import LARGEST_SEED
from torchmdx.dynamics.run.files import RunFiles
from torchmdx.dynamics.run.moving import MovingStructure
from torchmdx.dynamics.run.outputs import RunOutputs, closing_after_errors
from torchmdx.dynamics.run.plot import plot_log
from torchmdx.dynamics.run.progress import SimulationProgress
from torchmdx.dynamics.run.settings import RunSettings
from torchmdx.dynamics.vibrations import HEAVY, doubt_about_outer_step, lightest_hydrogen, longest_step, period
from torchmdx.report.view.run_page import write_run_page
from torchmdx.runtime.files import naming_writes
from torchmdx.runtime.interrupt import Interrupts
from torchmdx.structures.units import PICOSECOND

CONTINUE = 75  # exit status EX_TEMPFAIL: saved before the end, the same command with --restart continues


def with_seed(settings: RunSettings, before: dict[str, Any]) -> RunSettings:
    """The settings with a seed: that of the options, else of the run that is continued, else a random one.

    Args:
        before: The settings that a run wrote, empty for a new one.
    """
    if settings.seed is not None:
        return settings
    seed = before.get("seed")
    return replace(settings, seed=int(np.random.default_rng().integers(LARGEST_SEED + 1) if seed is None else seed))


def starts_with_stored(options: argparse.Namespace, stored: bool, ensemble: str) -> bool:
    """Whether a run starts with the velocities that its file stores. stored: whether the file does.

    Raises:
        ValueError: For options that contradict this.
    """
    if options.velocities == "file" and not stored:
        raise ValueError(f"--velocities file needs velocities in the file, got {options.file!r} without any")
    if not stored or options.velocities == "new":
        return False
    if options.minimize and options.velocities is None:
        return False  # they do not belong to the minimized structure
    if ensemble == "nve" and options.temperature is not None:
        raise ValueError(
            f"--temperature applies to new velocities, but {options.file!r} has velocities; add --velocities new, "
            "or leave --temperature out"
        )
    return True


def warn_of_timestep(structure: MovingStructure, timestep: float, inner: int = 1) -> None:
    """Warns of a timestep, fs, or of `inner` of them between evaluations, that is too long for the structure."""
    if (doubt := doubt_about_timestep(structure, timestep, inner)) is not None:
        warnings.warn(doubt, stacklevel=3)


def description(file: str, structure: MovingStructure, box: str, motion: str, settings: RunSettings) -> list[str]:
    """Lines on what runs. box, motion: texts on the cell, and on how atoms move."""
    record, timestep, num_steps, fast = structure.record, settings.timestep, settings.num_steps, settings.fast
    place = f"{record.place}, " if record.place else ""
    fixed = f", {int(structure.fixed.sum())} fixed" if structure.fixed.any() else ""
    formula, length = record.atoms.get_chemical_formula(), num_steps * timestep / PICOSECOND
    lines = [
        f"{file}: {place}{formula}, {structure.num_atoms} atoms{fixed}, {box}, {record.charge_text}",
        f"{motion}; {num_steps:,} steps, {length:g} ps; seed {settings.seed}",
        f"potential {settings.potential}",
    ]
    if fast is not None:
        outer = f"{fast.inner} inner steps of {timestep:g} fs in an outer step of {timestep * fast.inner:g} fs"
        lines.append(f"fast potential {fast.origin}: {outer}")
    return lines


def require_more_steps(done: int, wanted: int) -> None:
    """Raises ValueError for a restart that has nothing to do."""
    if done >= wanted:
        raise ValueError(f"--restart needs more steps than the {done} completed, got {wanted}")


class Recorded(Protocol):
    """A recording with either engine, at a step."""

    files: RunFiles
    outputs: RunOutputs
    saved_step: int | None

    @property
    def step(self) -> int: ...
    def run(
        self, num_steps: int, *, interrupted: Callable[[], bool], progress: Callable[[int, LogRow | None], None]
    ) -> int: ...
    def close(self) -> None: ...


def go(recording: Recorded, settings: RunSettings, interrupts: Interrupts, *, restart: bool) -> int:
    """Integrates to the end or until a signal, and closes the files; returns the exit status.

    Raises:
        ValueError: For a restart that has nothing to do.
    """
    step, end = recording.step, settings.num_steps
    progress = SimulationProgress(sys.stderr, step, end, settings.timestep)

    def stopped() -> bool:
        return interrupts.received is not None

    def show(step: int, row: LogRow | None) -> None:
        progress.update(step, row, last=step == end or stopped())

    with closing_after_errors(recording):
        require_more_steps(step, end)
        if restart:
            print(f"continuing from step {step:,}")
        try:
            reached = recording.run(end - step, interrupted=stopped, progress=show)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OSError(
                f"step {recording.step:,}: {error.strerror or error}; when it can be, the same command with --restart "
                f"continues from step {recording.saved_step or 0:,}"
            ) from error
        finally:
            progress.finish()
    recording.close()
    return status_after(interrupts, reached, end)


def status_after(interrupts: Interrupts, step: int, end: int) -> int:
    """The exit status of a run that has reached a step and is saved; says on stderr where a signal has stopped it.

    0 at the end, CONTINUE after SIGTERM, and by convention of shells 130 after SIGINT.
    """
    if interrupts.received is None or step >= end:
        return 0
    print(
        f"torchmdx: stopped by {interrupts.received.name} at step {step:,} of {end:,}; the same command with "
        "--restart continues from there",
        file=sys.stderr,
    )
    return CONTINUE if interrupts.received == signal.SIGTERM else interrupts.status


def finish(
    options: argparse.Namespace,
    recording: Recorded,
    structure: MovingStructure,
    settings: RunSettings,
    motion: str,
    write_final: Callable[[Path], None] | None,
    further: str = "",
) -> None:
    """Writes the final structure, of a single one the plot and the page as well, and prints a summary.

    Args:
        motion: How atoms move, for the title.
        write_final: None for a run that is not complete.
        further: Text at the end of the summary.
    """
    files, final = recording.files, recording.files.final(structure.suffix)
    written = [*files.trajectories, *files.logs]
    if write_final is not None:
        with naming_writes(final):
            write_final(final)
        written.append(final)
    if files.num_structures == 1:
        title = f"{Path(options.file).name}: {motion}; {settings.potential}"
        target = None if settings.ensemble == "nve" else settings.temperature
        written += draw(files, title, target, structure, page=not options.no_page)
    print(summary(files, recording.outputs.trajectories[0].num_frames, further))
    print(wrote([*written, *files.restarts]))


def draw(
    files: RunFiles, title: str, temperature: float | None, structure: MovingStructure, *, page: bool
) -> list[Path]:
    """Writes the plot and, if wanted, the page of a run of one structure; returns what has been written.

    Args:
        temperature: Of the thermostat, K, or None.
    """
    written, log = [], files.logs[0]
    try:
        with naming_writes(files.plot):
            plot_log(log, files.plot, title, temperature)
        written.append(files.plot)
    except ImportError:
        print("no plot: matplotlib is not installed (pip install matplotlib)", file=sys.stderr)
    given: dict[str, Any] = dict(title=title, labels=structure.labels(), log=log, temperature=temperature)
    if page and write_run_page(files.page, files.trajectories[0], structure.atomic_numbers, **given):
        written.append(files.page)
    return written


def summary(files: RunFiles, num_frames: int, further: str = "") -> str:
    """Frames, rows, mean temperatures and speed. further: text at the end."""
    logs = [read_log(path) for path in files.logs]
    means, speed = [float(log["temperature_K"].mean()) for log in logs], logs[0]["ns_per_day"]
    speed = speed[np.isfinite(speed)]
    several = f" of {min(means):.1f} to {max(means):.1f} K in {len(means)} replicas" if len(means) > 1 else ""
    return (
        f"frames: {num_frames}, log rows: {len(logs[0]['step'])}; mean temperature"
        + (several or f" {means[0]:.1f} K")
        + (f", {np.median(speed):.3g} ns/day" if len(speed) else "")
        + further
    )


def wrote(paths: list[Path]) -> str:
    """The files that have been written; of many the first and the last ones."""
    names = [str(path) for path in paths]
    shown = names if len(names) <= 8 else [*names[:3], f"... ({len(names) - 5} files)", *names[-2:]]
    return "wrote " + ", ".join(shown)


def doubt_about_timestep(structure: MovingStructure, timestep: float, inner: int = 1) -> str | None:
    """Why a timestep, fs, is too long for the lightest hydrogen that moves; None if it is not.

    inner: steps between evaluations of the full potential, if a fast one takes the others.
    """
    mass = lightest_hydrogen(structure.atomic_numbers, structure.masses, structure.fixed)
    if mass is None or timestep <= longest_step(mass):
        return doubt_about_outer_step(timestep, inner, mass)
    heavy = f", or {(HEAVY / mass) ** 0.5:.1f} times that with --hydrogen-mass {HEAVY:g}" * (mass < HEAVY)
    return (
        f"a timestep of {timestep:g} fs is too long for hydrogens of {mass:.3f} amu, whose bonds vibrate with a period "
        f"of {period(mass):.0f} fs: the simulation will be wrong or blow up; --timestep should be at most "
        f"{longest_step(mass):.2f}{heavy}"
    )
