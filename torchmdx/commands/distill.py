"""`torchmdx distill`: a fast model of a potential, for multiple time steps."""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchmdx.commands.options import add_charge, add_device
from torchmdx.runtime.interrupt import Interrupts

if TYPE_CHECKING:
    from torchmdx.models.ensemble import Ensemble
    from torchmdx.models.origin import Origin
    from torchmdx.models.potential import Potential
    from torchmdx.structures.system import System
    from torchmdx.training.distillation.settings import DistillSettings, Structures

EPILOG = """\
Everything but the fast model is in the folder FILE.distillation, without the ending of FILE: the page
report/index.html, labelled frames, the training and distillation.json with all choices and results. After Ctrl-C the
same command continues. Without FILES the structures are examples of molecules that the potential knows.

    torchmdx distill organic-1 ligand.sdf -o fast.safetensors
    torchmdx distill run/best.safetensors water.xyz -o fast.safetensors --temperature 320 --minutes 20
"""
# Molecules of ASE's G2 set and the alanine dipeptide of `torchmdx demo`.
DIPEPTIDE = Path(__file__).parent / "demo_run" / "alanine_dipeptide.pdb"
NONE = "none"  # of --start
STOPPED = "torchmdx: stopped; the same command continues in {}"
LEAST_EXAMPLES = 3  # atoms of an example


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "distill",
        help="make a fast model of a potential, for multiple time steps",
        description="Trains a small network on forces of a potential, in short runs of the structures given, and "
        "tests it on frames that it has not seen. Sizes are chosen by measurements on this machine.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", metavar="MODEL", help="the potential, as --model of other commands")
    parser.add_argument("files", nargs="*", metavar="FILES", help="structures that the dynamics will start from")
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help="fast model to write (.safetensors)")
    parser.add_argument("--index", default=":", metavar="I", help="indices of structures in each file (default: all)")
    add_charge(parser)
    parser.add_argument("--format", metavar="NAME", help="format of the files, by ASE's name (default: from the file)")
    add_device(parser)
    parser.add_argument("--overwrite", action="store_true", help="start again, and replace the outputs")
    _add_settings(parser)
    parser.late = "files"
    parser.set_defaults(run=run, locked=("output",))


def _add_settings(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("settings", "All are optional; the values that are chosen are printed.")
    add = group.add_argument
    add(
        "--temperature",
        type=float,
        metavar="K",
        help="temperature of the dynamics, K (default: 300)",
    )
    add("--minutes", type=float, metavar="M", help="time that choices aim at (default: 5)")
    add("--seed", type=int, metavar="S", help="random seed (default: 0)")
    add("--timestep", type=float, metavar="FS", help="timestep of the trajectories, fs (default: 0.5)")
    add("--inner", type=float, metavar="FS", help="inner step of the tests, fs (default: 1, without hydrogens 2)")
    add("--frames", type=int, metavar="N", help="labelled frames (default: what a quarter of the time allows)")
    add("--trajectories", type=int, metavar="N", help="training trajectories for each structure")
    add("--start", metavar="FAST", help="fast model to train further, or none (default: the one that torchmdx has)")
    add("--layers", type=int, metavar="N", help="interaction layers (default: by measured cost)")
    add("--channels", type=int, metavar="N", help="channels (default: by measured cost)")
    add("--cutoff", type=float, metavar="Å", help="cutoff, Å (default: 3.5, or 1.7 nearest-neighbour distances)")
    add("--epochs", type=int, metavar="N", help="epochs (default: what half of the time allows)")
    add("--batch-size", type=int, metavar="N", help="frames of a training step")
    add("--learning-rate", type=float, metavar="R", help="largest learning rate (default: 0.002; with --start 0.001)")
    add("--name", metavar="NAME", help="name of the fast model (default: that of the potential with -fast)")


def run(options: argparse.Namespace) -> int:
    from torchmdx.training.distillation.run import distill, folder_of

    output = Path(options.output)
    if output.suffix != ".safetensors":
        raise ValueError(f"--output must end in .safetensors, got {options.output!r}")
    with Interrupts() as interrupts:
        structures = structures_of(options)
        result = distill(structures, output, request_of(options), interrupts, overwrite=options.overwrite)
    if result is None:
        print(STOPPED.format(folder_of(output)), file=sys.stderr)
        return interrupts.status
    return 0


def request_of(options: argparse.Namespace) -> DistillSettings:
    """The settings of the options. Raises ValueError."""
    from torchmdx.training.distillation.settings import DistillSettings

    found = {field.name: getattr(options, field.name) for field in fields(DistillSettings)}
    sized = any(found[name] is not None for name in ("layers", "channels", "cutoff"))
    if found["start"] is None and not sized:
        found["start"] = shipped_for(options.model)
    elif found["start"] == NONE:
        found["start"] = None
    return DistillSettings(**{name: value for name, value in found.items() if value is not None})


def structures_of(options: argparse.Namespace) -> Structures:
    """The potential and the structures of the files, or examples."""
    import torch

    from torchmdx.checkpoints.prepare import prepare_potential
    from torchmdx.commands.options import structures_of as read
    from torchmdx.runtime.devices import choose_device
    from torchmdx.structures.system import System
    from torchmdx.training.distillation.settings import Structures

    potential = prepare_potential(options.model, torch.float32, choose_device(options.device, "--device"))
    if not options.files:
        systems, names = examples(potential)
        print(f"structures: {len(names)} examples, {', '.join(names)}")
        return Structures(potential, systems, names)
    found = read(options)
    systems, names = [], []
    for file, record in found.records:
        systems.append(System.from_ase(record.atoms, record.charge))
        names.append(Path(file).name if record.count == 1 else f"{Path(file).name}:{record.number}")
    for doubt in dict.fromkeys(doubt for system in systems for doubt in _doubts(potential, system)):
        print(f"warning: {doubt}", file=sys.stderr)
    return Structures(potential, systems, names)


def _doubts(potential: Potential | Ensemble, system: System) -> list[str]:
    return potential.doubts(system.atomic_numbers.tolist(), system.charge, bool(system.pbc.any()))


def examples(potential: Potential | Ensemble) -> tuple[list[System], list[str]]:
    """Neutral molecules with closed shells, of elements that the potential knows. Raises ValueError without any."""
    from ase.build import molecule
    from ase.collections import g2

    from torchmdx.models.ensemble import members_of
    from torchmdx.structures.files import read_structure
    from torchmdx.structures.system import System

    cards = [member.card for member in members_of(potential)]
    systems, names = [], []
    for name in ("alanine dipeptide", *g2.names):
        atoms = read_structure(str(DIPEPTIDE), "0") if name == "alanine dipeptide" else molecule(name)
        known = all(card.elements is not None and set(atoms.numbers.tolist()) <= set(card.elements) for card in cards)
        open_shell = int(atoms.numbers.sum()) % 2 or bool(atoms.get_initial_magnetic_moments().any())
        if known and len(atoms) >= LEAST_EXAMPLES and not open_shell:
            atoms.set_initial_charges(None)
            systems.append(System.from_ase(atoms, 0.0))
            names.append(name)
    if not systems:
        raise ValueError(
            f"distill needs structure files for {cards[0].title}, got none, and its card has the elements of no example"
        )
    return systems, names


def require_ready(options: argparse.Namespace) -> None:
    """Raises the errors of options and of existing outputs that the run itself would raise, before a distillation."""
    from torchmdx.dynamics.run.device_options import files_of
    from torchmdx.dynamics.run.settings import RunSettings

    settings = RunSettings.from_options(argparse.Namespace(**{**vars(options), "fast": "organic-1-fast"}))
    files = files_of(options, settings.temperature)
    if options.restart:
        files.require_there(files.settings)
    elif not options.overwrite:
        files.require_new()


def automatic(options: argparse.Namespace, interrupts: Interrupts) -> str | None:
    """The fast model for a run of `torchmdx md --fast auto`: of the potential and the structure of its options.

    The one that torchmdx comes with, else PREFIX.fast.safetensors, which is distilled first unless it is there; None
    if a signal stopped that.

    Raises:
        ValueError: If PREFIX.fast.safetensors is a fast model of another potential.
        FileNotFoundError: With --restart, if it does not exist: another one would not continue the run.
    """
    from torchmdx.commands.options import model_of
    from torchmdx.dynamics.run.device_options import temperatures_of
    from torchmdx.models.digest import origin_of
    from torchmdx.runtime.output_lock import OutputLock
    from torchmdx.structures.system import System
    from torchmdx.training.distillation.run import distill, folder_of
    from torchmdx.training.distillation.settings import DistillSettings, Structures

    model = model_of(options)
    if (shipped := shipped_for(model)) is not None:
        print(f"fast model: {shipped}, included in torchmdx")
        return shipped
    asked = dict(files=[options.file], index=options.index, charge=options.charge, format=None, device=options.device)
    found = structures_of(argparse.Namespace(model=model, **asked))
    if options.vacuum:
        alone = [System.create(one.positions, one.atomic_numbers, charge=one.charge) for one in found.systems]
        found = Structures(found.potential, alone, found.names)
    output = Path(f"{options.output}.fast.safetensors")
    if output.exists():
        _require_distilled_from(output, origin_of(found.potential))
        print(f"fast model: {output}")
        return str(output)
    if options.restart:
        raise FileNotFoundError(f"--restart continues with the fast model of the run, {output}, which does not exist")
    print(f"fast model: torchmdx comes with none for this potential, and distils {output}")
    temperature = temperatures_of(options, options.temperature or DistillSettings.temperature).max()
    request = DistillSettings(temperature=float(temperature), seed=options.seed or 0)
    with OutputLock(output):
        result = distill(found, output, request, interrupts)
    if result is None:
        print(STOPPED.format(folder_of(output)), file=sys.stderr)
        return None
    return str(output)


def shipped_for(model: str | list[str] | None) -> str | None:
    """The name of the fast model that torchmdx comes with for a potential; None if there is none."""
    from torchmdx.checkpoints.locate import origin_at
    from torchmdx.checkpoints.potentials import FAST_MODELS, shipped

    if isinstance(model, list):
        return None
    digest = origin_at(model).sha256
    there = {name: fast for name, fast in FAST_MODELS.items() if {name, fast} <= shipped().keys()}
    return next((fast for name, fast in there.items() if origin_at(name).sha256 == digest), None)


def _require_distilled_from(path: Path, origin: Origin) -> None:
    """Raises ValueError for a fast model whose card names another potential."""
    from torchmdx.checkpoints.save_load import load_one

    if origin.sha256 not in (said := load_one(path).card.description):
        raise ValueError(
            f"{str(path)!r} must be distilled from {origin}, got {said or 'a potential without a description'!r}; "
            "remove it, or name it with --fast"
        )
