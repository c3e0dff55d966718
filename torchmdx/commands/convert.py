"""`torchmdx convert`: converts foreign checkpoints to the format of torchmdx, with a report."""

from __future__ import annotations

import argparse
import io
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchmdx.commands.options import add_loading_options, with_chosen_head
from torchmdx.structures.units import ENERGY_UNITS

if TYPE_CHECKING:
    from torchmdx.checkpoints.formats.reading import Reading
    from torchmdx.models.model_card import Card
    from torchmdx.models.potential import Potential


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "convert",
        help="convert a potential of torchmd-net or matgl to torchmdx, or take one head of several",
        description="Converts torchmd-net checkpoints of TensorNet and TensorNet2 (old and new layouts, priors, zipped "
        "ensembles), a folder with a TensorNet potential of matgl, or a released potential given by name, to a "
        "torchmdx file, and writes a report next to it on what was read, remapped and ignored. Of a torchmdx file with "
        "several heads, --head takes one.",
    )
    parser.add_argument(
        "source",
        metavar="SOURCE",
        nargs="+",
        help="a .ckpt file, a .zip of several, a folder of matgl, the directory of an ensemble training run, or a name "
        "(`torchmdx info` lists them); several files make an ensemble; code in the files is never run",
    )
    parser.add_argument(
        "target", metavar="TARGET", help="the .safetensors file to write; for an ensemble also a .zip file"
    )
    parser.add_argument(
        "--energy-unit",
        choices=sorted(ENERGY_UNITS),
        default="eV",
        help="unit of the energies that the model was trained on (default: eV)",
    )
    parser.add_argument(
        "--total-energy",
        action="store_true",
        help="add the reference energies in the file to the energy (the file excludes them: remove_ref_energy)",
    )
    add_loading_options(parser)
    parser.add_argument("--sha256", metavar="HASH", help="stop if the SHA-256 of the source is not HASH")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing target and its report")
    _add_card_options(parser)
    parser.set_defaults(run=run, locked=("target",))


def run(options: argparse.Namespace) -> int:
    from torchmdx.checkpoints.formats import ensemble
    from torchmdx.checkpoints.locate import holds_several, is_run_folder, opened
    from torchmdx.checkpoints.save_load import read, read_ensemble, save, spread_factors
    from torchmdx.commands.info import describe
    from torchmdx.models.ensemble import UNCALIBRATED
    from torchmdx.runtime.files import require_new, write_whole

    target = Path(options.target)
    report = target.with_suffix(".report.txt")
    sources = with_chosen_head(options.source, options.head)
    files = [source if is_run_folder(source) else opened(source, options.sha256) for source in sources]
    for file in files:
        _require_head(file)
    several = len(files) > 1 or holds_several(files[0])
    endings = (".safetensors", ".zip") if several else (".safetensors",)
    if target.suffix not in endings:
        raise ValueError(
            f"the target{' of an ensemble' if several else ''} must end in {' or '.join(endings)}, "
            f"got {options.target!r}"
        )
    if not options.overwrite:
        require_new(target, report)
    if several:
        readings = read_ensemble(files if len(files) > 1 else files[0], total_energy=options.total_energy)
    else:
        readings = [read(files[0], total_energy=options.total_energy)]
    readings = [in_units(reading, options) for reading in readings]
    for reading in readings:
        reading.potential.card = card_with(reading.potential.card, options)
    if several:
        factors = spread_factors(files[0]) if len(files) == 1 else UNCALIBRATED
        if target.suffix == ".zip" and factors != UNCALIBRATED:
            raise ValueError(f"the target of a calibrated ensemble must end in .safetensors, got {options.target!r}")
        write_whole(target, _zipped(readings) if target.suffix == ".zip" else ensemble.to_bytes(readings, factors))
    else:
        save(readings[0].potential, target, report=readings[0].report)
    texts = [f"{reading.report}\n{describe(reading.potential)}" for reading in readings]
    write_whole(report, ("\n\n".join(texts) + "\n").encode())
    print(f"wrote {options.target} and {report}")
    print("\n\n".join(texts))
    return 0


def _require_head(file: Any) -> None:
    """Raises ValueError for potentials of several heads, of which one has to be chosen: the others would be lost."""
    from torchmdx.checkpoints.formats.source import Source
    from torchmdx.checkpoints.formats.table import heads_in
    from torchmdx.checkpoints.locate import opened, split_head
    from torchmdx.checkpoints.run_folder import files_in

    if not isinstance(file, Source):
        folder, head = split_head(file)
        file = replace(opened(files_in(Path(folder or file))[0]), head=head)
    heads = heads_in(file) if file.head is None else None
    if heads is not None:
        raise ValueError(f"{file.origin!r} has the heads {', '.join(heads.names)}: choose one with --head NAME")


def _add_card_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("metadata of the potential", "Default: the metadata of the source.")
    group.add_argument("--name", help="name used in messages")
    group.add_argument("--description", metavar="TEXT", help="one-line description")
    group.add_argument("--licence", metavar="TEXT", help="licence of the potential")
    group.add_argument(
        "--elements", nargs="+", metavar="SYMBOL", help="elements it was trained on; others are rejected"
    )
    group.add_argument("--charges", nargs="+", type=float, metavar="Q", help="total charges it was trained on, e")
    group.add_argument(
        "--closed-shell", action="store_true", default=None, help="trained on even numbers of electrons only"
    )
    group.add_argument(
        "--periodic",
        action=argparse.BooleanOptionalAction,
        help="trained on periodic structures too; --no-periodic: on molecules only, so crystals raise a warning",
    )


def card_with(card: Card, options: argparse.Namespace) -> Card:
    """The card with the values of the options. Raises ValueError for an unknown symbol."""
    from ase.data import atomic_numbers

    given = {field: getattr(options, field) for field in card.__dataclass_fields__}
    if options.elements is not None:
        wrong = [symbol for symbol in options.elements if not atomic_numbers.get(symbol)]
        if wrong:
            raise ValueError(f"--elements must be symbols such as H and Cl, got {wrong[0]!r}")
        given["elements"] = tuple(int(atomic_numbers[symbol]) for symbol in options.elements)
    if options.charges is not None:
        given["charges"] = tuple(options.charges)
    return replace(card, **{field: value for field, value in given.items() if value is not None})


def in_units(reading: Reading, options: argparse.Namespace) -> Reading:
    """The potential in eV, with the requested treatment of its Coulomb energy; its report mentions these changes."""
    from torchmdx.models.coulomb_cutoff import with_coulomb_cutoff_of_one

    potential, report = reading.potential, reading.report
    factor = ENERGY_UNITS[options.energy_unit]
    if factor != 1:
        report.remapped.append(f"energies in {options.energy_unit} to eV: constants and priors times {factor!r}")
        potential = _scaled(potential, factor)
    potential = with_coulomb_cutoff_of_one(potential, options.coulomb_cutoff, options.coulomb, options.coulomb_accuracy)
    if options.coulomb_cutoff is not None:
        report.remapped.append(f"cutoff of the Coulomb energy: {options.coulomb_cutoff} Å, from --coulomb-cutoff")
    if options.coulomb is not None:
        report.remapped.append(f"Coulomb energy: {options.coulomb}, from --coulomb")
    if options.coulomb_accuracy is not None:
        report.remapped.append(f"accuracy of the Coulomb energy: {options.coulomb_accuracy:g}, from --coulomb-accuracy")
    return replace(reading, potential=potential)


def _scaled(potential: Potential, factor: float) -> Potential:
    for constant in (potential.scale, potential.shift, potential.reference_energies):
        constant.mul_(factor)
    return potential.with_priors([config.scaled(factor) for config in potential.prior_configs])


def _zipped(readings: list[Reading]) -> bytes:
    from torchmdx.checkpoints.formats.own import to_bytes

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for index, reading in enumerate(readings):
            # Without a date, so that equal inputs give equal files.
            archive.writestr(zipfile.ZipInfo(f"{index:03}.safetensors"), to_bytes(reading.potential, reading.report))
    return buffer.getvalue()
