"""Former import paths of public modules, which still import the same modules."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from types import ModuleType

# Saved files hold these: the XML files of OpenMM pickle functions of the transports.
MOVED = {
    "torchmdx.openmm_force": "torchmdx.openmm",
    "torchmdx.openmm_force.transport_python": "torchmdx.openmm.transport_python",
    "torchmdx.openmm_force.transport_torch": "torchmdx.openmm.transport_torch",
}


class MovedModules(MetaPathFinder, Loader):
    """Imports the current module for a former path."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return spec_from_loader(fullname, self) if fullname in MOVED else None

    def exec_module(self, module: ModuleType) -> None:
        # The import system returns the module that is in sys.modules afterwards.
        sys.modules[module.__name__] = import_module(MOVED[module.__name__])


def keep_former_paths() -> None:
    """Makes the former paths importable; has no effect when repeated."""
    # First in the list: the default finders would import the files of a moved package a second time.
    if not any(isinstance(finder, MovedModules) for finder in sys.meta_path):
        sys.meta_path.insert(0, MovedModules())
