"""`torchmdx demo`: 90 seconds of molecular dynamics, with plots."""

from __future__ import annotations

import argparse
import importlib.util
from typing import Any

from torchmdx.commands.options import add_device, add_model_option

SECONDS = 90.0


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "demo",
        help="run 90 seconds of molecular dynamics and plot the result",
        description="Simulates alanine dipeptide in vacuum with torchmdx.Dynamics for a given wall-clock time. Writes "
        "the trajectory, its log, and plots of the energies and of the angles φ and ψ.",
    )
    parser.add_argument(
        "-o", "--output", default="demo", metavar="DIR", help="directory of all output files (default: demo)"
    )
    add_model_option(parser)
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, metavar="S", help=f"wall-clock time of the run (default: {SECONDS:g})"
    )
    parser.add_argument(
        "--temperature",
        type=float,
        default=800.0,
        metavar="K",
        help="temperature in K (default: 800, at which all minima of φ and ψ are visited; at 300 it stays in one)",
    )
    add_device(parser, "device of the network: ")
    parser.add_argument(
        "--seed",
        type=int,
        default=1,
        metavar="S",
        help="random seed of velocities and thermostat (default: 1); the same one gives the same run",
    )
    parser.set_defaults(run=run, locked=("output",))


def run(options: argparse.Namespace) -> int:
    if importlib.util.find_spec("matplotlib") is None:
        raise ImportError("the demo draws with matplotlib, which is not installed: pip install matplotlib")
    from torchmdx.commands.demo_run import run as demo

    return demo.run(options)
