"""The embedding's sums by elements, against the exact model and the general kernels."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from interpreter import DEVICE, needs_kernels
from test_gpu_tensornet import CUTS, GATED, run

from torchmdx import System, evaluate
from torchmdx.engines.gpu.tensornet import FastTensorNet
from torchmdx.engines.plan.launch_sizes import ByElements, Tiles
from torchmdx.neighbors.brute_force import brute_force
from torchmdx.structures.system import Batch

MANY = replace(CUTS["coarse"], by_elements=ByElements(edges=0))


def mixture(numbers, *, spacing=1.4):
    """Atoms of these elements near a grid."""
    random = np.random.default_rng(0)
    grid = np.stack(np.meshgrid(*[np.arange(3)] * 3), -1).reshape(-1, 3)[: len(numbers)]
    positions = grid * spacing + random.uniform(-0.2, 0.2, (len(numbers), 3))
    return single_precision(System.create(positions, random.permutation(numbers)))


def single_precision(system):
    return Batch.from_systems([system]).to(DEVICE, torch.float32).to(DEVICE, torch.float64)


def error(found, potential, batch):
    exact = evaluate(potential.double(), batch, brute_force(batch, potential.cutoff))
    torch.testing.assert_close(found.energies, exact.energies, atol=1e-6, rtol=1e-7)
    return float((found.forces - exact.forces).norm() / exact.forces.norm())


@pytest.mark.nightly_for("5-2", "1-4", "8-4", "1-1", "1-2", "2-2", "2-4", "5-1", "5-4", "8-1", "8-2")
@needs_kernels
@pytest.mark.parametrize("group", [1, 2, 4])
@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_any_number_of_elements_in_groups(make_potential, count, group):
    potential = make_potential(num_channels=32, num_layers=1, num_radial=8, cutoff=2.5)
    batch = mixture([1, 6, 8, 7, 9, 3, 5, 4][:count] * (16 // count))
    tiles = replace(MANY, by_elements=ByElements(edges=0, group=group))
    found = run(potential, batch, tiles=tiles, virial=False)
    assert found.present.count == count
    assert not found.scratch.rare.any()
    assert error(found, potential, batch) < 3e-6


@pytest.mark.nightly_for(
    f"coarse-{GATED}", "coarse-{'group': 'SO(3)'}", "lean, in pieces-{'num_layers': 0}", "{'num_radial': 24}"
)
@needs_kernels
@pytest.mark.parametrize("settings", [GATED, dict(group="SO(3)"), dict(num_layers=0), dict(num_radial=24)], ids=str)
@pytest.mark.parametrize("cut", ["coarse", "lean, in pieces"])
def test_networks_of_all_kinds(make_potential, settings, cut):
    potential = make_potential(**{"num_channels": 64, "num_layers": 1, "num_radial": 8, "cutoff": 2.5, **settings})
    batch = mixture([1, 6, 8, 8])
    tiles = replace(CUTS[cut], by_elements=ByElements(edges=0))
    found = run(potential, batch, tiles=tiles, virial=False)
    assert found.present is not None
    # Without layers these forces nearly cancel: rounding alone is 0.2 to 6e-6 of them, by the number of functions.
    assert error(found, potential, batch) < (8e-6 if settings.get("num_layers") == 0 else 3e-6)


@needs_kernels
def test_rows_with_neighbours_of_other_elements_are_left_to_the_general_kernels(make_potential):
    """As where another structure is assigned to a captured step."""
    potential = make_potential(num_channels=32, num_layers=1, num_radial=8, cutoff=2.0)
    batch = mixture([1] * 12 + [8] * 2)
    found = run(potential, batch, tiles=MANY, virial=False, elements=[1, 6])
    assert found.present.count == 2
    rare = found.scratch.rare.bool().cpu()
    edges = brute_force(batch, potential.cutoff)
    beside = torch.zeros(batch.num_atoms, dtype=torch.bool)
    used = int(edges.num_edges)
    beside[edges.target[:used][batch.atomic_numbers[edges.source[:used]] == 8].cpu()] = True
    assert torch.equal(rare, beside)
    assert 0 < beside.sum() < batch.num_atoms
    assert error(found, potential, batch) < 3e-6


@needs_kernels
def test_atoms_too_near_for_the_functions_are_left_to_the_general_kernels(make_potential):
    potential = make_potential(num_channels=64, num_layers=1, num_radial=32, cutoff=3.0)
    batch = single_precision(System.create([[0, 0, 0], [0, 0, 0.05], [1.5, 0, 0], [4.2, 0, 0.1]], [1, 8, 1, 1]))
    fast = FastTensorNet(potential.to(DEVICE))
    assert fast.element_functions.last_knot < fast.table.stretch.num_intervals - 1
    found = run(potential, batch, tiles=MANY, virial=False, fast=fast)
    assert found.scratch.rare.tolist() == [1, 1, 0, 0]
    general = run(potential, batch, tiles=replace(MANY, by_elements=None), virial=False, fast=fast)
    assert general.present is None
    # The 0.05 Å cost precision of their own.
    assert error(found, potential, batch) < max(3e-6, 1.5 * error(general, potential, batch))


@pytest.mark.nightly
@needs_kernels
def test_equal_input_gives_equal_bits_and_poisoned_buffers_do_not_show(make_potential):
    potential = make_potential(num_channels=32, num_layers=1, num_radial=8, cutoff=2.0)
    batch = mixture([1, 8, 6] * 4)
    fast = FastTensorNet(potential.to(DEVICE))
    first = run(potential, batch, fast=fast, tiles=MANY, elements=[1, 8])
    kept = [t.clone() for t in (first.energies, first.forces, first.virial)]
    for tensor in first.scratch.tensors():
        tensor.fill_(float("nan") if tensor.is_floating_point() else -7)
    edges = brute_force(batch, potential.cutoff, capacity=first.sizes.capacity)
    single = batch.to(DEVICE, torch.float32)
    inputs = (single.positions, single.atomic_numbers, single.system_index, single.cell, single.charge, edges)
    again = fast.run(*inputs, virial=True)
    for old, new in zip(kept, (again.energies, again.forces, again.virial), strict=True):
        assert torch.equal(old, new)
    positions = single.positions.clone()
    positions[2, 1] = float("nan")
    assert fast.run(positions, *inputs[1:]).energy.isnan().all()


@needs_kernels
def test_sums_lie_in_tensors_that_are_free(make_potential):
    potential = make_potential(num_channels=32, num_layers=1, num_radial=8, cutoff=2.0)
    fast = FastTensorNet(potential.to(DEVICE))
    assert fast.element_functions.count == 16
    lean = CUTS["lean, in pieces"]
    for tiles, elements, own in (
        (MANY, [1, 8], False),
        (MANY, [1, 6, 8], True),
        (lean, [1, 8], False),
        (lean, [1, 6, 8], False),
    ):
        tiles = replace(tiles, by_elements=ByElements(edges=0))
        buffers = fast.allocate(20, 1, 100, tiles=tiles, elements=elements)
        assert (buffers.scratch.sums is not None) == own
        for back in (False, True):
            room = buffers.scratch.sums_of(back=back)
            assert room.dtype == torch.float32
            assert room.numel() >= 20 * 9 * len(elements) * 16


def test_only_few_elements_have_sums_of_their_own(make_potential):
    pytest.importorskip("triton")
    fast = FastTensorNet(make_potential(num_channels=32, num_radial=8), bound=1e-2)

    def present(*elements, atoms=1000, edges=100):
        return fast.allocate(atoms, 1, atoms * edges, tiles=Tiles.choose(atoms), elements=elements).present

    assert present(1, 8).count == 2
    assert present(1, 8, edges=30).count == 2
    assert present(1, 6, 7, 8, edges=30) is None
    assert present() is None
    assert present(*range(1, 10)) is None
    assert present(1, 8, atoms=10) is None
