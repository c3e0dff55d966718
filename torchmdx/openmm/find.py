"""Potentials in a System: found by the references that their forces are saved with."""

from __future__ import annotations

import pickletools
from collections.abc import Iterator
from typing import NamedTuple
from xml.etree import ElementTree

import openmm

from torchmdx.openmm.native.saved_force import saved_force
from torchmdx.openmm.potential_force import PotentialForce
from torchmdx.openmm.references import evaluator_of, living_evaluator
from torchmdx.openmm.transport_python import VARIABLE, restore
from torchmdx.openmm.transport_torch import served_by
from torchmdx.runtime.former_paths import MOVED


class _FoundForce(NamedTuple):
    """force: as in the System, or the collective variable of a foreign CustomCVForce. reference: "" for torch."""

    force: openmm.Force
    transport: str
    reference: str


def find(system: openmm.System) -> list[PotentialForce]:
    """The potentials in a System, in the order of its forces: also of one that was copied or read from XML.

    Includes those that openmm-ml added, and those inside a CustomCVForce. Copies in one process share reports, because
    they share the potential.

    Raises:
        FileNotFoundError: If a potential cannot be restored.
        ValueError: If a potential cannot be restored.
    """
    if not isinstance(system, openmm.System):
        raise TypeError(f"system must be an openmm.System, got {type(system).__name__}")
    return [_described(found) for force in system.getForces() for found in _search(force)]


def find_in(force: openmm.Force) -> list[PotentialForce]:
    """The potentials in a force: itself, or those inside a CustomCVForce."""
    return [_described(found) for found in _search(force)]


def is_scaled_potential(force: openmm.Force) -> bool:
    """Whether a CustomCVForce is the product of a potential and its scale parameter alone."""
    return isinstance(force, openmm.CustomCVForce) and [
        force.getCollectiveVariableName(index) for index in range(force.getNumCollectiveVariables())
    ] == [VARIABLE]


def _described(found: _FoundForce) -> PotentialForce:
    if found.transport == "torch":
        served = served_by(found.force)
        assert served is not None
        return PotentialForce(found.force, found.transport, served)
    evaluator = living_evaluator(found.reference) or evaluator_of(found.reference)
    return PotentialForce(found.force, found.transport, evaluator)


def _search(force: openmm.Force) -> Iterator[_FoundForce]:
    if isinstance(force, openmm.CustomCVForce):
        for index in range(force.getNumCollectiveVariables()):
            for found in _search(force.getCollectiveVariable(index)):
                yield found._replace(force=force) if is_scaled_potential(force) else found
    elif isinstance(force, openmm.PythonForce):
        reference = _python_reference(force)
        if reference is not None:
            yield _FoundForce(force, "python", reference)
    elif type(force).__name__ == "TorchForce":
        if served_by(force) is not None:
            yield _FoundForce(force, "torch", "")
    elif (saved := saved_force(force)) is not None:
        yield _FoundForce(force, "native", saved.reference)


def _python_reference(force: openmm.PythonForce) -> str | None:
    """The reference of a PythonForce of torchmdx; None for others."""
    try:
        saved = ElementTree.fromstring(openmm.XmlSerializer.serialize(force))
    except openmm.OpenMMException:  # a function that cannot be pickled
        return None
    return pickled_reference(saved.attrib["function"])


def pickled_reference(function: str) -> str | None:
    """The reference in the saved function of a PythonForce, a pickle as hexadecimal digits, which is not run."""
    words = [argument for _, argument, _ in pickletools.genops(bytes.fromhex(function))]
    texts = [word for word in words if isinstance(word, str)]
    return texts[2] if names_restore(texts[:2]) else None


def names_restore(function: list[str]) -> bool:
    """Whether [module, name] are those of `restore`, or those that an earlier version saved."""
    return [MOVED.get(word, word) for word in function] == [restore.__module__, restore.__name__]
