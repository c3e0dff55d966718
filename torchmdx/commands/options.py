"""Options and readings that several subcommands share."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from torchmdx.potentials import DEFAULT_POTENTIAL

if TYPE_CHECKING:
    from torchmdx.ase_calculator import Calculator


def add_model_options(parser: argparse.ArgumentParser, dtype: str = "float64") -> None:
    """--model, --charge, --dtype and --device."""
    add_model_option(parser, several=True)
    parser.add_argument(
        "--charge",
        type=float,
        metavar="Q",
        help="total charge in elementary charges (default: what the file says, else 0)",
    )
    parser.add_argument(
        "--dtype",
        choices=("float32", "float64", "tf32", "bfloat16"),
        default=dtype,
        help=f"of the network; tf32 and bfloat16, on a GPU only, are fast and coarse (default: {dtype})",
    )
    parser.add_argument("--device", metavar="NAME", help="cpu, cuda or cuda:1 (default: cuda if there is one)")


def add_model_option(parser: Any, *, several: bool = False) -> None:
    """--model, of a parser or a group of options. several: as often as there are members of an ensemble."""
    ensembles = (
        ". A zip of several, the folder of a training of several seeds, or the option given several times: an ensemble"
    )
    parser.add_argument(
        "--model",
        action="append" if several else "store",
        metavar="CHECKPOINT",
        help="the potential: a .safetensors file of torchmdx, a .ckpt of torchmd-net, or a name that `torchmdx info` "
        f"lists (default: {DEFAULT_POTENTIAL}, which comes with torchmdx)" + ensembles * several,
    )


def model_of(options: argparse.Namespace) -> str | list[str] | None:
    """The one checkpoint that was given, or the list of several; None where none was."""
    if not options.model:
        return None
    return options.model[0] if len(options.model) == 1 else list(options.model)


def make_calculator(options: argparse.Namespace) -> Calculator:
    from torchmdx.ase_calculator import Calculator

    return Calculator(model_of(options), dtype=options.dtype, device=options.device, charge=options.charge)
