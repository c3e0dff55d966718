"""Options for reading files of labelled structures, shared by several commands."""

from __future__ import annotations

import argparse
from typing import Any

from torchmdx.datasets import FORMAT_NAMES, KEY_NAMES
from torchmdx.datasets.units import DIPOLE_UNITS
from torchmdx.structures.units import ENERGY_UNITS, LENGTH_UNITS

KEYS = tuple(name.replace("_", "-") for name in KEY_NAMES)
UNITS = ("energy", "length", "force", "stress", "dipole")


def add_reading_options(parser: argparse.ArgumentParser) -> None:
    """Adds --format, --broken, units, and the names of properties in the files."""
    parser.add_argument("--format", choices=FORMAT_NAMES, help="format of the files (default: from name and content)")
    parser.add_argument(
        "--broken",
        choices=("refuse", "skip"),
        default="refuse",
        help="unusable frames (NaN, no labels, coincident atoms, ...): stop with an error, or skip (default: refuse)",
    )
    units = "default: {}; for SPICE: {}"
    parser.add_argument(
        "--energy-unit", choices=list(ENERGY_UNITS), help=f"unit of energies ({units.format('eV', 'hartree')})"
    )
    parser.add_argument(
        "--length-unit",
        choices=list(LENGTH_UNITS),
        help=f"unit of positions and cells ({units.format('angstrom', 'bohr')})",
    )
    parser.add_argument(
        "--force-unit",
        metavar="UNIT",
        help="unit of forces, such as kcal/mol/angstrom (default: energy unit / length unit)",
    )
    parser.add_argument(
        "--stress-unit",
        metavar="UNIT",
        help="unit of stress, such as GPa or eV/angstrom^3 (default: from the other units)",
    )
    parser.add_argument(
        "--dipole-unit", choices=list(DIPOLE_UNITS), help="unit of dipole moments (default: e times the length unit)"
    )
    for key in KEYS:
        parser.add_argument(f"--{key}-key", metavar="NAME", help=f"name of the {key.replace('-', ' ')} in the files")


def given_reading_options(options: argparse.Namespace) -> list[str]:
    """The options given on the command line, as written there."""
    names = ["format", *(f"{unit}-unit" for unit in UNITS), *(f"{key}-key" for key in KEYS)]
    return [f"--{name}" for name in names if getattr(options, name.replace("-", "_")) is not None]


def reading_of(options: argparse.Namespace) -> dict[str, Any]:
    """The options as arguments of `torchmdx.datasets.conversion.convert`."""
    names = {key: key.replace("-", "_") for key in KEYS}
    return {
        "format": options.format,
        "broken": options.broken,
        "keys": {name: getattr(options, f"{name}_key") for name in names.values()},
        **{f"{unit}_unit": getattr(options, f"{unit}_unit") for unit in UNITS},
    }
