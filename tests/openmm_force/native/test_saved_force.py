"""The content of a force of the plugin, from Python."""

import openmm
import pytest
from mm_systems import SOLUTE, selected

from torchmdx.openmm_force import add_potential
from torchmdx.openmm_force.native import native
from torchmdx.openmm_force.native.saved_force import request_native_derivative, saved_force
from torchmdx.openmm_force.references import living_evaluator

REASON = native.unavailable(cuda=False)
pytestmark = pytest.mark.skipif(REASON is not None, reason=f"no plugin: {REASON}")


def test_particles_parameter_and_reference(potential):
    topology, _ = selected(SOLUTE)
    system = openmm.System()
    for atom in topology.atoms():
        system.addParticle(atom.element.mass)
    options = dict(device="cpu", transport="native")
    force = add_potential(system, topology, potential, [4, 2], scale_parameter="s", **options)
    saved = saved_force(force.force)
    assert (saved.particles, saved.scale_parameter) == ((4, 2), "s")
    assert living_evaluator(saved.reference) is force.evaluator
    assert saved_force(openmm.HarmonicBondForce()) is None
    with pytest.raises(AssertionError, match="with the parameter 'other' was expected"):
        request_native_derivative(force.force, "other")
