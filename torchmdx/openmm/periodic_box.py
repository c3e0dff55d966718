"""Whether a potential is periodic, and the box of its System."""

from __future__ import annotations

from typing import Any

import numpy as np
import openmm
from numpy.typing import NDArray
from openmm import app, unit

DEFAULT = 2.0 * np.eye(3)  # nm; the box of a System until it is set
TOLERANCE = 1e-3  # relative; files round boxes


def choose_box(system: openmm.System, topology: app.Topology, periodic: bool | None) -> tuple[bool, Any]:
    """Whether a potential has periodic images, and the box that the system still needs, None if it keeps its own.

    The box of the system is used where it was set: it differs from OpenMM's default of 2 nm, or a force of the system
    is periodic. Otherwise it is the topology's. periodic: True and False are requests, None: if there is a box.

    Raises:
        ValueError: If both have a box and these differ, and for periodic=True without a box.
    """
    if periodic is not None and not isinstance(periodic, (bool, np.bool_)):
        raise TypeError(f"periodic must be True, False or None, got {periodic!r}")
    if periodic is not None and not periodic:
        return False, None
    own, other = _vectors(system.getDefaultPeriodicBoxVectors()), topology.getPeriodicBoxVectors()
    is_set = system.usesPeriodicBoundaryConditions() or not np.allclose(own, DEFAULT, rtol=0, atol=1e-9)
    if is_set:
        if other is not None and np.abs(own - _vectors(other)).max() > TOLERANCE * np.abs(own).max():
            raise ValueError(
                f"system and topology must have the same box, got {_text(own)} and {_text(_vectors(other))}: change "
                "one with system.setDefaultPeriodicBoxVectors or topology.setPeriodicBoxVectors, or remove the "
                "topology's with setPeriodicBoxVectors(None)"
            )
        return True, None
    if periodic and other is None:
        raise ValueError(
            "periodic=True needs a periodic box, but neither system nor topology has one (a System with OpenMM's "
            "default of 2 nm and without periodic forces counts as one without a box)"
        )
    return other is not None, other


def _vectors(box: Any) -> NDArray[np.float64]:
    """nm, from a Quantity or from vectors that are Quantities."""
    plain = box.value_in_unit(unit.nanometer) if unit.is_quantity(box) else box
    vectors = [vector.value_in_unit(unit.nanometer) if unit.is_quantity(vector) else vector for vector in plain]
    return np.array([[float(component) for component in vector] for vector in vectors])


def _text(box: NDArray[np.float64]) -> str:
    """A rectangular box by its three edges, another by its vectors, in nm."""
    if np.count_nonzero(box - np.diag(np.diagonal(box))) == 0:
        return " x ".join(f"{edge:.6g}" for edge in np.diagonal(box)) + " nm"
    return ", ".join("(" + ", ".join(f"{x:.6g}" for x in vector) + ")" for vector in box) + " nm"
