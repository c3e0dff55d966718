"""Programs that end without an error though their self-consistent field has not converged."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

# Files that a program writes, and what it says in them. ASE reads the numbers next to these lines as results.
SAID = {
    "orca": ("*.out", ("SCF NOT CONVERGED", "Wavefunction not fully converged")),
    "espresso": ("*.pwo", ("convergence NOT achieved",)),
    "cp2k": ("*.out", ("SCF run NOT converged",)),
    "vasp": ("OUTCAR", ("EDIFF was not reached",)),
}


class UnconvergedSCF(RuntimeError):
    """The self-consistent field has not converged, so that there are no labels."""


def require_converged(calculators: Sequence[Any]) -> None:
    """Raises UnconvergedSCF if a program of ASE's calculators says so in the files of its directory."""
    for calculator in calculators:
        name = str(getattr(calculator, "name", "")).lower()  # as ASE names the program
        pattern, phrases = SAID.get(name, ("", ()))
        for path in sorted(Path(calculator.directory).glob(pattern)) if pattern else ():
            line = _first_line(path, phrases)
            if line is not None:
                raise UnconvergedSCF(f"the SCF of {name} has not converged: {path.name} says {line!r}")
        if name == "vasp" and getattr(calculator, "converged", None) is False:  # earlier versions say less
            raise UnconvergedSCF("the SCF of vasp has not converged, as ASE reads from OUTCAR")


def _first_line(path: Path, phrases: Sequence[str]) -> str | None:
    with path.open(errors="replace") as file:
        for line in file:
            if any(phrase in line for phrase in phrases):
                return " ".join(line.split())
    return None
