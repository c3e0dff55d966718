"""The calculators that label: named ones, and any other by module and name."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from torchmdx.datasets.labelling.file_folders import use_folder
from torchmdx.datasets.labelling.geometry import Labels, UnlabelledStructure

if TYPE_CHECKING:
    from ase import Atoms

XTB = {"gfn2-xtb": "GFN2-xTB", "gfn1-xtb": "GFN1-xTB"}
CLASSICAL = {"emt": ("ase.calculators.emt", "EMT"), "lj": ("ase.calculators.lj", "LennardJones")}
NAMES = (*XTB, *CLASSICAL)
# Of tblite, whose own default is 1: forces to 3e-5 eV/Å instead of 2e-4, for 15% more time (aspirin at 500 K).
XTB_ACCURACY = 0.1
OURS = {"method", "charge", "multiplicity", "verbosity"}  # options of tblite that are set here
LANTHANIDES = range(57, 72)  # their f electrons belong to the core of GFN-xTB, which gives each 3 valence electrons


@dataclass(frozen=True)
class Choice:
    """A calculator by name, with its options; can be sent to another process and made there."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)

    def require(self) -> None:
        """Raises ImportError or ValueError when the calculator cannot be had or does not know an option."""
        if self.name in XTB:
            if importlib.util.find_spec("tblite") is None:
                raise ImportError(
                    f"--calculator {self.name} needs tblite, which is not installed: pip install 'torchmdx[label]'"
                )
            from tblite.ase import TBLite

            solvents = {f"{name}_solvation" for name in ("alpb", "gbsa", "cosmo", "cpcm", "pcm", "gbe", "gb")}
            self._require_options((set(TBLite.default_parameters) | solvents) - OURS)
        elif self.name in CLASSICAL:
            self._require_options(set(_attribute(*CLASSICAL[self.name]).default_parameters))
        else:
            self._factory()

    def settings(self) -> dict[str, Any]:
        """Settings that all labels of a run share, by their names in error messages."""
        if self.name not in XTB:
            return {"calculator": self.name, "options of the calculator": self.options}
        return {
            "calculator": self.name,
            "options of the calculator": {"accuracy": XTB_ACCURACY, **self.options},
            "version of tblite": importlib.metadata.version("tblite"),
        }

    @property
    def made_for_each(self) -> bool:
        """Whether every structure gets a new calculator.

        xTB starts from the previous structure's orbitals, so labels would depend on the order of frames.
        """
        return self.name in NAMES

    def make(self, geometry: UnlabelledStructure) -> Any:
        """A calculator for a structure.

        Raises:
            ValueError: If it cannot treat its charge or multiplicity.
        """
        if self.name in XTB:
            from tblite.ase import TBLite

            options = {"accuracy": XTB_ACCURACY, **self.options}
            spin = xtb_multiplicity(geometry)
            return TBLite(method=XTB[self.name], charge=geometry.charge, multiplicity=spin, verbosity=0, **options)
        if self.name in CLASSICAL:
            if geometry.charge or geometry.multiplicity not in (None, 1):
                raise ValueError(
                    f"{self.name} supports neither charge nor multiplicity, got charge {geometry.charge:g} and "
                    f"multiplicity {geometry.multiplicity}"
                )
            return _attribute(*CLASSICAL[self.name])(**self.options)
        return self._factory()(**self.options)

    def _require_options(self, known: set[str]) -> None:
        for name in self.options:
            if name not in known:
                raise ValueError(f"options of {self.name} must be among {', '.join(sorted(known))}, got {name!r}")

    def _factory(self) -> Any:
        module, colon, name = self.name.partition(":")
        if not (colon and module and name):
            raise ValueError(f"--calculator must be one of {', '.join(NAMES)}, or module:name, got {self.name!r}")
        if os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())  # for a calculator in a file in the working directory
        factory = _attribute(module, name)
        if not callable(factory):
            raise ValueError(f"--calculator must name a callable that returns a calculator, got {factory!r}")
        return factory


class Labeller:
    """Makes calculators and labels structures with them, in one process.

    Args:
        folder: For the files of a calculator that works through files, so that no other process writes the same ones;
            None leaves them where the calculator has them, usually the working directory.
    """

    def __init__(self, choice: Choice, folder: Path | None = None) -> None:
        self._choice = choice
        self._kept: Any = None
        if not choice.made_for_each:
            none = np.zeros(0)
            self._kept = choice.make(UnlabelledStructure(none, none, none, none))
            if folder is not None:
                use_folder(self._kept, folder)

    def attach(self, geometry: UnlabelledStructure) -> Atoms:
        """ASE's atoms with a calculator without state from other structures."""
        _require_sound(geometry)
        atoms = geometry.atoms()
        if self._kept is None:
            atoms.calc = self._choice.make(geometry)
        else:
            if hasattr(self._kept, "reset"):
                self._kept.reset()
            atoms.calc = self._kept
        return atoms

    def labels(self, geometry: UnlabelledStructure) -> Labels:
        """Energy, forces, and stress if all directions are periodic and the calculator provides it.

        The energy is the one that is consistent with the forces (ASE's free_energy), if the calculator provides it.
        Raises errors of the calculator, and ValueError for numbers that are not finite.
        """
        from ase.calculators.calculator import PropertyNotImplementedError

        atoms = self.attach(geometry)
        forces = np.array(atoms.get_forces(), np.float64)
        try:
            energy = float(atoms.get_potential_energy(force_consistent=True))
        except (PropertyNotImplementedError, KeyError):
            energy = float(atoms.get_potential_energy())
        stress = None
        if atoms.pbc.all() and "stress" in getattr(atoms.calc, "implemented_properties", ()):
            stress = np.array(atoms.get_stress(voigt=False), np.float64)
        if forces.shape != geometry.positions.shape:
            raise ValueError(f"forces must have shape {geometry.positions.shape}, got {forces.shape}")
        for name, value in (("energy", energy), ("forces", forces), ("stress", 0.0 if stress is None else stress)):
            if not np.isfinite(value).all():
                raise ValueError(f"{name} must be finite, got {np.asarray(value)[~np.isfinite(value)].flat[0]}")
        return Labels(energy, forces, stress)


def xtb_multiplicity(geometry: UnlabelledStructure) -> int:
    """The requested multiplicity, else the lowest. Raises ValueError if the number of electrons does not allow it."""
    charge = geometry.charge
    if not float(charge).is_integer():
        raise ValueError(f"the charge must be an integer for xTB, got {charge:g}")
    protons = int(np.where(np.isin(geometry.numbers, LANTHANIDES), 3, geometry.numbers).sum())
    odd = (protons - int(charge)) % 2
    wanted = geometry.multiplicity
    if wanted is None:
        return 1 + odd
    if wanted < 1 or (wanted - 1) % 2 != odd:
        parity, allowed = ("odd", "2, 4, ...") if odd else ("even", "1, 3, ...")
        raise ValueError(
            f"the multiplicity must be {allowed} with an {parity} number of electrons (charge {charge:g}), got {wanted}"
        )
    return wanted


def parse_options(texts: Sequence[str]) -> dict[str, Any]:
    """key=value, where the value is JSON or a Python literal (numbers, True, lists), or else text."""
    options = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not (equals and key.isidentifier()):
            raise ValueError(f"--calculator-option must be key=value, got {text!r}")
        if key in options:
            raise ValueError(f"--calculator-option must name a key once, got {key!r} again")
        options[key] = _value(value)
    return options


def _value(text: str) -> Any:
    for parse in (json.loads, ast.literal_eval):
        try:
            return parse(text)
        except (ValueError, SyntaxError):
            continue
    return text


def _require_sound(geometry: UnlabelledStructure) -> None:
    if not len(geometry.numbers):
        raise ValueError("a structure must have atoms, got none")
    if not np.isfinite(geometry.positions).all():
        atom = int(np.argwhere(~np.isfinite(geometry.positions))[0, 0])
        raise ValueError(f"positions must be finite, got {geometry.positions[atom].tolist()} for atom {atom}")


def _attribute(module: str, name: str) -> Any:
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"--calculator {module}:{name}: {error}") from error
    if not hasattr(found, name):
        raise ValueError(f"--calculator {module}:{name}: module {module} has no {name!r}")
    return getattr(found, name)
