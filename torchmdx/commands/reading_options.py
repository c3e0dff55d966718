"""Options that say how files of labelled structures are read; shared by the commands that read them."""

from __future__ import annotations

import argparse
from typing import Any

from torchmdx.datasets.blocks import KEY_NAMES
from torchmdx.datasets.readers import FORMATS
from torchmdx.units import ENERGY_UNITS, LENGTH_UNITS

KEYS = tuple(name.replace("_", "-") for name in KEY_NAMES)
UNITS = ("energy", "length", "force", "stress")


def add_reading_options(parser: argparse.ArgumentParser) -> None:
    """--format, --broken, units, and names in the files."""
    parser.add_argument("--format", choices=list(FORMATS), help="of the files (default: by name and content)")
    parser.add_argument(
        "--broken",
        choices=("refuse", "skip"),
        default="refuse",
        help="frames with NaN, without labels, with atoms in one place ...: stop, or leave them out (default: refuse)",
    )
    units = "default: eV and angstrom; SPICE's own hartree and bohr"
    parser.add_argument("--energy-unit", choices=list(ENERGY_UNITS), help=f"of energies in the files ({units})")
    parser.add_argument("--length-unit", choices=list(LENGTH_UNITS), help=f"of positions and cells ({units})")
    parser.add_argument("--force-unit", metavar="UNIT", help="such as kcal/mol/angstrom (default: energy over length)")
    parser.add_argument("--stress-unit", metavar="UNIT", help="such as GPa, eV/angstrom^3 (default: from the others)")
    for key in KEYS:
        parser.add_argument(f"--{key}-key", metavar="NAME", help=f"what the files call the {key.replace('-', ' ')}")


def given_reading_options(options: argparse.Namespace) -> list[str]:
    """Those that were given, as they are written."""
    names = ["format", *(f"{unit}-unit" for unit in UNITS), *(f"{key}-key" for key in KEYS)]
    return [f"--{name}" for name in names if getattr(options, name.replace("-", "_")) is not None]


def reading_of(options: argparse.Namespace) -> dict[str, Any]:
    """What the options say, as arguments of `torchmdx.datasets.convert.convert`."""
    names = {key: key.replace("-", "_") for key in KEYS}
    return {
        "format": options.format,
        "broken": options.broken,
        "keys": {name: getattr(options, f"{name}_key") for name in names.values()},
        **{f"{unit}_unit": getattr(options, f"{unit}_unit") for unit in UNITS},
    }
