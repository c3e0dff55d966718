"""`torchmdx demo`: a minute and a half of molecular dynamics, with pictures."""

from __future__ import annotations

import argparse
import importlib.util
from typing import Any

from torchmdx.commands.options import add_model_option

SECONDS = 90.0


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "demo",
        help="a minute and a half of molecular dynamics, with pictures",
        description="Alanine dipeptide in vacuum, in OpenMM: as many steps as fit into the time. Writes the "
        "trajectory, its log, and pictures of energies and of the angles φ and ψ.",
    )
    parser.add_argument("-o", "--output", default="demo", metavar="DIR", help="folder for all files (default: demo)")
    add_model_option(parser)
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help=f"of molecular dynamics, by the clock (default: {SECONDS:g})"
    )
    parser.add_argument(
        "--temperature", type=float, default=500.0, metavar="K", help="500 K (the default) moves more than 300 K does"
    )
    parser.add_argument(
        "--device", metavar="NAME", help="of the network: cpu, cuda or cuda:1 (default: cuda if there is one)"
    )
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="of velocities and random forces (default: 1)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    for name in ("openmm", "matplotlib"):
        if importlib.util.find_spec(name) is None:
            raise ImportError(f"the demo needs {name}, which is not installed: pip install 'torchmdx[openmm]'")
    from torchmdx.demo import run as demo

    return demo.run(options)
