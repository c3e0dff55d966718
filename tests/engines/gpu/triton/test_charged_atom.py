"""TensorNet2's forward pass with one program per atom leaves in its buffers what the other kernels leave there."""

import torch
from charged_buffers import batch_of, buffers_of
from interpreter import DEVICE, needs_kernels

from torchmdx.engines.gpu.tensornet2 import FastTensorNet2
from torchmdx.neighbors.brute_force import brute_force
from torchmdx.neighbors.reverse import find_reverse


@needs_kernels
def test_buffers_of_the_forward_pass_are_those_of_the_other_kernels(make_potential, cation):
    potential = make_potential(model="tensornet2", num_channels=16, num_layers=1, num_charges=5).to(DEVICE)
    fast, batch = FastTensorNet2(potential), batch_of(cation)
    found, wanted = (
        values(buffers_of(fast, batch, potential.cutoff, rows=rows, forces=False)) for rows in (True, False)
    )
    for name, value in wanted.items():
        assert (found[name] - value).norm() < 2e-6 * value.norm(), name


def values(buffers):
    charged = buffers.scratch.charged
    return dict(proposed=charged.proposed[0].clone(), z3=charged.z3[0].clone())


@needs_kernels
def test_opposite_edges_are_found(make_potential, crystal):
    potential = make_potential(model="tensornet2", num_channels=16, num_layers=1, num_charges=5, cutoff=3.2)
    batch = batch_of(crystal)
    found = buffers_of(FastTensorNet2(potential.to(DEVICE)), batch, potential.cutoff, rows=True)
    edges = brute_force(batch.to(DEVICE, torch.float64), potential.cutoff)
    wanted = torch.zeros(edges.capacity, dtype=torch.int32, device=DEVICE)
    find_reverse(edges, wanted)
    count = int(edges.num_edges)
    assert torch.equal(found.scratch.charged.reverse[:count], wanted[:count])
