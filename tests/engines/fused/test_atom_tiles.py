"""The kernels that do the work within atoms for tiles of them: emulated on the CPU, compiled, and on a GPU."""

import copy
import ctypes
from dataclasses import replace

import pytest
import torch
from ase import Atoms
from ase.build import molecule
from emulated import TileEmulator, compiled
from test_fused_tensornet import batch_of

from torchmdx import Potential, TensorNetConfig
from torchmdx.engines.fused import atom_tiles
from torchmdx.engines.fused.atom_tiles import TileChain, TileKernels
from torchmdx.engines.fused.launch_sizes import FEW_ATOMS, ByElements, Tiles
from torchmdx.engines.fused.tensornet import FastTensorNet
from torchmdx.evaluate import evaluate
from torchmdx.neighbors.brute_force import brute_force
from torchmdx.runtime import cuda_source
from torchmdx.runtime.compile_cache import VARIABLE, CompileError

pytest.importorskip("triton")

MANY = Tiles.choose(FEW_ATOMS + 1)


def potential_of(layers=2, **settings):
    """Weights that leave no term out."""
    torch.manual_seed(layers)
    made = Potential(TensorNetConfig(num_layers=layers, **settings)).requires_grad_(False)
    for norm in (made.network.norm, made.network.embedding.norm):
        norm.weight += 0.3 * torch.randn_like(norm.weight)
        norm.bias += 0.3 * torch.randn_like(norm.bias)
    return made


def molecules():
    """17 atoms, one more than a tile, with a charge."""
    ethanol, methane = molecule("CH3CH2OH"), molecule("CH4")
    ethanol.rattle(0.05, seed=2)
    ethanol.info["charge"] = 1
    return batch_of(ethanol, methane, Atoms("OH2", positions=[[0, 0, 0], [1, 0, 0], [0, 1, 0.3]]))


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    """The kernels on one core."""
    library = compiled(tmp_path_factory.mktemp("tiles"), "atom_tiles", **atom_tiles.SIZES)
    assert library.size_of_params() == ctypes.sizeof(atom_tiles.Params)
    names = enumerate(atom_tiles.KERNELS)
    return {name: TileEmulator(library, k, atom_tiles.SHARED_BYTES) for k, name in names}


def inputs(batch, edges):
    return batch.positions, batch.atomic_numbers, batch.system_index, batch.cell, batch.charge, edges


@pytest.mark.interpreter
@pytest.mark.parametrize(("layers", "elements"), [(1, ()), (2, ()), (2, (1, 6, 8)), (3, ())], ids=str)
def test_the_emulated_kernels_agree_with_the_exact_model(kernels, layers, elements):
    potential, batch = potential_of(layers), molecules()
    edges = brute_force(batch, potential.cutoff)
    exact = evaluate(copy.deepcopy(potential).double(), batch, edges)
    fast = FastTensorNet(potential, bound=1e-6)
    fast.tile_kernels = TileKernels(fast, kernels)
    tiles, sizes = replace(MANY, by_elements=ByElements(edges=0)), (batch.num_atoms, batch.num_systems, edges.capacity)
    for forces in (True, False):
        buffers = fast.allocate(*sizes, tiles=tiles, forces=forces, elements=elements)
        assert (buffers.present is None) == (not elements)
        assert fast.chain_type(buffers, whole=True) is TileChain
        found = fast.run(*inputs(batch, edges), forces=forces)
        torch.testing.assert_close(found.energies, exact.energies, atol=1e-6, rtol=1e-7)
        if forces:
            assert (found.forces - exact.forces).norm() <= 3e-6 * exact.forces.norm()
            found = fast.run(*inputs(batch, edges), forces=False)  # in the same buffers
            torch.testing.assert_close(found.energies, exact.energies, atol=1e-6, rtol=1e-7)


def test_matrices_are_kept_to_float32():
    weights = torch.randn(3, 128, 128) * torch.tensor([1.0, 1e-3, 1e3])[:, None, None]
    halves, unit = atom_tiles.packed(weights)
    big, small = halves.double().unbind(3)
    found = (big + small).flip(0).permute(0, 2, 3, 7, 4, 1, 6, 5, 8).reshape(3, 128, 128) * unit
    assert (found - weights).abs().max() <= 2.0**-23 * weights.abs().max()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (dict(layers=0), "it needs layers of 128 channels, got 0 of 128"),
        (dict(num_channels=64), "it needs layers of 128 channels, got 2 of 64"),
        (dict(activation="tanh"), "it needs the activation silu, got tanh"),
        (dict(group="SO(3)"), r"it needs the group O\(3\), got SO\(3\)"),
    ],
)
def test_another_network_is_refused(settings, reason):
    fast = FastTensorNet(potential_of(num_radial=4, **settings), bound=1e-2)
    with pytest.raises(ValueError, match=f"tiles of atoms do not serve this network: {reason}"):
        fast.use_tiles()
    assert fast.tile_kernels is None


def test_another_precision_or_machine_is_refused():
    fast = FastTensorNet(potential_of(num_radial=4), bound=1e-2, precision="half")
    with pytest.raises(ValueError, match="it needs the precision float32, got half"):
        fast.use_tiles()
    assert not atom_tiles.served(FastTensorNet(potential_of(num_radial=4), bound=1e-2))  # on the CPU


def test_the_kernels_compile_for_hopper(tmp_path, monkeypatch):
    try:
        cuda_source.nvrtc()
    except CompileError as error:
        pytest.skip(str(error))
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    assert atom_tiles.code()[:4] == b"\x7fELF"


def on_hopper():
    return torch.cuda.is_available() and torch.cuda.get_device_capability() == atom_tiles.CAPABILITY


needs_hopper = pytest.mark.skipif(not on_hopper(), reason=f"needs a GPU of the architecture {atom_tiles.ARCHITECTURE}")


@pytest.mark.gpu
@needs_hopper
@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_the_kernels_agree_with_the_exact_model_and_repeat_their_bits(layers, dtype):
    potential, batch = potential_of(layers).cuda(), molecules().to("cuda", dtype)
    edges = brute_force(batch, potential.cutoff)
    exact = evaluate(copy.deepcopy(potential).double(), batch.to("cuda", torch.float64), edges)
    fast = FastTensorNet(potential)
    tiles = replace(MANY, by_elements=ByElements(edges=0))
    fast.allocate(batch.num_atoms, batch.num_systems, edges.capacity, tiles=tiles, elements=[1, 6, 8])
    fast.use_tiles()
    found = fast.run(*inputs(batch, edges), virial=True)
    torch.testing.assert_close(found.energies, exact.energies, atol=2e-6, rtol=1e-7)
    assert (found.forces - exact.forces).norm() <= 3e-6 * exact.forces.norm()
    first = found.forces.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fast.run(*inputs(batch, edges), virial=True)
    for _ in range(20):
        found.forces.fill_(torch.nan)
        graph.replay()
        assert torch.equal(found.forces, first)


@pytest.mark.gpu
@needs_hopper
def test_a_position_that_is_not_a_number_reaches_the_energy():
    potential, batch = potential_of().cuda(), molecules().to("cuda")
    edges = brute_force(batch, potential.cutoff)
    fast = FastTensorNet(potential)
    fast.allocate(batch.num_atoms, batch.num_systems, edges.capacity, tiles=MANY)
    fast.use_tiles()
    batch.positions[3, 1] = torch.nan
    found = fast.run(*inputs(batch, edges))
    assert found.energies[:9].isnan().any()
    assert found.energies[9:].isfinite().all()
    assert found.forces[:9].isnan().any()
