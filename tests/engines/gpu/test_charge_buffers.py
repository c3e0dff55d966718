"""Which values of TensorNet2's network of edges are kept, and how much memory they take."""

from dataclasses import replace

import pytest
import torch

from torchmdx.engines.gpu.buffers import BufferSizes
from torchmdx.engines.gpu.charge_buffers import ChargeScratch, parts_of
from torchmdx.engines.plan.launch_sizes import Tiles

ATOMS, EDGES, LAYERS, CHANNELS = 30, 70, 2, 128
SIZES = BufferSizes(
    num_atoms=ATOMS, num_systems=1, capacity=EDGES, channels=CHANNELS, hidden=2 * CHANNELS, layers=LAYERS,
    head_layers=1, head_width=CHANNELS // 2, head_gated=False, tiles=Tiles.choose(5000), chain="blocks",
    with_forces=True, device=torch.device("cpu"),
)  # fmt: skip


def scratch(sizes=SIZES, *, last_charges=False, edge_maps=False, keeps=True):
    settings = dict(last_charges=last_charges, edge_maps=edge_maps, keeps_slopes=keeps, piece=40)
    return ChargeScratch.allocate(sizes, 16, **settings)


def test_values_are_kept_while_there_are_few_rows():
    kept, again = scratch(), scratch(keeps=False)
    assert [z.shape for z in kept.z2] == LAYERS * [(ATOMS + EDGES, 2 * CHANNELS)]
    assert not again.z2
    for found in (kept, again):
        assert [z.shape for z in found.z1] == LAYERS * [(ATOMS + EDGES, CHANNELS)]
        assert found.piece.shape == (40, 2 * CHANNELS)


@pytest.mark.parametrize("keeps", [False, True])
def test_one_kernel_for_both_maps_needs_no_pieces(keeps):
    found = scratch(edge_maps=True, keeps=keeps)
    assert len(found.z2) == (LAYERS if keeps else 0)
    assert found.piece is None
    assert len(found.z1) == LAYERS


@pytest.mark.parametrize(
    ("atoms", "systems", "parts"), [(1023, 1, 1), (2489, 1, 16), (1024 * 22, 1024, 1), (10**5, 1, 128)]
)
def test_systems_of_many_atoms_are_divided_for_sums(atoms, systems, parts):
    assert parts_of(atoms, systems) == parts
    found = scratch(replace(SIZES, num_atoms=atoms, num_systems=systems))
    assert found.parts_sums.shape == (systems, parts, 2, 16)


def test_layers_share_memory_without_a_gradient():
    found = scratch(replace(SIZES, with_forces=False), last_charges=True)
    assert len(found.z3) == len(found.first) == len(found.sums) == 1
    assert len(found.charges) == LAYERS + 1
    assert found.reverse is None
    assert found.read_norms.shape == (ATOMS, 3, CHANNELS)


def test_an_empty_structure_has_memory_for_the_edge_that_pads():
    found = scratch(replace(SIZES, num_atoms=0, num_systems=0, capacity=0))
    assert found.z3[0].shape == (1, 3, CHANNELS)
    assert found.sums[0].shape == (1, 2, 16)
