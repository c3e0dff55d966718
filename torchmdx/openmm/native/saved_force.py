"""What a force of the plugin contains: in Python it is an openmm.Force without methods of its own."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from xml.etree import ElementTree

import openmm

from torchmdx.openmm.native.native import plugin_in_use

END = ".."  # as in force.cpp


@dataclass(frozen=True)
class SavedForce:
    """What is saved of a force of the plugin. particles: empty for all. scale_parameter: empty for none."""

    particles: tuple[int, ...]
    scale_parameter: str
    reference: str


def saved_force(force: openmm.Force) -> SavedForce | None:
    """The content of a force of the plugin, None for other forces.

    Its serialised form is read, which is short.
    """
    if type(force) is not openmm.Force:
        return None
    saved = ElementTree.fromstring(openmm.XmlSerializer.serialize(force))
    if saved.get("type") != "TorchmdxForce":
        return None
    return SavedForce(
        tuple(int(particle.attrib["index"]) for particle in saved.iter("Particle")),
        saved.attrib["scaleParameter"],
        saved.attrib["reference"].removesuffix(END),
    )


def request_native_derivative(force: openmm.Force, parameter: str) -> None:
    """Makes a force of the plugin with this scale parameter contribute to the energy's derivative by it."""
    library = plugin_in_use()
    done = library.torchmdx_request_derivative(ctypes.c_void_p(int(force.this)), parameter.encode())
    assert done, f"a force of the plugin with the parameter {parameter!r} was expected"
