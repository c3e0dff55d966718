"""`torchmdx md`: molecular dynamics of a structure."""

from __future__ import annotations

import argparse
from typing import Any

from torchmdx.commands.options import add_charge, add_device, add_index, add_model_option, add_skin
from torchmdx.runtime.interrupt import Interrupts
from torchmdx.runtime.optional_package import require_package
from torchmdx.runtime.precisions import PRECISIONS, precision_option
from torchmdx.structures.pressure_units import bar_of

ENGINES = ("openmm", "torchmdx")
EPILOG = """\
Output files: PREFIX.dcd (frames), PREFIX.log (CSV), PREFIX.chk, PREFIX.xml and PREFIX.json (for --restart), PREFIX.png
(a plot of the log), PREFIX.html (an interactive page) and, at the end, PREFIX.final.pdb, .cif or .xyz. Frames and log
rows begin with step 0. Ctrl-C writes a checkpoint and stops; --restart with the same options continues from the last
checkpoint. With --engine torchmdx, PREFIX.restart.npz replaces PREFIX.chk and PREFIX.xml; replicas have files of their
own, such as PREFIX.0.dcd and PREFIX.0.log.
"""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "md",
        help="run molecular dynamics",
        description="Runs molecular dynamics at constant energy, temperature, or temperature and pressure, in OpenMM "
        "or with --engine torchmdx in a loop of its own: on a GPU many steps are one CUDA graph, and many replicas run "
        "at once.",
        epilog=EPILOG,
    )
    parser.add_argument("file", metavar="FILE", help="structure file: PDB, mmCIF, or any format that ASE reads")
    parser.add_argument("-o", "--output", required=True, metavar="PREFIX", help="prefix of all output files")
    add_index(parser)
    parser.add_argument(
        "--ignore-constraints",
        action="store_true",
        help="move all atoms (default: atoms that the file fixes do not move; other constraints are refused)",
    )
    parser.add_argument("--vacuum", action="store_true", help="ignore the periodic box in the file")
    _add_model_options(parser)
    _add_dynamics_options(parser)
    _add_output_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    with Interrupts() as interrupts:  # while it reads and compiles as well
        return _run(options, interrupts)


def _run(options: argparse.Namespace, interrupts: Interrupts) -> int:
    from torchmdx.dynamics.run.checks import require_consistent

    require_consistent(options)
    if options.fast == "auto":
        from torchmdx.commands.distill import automatic, require_ready

        require_ready(options)
        options.fast = automatic(options, interrupts)
        if options.fast is None:
            return interrupts.status
    if options.engine == "torchmdx":
        from torchmdx.dynamics.run import device_run

        return device_run.run(options, interrupts)
    require_package("openmm", "--engine openmm needs", "openmm", "OpenMM")
    from torchmdx.commands.md_openmm import run as openmm_run

    return openmm_run.run(options, interrupts)


def _add_model_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("potential and device")
    add_model_option(group, several=True)
    add_charge(group)
    group.add_argument(
        "--engine",
        choices=ENGINES,
        default="openmm",
        help="program that moves the atoms (default: openmm). torchmdx: faster for small structures, no force fields",
    )
    _add_replica_options(group)
    _add_fast_options(group)
    add_device(group, "device of the network: ")
    group.add_argument(
        "--precision",
        "--dtype",
        type=precision_option,
        choices=PRECISIONS,
        default="float32",
        help="precision of the network (default: float32); OpenMM uses mixed precision, or double with float64",
    )
    group.add_argument("--platform", metavar="NAME", help="OpenMM platform (default: the fastest suitable one)")
    group.add_argument(
        "--transport",
        choices=("auto", "native", "torch", "python"),
        default="auto",
        help="how OpenMM and the network exchange positions and forces (default: auto, the fastest available)",
    )
    add_skin(group)
    group.add_argument(
        "--audit-every",
        type=int,
        default=0,
        metavar="N",
        help="compare every Nth evaluation with the exact model, and stop if they disagree (default: never)",
    )
    group.add_argument(
        "--max-force-spread",
        type=float,
        metavar="S",
        help="stop if the forces of an ensemble on any atom have a larger standard deviation, eV/Å, and append the "
        "structure to PREFIX.uncertain.xyz, or to that of its replica (default: never)",
    )
    group.add_argument(
        "--max-uncertainty",
        type=float,
        metavar="U",
        help="the same for a single potential: stop if the energy of any atom has a larger uncertainty, eV; "
        "`torchmdx uncertainty` adds it to a potential (default: never)",
    )
    group.add_argument(
        "--uncertainty", action="store_true", help="write the uncertainty of a single potential to the log and the plot"
    )


def _add_replica_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--replicas", type=int, metavar="N", help="copies that run at once, with --engine torchmdx (default: 1)"
    )
    group.add_argument(
        "--temperatures",
        metavar="LOW:HIGH",
        help="temperatures of the replicas in K, in a geometric series, with --engine torchmdx",
    )
    group.add_argument(
        "--exchange-every",
        type=int,
        metavar="N",
        help="steps between attempts to swap temperatures of replicas (default: never)",
    )
    group.add_argument(
        "--exchange-on-device",
        action="store_const",
        const=True,
        help="decide on one GPU which replicas swap, without waiting for the host (experimental)",
    )
    group.add_argument(
        "--devices",
        type=int,
        metavar="N",
        help="GPUs for the replicas, with --engine torchmdx; with --device cpu, processes (default: 1)",
    )


def _add_fast_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--fast",
        metavar="FILE",
        help="multiple time steps: a fast potential that takes the steps, corrected by --model every --inner steps; "
        "auto takes the one that torchmdx has for it, or distils one first",
    )
    group.add_argument(
        "--inner",
        type=int,
        metavar="N",
        help="with --fast: inner steps in an outer step, which evaluates --model once (default: as many as make 2 fs, "
        "or 4 fs with --hydrogen-mass 3). --timestep and all numbers of steps refer to inner steps",
    )
    group.add_argument(
        "--max-force-difference",
        type=float,
        metavar="D",
        help="stop if the forces of the two potentials on any atom differ by more than D eV/Å, with --engine torchmdx "
        "(default: if an outer step could give an atom at rest its thermal kinetic energy)",
    )
    group.add_argument(
        "--small-steps",
        action="store_const",
        const=True,
        help="instead of stopping there, take N steps with --model alone; the run counts them, and averages are "
        "slightly biased",
    )


def _add_dynamics_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("dynamics")
    group.add_argument(
        "--ensemble", choices=("nve", "nvt", "npt"), default="nvt", help="thermodynamic ensemble (default: nvt)"
    )
    length = group.add_mutually_exclusive_group(required=True)
    length.add_argument("--steps", type=int, metavar="N", help="total length of the run in steps")
    length.add_argument("--time", type=float, metavar="PS", help="total length of the run in ps")
    group.add_argument("--timestep", type=float, default=0.5, metavar="FS", help="timestep in fs (default: 0.5)")
    group.add_argument("--temperature", type=float, metavar="K", help="temperature in K (default: 300)")
    group.add_argument(
        "--velocities",
        choices=("file", "new"),
        help="start with the velocities in the file, or draw new ones (default: those in the file, if it has any)",
    )
    group.add_argument(
        "--hydrogen-mass",
        type=float,
        metavar="AMU",
        help="mass of hydrogens, which is taken from the atoms they are bonded to: with 3 amu the timestep can be 1.7 "
        "times as long (default: the masses of the elements)",
    )
    group.add_argument(
        "--thermostat",
        metavar="NAME",
        help="langevin, or with --engine torchmdx bussi, stochastic velocity rescaling (default: langevin)",
    )
    group.add_argument(
        "--friction", type=float, metavar="F", help="friction of the Langevin thermostat, 1/ps (default: 1)"
    )
    group.add_argument(
        "--relaxation", type=float, metavar="PS", help="relaxation time of --thermostat bussi, ps (default: 0.1)"
    )
    group.add_argument(
        "--pressure",
        type=bar_of,
        metavar="P",
        help="pressure in bar, or with a unit, such as 0.1GPa (default: 1 bar); a Monte Carlo barostat, "
        "or cell rescaling with --engine torchmdx",
    )
    group.add_argument(
        "--barostat",
        choices=("isotropic", "anisotropic"),
        help="scale the whole box, or its three edges independently (default: isotropic)",
    )
    group.add_argument(
        "--restraints",
        metavar="FILE",
        help="harmonic restraints from a JSON file, with --engine torchmdx: a list of tables with kind (distance, "
        "angle, torsion, position), atoms, reference (Å or degrees) and stiffness (eV/Å² or eV/rad²); a list of "
        "references gives each replica its own",
    )
    group.add_argument("--minimize", action="store_true", help="minimize the energy before the run")
    group.add_argument(
        "--seed", type=int, metavar="S", help="random seed of velocities, thermostat and barostat (default: random)"
    )


def _add_output_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    group.add_argument("--save-every", type=int, default=100, metavar="N", help="steps between frames (default: 100)")
    group.add_argument(
        "--trajectory",
        choices=("dcd", "hdf5"),
        help="format of trajectories, with --engine torchmdx: dcd, or hdf5 in MDTraj's layout (default: dcd)",
    )
    help_text = "store velocities too, with --trajectory hdf5"
    group.add_argument("--save-velocities", action="store_const", const=True, help=help_text)
    group.add_argument("--log-every", type=int, default=100, metavar="N", help="steps between log rows (default: 100)")
    group.add_argument(
        "--checkpoint-every", type=int, metavar="N", help="steps between checkpoints (default: one per minute)"
    )
    group.add_argument("--restart", action="store_true", help="continue from the last checkpoint, in the same files")
    group.add_argument("--overwrite", action="store_true", help="replace the outputs of an earlier run")
    group.add_argument("--no-page", action="store_true", help="do not write PREFIX.html, which is 5 MB or more")
