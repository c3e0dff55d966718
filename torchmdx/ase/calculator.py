"""The interface to ASE: any potential as an ASE calculator."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ase import Atoms
from ase.calculators.calculator import Calculator as AseCalculator
from ase.calculators.calculator import PropertyNotImplementedError, all_changes

from torchmdx.ase.atoms import changes_between, charge_results, has_only_moved, results_of, snapshot
from torchmdx.ase.other_properties import OtherProperties
from torchmdx.ase.parameters import CHANGEABLE, DEFAULTS, changeable, require_changeable, require_known
from torchmdx.checkpoints.prepare import DTYPES, PotentialSource, dtype_named, prepare_potential
from torchmdx.models.digest import origin_of
from torchmdx.models.ensemble import Ensemble
from torchmdx.runtime.precisions import saved_precision
from torchmdx.runtime.thread_lock import ThreadLock, one_thread_at_a_time
from torchmdx.step.buffer_storage import UNCERTAINTIES
from torchmdx.step.capture_policy import require_mode
from torchmdx.step.divided_pool import Pool, pool_for
from torchmdx.step.divided_step import DividedReport, chosen_devices
from torchmdx.step.report import StepReport
from torchmdx.step.results import StepResult
from torchmdx.step.spread_limit import SpreadLimit
from torchmdx.step.uncertainty import wants_uncertainty
from torchmdx.structures.system import System
from torchmdx.structures.total_charge import charge_of, checked_charge


@one_thread_at_a_time(
    "set", "reset", "calculate", "get_property", "get_descriptors", "get_hessian", "get_forces_uncertainty", "report",
    "__getstate__",
)  # fmt: skip
class Calculator(OtherProperties, AseCalculator):
    """Energy, energies, forces and stress of a potential, for anything in ASE that takes a calculator.

    Example::

        atoms.calc = torchmdx.Calculator()  # the default potential
        atoms.calc = torchmdx.Calculator("model.safetensors")

    Stress has ASE's convention: ∂E/∂strain / volume in Voigt order, eV/Å³. It needs a cell with three lattice vectors.
    A potential that predicts partial charges also provides charges, e, and for structures that are not periodic the
    dipole, e Å, relative to the centre of nuclear charge, which matters for ions. An ensemble provides means, and the
    standard deviations over members as `results["energy_spread"]`, eV, and `results["forces_spread"]`, eV/Å, by atom. A
    single potential that knows its uncertainty provides `results["energy_uncertainty"]`, eV, and by atom
    `results["energies_uncertainty"]`, eV.

    `set(charge=1)` changes charge, mode, max_force_spread, max_uncertainty or spread_file; `parameters` holds all, with
    name and hash of the potential, and so do rows of `ase.db`. Copies and pickles have no steps. Threads that share a
    calculator take turns, but `results` holds the last result of any thread.

    Args:
        potential: A Potential (which is copied), the path of a checkpoint, or a name, as for `torchmdx.load`; or an
            ensemble: an Ensemble, a file or folder of several potentials, a list of potentials or paths.
        dtype: Of the network, "float32" or "float64" (on a GPU the exact model); energies are float64.
        device: "cpu", "cuda", "cuda:1"; None takes a GPU if one is available.
        devices: Several, such as ["cuda:0", "cuda:1"], which share each structure as `torchmdx.DividedStep` does.
        mode, engine, max_memory: As for CapturedStep; mode "graph" requires a CUDA graph, "eager" uses none.
        charge: Total charge of every structure, in e; None: that of each structure, by
            `torchmdx.structures.total_charge`.
        max_force_spread: For an ensemble, eV/Å. If the forces on an atom have a larger spread, the frame is appended to
            spread_file (extended XYZ, default "uncertain.xyz") and SpreadError is raised, which stops a run.
        max_uncertainty: The same for a single potential that knows its uncertainty: eV, of the energy of an atom;
            raises UncertaintyError.
        uncertainty: Whether uncertainties are computed; None: if the potential knows them and is on one CPU.
        coulomb_cutoff, coulomb, coulomb_accuracy: Treatment of the Coulomb energy of periodic structures, as for
            `torchmdx.load`.
        head: Of a file with several; None: its default.
    """

    implemented_properties = ["energy", "free_energy", "energies", "forces", "stress"]
    default_parameters = DEFAULTS
    name = "torchmdx"

    def __init__(
        self,
        potential: PotentialSource = None,
        *,
        dtype: str | torch.dtype = "float32",
        mode: str = "auto",
        engine: str | None = None,
        device: torch.device | str | None = None,
        devices: Sequence[torch.device | str] | None = None,
        charge: float | None = None,
        max_force_spread: float | None = None,
        spread_file: str | Path | None = None,
        max_uncertainty: float | None = None,
        uncertainty: bool | None = None,
        coulomb_cutoff: float | None = None,
        coulomb: str | None = None,
        coulomb_accuracy: float | None = None,
        head: str | None = None,
        max_memory: int | None = None,
        **others: Any,
    ) -> None:
        self.lock = ThreadLock()
        # Of the last calculation: a copy that nobody else sees, and the one that has been given out as `atoms`.
        self._kept: Atoms | None = None
        self._shown: Atoms | None = None
        super().__init__()
        require_known(others)
        dtype = dtype_named(dtype)
        target, several = chosen_devices(device, devices, mode)
        treatment = (coulomb_cutoff, coulomb, coulomb_accuracy, head)
        self.potential = prepare_potential(potential, DTYPES[dtype], target, *treatment)
        if self.potential.predicts_charges:
            self.implemented_properties = [*self.implemented_properties, "charges", "dipole"]
        if isinstance(self.potential, Ensemble):
            self.implemented_properties = [*self.implemented_properties, "energy_spread", "forces_spread"]
        if wants_uncertainty(self.potential, several, uncertainty, max_uncertainty):
            self.implemented_properties = [*self.implemented_properties, *UNCERTAINTIES]
        self._last_charge: float | None = None
        self._system: System | None = None  # of the last calculation; None while it may not be that of `atoms`
        self._asked_about: tuple[bytes, float, bool] | None = None
        self.limit: SpreadLimit | None = None
        self.parameters.update(dtype=dtype, engine=engine, device=str(target), devices=several)
        self.parameters.update(coulomb_cutoff=coulomb_cutoff, coulomb=coulomb, coulomb_accuracy=coulomb_accuracy)
        self.parameters.update(
            head=head, uncertainty=uncertainty, max_memory=max_memory, **origin_of(self.potential).info
        )
        self._adopt(
            charge=charge,
            mode=mode,
            max_force_spread=max_force_spread,
            spread_file=spread_file,
            max_uncertainty=max_uncertainty,
        )
        self.pool = self._make_pool(stress=False)

    @property
    def atoms(self) -> Atoms | None:
        """The structure of the last calculation; if it is changed in place, the next calculation is of that."""
        if self._shown is None and self._kept is not None:
            self._shown = snapshot(self._kept)
        return self._shown

    @atoms.setter
    def atoms(self, value: Atoms | None) -> None:
        self._kept, self._shown = None, value

    @property
    def dtype(self) -> str:
        return str(self.parameters["dtype"])

    mode = changeable("mode")
    charge = changeable("charge")

    def set(self, **parameters: Any) -> dict[str, Any]:
        """Changes parameters and discards results; returns the parameters that changed.

        Raises:
            TypeError: For an unknown parameter.
            ValueError: For one that needs a new calculator and for a bad value; then nothing has changed.
        """
        if not parameters:  # as called by ASE
            return {}
        require_changeable(parameters)
        before: dict[str, Any] = {name: self.parameters.get(name) for name in CHANGEABLE}  # older pickles lack some
        self._adopt(**(before | parameters))
        changed = {name: self.parameters[name] for name in CHANGEABLE if self.parameters[name] != before[name]}
        if changed.keys() & {"mode", "max_uncertainty"}:  # which decide what a step computes
            self.pool = self._make_pool(stress=self.pool.stress)
        if changed:
            self.reset()
        return changed

    def _adopt(
        self,
        *,
        charge: float | None,
        mode: str,
        max_force_spread: float | None,
        max_uncertainty: float | None,
        spread_file: str | Path | None,
    ) -> None:
        """Checks these parameters, then stores them."""
        require_mode(mode, self.potential.device)
        charge = None if charge is None else checked_charge(charge)
        file = None if spread_file is None else str(spread_file)
        limits: dict[str, Any] = dict(
            max_force_spread=max_force_spread, max_uncertainty=max_uncertainty, spread_file=file
        )
        if limits != {name: self.parameters.get(name) for name in limits}:  # older pickles lack one
            wants_uncertainty(
                self.potential, self.parameters["devices"], self.parameters.get("uncertainty"), max_uncertainty
            )
            self.limit = SpreadLimit.of(self.potential, max_force_spread, file, max_uncertainty)
        self.parameters.update(charge=charge, mode=mode, **limits)

    def __getstate__(self) -> dict[str, Any]:
        state = vars(self) | {"results": dict(self.results), "stress": self.pool.stress}
        return {name: value for name, value in state.items() if name != "pool"}  # steps are made when they are needed

    def __setstate__(self, state: dict[str, Any]) -> None:
        stress = state.pop("stress")
        vars(self).update(state)
        self.parameters["dtype"] = saved_precision(self.dtype)
        self.pool = self._make_pool(stress=stress)

    def __repr__(self) -> str:
        several = f"{len(self.potential)} potentials, " if isinstance(self.potential, Ensemble) else ""
        where = ", ".join(map(str, self.parameters["devices"] or [self.potential.device]))
        return f"torchmdx.Calculator({several}{self.dtype} on {where}, cutoff {self.potential.cutoff} Å)"

    def _make_pool(self, *, stress: bool) -> Pool:
        given = self.parameters
        options: dict[str, Any] = dict(mode=self.mode, stress=stress, precision=self.dtype)
        options |= {name: given.get(name) for name in ("engine", "max_memory")}  # absent in older pickles
        asked = given.get("uncertainty"), given.get("max_uncertainty")
        if wants_uncertainty(self.potential, given["devices"], *asked):
            options["uncertainty"] = True
        return pool_for(self.potential, given["devices"], **options)

    def report(self) -> StepReport | DividedReport | None:
        """The report on the step that evaluated the last structure; None before the first evaluation."""
        return self.pool.report()

    def check_state(self, atoms: Atoms, tol: float = 1e-15) -> list[str]:
        """What changed since the last calculation: ASE's list, and the charge, which ASE does not check."""
        changes = changes_between(self._kept, atoms, tol, self.ignored_changes)
        if self._kept is not None and self._charge(atoms) != self._last_charge:
            changes.append("charge")
        return changes

    def get_property(self, name: str, atoms: Atoms | None = None, allow_calculation: bool = True) -> Any:
        """As ASE's, with one copy of the atoms less."""
        if name not in self.implemented_properties:
            raise PropertyNotImplementedError(f"{name} property not implemented")
        structure = self._shown if atoms is None else atoms
        changes = [] if structure is None else self.check_state(structure)
        if changes or name not in self.results:
            if not allow_calculation:
                if changes:
                    self.reset()
                return None
            self.calculate(atoms, [name], changes)
        if name not in self.results:
            raise PropertyNotImplementedError(f"{name} not present in this calculation")
        result = self.results[name]
        return result.copy() if isinstance(result, np.ndarray) else result

    def calculate(
        self,
        atoms: Atoms | None = None,
        properties: Sequence[str] = ("energy",),
        system_changes: Sequence[str] = tuple(all_changes),
    ) -> None:
        """Fills `results`: energy, forces and spreads always, stress once it has been requested.

        Args:
            system_changes: Not used, since they may be those since a calculation of something else.
        """
        self.results = {}  # results of other atoms must not remain after a failure or an interruption
        known, self._system = self._system, None
        structure = self._given_or_last(atoms)
        charge, before = self._charge(structure), self._kept
        if before is None or charge != self._last_charge or not has_only_moved(before, structure):
            known = before = None
        structure = snapshot(structure, before)
        self._shown, self._kept, self._last_charge = None, structure, charge
        if "stress" in properties:
            if structure.cell.rank != 3:
                raise PropertyNotImplementedError(
                    f"stress needs a cell with three lattice vectors, got one of rank {structure.cell.rank}"
                )
            if not self.pool.stress:
                self.pool = self._make_pool(stress=True)
        self._system, result = self._evaluate(structure, known)
        self.results = results_of(result, structure)
        if "charges" in properties or "dipole" in properties:
            self.results |= charge_results(self.potential, structure, charge, "dipole" in properties)

    def _evaluate(self, structure: Atoms, known: System | None) -> tuple[System, StepResult]:
        """The results of the atoms; known: their system, possibly at earlier positions, if it is the last one."""
        positions = structure.arrays["positions"]
        if known is not None and self.limit is None and math.isfinite(np.vdot(positions, positions)):
            return known, self.pool(known, positions)
        if known is None:
            system = System.from_ase(structure, self._last_charge)
            self._warn_of_doubts(system)
        else:
            system = known.at(positions)
        result = self.pool(system)
        if self.limit is not None:
            self.limit.require(system, result)
        return system, result

    def _charge(self, atoms: Atoms) -> float:
        return charge_of(atoms, self.charge)[0]
