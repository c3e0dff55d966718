"""Labels of structures by a calculator, in one process."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from torchmdx.datasets.labelling.calculators import Choice
from torchmdx.datasets.labelling.convergence import require_converged
from torchmdx.datasets.labelling.file_folders import FileFolders
from torchmdx.datasets.labelling.geometry import Labels, UnlabelledStructure

if TYPE_CHECKING:
    from ase import Atoms

ALL = ["energy", "forces", "stress"]


class Labeller:
    """Makes calculators and labels structures with them, in one process.

    Args:
        folder: For the files of a calculator that works through files, with a folder for each frame in it; None leaves
            them where the calculator has them, usually the working directory.
        keep_labelled: Whether to keep the files of frames that were labelled; those of frames that failed are kept.
    """

    def __init__(self, choice: Choice, folder: Path | None = None, *, keep_labelled: bool = True) -> None:
        self._choice, self._folder, self._keep_labelled = choice, folder, keep_labelled
        self._kept: Any = None
        self._folders: FileFolders | None = None
        if not choice.made_for_each:
            none = np.zeros(0)
            self._kept = choice.make(UnlabelledStructure(none, none, none, none))
            self._folders = None if folder is None else FileFolders(self._kept, folder)

    def attach(self, geometry: UnlabelledStructure, frame: str = "0") -> Atoms:
        """ASE's atoms with a calculator without state from other structures. frame: name of the folder of its files."""
        _require_sound(geometry)
        atoms = geometry.atoms()
        if self._kept is None:
            atoms.calc = self._choice.make(geometry)
            self._folders = None if self._folder is None else FileFolders(atoms.calc, self._folder)
        else:
            if hasattr(self._kept, "reset"):
                self._kept.reset()
            atoms.calc = self._kept
        if self._folders is not None:
            self._folders.enter(frame)
        return atoms

    def labels(self, geometry: UnlabelledStructure, frame: str = "0") -> Labels:
        """Energy, forces, and stress if all directions are periodic and the calculator provides it.

        The energy is the one that is consistent with the forces (ASE's free_energy), if the calculator provides it.
        Raises errors of the calculator, ValueError for numbers that are not finite, and UnconvergedSCF.
        """
        atoms = self.attach(geometry, frame)
        folders = self._folders
        if folders is None:
            return _finite(_evaluated(atoms), geometry)
        with _naming(folders):
            try:
                found = _evaluated(atoms)
            finally:  # a program that ends with an error may have said why
                require_converged(folders.parts)
            _finite(found, geometry)
        if not self._keep_labelled:
            folders.remove()
        return found


@contextlib.contextmanager
def _naming(folders: FileFolders) -> Iterator[None]:
    """Adds the folders to the text of an error."""
    try:
        yield
    except Exception as error:
        if folders.used:
            error.add_note(f"files in {', '.join(str(place) for place in folders.used)}")
        raise


def _evaluated(atoms: Atoms) -> Labels:
    from ase.calculators.calculator import PropertyNotImplementedError

    provided = _provided(atoms)
    forces = np.array(atoms.get_forces(), np.float64)
    try:
        energy = float(atoms.get_potential_energy(force_consistent=True))
    except (PropertyNotImplementedError, KeyError):
        energy = float(atoms.get_potential_energy())
    stress = None
    left_out = getattr(atoms.calc, "results", {}).get("stress", 0) is None  # by settings of VASP
    if atoms.pbc.all() and "stress" in provided and not left_out:
        stress = np.array(atoms.get_stress(voigt=False), np.float64)
    return Labels(energy, forces, stress)


def _provided(atoms: Atoms) -> Collection[str]:
    """Names of properties that the calculator of the atoms has."""
    from ase.calculators.calculator import all_changes
    from ase.calculators.genericfileio import GenericFileIOCalculator

    calculator = atoms.calc
    if not isinstance(calculator, GenericFileIOCalculator):
        return getattr(calculator, "implemented_properties", ())
    # Asked for one property at a time, it runs its program for each that it lacks.
    calculator.atoms = atoms.copy()
    names = [name for name in ALL if name in calculator.implemented_properties]
    calculator.calculate(atoms, names if atoms.pbc.all() else names[:2], all_changes)
    return calculator.results


def _finite(found: Labels, geometry: UnlabelledStructure) -> Labels:
    """The labels. Raises ValueError unless they are finite, for all atoms."""
    if found.forces.shape != geometry.positions.shape:
        raise ValueError(f"forces must have shape {geometry.positions.shape}, got {found.forces.shape}")
    stress = 0.0 if found.stress is None else found.stress
    for name, value in (("energy", found.energy), ("forces", found.forces), ("stress", stress)):
        if not np.isfinite(value).all():
            raise ValueError(f"{name} must be finite, got {np.asarray(value)[~np.isfinite(value)].flat[0]}")
    return found


def _require_sound(geometry: UnlabelledStructure) -> None:
    if not len(geometry.numbers):
        raise ValueError("a structure must have atoms, got none")
    if not np.isfinite(geometry.positions).all():
        atom = int(np.argwhere(~np.isfinite(geometry.positions))[0, 0])
        raise ValueError(f"positions must be finite, got {geometry.positions[atom].tolist()} for atom {atom}")
