"""`torchmdx md`: molecular dynamics of a structure."""

from __future__ import annotations

import argparse
import importlib.util
from typing import Any

from torchmdx.commands.options import add_model_option

ENGINES = ("openmm",)
EPILOG = """\
With --output PREFIX the files are PREFIX.dcd (frames), PREFIX.log (CSV), PREFIX.chk, PREFIX.xml and PREFIX.json (to
restart from), PREFIX.png (a plot of the log) and, at the end, PREFIX.final.pdb, .cif or .xyz. Frames and rows begin
with step 0. Ctrl-C stops at once and leaves a checkpoint; --restart with the same options goes on from the last one.
"""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "md",
        help="molecular dynamics of a structure",
        description="Molecular dynamics in OpenMM: constant energy, temperature, or temperature and pressure.",
        epilog=EPILOG,
    )
    parser.add_argument("file", help="the structure: PDB, mmCIF, or any other format that ASE reads")
    parser.add_argument("-o", "--output", required=True, metavar="PREFIX", help="beginning of the names of all outputs")
    parser.add_argument("--index", default="-1", help="which structure of the file (default: the last)")
    parser.add_argument("--vacuum", action="store_true", help="leave out the box of the file")
    _add_model_options(parser)
    _add_dynamics_options(parser)
    _add_output_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    if importlib.util.find_spec("openmm") is None:
        raise ImportError("--engine openmm needs OpenMM, which is not installed: pip install 'torchmdx[openmm]'")
    from torchmdx.md import run as md

    return md.run(options)


def _add_model_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("potential, and where it runs")
    add_model_option(group, several=True)
    group.add_argument(
        "--charge", type=float, metavar="Q", help="total charge in e (default: what the file says, else 0)"
    )
    group.add_argument("--engine", choices=ENGINES, default="openmm", help="what integrates (default: openmm)")
    group.add_argument(
        "--device", metavar="NAME", help="of the network: cpu, cuda or cuda:1 (default: cuda if there is one)"
    )
    group.add_argument(
        "--precision",
        "--dtype",
        choices=("float32", "float64", "tf32", "bfloat16"),
        default="float32",
        help="of the network; OpenMM works in mixed precision, with float64 in double (default: float32)",
    )
    group.add_argument("--platform", metavar="NAME", help="OpenMM's platform (default: the fastest that suits)")
    group.add_argument(
        "--transport",
        choices=("auto", "native", "torch", "python"),
        default="auto",
        help="how OpenMM and the network exchange positions and forces (default: auto, the fastest there is)",
    )
    group.add_argument("--skin", type=float, default=0.0, help="Å added to the search radius (default: 0)")
    group.add_argument(
        "--audit-every",
        type=int,
        default=0,
        metavar="N",
        help="compare every Nth evaluation with the exact model, and stop where they disagree (default: never)",
    )
    group.add_argument(
        "--max-force-spread",
        type=float,
        metavar="S",
        help="stop where an ensemble's forces on an atom differ by more (standard deviation, eV/Å), and append the "
        "structure to PREFIX.uncertain.xyz (default: never)",
    )


def _add_dynamics_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("dynamics")
    group.add_argument(
        "--ensemble", choices=("nve", "nvt", "npt"), default="nvt", help="what is held constant (default: nvt)"
    )
    length = group.add_mutually_exclusive_group(required=True)
    length.add_argument("--steps", type=int, metavar="N", help="length of the whole run in steps")
    length.add_argument("--time", type=float, metavar="PS", help="length of the whole run in ps")
    group.add_argument("--timestep", type=float, default=0.5, metavar="FS", help="in fs (default: 0.5)")
    group.add_argument("--temperature", type=float, default=300.0, metavar="K", help="in K (default: 300)")
    group.add_argument("--friction", type=float, metavar="F", help="of the Langevin thermostat, 1/ps (default: 1)")
    group.add_argument("--pressure", type=float, metavar="BAR", help="of the Monte Carlo barostat, bar (default: 1)")
    group.add_argument(
        "--barostat",
        choices=("isotropic", "anisotropic"),
        help="scale the box as a whole, or its three edges one by one (default: isotropic)",
    )
    group.add_argument("--minimize", action="store_true", help="first move the atoms to a minimum of the energy")
    group.add_argument("--seed", type=int, metavar="S", help="of velocities and random forces (default: a new one)")


def _add_output_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    group.add_argument("--save-every", type=int, default=100, metavar="N", help="steps between frames (default: 100)")
    group.add_argument("--log-every", type=int, default=100, metavar="N", help="steps between log rows (default: 100)")
    group.add_argument(
        "--checkpoint-every", type=int, metavar="N", help="steps between checkpoints (default: one a minute)"
    )
    group.add_argument("--restart", action="store_true", help="go on from the checkpoint, in the same files")
    group.add_argument("--overwrite", action="store_true", help="replace the outputs of an earlier run")
