"""`torchmdx relax --index :`, many structures of a file in batches, with an output that can be continued."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchmdx.commands.cell_options import space_of
from torchmdx.commands.options import model_of, structures_of
from torchmdx.runtime.files import require_new
from torchmdx.runtime.interrupt import Interrupts
from torchmdx.structures.units import GPA

if TYPE_CHECKING:
    from torchmdx.dynamics.relaxation.output import RelaxationOutput
    from torchmdx.dynamics.relaxation.tasks import Relaxed
    from torchmdx.structures.files import Record
    from torchmdx.structures.files.several import Gathered

# Options for one structure, and their values when they are not given.
OF_ONE = {"trajectory": None, "fix_symmetry": False, "symmetry_precision": None}
OF_MANY = {"resume": False, "batch_atoms": None}


def add_many_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("many structures (several files, a folder, or --index with a colon)")
    group.add_argument("--resume", action="store_true", help="skip structures that the output already holds")
    group.add_argument(
        "--batch-atoms", type=int, metavar="N", help="atoms in a batch (default: by device, memory and structures)"
    )


def is_many(options: argparse.Namespace) -> bool:
    """Whether several structures are asked for. Raises ValueError for options that need the other case."""
    several = len(options.files) > 1 or Path(options.files[0]).is_dir()
    many = ":" in options.index or several
    got = " ".join(options.files) if several else f"--index {options.index}"
    unfit, needed = (OF_ONE, "one structure") if many else (OF_MANY, "several structures, such as --index :")
    for name, absent in unfit.items():
        if getattr(options, name) != absent:
            raise ValueError(f"--{name.replace('_', '-')} needs {needed}, got {got}")
    if many and options.optimizer not in (None, "lbfgs", "fire"):
        raise ValueError(f"--optimizer must be lbfgs or fire for several structures, got {options.optimizer}")
    return many


def run_many(options: argparse.Namespace) -> int:
    """Relaxes the structures at --index; options.fmax, steps and pressure are checked."""
    _require_output(options)
    with Interrupts() as interrupts:  # while it reads as well: the output then exists, and can be continued
        return _run(options, interrupts)


def _run(options: argparse.Namespace, interrupts: Interrupts) -> int:
    given = structures_of(options)
    records, unreadable = numbered(given), len(given.unreadable)
    from torchmdx.dynamics.relaxation.output import RelaxationOutput

    potential, settings, dtype = _potential_and_settings(options)
    numbers = [record.number for record in records]
    output = RelaxationOutput(Path(options.output), numbers, _keys(records, potential, settings, dtype))
    if options.resume:
        output.resume()
    else:
        output.start()
    waiting = [place for place in range(len(records)) if place not in output.done]
    atoms = sum(len(records[place].atoms) for place in waiting)
    skipped = f", {len(output.done)} already done" if options.resume else ""
    files = {file for file, _ in given.records}
    name = next(iter(files)) if len(files) == 1 else f"{len(files):,} files"
    print(f"{name}: {len(records):,} structures{skipped}; {atoms:,} atoms to relax, {dtype}", flush=True)
    start = time.perf_counter()
    from torchmdx.dynamics.relaxation.run import relax_each

    found = relax_each(
        [records[place].atoms for place in waiting],
        potential,
        settings,
        dtype=dtype,
        device=options.device,
        batch_atoms=options.batch_atoms,
        stop=lambda: interrupts.received is not None,
        report=lambda text: print(text, flush=True),
    )
    for one in found:
        place = waiting[one.index]
        output.add(one, place)
        print(_line(one, records[place], options.cell), flush=True)
    output.sort()
    status = _finish(output, interrupts, time.perf_counter() - start)
    return status or int(unreadable > 0)


def numbered(given: Gathered) -> list[Record]:
    """The structures; of several files with numbers of their own, and in `info` the file and the number in it."""
    if len({file for file, _ in given.records}) + len(given.unreadable) == 1:
        return [record for _, record in given.records]
    for file, record in given.records:
        record.atoms.info |= {"file": file, "frame": record.number}
    return [replace(record, number=number) for number, (_, record) in enumerate(given.records)]


def _potential_and_settings(options: argparse.Namespace) -> tuple[Any, Any, str]:
    from torchmdx.checkpoints.prepare import DTYPES, prepare_potential
    from torchmdx.dynamics.relaxation.fire import FireSettings
    from torchmdx.dynamics.relaxation.run import default_dtype
    from torchmdx.runtime.devices import choose_device

    settings = FireSettings(
        fmax=options.fmax,
        steps=options.steps,
        cell=options.cell,
        pressure=(options.pressure or 0.0) * GPA,
        optimizer=options.optimizer or "lbfgs",
        space=space_of(options),
    )
    dtype = default_dtype(options.fmax) if options.dtype == "auto" else options.dtype
    device = choose_device(options.device)
    treatment = (options.coulomb_cutoff, options.coulomb, options.coulomb_accuracy)
    potential = prepare_potential(model_of(options), DTYPES[dtype], device, *treatment)
    return potential, settings, dtype


def _keys(records: list[Record], potential: Any, settings: Any, dtype: str) -> list[str]:
    from torchmdx.dynamics.relaxation.output import key_of
    from torchmdx.models.digest import digest_of

    how = f"{settings} {dtype} {digest_of(potential)}"
    return [key_of(record.atoms, how) for record in records]


def _line(found: Relaxed, record: Record, cell: bool) -> str:
    file = record.atoms.info.get("file") if record.atoms.info.get("frame") is not None else None
    head = f"{record.number:>6}  {record.atoms.get_chemical_formula():<12}" + f"  {file}" * (file is not None)
    if found.reason is not None:
        return f"{head}  failed: {found.reason}"
    volume = f"  volume {found.atoms.get_volume():.3f} Å³" if cell else ""
    energy = found.atoms.get_potential_energy()
    return f"{head}  energy {energy:.6f} eV{volume}  fmax {found.fmax:.4f} eV/Å  {found.num_steps} steps"


def _finish(output: RelaxationOutput, interrupts: Interrupts, seconds: float) -> int:
    total, converged, failed = len(output.numbers), len(output.converged), len(output.failed)
    failures = f", {failed:,} failed, in {output.failures}" if failed else ""
    print(f"{converged:,} of {total:,} structures converged, in {output.path}{failures}; {seconds:.1f} s")
    if interrupts.received is not None and converged + failed < total:
        left = total - converged - failed
        print(f"stopped by {interrupts.received.name}, {left:,} are not done; --resume continues", file=sys.stderr)
        return interrupts.status
    return 1 if failed else 0


def _require_output(options: argparse.Namespace) -> None:
    """Raises, before anything is read, if the output has another format, or exists and may not be changed."""
    from torchmdx.dynamics.relaxation.output import ENDINGS, failures_of

    path = Path(options.output)
    if path.suffix not in ENDINGS:
        raise ValueError(f"--output must end in {' or '.join(ENDINGS)} for several structures, got {options.output!r}")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"--output must be in an existing directory, got {options.output!r}")
    failures = failures_of(path)
    for file in options.files:
        if Path(file).resolve() in (path.resolve(), failures.resolve()):
            raise ValueError(f"--output must not be the structure file, got {options.output!r} and {file!r}")
    if options.resume and options.overwrite:
        raise ValueError("--resume and --overwrite exclude each other, got both")
    if not options.resume and not options.overwrite:
        require_new(path, failures, remedy="--resume continues them, --overwrite replaces them")
