"""`torchmdx convert`: a foreign checkpoint to torchmdx's own format."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from torchmdx.units import ENERGY_UNITS


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "convert",
        help="convert a torchmd-net checkpoint",
        description="Reads a torchmd-net TensorNet checkpoint (old and new layouts) and writes a torchmdx file.",
    )
    parser.add_argument("source", help="the .ckpt file; no code in it is ever run")
    parser.add_argument("target", help="the .safetensors file to write")
    parser.add_argument(
        "--energy-unit",
        choices=sorted(ENERGY_UNITS),
        default="eV",
        help="unit of the energies the model was trained on; torchmdx works in eV (default: eV)",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from torchmdx.checkpoint import load, save
    from torchmdx.commands.info import describe

    if Path(options.target).suffix != ".safetensors":
        raise ValueError(f"the target must end in .safetensors, got {options.target!r}")
    potential = load(options.source)
    factor = ENERGY_UNITS[options.energy_unit]
    for constant in (potential.scale, potential.shift, potential.reference_energies):
        constant.mul_(factor)
    save(potential, options.target)
    print(f"wrote {options.target}")
    print(describe(potential))
    return 0
