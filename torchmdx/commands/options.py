"""Options shared by several subcommands."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from torchmdx.potentials import DEFAULT_POTENTIAL

if TYPE_CHECKING:
    from torchmdx.ase_calculator import Calculator
    from torchmdx.structure_files import Record


CHARGE_HELP = (
    "total charge in e (default: the charge in the file, else the sum of its formal charges, else of its initial "
    "charges, else 0)"
)


def add_model_options(parser: argparse.ArgumentParser, dtype: str = "float64") -> None:
    """--model, --charge, --dtype and --device."""
    add_model_option(parser, several=True)
    parser.add_argument(
        "--charge",
        type=float,
        metavar="Q",
        help=CHARGE_HELP,
    )
    parser.add_argument(
        "--dtype",
        choices=("float32", "float64", "tf32", "bfloat16"),
        default=dtype,
        help=f"precision of the network; tf32 and bfloat16 are faster, less accurate and need a GPU (default: {dtype})",
    )
    parser.add_argument("--device", metavar="NAME", help="cpu, cuda or cuda:1 (default: cuda if available)")


def add_model_option(parser: Any, *, several: bool = False) -> None:
    """Adds --model to a parser or a group. several: it may be repeated, for the members of an ensemble."""
    ensembles = (
        ". For an ensemble: repeat the option, or give a .zip of checkpoints or the directory of its training run"
    )
    parser.add_argument(
        "--model",
        action="append" if several else "store",
        metavar="CHECKPOINT",
        help="the potential: a .safetensors file of torchmdx, a .ckpt file of torchmd-net, or a name listed by "
        f"`torchmdx info` (default: {DEFAULT_POTENTIAL}, included in torchmdx)" + ensembles * several,
    )


def model_of(options: argparse.Namespace) -> str | list[str] | None:
    """The given checkpoint, a list if there are several, or None."""
    if not options.model:
        return None
    return options.model[0] if len(options.model) == 1 else list(options.model)


def make_calculator(options: argparse.Namespace) -> Calculator:
    from torchmdx.ase_calculator import Calculator

    return Calculator(model_of(options), dtype=options.dtype, device=options.device, charge=options.charge)


def structure_of(options: argparse.Namespace) -> Record:
    """The structure at --index of the file, with its total charge; prints which one, if the file has several."""
    from torchmdx.structure_files import read_record

    record = read_record(options.file, options.index, getattr(options, "charge", None))
    if record.count > 1:
        print(f"{options.file}: {record.place}")
    return record


def structures_of(options: argparse.Namespace) -> list[Record]:
    """The structures at --index of the file, with their total charges."""
    from torchmdx.structure_files import read_records

    return read_records(options.file, options.index, getattr(options, "charge", None))
