"""What the handle of a potential says of it; reports and spreads are tested with the evaluator."""

from types import SimpleNamespace

import torch
from mm_systems import SOLUTE, selected

from torchmdx.openmm import PotentialForce, add_potential


def test_atoms_and_reason(potential):
    import openmm

    topology, _ = selected(SOLUTE)
    system = openmm.System()
    for atom in topology.atoms():
        system.addParticle(atom.element.mass)
    options = dict(device="cpu", transport="python")
    every = add_potential(system, topology, potential, **options)
    assert (every.atoms, every.why, every.transport) == (SOLUTE, "requested", "python")
    assert every.checkpoint is None
    assert add_potential(system, topology, None, [3, 2], **options).checkpoint == "organic-1"


def test_the_context_is_put_on_the_gpu_of_the_potential():
    for device, expected in (("cuda:1", {"DeviceIndex": "1"}), ("cuda", {"DeviceIndex": "0"}), ("cpu", {})):
        evaluator = SimpleNamespace(potential=SimpleNamespace(device=torch.device(device)))
        assert PotentialForce(None, "native", evaluator).platform_properties == expected
