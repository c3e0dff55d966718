"""The calculators that label: named ones, and any other by module and name."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import inspect
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from torchmdx.datasets.labelling.spin import xtb_multiplicity
from torchmdx.runtime.optional_package import require_package

if TYPE_CHECKING:
    from torchmdx.datasets.labelling.dft import DftSettings
    from torchmdx.datasets.labelling.geometry import UnlabelledStructure

XTB = {"gfn2-xtb": "GFN2-xTB", "gfn1-xtb": "GFN1-xTB"}
CLASSICAL = {"emt": ("ase.calculators.emt", "EMT"), "lj": ("ase.calculators.lj", "LennardJones")}
PYSCF = "pyscf"
NAMES = (*XTB, PYSCF, *CLASSICAL)
# Of tblite, whose own default is 1: forces to 3e-5 eV/Å instead of 2e-4, for 15% more time (aspirin at 500 K).
XTB_ACCURACY = 0.1
OURS = {"method", "charge", "multiplicity", "verbosity"}  # options of tblite that are set here
STRUCTURE = "atoms"  # the parameter of a function that makes a calculator for each structure


@dataclass(frozen=True)
class Choice:
    """A calculator by name, with its options; can be sent to another process and made there."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)

    def require(self) -> None:
        """Raises ImportError or ValueError when the calculator cannot be had or does not know an option."""
        if self.name in XTB:
            require_package("tblite", f"--calculator {self.name} needs", "label")
            from tblite.ase import TBLite

            solvents = {f"{name}_solvation" for name in ("alpb", "gbsa", "cosmo", "cpcm", "pcm", "gbe", "gb")}
            self._require_options((set(TBLite.default_parameters) | solvents) - OURS)
        elif self.name == PYSCF:
            self._dft().require()
        elif self.name in CLASSICAL:
            self._require_options(set(_attribute(*CLASSICAL[self.name]).default_parameters))
        else:
            self._factory()

    def settings(self) -> dict[str, Any]:
        """Settings that all labels of a run share, by their names in error messages."""
        if self.name == PYSCF:
            return {"calculator": self.name, "options of the calculator": self._dft().shared()}
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
        return self.name in NAMES or self._takes_structure()

    @property
    def num_workers(self) -> int | None:
        """Number of processes that suit the calculator, one for each GPU that it uses; None for one on each core."""
        if not self._uses_gpu():
            return None
        import torch  # which workers don't need: it takes seconds and a few hundred MB of each

        return torch.cuda.device_count()

    def settle(self, number: int) -> None:
        """Takes the devices of a worker of this number, before it makes a calculator."""
        if self._uses_gpu():
            from torchmdx.datasets.labelling.dft import take_gpu

            take_gpu(number)

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
        if self.name == PYSCF:
            from torchmdx.datasets.labelling.dft import Dft

            return Dft(self._dft(), geometry)
        if self.name in CLASSICAL:
            if geometry.charge or geometry.multiplicity not in (None, 1):
                raise ValueError(
                    f"{self.name} supports neither charge nor multiplicity, got charge {geometry.charge:g} and "
                    f"multiplicity {geometry.multiplicity}"
                )
            return _attribute(*CLASSICAL[self.name])(**self.options)
        structure = {STRUCTURE: geometry.atoms()} if self._takes_structure() else {}
        return self._factory()(**structure, **self.options)

    def _uses_gpu(self) -> bool:
        return self.name == PYSCF and self._dft().on_gpu()

    def _dft(self) -> DftSettings:
        from torchmdx.datasets.labelling.dft import DftSettings

        self._require_options({entry.name for entry in fields(DftSettings)})
        for name, example in (("xc", "wb97m-d3bj"), ("basis", "def2-tzvpp")):
            if name not in self.options:
                raise ValueError(
                    f"--calculator pyscf must have the options xc and basis, got no {name}: for example "
                    f"--calculator-option {name}={example}"
                )
        return DftSettings(**self.options)

    def _require_options(self, known: set[str]) -> None:
        for name in self.options:
            if name not in known:
                raise ValueError(f"options of {self.name} must be among {', '.join(sorted(known))}, got {name!r}")

    def _takes_structure(self) -> bool:
        """Whether it is a function, not a class, with a parameter `atoms`: classes of ASE have one for other uses."""
        factory = self._factory()
        return inspect.isfunction(factory) and STRUCTURE in inspect.signature(factory).parameters

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


def _attribute(module: str, name: str) -> Any:
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"--calculator {module}:{name}: {error}") from error
    if not hasattr(found, name):
        raise ValueError(f"--calculator {module}:{name}: module {module} has no {name!r}")
    return getattr(found, name)
