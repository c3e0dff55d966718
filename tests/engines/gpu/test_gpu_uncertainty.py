"""The uncertainty of the energy from the buffers of the kernels of a GPU."""

import copy

import pytest
import torch
from interpreter import DEVICE, needs_kernels
from test_gpu_tensornet import batch_of
from uncertain import expected, uncertain

from torchmdx import Potential, TensorNetConfig
from torchmdx.engines.gpu.tensornet import FastTensorNet
from torchmdx.neighbors.brute_force import brute_force

pytest.importorskip("triton")

from torchmdx.engines.gpu.uncertainty import UncertaintyKernels


@pytest.fixture
def potential():
    torch.manual_seed(0)
    return Potential(TensorNetConfig(num_channels=16, num_layers=1, num_radial=4)).requires_grad_(False)


def test_without_an_uncertainty_nothing_is_allocated(potential):
    fast = FastTensorNet(potential, bound=1e-2)
    buffers = fast.allocate(3, 1, 6)
    assert (buffers.last_inputs, buffers.uncertainties, fast.doubts) == (None, None, None)
    doubtful = FastTensorNet(uncertain(potential), bound=1e-2)
    more = doubtful.allocate(3, 1, 6)
    assert more.last_inputs.shape == (3, 9)
    assert more.num_bytes == buffers.num_bytes + 4 * 3 * 9 + 8 * (3 + 1)


def test_systems_without_atoms_have_none():
    of_systems, none = torch.ones(2, dtype=torch.float64), torch.ones(0, dtype=torch.float64)
    kernels = UncertaintyKernels(torch.eye(9), torch.zeros(0, 9), of_systems, none)
    kernels.run(torch.zeros(0, dtype=torch.int64))
    assert of_systems.tolist() == [0, 0]


@pytest.mark.nightly
@needs_kernels
def test_they_follow_the_inputs_of_every_run(potential, ethanol):
    potential = uncertain(potential).to(DEVICE)
    fast = FastTensorNet(potential)
    for scale in (1.0, 1.05):
        atoms = ethanol.copy()
        atoms.positions *= scale
        batch = batch_of(atoms)
        single = batch.to(DEVICE, torch.float32)
        edges = brute_force(single, potential.cutoff, capacity=80)
        if scale == 1.0:
            fast.allocate(len(atoms), 1, edges.capacity)
        inputs = (single.positions, single.atomic_numbers, single.system_index, single.cell, single.charge, edges)
        found = fast.run(*inputs).uncertainties
        exact = copy.deepcopy(potential).cpu().double()
        for value, wanted in zip(found, expected(exact, batch.to("cpu")), strict=True):
            torch.testing.assert_close(value.cpu(), torch.from_numpy(wanted), rtol=1e-4, atol=0)
