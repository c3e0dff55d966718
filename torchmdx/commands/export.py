"""`torchmdx export`: a potential as a compiled program for C++ and Python, without torchmdx."""

from __future__ import annotations

import argparse
from typing import Any

from torchmdx.commands.options import add_loading_options
from torchmdx.runtime.files import require_new

# Steps of the compilation, which takes a minute or two.
EPILOG = """\
The file needs the major version of PyTorch that wrote it, and nothing of torchmdx. examples/export/evaluate.cpp runs it
from C++. It contains compiled code: run only files that you trust.
"""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "export",
        help="compile a potential for C++, with AOTInductor",
        description="Compiles energies, forces and virial of the exact network for any number of atoms and edges, "
        "compares the compiled program with the potential, and writes it. Takes one or two minutes and a C++ compiler.",
        epilog=EPILOG,
    )
    parser.add_argument("potential", metavar="POTENTIAL", help="a checkpoint, or a name listed by `torchmdx info`")
    parser.add_argument("-o", "--output", required=True, metavar="FILE.pt2", help="file to write")
    add_loading_options(parser)
    parser.add_argument(
        "--dtype", choices=("float32", "float64"), default="float32", help="precision of the network (default: float32)"
    )
    parser.add_argument(
        "--device", metavar="NAME", help="device that the program is for: cpu, cuda or cuda:1 (default: cpu)"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an existing output file")
    parser.set_defaults(run=run, locked=("output",))


def run(options: argparse.Namespace) -> int:
    if not options.overwrite:
        require_new(options.output)
    import torch

    from torchmdx.checkpoints.export.package import export
    from torchmdx.checkpoints.prepare import DTYPES, prepare_potential
    from torchmdx.runtime.devices import choose_device

    device = choose_device(options.device or torch.device("cpu"))
    treatment = (options.coulomb_cutoff, options.coulomb, options.coulomb_accuracy, options.head)
    potential = prepare_potential(options.potential, DTYPES[options.dtype], device, *treatment)
    made = export(potential, options.output)
    print(
        f"wrote {made.path}: {made.num_bytes / 1e6:.1f} MB for {device.type}, {options.dtype}, cutoff "
        f"{potential.cutoff} Å; largest relative error against the exact model {made.error:.1e}"
    )
    return 0
