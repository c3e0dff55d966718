"""Options and readings that several subcommands share."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchmdx.potentials import DEFAULT_POTENTIAL

if TYPE_CHECKING:
    from ase import Atoms

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


def read_structures(path: str, index: str) -> list[Atoms]:
    """Structures of a file in any format of ASE. Raises FileNotFoundError or ValueError that name the file."""
    import ase.io
    from ase.utils import string2index

    if not Path(path).is_file():
        raise FileNotFoundError(f"no structure file at {path!r}")
    try:
        if Path(path).suffix.lower() in (".pdb", ".ent"):
            # ASE sees one more, empty, structure in a PDB file that ends each model and the file.
            frames: Any = [atoms for atoms in ase.io.read(path, index=":") if len(atoms)]
            found = frames[string2index(index)]
        else:
            found = ase.io.read(path, index=index)
    except Exception as error:  # ASE's readers raise whatever their parsing trips over
        raise ValueError(f"ASE can't read {path!r}: {type(error).__name__}: {error}") from error
    structures = found if isinstance(found, list) else [found]
    if not structures:
        raise ValueError(f"{path!r} has no structure at index {index!r}")
    return structures


def read_structure(path: str, index: str) -> Atoms:
    """The one structure that an index picks, with at least one atom. Raises as `read_structures`, and ValueError."""
    structures = read_structures(path, index)
    if len(structures) > 1:
        raise ValueError(f"--index must pick one structure, {index!r} picks {len(structures)}")
    if not len(structures[0]):
        raise ValueError(f"{path!r} has no atoms at index {index!r}")
    return structures[0]
