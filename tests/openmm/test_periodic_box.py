"""The box of a potential: that of the system where it was set, else that of the topology."""

import copy

import numpy as np
import openmm
import pytest
from mm_systems import SOLUTE, selected
from openmm import unit

from torchmdx.openmm import add_potential

OPTIONS = dict(device="cpu", transport="python")


def box(edge: float) -> list[openmm.Vec3]:
    return [openmm.Vec3(*row) * unit.nanometer for row in edge * np.eye(3)]


def edge_of(system: openmm.System) -> float:
    return system.getDefaultPeriodicBoxVectors()[0][0].value_in_unit(unit.nanometer)


def inputs(system_edge: float | None, topology_edge: float | None):
    topology, _ = selected(SOLUTE)
    topology = copy.deepcopy(topology)
    topology.setPeriodicBoxVectors(None if topology_edge is None else box(topology_edge))
    system = openmm.System()
    for atom in topology.atoms():
        system.addParticle(atom.element.mass)
    if system_edge is not None:
        system.setDefaultPeriodicBoxVectors(*box(system_edge))
    return system, topology


@pytest.mark.parametrize(
    ("own", "other", "periodic", "edge"),
    [
        (None, None, False, 2.0),
        (None, 3.1, True, 3.1),
        (3.0, None, True, 3.0),
        (3.0, 3.0, True, 3.0),
        (3.0, 3.0002, True, 3.0),  # rounded in a file
    ],
)
@pytest.mark.parametrize("request_it", [False, True])
def test_which_box(potential, own, other, periodic, edge, request_it):
    system, topology = inputs(own, other)
    if request_it and not periodic:
        with pytest.raises(ValueError, match=r"neither system nor topology has one .* default of 2 nm"):
            add_potential(system, topology, potential, periodic=True, **OPTIONS)
        return
    force = add_potential(system, topology, potential, periodic=True if request_it else None, **OPTIONS)
    assert force.force.usesPeriodicBoundaryConditions() is periodic
    assert edge_of(system) == edge


def test_different_boxes_are_refused_and_both_shown(potential):
    system, topology = inputs(3.0, 2.2)
    with pytest.raises(ValueError, match="the same box, got 3 x 3 x 3 nm and 2.2 x 2.2 x 2.2 nm: change one with s"):
        add_potential(system, topology, potential, **OPTIONS)
    assert (system.getNumForces(), edge_of(system)) == (0, 3.0)
    force = add_potential(system, topology, potential, periodic=False, **OPTIONS)
    assert not force.force.usesPeriodicBoundaryConditions()


def test_a_periodic_system_has_its_default_box(potential):
    """A force that is periodic says that the box counts, even one of OpenMM's default size."""
    system, topology = inputs(None, 2.2)
    spring = openmm.HarmonicBondForce()
    spring.setUsesPeriodicBoundaryConditions(True)
    system.addForce(spring)
    with pytest.raises(ValueError, match=r"got 2 x 2 x 2 nm and 2.2"):
        add_potential(system, topology, potential, **OPTIONS)


def test_boxes_that_are_not_rectangular(potential):
    system, topology = inputs(None, None)
    topology.setPeriodicBoxVectors([openmm.Vec3(3, 0, 0), openmm.Vec3(1, 3, 0), openmm.Vec3(0, 0, 3)] * unit.nanometer)
    system.setDefaultPeriodicBoxVectors((3, 0, 0), (-1, 3, 0), (0, 0, 3))
    with pytest.raises(ValueError, match=r"got \(3, 0, 0\), \(-1, 3, 0\), \(0, 0, 3\) nm and \(3, 0, 0\), \(1, 3, 0\)"):
        add_potential(system, topology, potential, **OPTIONS)
    system.setDefaultPeriodicBoxVectors((3, 0, 0), (1, 3, 0), (0, 0, 3))
    assert add_potential(system, topology, potential, **OPTIONS).force.usesPeriodicBoundaryConditions()


def test_periodic_must_be_a_truth_value(potential):
    system, topology = inputs(3.0, None)
    with pytest.raises(TypeError, match="periodic must be True, False or None, got 'yes'"):
        add_potential(system, topology, potential, periodic="yes", **OPTIONS)
