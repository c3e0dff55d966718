"""The ASE front door: any potential as an ASE calculator."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from ase import Atoms
from ase.calculators.calculator import Calculator as AseCalculator
from ase.calculators.calculator import PropertyNotImplementedError, all_changes
from ase.stress import full_3x3_to_voigt_6_stress

from torchmdx.checkpoint import load
from torchmdx.forces import evaluate
from torchmdx.models.potential import Potential
from torchmdx.pool import StepPool
from torchmdx.step_policy import require_mode
from torchmdx.step_report import StepReport
from torchmdx.system import System, checked_charge

DTYPES = {"float32": torch.float32, "float64": torch.float64, "tf32": torch.float32}


class Calculator(AseCalculator):
    """Energy, energies, forces and stress of a potential, for anything in ASE that takes a calculator.

        atoms.calc = torchmdx.Calculator()                      # the potential that torchmdx comes with
        atoms.calc = torchmdx.Calculator("model.safetensors")

    potential: a Potential (copied, so that the caller's stays as it is), the path of a checkpoint, or a name, as for
    `torchmdx.load`.
    dtype: "float32", "float64" (the exact model), or "tf32", of the network; energies are summed in float64 anyway.
    device: "cpu", "cuda", "cuda:1"; None takes a GPU if there is one.
    mode: "auto" captures a CUDA graph once a structure has been seen three times, "graph" insists, "eager" never does.
    charge: total charge of every structure, in e; None reads `atoms.info["charge"]`, 0 where that is missing.

    Stress is ASE's: ∂E/∂strain / volume in Voigt order, eV/Å³. It needs a cell with three lattice vectors. A potential
    that predicts partial charges gives charges, e, too, and the dipole, e Å, of structures that are not periodic: about
    the centre of nuclear charge, which matters to ions.
    """

    implemented_properties = ["energy", "free_energy", "energies", "forces", "stress"]
    name = "torchmdx"

    def __init__(
        self,
        potential: Potential | str | Path | None = None,
        *,
        dtype: str = "float32",
        mode: str = "auto",
        device: torch.device | str | None = None,
        charge: float | None = None,
    ) -> None:
        super().__init__()
        if dtype not in DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
        target = choose_device(device)
        if isinstance(potential, Potential):
            self.potential = copy.deepcopy(potential).to(device=target, dtype=DTYPES[dtype])
            self.potential.eval().requires_grad_(False)
        elif potential is None or isinstance(potential, (str, Path)):
            self.potential = load(potential, dtype=DTYPES[dtype], device=target)
        else:
            raise TypeError(f"potential must be a Potential or a path, got {type(potential).__name__}")
        require_mode(mode, target)
        if self.potential.predicts_charges:
            self.implemented_properties = [*self.implemented_properties, "charges", "dipole"]
        self.mode, self.dtype = mode, dtype
        self.charge = None if charge is None else checked_charge(charge)
        self._last_charge: Any = None
        self._asked_about: tuple[bytes, float] | None = None
        self._stress_wanted = False
        self.pool = self._make_pool()

    def __repr__(self) -> str:
        return f"torchmdx.Calculator({self.dtype} on {self.potential.device}, cutoff {self.potential.cutoff} Å)"

    def _make_pool(self) -> StepPool:
        return StepPool(self.potential, mode=self.mode, stress=self._stress_wanted, precision=self.dtype)

    def report(self) -> StepReport | None:
        """How the last structure was evaluated, in numbers; None before the first."""
        steps = self.pool.steps
        return steps[-1].report() if steps else None

    def check_state(self, atoms: Atoms, tol: float = 1e-15) -> list[str]:
        """What changed since the last calculation; ASE's list, and the charge, which ASE does not look at."""
        changes = super().check_state(atoms, tol)
        if self.atoms is not None and self._charge(atoms) != self._last_charge:
            changes.append("charge")
        return changes

    def calculate(
        self,
        atoms: Atoms | None = None,
        properties: Sequence[str] = ("energy",),
        system_changes: Sequence[str] = tuple(all_changes),
    ) -> None:
        """Fills `results`. Energy and forces always; stress from the first time it is asked for."""
        super().calculate(atoms, properties, system_changes)
        structure = self.atoms
        assert structure is not None
        has_volume = structure.cell.rank == 3
        if "stress" in properties and not has_volume:
            raise PropertyNotImplementedError(
                f"stress needs a cell with three lattice vectors, got one of rank {structure.cell.rank}"
            )
        self._last_charge = self._charge(structure)
        if "stress" in properties and not self._stress_wanted:
            self._stress_wanted = True
            self.pool = self._make_pool()
        system = System.from_ase(structure, self.charge)
        self._warn_of_doubts(system)
        result = self.pool(system)
        energy = float(result.energy[0])
        self.results = {
            "energy": energy,
            "free_energy": energy,
            "energies": result.energies,
            "forces": result.forces,
        }
        if result.stress is not None and has_volume:
            self.results["stress"] = full_3x3_to_voigt_6_stress(result.stress[0])
        if "charges" in properties or "dipole" in properties:
            self._add_charges(structure, "dipole" in properties)

    def _warn_of_doubts(self, system: System) -> None:
        """Once for every composition and charge in a row, not at each step of a simulation."""
        key = (system.atomic_numbers.numpy().tobytes(), system.charge)
        if key != self._asked_about:
            self._asked_about = key
            for doubt in self.potential.card.doubts(system.atomic_numbers.tolist(), system.charge):
                warnings.warn(doubt, stacklevel=2)

    def _add_charges(self, structure: Atoms, dipole_wanted: bool) -> None:
        """Charges, and the dipole where there is one, by the exact model: steps do not give them."""
        if dipole_wanted and structure.pbc.any():
            raise PropertyNotImplementedError(f"dipole needs a structure that is not periodic, got pbc {structure.pbc}")
        system = System.from_ase(structure, self.charge)
        found = evaluate(self.potential, system, forces=False)
        assert found.charges is not None
        assert found.dipoles is not None
        self.results["charges"] = found.charges.double().cpu().numpy()
        if not structure.pbc.any():
            self.results["dipole"] = found.dipoles[0].double().cpu().numpy()

    def _charge(self, atoms: Atoms) -> Any:
        return atoms.info.get("charge", 0) if self.charge is None else self.charge


def choose_device(device: torch.device | str | None) -> torch.device:
    """The device asked for, or a GPU if there is one. Raises ValueError for one this machine lacks."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(r"cpu(:0)?|cuda(:\d+)?", str(device)):
        raise ValueError(f"device must be cpu or cuda, got {str(device)!r}")
    chosen = torch.device(device)
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"device {str(device)!r} is not there: torch sees {torch.cuda.device_count()} CUDA GPUs")
    return chosen
