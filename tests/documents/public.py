"""Which modules are public, what they offer, and which names of the package a text uses."""

import importlib
import importlib.util
import re
from types import ModuleType

# Every other module of the package is internal. The page docs/architecture.md shows the same list.
PUBLIC = (
    "torchmdx",
    "torchmdx.structures",
    "torchmdx.neighbors",
    "torchmdx.models",
    "torchmdx.evaluation",
    "torchmdx.evaluation.conformance",
    "torchmdx.evaluation.properties",
    "torchmdx.engines",
    "torchmdx.engines.conformance",
    "torchmdx.step",
    "torchmdx.dynamics",
    "torchmdx.dynamics.relaxation",
    "torchmdx.dynamics.paths",
    "torchmdx.checkpoints",
    "torchmdx.checkpoints.export",
    "torchmdx.ase",
    "torchmdx.openmm",
    "torchmdx.lammps",
    "torchmdx.ipi",
    "torchmdx.torch_sim",
    "torchmdx.materials",
    "torchmdx.datasets",
    "torchmdx.datasets.labelling",
    "torchmdx.training",
    "torchmdx.report",
    "torchmdx.commands",
)
# What they need that is not installed with torchmdx[dev] everywhere.
NEEDED = {"torchmdx.torch_sim": "torch_sim"}

IMPORT = re.compile(r"\b(?:from (torchmdx[\w.]*) import (\([^)]*\)|[\w, ]+)|import (torchmdx[\w.]+))")


def is_installed(module: str) -> bool:
    return module not in NEEDED or importlib.util.find_spec(NEEDED[module]) is not None


def names_of(module: str) -> dict[str, object]:
    """The public names of a public module, and what they stand for."""
    imported = importlib.import_module(module)
    return {name: getattr(imported, name) for name in imported.__all__}


def is_public(module: str) -> bool:
    """Whether a module is public: on the list, or a public name of a module on the list, such as structures.units."""
    parent, _, name = module.rpartition(".")
    if module in PUBLIC or parent not in PUBLIC or not is_installed(parent):
        return module in PUBLIC
    return isinstance(names_of(parent).get(name), ModuleType)


def inner_imports(text: str) -> list[str]:
    """Imports in a page, a script or a notebook that take something other than a public name."""
    wrong = []
    for module, names, whole in IMPORT.findall(text):
        if whole:
            wrong += [] if is_public(whole) else [f"import {whole}"]
            continue
        for name in re.findall(r"(\w+)(?: as \w+)?", names.strip("()")):
            if not (is_public(module) and is_offered(module, name)):
                wrong.append(f"from {module} import {name}")
    return wrong


def is_public_name(name: str) -> bool:
    """Whether a dotted name is a public module, a public name of one, or an attribute of that."""
    parts = name.split(".")
    modules = [".".join(parts[:k]) for k in range(len(parts), 0, -1)]
    module = next(module for module in modules if is_public(module))
    return module == name or is_offered(module, parts[module.count(".") + 1])


def is_offered(module: str, name: str) -> bool:
    """Whether a public module has a public name."""
    if not is_installed(module):
        return True
    imported = importlib.import_module(module)
    if module in PUBLIC:
        return name in imported.__all__
    return not name.startswith("_") and hasattr(imported, name)
