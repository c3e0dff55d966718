"""Prints pip constraints for the oldest versions that pyproject.toml allows: `name==bound` for every `name>=bound`.

    tools/oldest_requirements.py openmm train label >oldest.txt    # the dependencies, and those of three extras

torch is printed as constraints.txt has it: PyPI's builds of torch for Linux bring CUDA, several GB. TORCH_REQUIREMENT
replaces that line where an index has a CPU build of the oldest version.
"""

from __future__ import annotations

import os
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)\s*>=\s*([0-9][0-9.]*)")


def requirements(extras: list[str], pyproject: Path) -> list[str]:
    """Requirements of the package and these extras. Raises ValueError for an unknown extra."""
    project = tomllib.loads(pyproject.read_text())["project"]
    optional = project["optional-dependencies"]
    unknown = sorted(set(extras) - optional.keys())
    if unknown:
        raise ValueError(f"extras must be of {', '.join(sorted(optional))}, got {', '.join(unknown)}")
    return sorted({*project["dependencies"], *(word for extra in extras for word in optional[extra])})


def oldest(requirement: str) -> str:
    """`name==bound`. Raises ValueError for a requirement other than `name>=bound`: its oldest version is unknown."""
    found = REQUIREMENT.fullmatch(requirement.strip())
    if found is None:
        raise ValueError(f"a requirement must be name>=bound, so that its oldest version is known, got {requirement!r}")
    return f"{found[1]}=={found[2]}"


def pinned_torch(constraints: Path) -> str:
    """The line of torch, which TORCH_REQUIREMENT replaces."""
    given = os.environ.get("TORCH_REQUIREMENT")
    return given or next(line for line in constraints.read_text().splitlines() if line.startswith("torch=="))


def main(extras: list[str]) -> int:
    """Prints the constraints; returns the exit status."""
    lines = [oldest(requirement) for requirement in requirements(extras, ROOT / "pyproject.toml")]
    for line in lines:
        print(pinned_torch(ROOT / "constraints.txt") if line.startswith("torch==") else line)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
