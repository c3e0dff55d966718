"""What every model has to keep to, as checks that a potential passes or fails: `check(potential)`.

The checks know nothing of the model but its answers, so they serve a network of anybody's. Each compares two ways to
the same number, or a derivative with differences; what it allows is relative to the size of the forces.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from torchmdx.conformance import contract, geometry
from torchmdx.conformance.structures import Case, case_of
from torchmdx.models.potential import Potential


@dataclass(frozen=True)
class Check:
    """One check: its name, what it asks, the error it found and the most that is allowed; why, if it could not run."""

    name: str
    asks: str
    error: float
    allowed: float
    why: str = ""

    @property
    def passed(self) -> bool:
        return not self.why and self.error <= self.allowed


@dataclass(frozen=True)
class Conformance:
    """The result of all checks; as text, a table."""

    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)

    @property
    def failed(self) -> tuple[str, ...]:
        """Names of the checks that failed."""
        return tuple(check.name for check in self.checks if not check.passed)

    def __str__(self) -> str:
        lines = [f"{'check':<18}{'error':>10}{'allowed':>10}         what is asked"]
        for check in self.checks:
            numbers = f"{'-':>10}" if check.why else f"{check.error:>10.1e}"
            verdict = "ok  " if check.passed else "FAIL"
            lines.append(f"{check.name:<18}{numbers}{check.allowed:>10.0e}   {verdict}  {check.asks}")
            if check.why:
                lines.append(f"{'':<18}{check.why}")
        return "\n".join(lines)

    def require(self) -> None:
        """Raises ValueError that names what failed."""
        if not self.passed:
            raise ValueError(f"the potential must pass every check of conformance, failed {', '.join(self.failed)}")


# Name, what is asked, the most that is allowed, and what measures it.
SUITE: tuple[tuple[str, str, float, Callable[[Case], float]], ...] = (
    ("answers", "energies are finite numbers, one an atom, and depend on the geometry", 0.0, contract.answers),
    ("rotation", "turning a structure turns its forces and nothing else", 1e-9, partial(geometry.turned, mirror=False)),
    ("reflection", "mirror images have the same energy", 1e-9, partial(geometry.turned, mirror=True)),
    ("permutation", "the order of atoms means nothing", 1e-9, geometry.permuted),
    ("batch", "structures in a batch do not see each other", 1e-9, geometry.batched),
    ("supercell", "a crystal of twice the cell has twice the energy", 1e-9, geometry.supercell),
    ("lone atoms", "an atom without neighbours has an energy, and no force", 1e-9, geometry.lone_atom),
    ("cutoff", "energy and force go to zero at the cutoff, smoothly, and stay there", 1e-2, geometry.at_the_cutoff),
    ("forces", "forces are minus the slope of the energy", 1e-5, geometry.force_differences),
    ("stress", "stress is the slope of the energy in a strain", 1e-5, geometry.stress_differences),
    ("padding", "empty slots of a neighbour list add nothing", 1e-9, contract.padded),
    ("host", "shapes alone decide what is launched: nothing is read on the host", 0.0, contract.reads_nothing),
    ("float32", "float32 gives the forces of float64", 1e-3, contract.single_precision),
    ("training", "a loss on forces can be differentiated by the weights", 1e-4, contract.second_derivatives),
    ("checkpoint", "save and load give the same numbers", 1e-12, contract.saved_and_loaded),
    ("step", "CapturedStep follows moving atoms, by a graph where there is a GPU", 1e-3, contract.captured),
)


def check(
    potential: Potential, *, device: torch.device | str | None = None, reflections: bool = True, verbose: bool = True
) -> Conformance:
    """Puts a potential through every check, on copies of it, and prints the table.

    device: where the captured step runs; None takes a GPU if there is one. The other checks run on the CPU in float64.
    reflections: False for a model that may tell mirror images apart. Takes seconds for a small model. A check that
    raises has failed, and the table says what it raised.
    """
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    exact = copy.deepcopy(potential).to(device="cpu", dtype=torch.float64).eval().requires_grad_(False)
    checks = []
    for name, asks, allowed, measure in SUITE:
        if name == "reflection" and not reflections:
            continue
        error, why = float("nan"), ""
        try:
            error = measure(case_of(exact, torch.device(device)))
        except Exception as raised:  # whatever a model trips over is what its author wants to read
            why = f"{type(raised).__name__}: {str(raised).strip().splitlines()[0] if str(raised).strip() else ''}"
        checks.append(Check(name, asks, error, allowed, why))
    found = Conformance(tuple(checks))
    if verbose:
        print(found)
    return found
