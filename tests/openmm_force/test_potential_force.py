"""What the handle of a potential says of it; reports and spreads are tested with the evaluator."""

from mm_systems import SOLUTE, selected

from torchmdx.openmm_force import add_potential


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
