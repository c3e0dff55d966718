"""The kernels that do the work within atoms for tiles of them: emulated on the CPU, compiled, and on a GPU."""

import copy
import ctypes
from dataclasses import replace

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import molecule
from domains import divide
from emulated import TileEmulator, compiled, message_emulators, needs_nvrtc
from test_gpu_tensornet import batch_of
from test_many_atoms import wire

from torchmdx import Potential, System, TensorNetConfig
from torchmdx.engines.gpu import atom_tiles
from torchmdx.engines.gpu.atom_tiles import TileChain, TileKernels
from torchmdx.engines.gpu.tensornet import FastTensorNet
from torchmdx.engines.plan.launch_sizes import FEW_ATOMS, ByElements, Tiles
from torchmdx.evaluation.derivatives import evaluate
from torchmdx.lammps.example import water
from torchmdx.neighbors.brute_force import brute_force
from torchmdx.step.domain_reach import reach
from torchmdx.step.domain_step import DomainStep
from torchmdx.structures.cell import volume
from torchmdx.structures.domain import Domain

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
    """The kernels on one core, and those of messages."""
    library = compiled(tmp_path_factory.mktemp("tiles"), "atom_tiles", **atom_tiles.SIZES)
    assert library.size_of_params() == ctypes.sizeof(atom_tiles.AtomTilesStruct)
    tiles = {name: TileEmulator(library, k, atom_tiles.SHARED_BYTES) for k, name in enumerate(atom_tiles.KERNELS)}
    return {**tiles, **message_emulators(tmp_path_factory.mktemp("rows"))}


def inputs(batch, edges):
    return batch.positions, batch.atomic_numbers, batch.system_index, batch.cell, batch.charge, edges


@pytest.mark.nightly_for("2-()", "2-(1, 6, 8)", "3-()")
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
        assert fast.chain_type(buffers) is TileChain
        found = fast.run(*inputs(batch, edges), forces=forces)
        torch.testing.assert_close(found.energies, exact.energies, atol=1e-6, rtol=1e-7)
        if forces:
            assert (found.forces - exact.forces).norm() <= 3e-6 * exact.forces.norm()
            found = fast.run(*inputs(batch, edges), forces=False)  # in the same buffers
            torch.testing.assert_close(found.energies, exact.energies, atol=1e-6, rtol=1e-7)


def domain_of(atoms, num_owned, levels, cutoff):
    """The first atoms are owned; the others by their steps from neighbour to neighbour, as far as they matter."""
    near = atoms.get_all_distances(mic=True) < cutoff
    hops = np.where(np.arange(len(atoms)) < num_owned, 0, levels)
    for step in range(1, levels):
        hops[(hops == levels) & near[hops < step].any(0)] = step
    order = np.argsort(hops, kind="stable")
    within = torch.tensor(np.searchsorted(hops[order], np.arange(levels), side="right"), dtype=torch.int32)
    return Domain(**vars(batch_of(atoms[order])), hops=torch.tensor(hops[order], dtype=torch.int32), within=within)


@pytest.mark.nightly
@pytest.mark.interpreter
@pytest.mark.parametrize(
    ("layers", "elements", "counts"),
    [
        (1, (), [[1, 3], [16, 18]]),
        (2, (1, 6, 8), [[15, 17, 19], [1, 3, 5], [30, 32, 34]]),
        (3, (), [[13, 15, 17, 19], [33, 35, 35, 35]]),
    ],
    ids=str,
)
def test_the_emulated_kernels_evaluate_the_atoms_of_a_domain_that_matter(kernels, layers, elements, counts):
    """The same buffers of 35 atoms, three tiles, for numbers that differ by layer; nothing is read of other atoms."""
    potential, atoms = potential_of(layers, num_radial=8, cutoff=2.0), wire(35)
    fast, tiles = FastTensorNet(potential, bound=1e-6), replace(MANY, by_elements=ByElements(edges=0))
    fast.tile_kernels = TileKernels(fast, kernels)
    edges = brute_force(batch_of(atoms), potential.cutoff)
    buffers = fast.allocate(len(atoms), 1, edges.capacity, tiles=tiles, elements=elements)
    for within in counts:
        domain = domain_of(atoms, within[0], layers + 1, potential.cutoff)
        assert domain.within.tolist() == within
        edges = brute_force(domain, potential.cutoff)
        exact = evaluate(copy.deepcopy(potential).double(), domain, edges, stress=True)
        for tensor in buffers.scratch.tensors():
            if tensor.is_floating_point():
                tensor.fill_(torch.nan)
        found = fast.run(*inputs(domain, edges), virial=True, within=domain.within)
        torch.testing.assert_close(found.energies, exact.energies, atol=1e-6, rtol=1e-7)
        torch.testing.assert_close(found.energy, exact.energy, atol=1e-6, rtol=1e-7)
        assert (found.forces - exact.forces).norm() <= 1e-8 + 3e-6 * exact.forces.norm()  # those of one atom are small
        virial = exact.stress * volume(domain.cell)
        assert (found.virial - virial).norm() <= 1e-7 + 3e-6 * virial.norm()
        assert found.forces[within[0] :].any()  # on atoms that are not owned
        for i, (y, d) in enumerate(zip(buffers.scratch.y, buffers.scratch.gradient.d, strict=True)):
            sent, updated = within[layers - i], within[layers - 1 - i]
            assert y[:sent].isfinite().all()
            assert y[sent:].isnan().all()
            assert d[:updated].isfinite().all()
            assert d[updated:].isnan().all()
        found = fast.run(*inputs(domain, edges), forces=False, within=domain.within)
        torch.testing.assert_close(found.energies, exact.energies, atol=1e-6, rtol=1e-7)


def test_matrices_are_kept_to_float32():
    weights = torch.randn(3, 128, 128) * torch.tensor([1.0, 1e-3, 1e3])[:, None, None]
    halves, unit = atom_tiles.packed(weights)
    big, small = halves.double().unbind(3)
    found = (big + small).flip(0).permute(0, 2, 3, 7, 4, 1, 6, 5, 8).reshape(3, 128, 128) * unit
    assert (found - weights).abs().max() <= 2.0**-23 * weights.abs().max()


@pytest.mark.nightly_for("settings2", "settings3")
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


@pytest.mark.nightly
def test_the_kernels_compile_for_hopper(tmp_path, monkeypatch):
    needs_nvrtc(tmp_path, monkeypatch)
    found = atom_tiles.code()
    assert list(found) == [f"{name}_kernel" for name in atom_tiles.KERNELS]
    assert all(code[:4] == b"\x7fELF" and name.encode() in code for name, code in found.items())


def on_hopper():
    return torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)


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


@pytest.mark.gpu
@needs_hopper
def test_domains_take_tiles_and_keep_their_graph_while_atoms_change_hands():
    """Two, then three parts of a structure, one after the other in one step, add up to the whole."""
    potential, atoms = potential_of(num_radial=8, cutoff=3.0).cuda(), water(1000)
    exact = evaluate(copy.deepcopy(potential).double(), System.from_ase(atoms), stress=True)
    step, graphs, owned = DomainStep(potential, (False, True, True), mode="graph", capacity=4000), [], set()
    for parts in (2, 3):
        forces, energies, virial = np.zeros((len(atoms), 3)), np.zeros(len(atoms)), np.zeros((3, 3))
        for part in divide(atoms, parts, reach(potential), potential.cutoff):
            numbers, cell = atoms.numbers[part.atoms], atoms.cell.array
            step.assign(part.positions, numbers, part.num_owned, cell, num_total=len(atoms), hops=part.hops)
            found = step(part.positions, cell)
            np.add.at(forces, part.atoms, found.forces)
            energies[part.atoms[: part.num_owned]] = found.energies
            virial += found.virial
            owned.add(part.num_owned)
            graphs.append(step.step.policy.graphs["host"])
        wanted = exact.forces.double().cpu().numpy()
        assert np.linalg.norm(forces - wanted) <= 3e-6 * np.linalg.norm(wanted)
        assert np.abs(energies - exact.energies.cpu().numpy()).max() <= 2e-6
        wanted = exact.stress[0].double().cpu().numpy() * atoms.get_volume()
        assert np.linalg.norm(virial - wanted) <= 1e-5 * np.linalg.norm(wanted)
    model = step.step.engine.model
    assert model.buffers.sizes.num_atoms == 4000
    assert model.chain_type(model.buffers) is TileChain
    assert step.num_growths == 0
    assert len(owned) > 1
    assert all(graph is graphs[0] for graph in graphs)
