"""Options shared by several subcommands."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from torchmdx.checkpoints.potentials import DEFAULT_POTENTIAL
from torchmdx.runtime.precisions import PRECISIONS, precision_option

if TYPE_CHECKING:
    from torchmdx.ase.calculator import Calculator
    from torchmdx.structures.files import Record
    from torchmdx.structures.files.several import Gathered


MOST_ATOMS_IN_FLOAT64 = 100  # with --dtype auto


def add_model_options(parser: argparse.ArgumentParser, dtype: str = "auto") -> None:
    """--model, --charge, --dtype and --device. dtype: the default; "auto" is a choice where it is the default."""
    add_model_option(parser, several=True)
    add_charge(parser)
    parser.add_argument(
        "--dtype",
        type=precision_option,
        choices=("auto",) * (dtype == "auto") + PRECISIONS,
        default=dtype,
        help="precision of the network"
        + f"; auto: float64 for up to {MOST_ATOMS_IN_FLOAT64} atoms, else float32, which is faster" * (dtype == "auto")
        + f" (default: {dtype})",
    )
    add_device(parser)


def add_model_option(parser: Any, *, several: bool = False) -> None:
    """Adds --model to a parser or a group. several: it may be repeated, for the members of an ensemble."""
    ensembles = (
        ". For an ensemble: repeat the option, or give a .zip of checkpoints or the directory of its training run"
    )
    parser.add_argument(
        "--model",
        action="append" if several else "store",
        metavar="CHECKPOINT",
        help="the potential: a .safetensors file of torchmdx, a .ckpt file of torchmd-net, the folder of a training or "
        f"of matgl, or a name listed by `torchmdx info` (default: {DEFAULT_POTENTIAL}, included in torchmdx)"
        + ensembles
        * several,
    )
    add_loading_options(parser)


def add_loading_options(parser: Any) -> None:
    """--head, --coulomb, --coulomb-cutoff and --coulomb-accuracy, for commands that take a potential."""
    parser.add_argument(
        "--head", metavar="NAME", help="the head of a potential with several, as FILE:NAME (default: that of the file)"
    )
    parser.add_argument(
        "--coulomb",
        choices=("ewald", "pme", "reaction_field", "reaction_field_everywhere"),
        help="how to compute the potential's Coulomb energy in periodic structures: summed over all images, on a mesh "
        "(pme) or by the faster method (ewald), or truncated with a reaction field; reaction_field_everywhere "
        "truncates it in molecules too (default: as the potential was made)",
    )
    parser.add_argument(
        "--coulomb-accuracy",
        type=float,
        metavar="X",
        help="relative error of forces from a sum over all images (default: from the file, or 1e-5)",
    )
    parser.add_argument(
        "--coulomb-cutoff",
        type=float,
        metavar="Å",
        help="where the potential's Coulomb energy of periodic structures is truncated, Å (default: from the file)",
    )


def add_charge(parser: Any) -> None:
    """--charge, for commands that read structures."""
    parser.add_argument(
        "--charge",
        type=float,
        metavar="Q",
        help="total charge in e (default: the charge in the file, else the sum of its formal charges, else of its "
        "initial charges, else 0)",
    )


def add_skin(parser: Any) -> None:
    """--skin, of the search for neighbours."""
    parser.add_argument(
        "--skin", type=float, default=0.0, metavar="Å", help="distance added to the search radius, Å (default: 0)"
    )


def add_device(parser: Any, what: str = "") -> None:
    """--device. what: the start of its help."""
    parser.add_argument("--device", metavar="NAME", help=what + "cpu, cuda or cuda:1 (default: cuda if available)")


def add_index(parser: Any) -> None:
    """--index, for commands that take one structure."""
    parser.add_argument(
        "--index", default="-1", metavar="I", help="index of the structure in the file (default: -1, the last)"
    )


def with_chosen_head(given: Any, head: str | None) -> Any:
    """FILE:NAME of the given checkpoint, or of each of several. Raises ValueError for a head of no file."""
    from torchmdx.checkpoints.locate import with_head

    if head is not None and given is None:
        raise ValueError(f"--head needs the file of a potential with several heads, got {head!r} alone")
    return [with_head(one, head) for one in given] if isinstance(given, list) else with_head(given, head)


def coulomb_treatment(options: argparse.Namespace) -> dict[str, Any]:
    """The values of these options, as arguments of `torchmdx.load`."""
    return {name: getattr(options, name) for name in ("coulomb_cutoff", "coulomb", "coulomb_accuracy")}


def model_of(options: argparse.Namespace) -> str | list[str] | None:
    """The given checkpoint, a list if there are several, or None."""
    if not options.model:
        return None
    return options.model[0] if len(options.model) == 1 else list(options.model)


def make_calculator(
    options: argparse.Namespace, num_atoms: int = 0, *, precise: bool = False, uncertainty: bool = False
) -> Calculator:
    """The calculator of the options.

    Args:
        num_atoms, precise: As for `dtype_of`; atoms of the largest structure.
        uncertainty: Compute that of a potential that knows it also on a GPU, where it has to be asked for.
    """
    from torchmdx.ase.calculator import Calculator

    dtype = dtype_of(options.dtype, num_atoms, precise=precise)
    if dtype != options.dtype and dtype == "float32":
        print(f"{num_atoms:,} atoms are evaluated in float32; --dtype float64 is exact and slower", file=sys.stderr)
    given: dict[str, Any] = dict(
        dtype=dtype, device=options.device, charge=options.charge, **coulomb_treatment(options)
    )
    found = Calculator(model_of(options), **given)
    known = getattr(found.potential, "uncertainty", None) is not None
    if uncertainty and known and "energy_uncertainty" not in found.implemented_properties:
        return Calculator(model_of(options), uncertainty=True, **given)
    return found


def dtype_of(asked: str, num_atoms: int, *, precise: bool) -> str:
    """The precision for "auto": float64 for few atoms, where it costs little, and for what needs it; else float32."""
    if asked != "auto":
        return asked
    return "float64" if precise or num_atoms <= MOST_ATOMS_IN_FLOAT64 else "float32"


def structure_of(options: argparse.Namespace) -> Record:
    """The structure at --index of the file, with its total charge; prints which one, if the file has several."""
    from torchmdx.structures.files import read_record

    record = read_record(
        options.file, options.index, getattr(options, "charge", None), getattr(options, "format", None)
    )
    if record.count > 1:
        print(f"{options.file}: {record.place}")
    return record


def add_structure_files(parser: argparse.ArgumentParser) -> None:
    """FILE ..., and --format."""
    parser.add_argument(
        "files", nargs="+", metavar="FILE", help="structure files in any format that ASE reads, or folders of them"
    )
    parser.add_argument(
        "--format",
        metavar="NAME",
        help="format of the files, by ASE's name, such as vasp (default: from name and content)",
    )


def structures_of(options: argparse.Namespace) -> Gathered:
    """The structures at --index of the files, with their total charges; prints which files are unreadable."""
    from torchmdx.structures.files.several import files_of, read_several

    found = read_several(files_of(options.files), options.index, options.charge, options.format)
    for file, reason in found.unreadable.items():
        print(f"{file}: failed: {reason}", file=sys.stderr)
    return found
