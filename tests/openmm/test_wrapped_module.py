"""A wrapped module in OpenMM."""

import ase.build
import openmm
import pytest
import torch
from boxes import assert_same, context_of, empty_system, expected, found, topology_of

import torchmdx
from torchmdx.openmm import add_potential

CUTOFF = 4.0


class Springs(torch.nn.Module):
    """A pair energy that depends on both elements."""

    def __init__(self):
        super().__init__()
        self.register_buffer("strength", torch.linspace(0.2, 2.0, 10))

    def forward(self, vectors, edge_index, atomic_numbers):
        z = self.strength[atomic_numbers]
        r2 = (vectors**2).sum(-1) / CUTOFF**2
        pairs = z[edge_index[0]] * z[edge_index[1]] * (1 - r2).clamp(min=0) ** 3
        return torch.zeros_like(z).index_add(0, edge_index[1], pairs)


@pytest.mark.parametrize("transport", ["native", "python"])
def test_openmm_gets_its_energy_and_forces(transport):
    atoms = ase.build.molecule("CH3CH2OH")
    potential = torchmdx.wrap(Springs(), cutoff=CUTOFF, elements=[1, 6, 8])
    system = empty_system(atoms)
    add_potential(system, topology_of(atoms), potential, precision="float64", device="cpu", transport=transport)
    wanted = expected(potential, atoms)
    assert abs(wanted[1]).max() > 1e-2
    assert_same(found(context_of(system, atoms)), wanted)
    again = openmm.XmlSerializer.deserialize(openmm.XmlSerializer.serialize(system))
    assert_same(found(context_of(again, atoms)), wanted)
