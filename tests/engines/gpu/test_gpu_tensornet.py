"""The fast path against the exact model in float64.

Kernels run on a GPU, or on the CPU under Triton's interpreter.
"""

from dataclasses import replace

import pytest
import torch
from interpreter import DEVICE, INTERPRETED, needs_kernels

from torchmdx import System, TensorNetConfig
from torchmdx.engines.gpu.tensornet import FastTensorNet
from torchmdx.engines.plan.launch_sizes import ByElements, Tiles
from torchmdx.evaluation.derivatives import evaluate
from torchmdx.models.potential import Potential
from torchmdx.neighbors.brute_force import brute_force
from torchmdx.step.atom_order import curve_order
from torchmdx.structures.system import Batch


def batch_of(*atoms):
    """Structures on the device, at positions that float32 holds exactly."""
    batch = Batch.from_systems([System.from_ase(a) for a in atoms])
    return batch.to(DEVICE, torch.float32).to(DEVICE, torch.float64)


def run(potential, batch, *, radius=None, tiles=None, forces=True, virial=True, spare=5, fast=None, elements=None):
    """The buffers after one run, with a list of `radius` and some unused slots. elements: None takes those present."""
    found = brute_force(batch, radius or potential.cutoff)
    edges = brute_force(batch, radius or potential.cutoff, capacity=found.capacity + spare)
    fast = fast or FastTensorNet(potential.to(DEVICE))
    elements = batch.atomic_numbers.unique().tolist() if elements is None else elements
    sizes = (batch.num_atoms, batch.num_systems, edges.capacity)
    fast.allocate(*sizes, tiles=tiles, forces=forces, elements=elements)
    single = batch.to(DEVICE, torch.float32)
    return fast.run(
        single.positions,
        single.atomic_numbers,
        single.system_index,
        single.cell,
        single.charge,
        edges,
        forces=forces,
        virial=forces and virial,
    )


def assert_agrees(potential, batch, tolerance=5e-6, **options):
    found = run(potential, batch, **options)
    exact = evaluate(potential.double(), batch, brute_force(batch, potential.cutoff))
    torch.testing.assert_close(found.energies, exact.energies, atol=1e-6, rtol=1e-7)
    torch.testing.assert_close(found.energy, exact.energy, atol=1e-6 * batch.num_atoms, rtol=1e-7)
    error, rounding = (found.forces - exact.forces).norm(), 1e-7 * batch.num_atoms**0.5  # eV/Å, of terms that cancel
    assert error < tolerance * exact.forces.norm() + rounding
    strain = torch.zeros(batch.num_systems, 3, 3, dtype=torch.float64, device=DEVICE)
    for system in range(batch.num_systems):
        strain[system] = virial_of(potential, batch, system)
    assert (found.virial - strain).norm() < tolerance * strain.norm()


def virial_of(potential, batch, system):
    """∂E/∂strain of one system of a batch, from differences of the exact energy."""
    edges = brute_force(batch, potential.cutoff)
    out = torch.zeros(3, 3, dtype=torch.float64, device=DEVICE)
    step = 1e-4
    for i in range(3):
        for j in range(i + 1):
            energies = []
            for sign in (1, -1):
                strain = torch.zeros(3, 3, dtype=torch.float64, device=DEVICE)
                strain[i, j] += sign * step / 2
                strain[j, i] += sign * step / 2
                deform = torch.eye(3, dtype=torch.float64, device=DEVICE) + strain
                moved = replace(batch, positions=batch.positions @ deform, cell=batch.cell @ deform)
                energies.append(evaluate(potential, moved, edges, forces=False).energy[system])
            out[i, j] = out[j, i] = (energies[0] - energies[1]) / (2 * step)
    return out


# As matgl's potentials.
GATED = dict(
    num_layers=1,
    radial_basis="bessel",
    num_radial=3,
    head="gated",
    num_head_layers=2,
    self_message=False,
    readout_activation=False,
    charge_factor=False,
)
SETTINGS = [
    dict(),
    dict(group="SO(3)", num_layers=1),
    dict(num_layers=0),
    dict(num_layers=3, num_channels=8),
    dict(num_channels=24, radial_basis="gauss"),
    dict(num_channels=24, readout_activation=False, self_message=False),
    GATED,
    dict(num_layers=1, num_channels=24, num_head_layers=2),
]


@pytest.mark.nightly_for(
    "{'num_layers': 3, 'num_channels': 8}",
    "{}",
    "{'group': 'SO(3)', 'num_layers': 1}",
    "{'num_channels': 24, 'radial_basis': 'gauss'}",
)
@needs_kernels
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_a_triclinic_crystal_agrees_with_the_exact_model(make_potential, settings, crystal):
    potential = make_potential(**{"num_channels": 16, "cutoff": 3.2, **settings})
    assert_agrees(potential, batch_of(crystal))


@pytest.mark.nightly_for("slab", "cation", "chiral")
@needs_kernels
@pytest.mark.parametrize("name", ["ethanol", "cation", "chiral", "slab", "wire"])
def test_structures_of_any_periodicity_agree(make_potential, name, request):
    potential = make_potential(num_channels=16, num_layers=1, group="SO(3)")
    found = run(potential, batch := batch_of(request.getfixturevalue(name)), virial=False)
    exact = evaluate(potential.double(), batch, brute_force(batch, potential.cutoff))
    assert (found.forces - exact.forces).norm() < 3e-6 * exact.forces.norm()
    torch.testing.assert_close(found.energies, exact.energies, atol=1e-6, rtol=1e-7)


@pytest.mark.nightly_for("swish", "sigmoid", "mish", "tanh")
@needs_kernels
@pytest.mark.parametrize("activation", ["swish", "ssp", "tanh", "sigmoid", "mish"])
def test_every_activation_agrees(make_potential, activation, chiral):
    potential = make_potential(num_channels=16, num_layers=1, activation=activation)
    found = run(potential, batch := batch_of(chiral), virial=False)
    exact = evaluate(potential.double(), batch)
    assert (found.forces - exact.forces).norm() < 3e-6 * exact.forces.norm()


# One program an atom, in two ways; blocks of matrices cut finely; larger blocks.
CUTS = {
    "row": Tiles.choose(10),
    "row of few warps": Tiles.choose(300),
    "fine": replace(Tiles.choose(10), row=None),
    "lean, in pieces": replace(Tiles.choose(10), row=None, lean=True, piece=16),
    "coarse": Tiles.choose(1000),
    "coarser": Tiles.choose(10_000),
    "by elements": replace(Tiles.choose(10_000), by_elements=ByElements(edges=0)),
}


@pytest.mark.nightly_for(
    "{'num_layers': 1, 'group': 'SO(3)'}",
    str(GATED),
    "coarse",
    "coarser",
    "fine",
    "row",
    "row of few warps",
)
@needs_kernels
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize(
    "settings",
    [
        dict(num_layers=1, group="SO(3)"),
        dict(num_layers=2 if INTERPRETED else 3, num_channels=24, num_head_layers=2),
        GATED,
    ],
    ids=str,
)
def test_all_ways_of_cutting_the_work_agree(make_potential, cut, settings, ethanol, cation, wire):
    potential = make_potential(**{"num_channels": 32, **settings})
    batch = batch_of(ethanol, cation, wire)
    found = run(potential, batch, tiles=CUTS[cut])
    exact = evaluate(potential.double(), batch, brute_force(batch, potential.cutoff))
    assert (found.forces - exact.forces).norm() < 3e-6 * exact.forces.norm()
    torch.testing.assert_close(found.energy, exact.energy, atol=1e-5, rtol=1e-7)
    strain = virial_of(potential, batch, 1)
    assert (found.virial[1] - strain).norm() < 1e-5 * strain.norm()


@pytest.mark.nightly
@needs_kernels
def test_the_energy_alone_is_the_same_and_needs_fewer_buffers(make_potential, chiral):
    potential = make_potential(num_channels=16, num_layers=3)
    fast = FastTensorNet(potential.to(DEVICE))
    full = run(potential, batch_of(chiral), fast=fast)
    energy, num_bytes = full.energy.clone(), full.num_bytes
    alone = run(potential, batch_of(chiral), fast=fast, forces=False)
    # A compiler may round otherwise where nothing is kept for the gradient.
    torch.testing.assert_close(alone.energy, energy, rtol=1e-6, atol=0)
    assert alone.num_bytes < num_bytes


@pytest.mark.nightly
@needs_kernels
def test_equal_input_gives_equal_bits_and_poisoned_buffers_do_not_show(make_potential, chiral):
    potential = make_potential(num_channels=16, num_layers=2)
    fast = FastTensorNet(potential.to(DEVICE))
    batch = batch_of(chiral)
    first = run(potential, batch, fast=fast)
    kept = [t.clone() for t in (first.energies, first.energy, first.forces, first.virial)]
    for tensor in first.scratch.tensors():
        tensor.fill_(float("nan") if tensor.is_floating_point() else -7)
    edges = brute_force(batch, potential.cutoff, capacity=first.sizes.capacity)
    single = batch.to(DEVICE, torch.float32)
    inputs = (single.positions, single.atomic_numbers, single.system_index, single.cell, single.charge, edges)
    again = fast.run(*inputs, virial=True)
    for old, new in zip(kept, (again.energies, again.energy, again.forces, again.virial), strict=True):
        assert torch.equal(old, new)


@needs_kernels
def test_a_position_that_is_not_a_number_reaches_the_energy(make_potential, chiral):
    potential = make_potential(num_channels=16, num_layers=1)
    fast = FastTensorNet(potential.to(DEVICE))
    batch = batch_of(chiral)
    edges = brute_force(batch, potential.cutoff)
    fast.allocate(batch.num_atoms, 1, edges.capacity)
    positions = batch.positions.float()
    positions[2, 1] = float("nan")
    inputs = (batch.atomic_numbers, batch.system_index, batch.cell.float(), batch.charge.float(), edges)
    assert fast.run(positions, *inputs).energy.isnan().all()


@pytest.mark.nightly_for("row")
@needs_kernels
@pytest.mark.parametrize("cut", ["row", "coarse"])
def test_atoms_that_coincide_have_no_energy_and_others_have(make_potential, cut, chiral):
    together, nearly = chiral.copy(), chiral.copy()
    for atoms, gap in ((together, 0.99e-4), (nearly, 1.01e-4)):
        atoms.positions[3] = [2, 0, 0]
        atoms.positions[1] = [2, 0.6 * gap, 0.8 * gap]
    buffers = run(make_potential(torch.float32), batch_of(together, nearly), tiles=CUTS[cut])
    for values in (buffers.energies, buffers.forces.sum(-1)):
        assert not torch.isfinite(values[[1, 3]]).any()
        assert torch.isfinite(values[5:]).all()


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA GPU")
@pytest.mark.parametrize("num_channels", [64, 96, 128])
@pytest.mark.parametrize("side", [2, 5], ids=["few", "many"])
def test_a_captured_graph_repeats_the_run_and_agrees_at_real_size(make_potential, num_channels, side):
    generator = torch.Generator().manual_seed(0)
    grid = torch.cartesian_prod(*[torch.arange(2.0 * side)] * 3) * 2.1
    positions = grid + 0.25 * torch.rand(grid.shape, generator=generator)
    numbers = torch.randint(1, 9, (len(grid),), generator=generator)
    system = System.create(positions.double(), numbers, 4.2 * side * torch.eye(3), True)
    batch = Batch.from_systems([system]).to(DEVICE, torch.float32).to(DEVICE, torch.float64)
    potential = make_potential(num_channels=num_channels, num_radial=32, cutoff=5.0).to(DEVICE)
    fast = FastTensorNet(potential)
    eager = run(potential, batch, fast=fast)
    forces, energy = eager.forces.clone(), eager.energy.clone()
    edges = brute_force(batch, potential.cutoff, capacity=eager.sizes.capacity)
    single = batch.to(DEVICE, torch.float32)
    inputs = (single.positions, single.atomic_numbers, single.system_index, single.cell, single.charge, edges)
    fast.run(*inputs)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fast.run(*inputs)
    for _ in range(3):
        eager.forces.zero_()
        graph.replay()
        assert torch.equal(eager.forces, forces)
        assert torch.equal(eager.energy, energy)
    exact = evaluate(potential.double(), batch, brute_force(batch, potential.cutoff))
    assert (forces - exact.forces).norm() < 3e-6 * exact.forces.norm()
    torch.testing.assert_close(eager.energies, exact.energies, atol=2e-6, rtol=1e-7)


def test_reasons_against_the_fast_path(make_potential):
    wide = Potential(TensorNetConfig(num_channels=320, num_layers=0, num_radial=4))
    assert FastTensorNet.why_not(wide) == "num_channels must be at most 256, got 320"
    with pytest.raises(ValueError, match=r"no fast path: num_channels must be at most 256, got 320"):
        FastTensorNet(wide)
    pytest.importorskip("triton")
    assert FastTensorNet.why_not(make_potential()) is None


def test_runs_that_do_not_fit_their_buffers_are_refused(make_potential, chiral):
    pytest.importorskip("triton")
    potential = make_potential(num_layers=0)
    fast = FastTensorNet(potential, bound=1e-2)
    batch = Batch.from_systems([System.from_ase(chiral)])
    edges = brute_force(batch, potential.cutoff)
    inputs = (batch.positions, batch.atomic_numbers, batch.system_index, batch.cell, batch.charge)
    with pytest.raises(RuntimeError, match=r"allocate must be called before run"):
        fast.run(*inputs, edges)
    fast.allocate(batch.num_atoms + 1, 1, edges.capacity)
    with pytest.raises(ValueError, match=r"run needs the 6 atoms and 1 systems it was allocated for, got 5 and 1"):
        fast.run(*inputs, edges)
    fast.allocate(batch.num_atoms, 1, edges.capacity + 1)
    with pytest.raises(ValueError, match=r"edges must have the capacity 21, got 20"):
        fast.run(*inputs, edges)
    fast.allocate(batch.num_atoms, 1, edges.capacity, forces=False)
    with pytest.raises(ValueError, match=r"forces need the buffers of the gradient"):
        fast.run(*inputs, edges)


def test_the_order_along_a_curve_keeps_systems_apart_and_neighbours_near():
    generator = torch.Generator().manual_seed(0)
    positions = torch.rand(2000, 3, generator=generator, dtype=torch.float64) * 20 - 40
    cell = (20 * torch.eye(3, dtype=torch.float64)).expand(2, 3, 3)
    pbc = torch.tensor([[True] * 3, [False] * 3])
    system = torch.arange(2).repeat_interleave(1000)
    order = curve_order(positions, cell, pbc, system)
    assert torch.equal(order.sort().values, torch.arange(2000))
    assert (order[:1000] < 1000).all()
    steps = (positions[order][1:1000] - positions[order][:999]).norm(dim=1)
    assert float(steps.median()) < 3.0  # at random it is 13 Å


def test_nothing_to_order():
    assert len(curve_order(torch.zeros(0, 3), torch.zeros(1, 3, 3), torch.zeros(1, 3, dtype=torch.bool))) == 0
