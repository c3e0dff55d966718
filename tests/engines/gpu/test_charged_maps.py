"""The network of edges of few atoms by clusters of blocks: emulated on the CPU, against Triton's kernels."""

import ctypes

import pytest
import torch
from ase.build import molecule
from charged_buffers import batch_of
from emulated import compiled
from interpreter import DEVICE, INTERPRETED, needs_kernels

from torchmdx import Potential, TensorNet2Config
from torchmdx.engines import ops
from torchmdx.neighbors.brute_force import brute_force

pytest.importorskip("triton")

from torchmdx.engines.gpu import charged_maps
from torchmdx.engines.gpu.charged_maps import BACK, CHARGES_BACK, FORTH, MESSAGES_BACK, SHARED_BYTES, ChargedMaps
from torchmdx.engines.gpu.charged_rows import ChargedRowChain
from torchmdx.engines.gpu.one_launch_weights import SHARES, THREADS
from torchmdx.engines.gpu.tensornet2 import FastTensorNet2

only_interpreted = pytest.mark.skipif(not INTERPRETED, reason="the GPU has the kernels themselves")


class Emulated:
    """Runs one of the kernels on one core, as `ClusterKernel` does on a GPU."""

    def __init__(self, library, which):
        self.library, self.which = library, which

    def launch(self, clusters, shared_bytes, given):
        self.library.launch(ctypes.byref(given), self.which, clusters, shared_bytes)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return compiled(tmp_path_factory.mktemp("maps"), "charged_maps")


@pytest.fixture(scope="module")
def fast():
    torch.manual_seed(0)
    potential = Potential(TensorNet2Config(num_layers=1)).requires_grad_(False)
    for layer in potential.network.layers:
        layer.filters[4].weight *= 4
    return FastTensorNet2(potential)


@needs_kernels
@only_interpreted
def test_python_and_the_kernels_agree_on_sizes(library, fast):
    fast.allocate(9, 1, 10)
    maps = ChargedMaps(fast, {})
    weights = maps.memory[0]["weights"][0].numel() // THREADS
    wanted = [weights, ctypes.sizeof(charged_maps.Maps), *SHARED_BYTES.values(), charged_maps.ROWS]
    assert [library.constant(k) for k in range(7)] == wanted


@needs_kernels
@only_interpreted
@pytest.mark.parametrize("adds", [False, True])
def test_buffers_are_those_of_the_other_kernels(library, fast, adds):
    """Values and gradients of rows, of which there are two blocks, one not full; some edges beyond the cutoff."""
    atoms = molecule("CH3CH2OH")
    atoms.info["charge"] = -1
    batch = batch_of(atoms)
    edges = brute_force(batch.to(DEVICE, torch.float64), 5.5)
    inputs = (batch.positions, batch.atomic_numbers, batch.system_index, batch.cell, batch.charge, edges)
    buffers = fast.allocate(9, 1, edges.capacity)
    chain = ChargedRowChain(fast, buffers, *inputs)
    maps = ChargedMaps(fast, {name: Emulated(library, k) for k, name in enumerate(SHARED_BYTES)})
    chain.forward(keep=True)
    q, g = chain.q, chain.gradient
    wanted = [q.z1[0].clone(), q.z2[0].clone(), q.z3[0].clone(), q.reverse.clone()]
    for tensor in (q.z1[0], q.z2[0], q.z3[0]):
        tensor.fill_(torch.nan)
    maps.launch(FORTH, chain, 0)
    rows = torch.cat([torch.ones(9, dtype=torch.bool), chain.b.knot >= 0])
    for found, value in zip((q.z1[0], q.z2[0], q.z3[0], q.reverse), wanted, strict=True):
        there = rows if len(value) == len(rows) else torch.ones(len(value), dtype=torch.bool)
        torch.testing.assert_close(found[there], value[there], atol=3e-6, rtol=3e-6)
    z3, gy = wanted[2], chain.b.p.clone()
    q.z3[0].copy_(torch.where(rows[:, None, None], z3, 0.0))
    maps.launch(MESSAGES_BACK, chain, 0)
    found = [q.z3[0][rows].clone(), chain.b.p.clone(), q.pull[:, rows[9:]].clone()]
    q.z3[0].copy_(torch.where(rows[:, None, None], z3, 0.0))
    chain.b.p.copy_(gy)
    chain._messages_gradient(0)
    for one, other in zip(found, (q.z3[0][rows], chain.b.p, q.pull[:, rows[9:]]), strict=True):
        assert (one - other).norm() < 2e-6 * other.norm()
    q.z3[0].copy_(torch.randn(q.z3[0].shape, generator=torch.Generator().manual_seed(1)))
    q.pull.copy_(torch.randn(q.pull.shape, generator=torch.Generator().manual_seed(2)))
    z1, z2 = q.z1[0].clone(), q.z2[0].clone()
    chain.pulled, pull = adds, chain.pull_on(0)
    pull.fill_(0.5)
    maps.launch(BACK, chain, 0)
    maps.launch(CHARGES_BACK, chain, 0)
    found = [q.z1[0][rows].clone(), pull.clone(), g.pull[0][rows[9:]].clone()]
    assert slopes(z1, z2, q.z3[0], fast)[rows].sub(found[0]).norm() < 1e-6 * found[0].norm()
    q.z1[0].copy_(torch.where(rows[:, None], z1, 0.0))
    q.z2[0].copy_(torch.where(rows[:, None], z2, 0.0))
    pull.fill_(0.5)
    chain._maps_gradient(0)
    chain._charges_gradient(0, first=True)
    again = [q.z1[0][rows], pull, g.pull[0][rows[9:]]]
    for one, other in zip(found, again, strict=True):
        assert (one - other).norm() < 2e-6 * other.norm()


def slopes(z1, z2, g3, fast):
    """The gradient in z₁, in float64."""
    filters = fast.charged.filters[0]
    middle, last = (m.big.double() + m.small.double() for m in (filters.middle, filters.last))
    return ((g3.double().flatten(1) @ last) * ops.slope(z2.double())) @ middle * ops.slope(z1.double())


def test_every_warp_has_its_part_of_a_matrix():
    matrix = torch.arange(128.0 * 256).reshape(128, 256)
    packed = charged_maps.pack_fragments(matrix, 8).transpose(1, 2).reshape(SHARES, THREADS, -1)
    share, warp, lane = 3, 5, 4 * 6 + 2  # group 2, the second half of the columns
    column = 32 * share + 16 + 6
    assert packed[share, 32 * warp + lane, :2].tolist() == [matrix[32 + 2, column], matrix[32 + 6, column]]
    assert packed[share, 32 * warp + lane, 2].item() == matrix[32 + 2, column + 8]
    assert packed[share, 32 * warp + lane, 4].item() == matrix[40 + 2, column]
