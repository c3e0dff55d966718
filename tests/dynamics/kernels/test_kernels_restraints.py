"""The kernels of restraints against those in NumPy: on a GPU, and under Triton's interpreter."""

import numpy as np
import pytest
import torch
from interpreter import DEVICE, needs_kernels
from random_restraints import carbons, many_restraints, particles_of

from torchmdx.dynamics.restraint_terms import RestraintTerms
from torchmdx.dynamics.restraints import Angle, Distance, Torsion
from torchmdx.step.buffer_storage import FIRST_BAD, NOT_FINITE, BufferStorage

pytest.importorskip("triton")


def on_device(terms, positions):
    """(energies, forces, virials, flags) of a launch, added to forces of 1."""
    from torchmdx.dynamics.device_restraints import DeviceRestraints

    batch = carbons([len(positions)]).to(DEVICE)
    buffers = BufferStorage(batch, torch.float64, stress=False, energies=False)
    buffers.inputs["positions"].copy_(torch.as_tensor(positions))
    buffers.outputs["forces"].fill_(1.0)
    buffers.outputs["flags"][FIRST_BAD] = len(positions)
    made = DeviceRestraints(terms, len(positions), torch.device(DEVICE))
    made.launch(buffers)
    found = (made.energy, buffers.outputs["forces"], made.virial, buffers.outputs["flags"])
    return [values.cpu().numpy() for values in found]


@needs_kernels
def test_energies_forces_and_virials_are_those_of_the_host():
    rng = np.random.default_rng(6)
    start = 2 * rng.normal(size=(190, 3))
    terms = RestraintTerms.of(many_restraints(30, rng), particles_of([150, 40]), start)
    moved = start + 0.3 * rng.normal(size=start.shape)
    energy, forces, virial = terms.evaluate(moved)
    found = on_device(terms, moved)
    np.testing.assert_allclose(found[0], energy, rtol=1e-12)
    np.testing.assert_allclose(found[1] - 1, forces, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(found[2], virial, rtol=1e-12)
    assert found[3][NOT_FINITE] == 0


@needs_kernels
@pytest.mark.parametrize("degrees", [-180.0, -135.0, -90.0, -45.0, 0.0, 45.0, 90.0, 135.0, 180.0])
@pytest.mark.parametrize("off", [0.0, 1e-9, -0.3])
def test_differences_of_torsions_on_the_axes(degrees, off):
    angle = np.radians(degrees)
    places = np.array([[1.0, 0, 0], [0, 0, 0], [0, 0, 1], [np.cos(angle), np.sin(angle), 1]])
    terms = RestraintTerms.of([Torsion((0, 1, 2, 3), off, 1.0)], particles_of([4]), places)
    expected, found = terms.evaluate(places), on_device(terms, places)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-12, atol=1e-28)
    if abs(degrees - off) != 180:  # there the force jumps
        np.testing.assert_allclose(found[1] - 1, expected[1], rtol=1e-9, atol=1e-12)


@needs_kernels
def test_restraints_without_a_gradient_are_flagged():
    positions = np.random.default_rng(0).normal(size=(5, 3))
    terms = RestraintTerms.of([Angle((3, 0, 1), 90.0, 1.0), Distance((0, 1), 1.0, 1.0)], particles_of([5]), positions)
    positions[[0, 1, 3]] = [[1.0, 0, 0], [2, 0, 0], [0, 0, 0]]
    flags = on_device(terms, positions)[3]
    assert flags[[NOT_FINITE, FIRST_BAD]].tolist() == [1, 3]
