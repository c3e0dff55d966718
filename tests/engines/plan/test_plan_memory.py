"""Bytes of an atom in the chains of launches, compared with what is allocated; which chain they lead to."""

from dataclasses import replace

import pytest
import torch

from torchmdx import TensorNet2Config, TensorNetConfig
from torchmdx.engines.plan import MACHINES, Workload, machine_named, plan, plan_kernels
from torchmdx.engines.plan.memory import (
    REACHES,
    STEP_BYTES,
    kept_bytes,
    lean_bytes,
    reach_for,
    slab_bytes,
    why_not_slabs,
)

ORGANIC = TensorNetConfig(num_channels=128, num_layers=2, cutoff=5.0)
WATER = Workload(atoms=998_784, capacity=54 * 998_784, elements=2)


def kernels(work, card="H100", config=ORGANIC, kind="TensorNet"):
    return plan_kernels(kind, config, work, machine_named(card))


def allocated(chain, reach=2):
    pytest.importorskip("triton")
    from torchmdx.engines.gpu.buffers import Buffers, BufferSizes
    from torchmdx.engines.gpu.slab_windows import SlabShape, SlabWindows
    from torchmdx.engines.plan.launch_sizes import Tiles

    sizes = BufferSizes(
        WATER.atoms, 1, WATER.capacity, channels=128, hidden=256, layers=2, head_layers=1, head_width=64,
        head_gated=False, tiles=replace(Tiles.choose(WATER.atoms), lean=chain == "lean"), chain=chain, with_forces=True,
        device=torch.device("meta"),
    )  # fmt: skip
    found = Buffers.allocate(sizes)
    if chain == "slabs":
        side = (WATER.atoms / 0.1) ** (1 / 3)
        rows = int(2 * 6.0 / reach * 0.1 * side**2)
        found.windows = SlabWindows.allocate(sizes, SlabShape(WATER.atoms, rows, reach))
    return found.num_bytes / WATER.atoms + 20 * 54 + STEP_BYTES  # and the list: source, target and shifts


@pytest.mark.parametrize(("chain", "estimate"), [("blocks", kept_bytes), ("lean", lean_bytes), ("slabs", slab_bytes)])
def test_estimates_are_what_is_allocated(chain, estimate):
    assert estimate(ORGANIC, WATER) == pytest.approx(allocated(chain), rel=0.03)


@pytest.mark.parametrize("reach", REACHES)
def test_thinner_slabs_take_less_memory(reach):
    assert slab_bytes(ORGANIC, WATER, reach) == pytest.approx(allocated("slabs", reach), rel=0.03)


def test_eight_million_atoms_fit_into_80_GB():
    work = replace(WATER, atoms=8_000_000, capacity=57 * 8_000_000)
    found = kernels(work)
    assert (found.chain, found.reach) == ("slabs", 3)
    assert slab_bytes(ORGANIC, work, 3) < 9000
    assert "83% of the memory; about 8.7 kB" in found.stages[0].why


def test_what_fits_whole_stays_whole():
    small = replace(WATER, atoms=98_304, capacity=54 * 98_304)
    assert kernels(small).chain == "blocks"
    assert kernels(replace(WATER, atoms=200_000, capacity=54 * 200_000)).chain == "lean"
    # Slabs are faster for very many atoms where tiles of atoms serve.
    assert kernels(WATER).chain == "slabs"
    assert "less time" in kernels(WATER).stages[0].why
    assert kernels(WATER, "A100").chain == "lean"


@pytest.mark.parametrize(
    ("gigabytes", "chain", "reach"), [(80, "slabs", 2), (12.8, "slabs", 3), (10, "slabs", 4)], ids=str
)
def test_memory_that_is_given_decides(gigabytes, chain, reach):
    found = kernels(replace(WATER, memory=int(gigabytes * 1e9)))
    assert (found.chain, found.reach) == (chain, reach)


@pytest.mark.parametrize(("gigabytes", "chain"), [(7.5, "blocks"), (5, "lean"), (3.5, "slabs")])
def test_the_chain_that_fits_is_taken(gigabytes, chain):
    work = Workload(atoms=98_304, capacity=54 * 98_304, elements=2, memory=int(gigabytes * 1e9))
    found = kernels(work)
    assert found.chain == chain
    assert found.tiles.lean == (chain == "lean")
    assert found.atom_tiles == (chain != "lean")
    if chain != "blocks":
        assert f"the {gigabytes:g} GB that it may take" in found.stages[0].why


def test_a_domain_keeps_all_tensors_that_fit_for_tiles_of_atoms():
    half = replace(WATER, atoms=650_000, capacity=57 * 650_000, domain=True)
    found = kernels(half, "H200")
    assert (found.chain, found.atom_tiles, found.tiles.lean) == ("blocks", True, False)
    assert "fit, which tiles of atoms need: 69 kB each" in found.stages[0].why
    assert found.stages[0].otherwise == "blocks of atoms, tensors computed again"
    assert kernels(half, "A100").chain == "lean"  # without tiles they would be of no use
    assert kernels(half, "H100").chain == "lean"  # two of them would not fit
    assert kernels(replace(half, memory=20 * 10**9), "H200").chain == "lean"


def test_slabs_are_of_one_whole_structure_with_layers():
    assert why_not_slabs(ORGANIC, WATER) is None
    assert "need a layer, got 0" in why_not_slabs(replace(ORGANIC, num_layers=0), WATER)
    assert "one structure, got 3" in why_not_slabs(ORGANIC, replace(WATER, systems=3))
    assert "got a domain" in why_not_slabs(ORGANIC, replace(WATER, domain=True))
    assert "atoms in their order" in why_not_slabs(ORGANIC, replace(WATER, ordered=False))
    assert kernels(replace(WATER, ordered=False)).chain == "lean"
    assert "backward pass" in why_not_slabs(ORGANIC, replace(WATER, forces=False))
    assert kernels(replace(WATER, systems=2), "RTX 4090").chain == "lean"


def test_a_tensornet2_says_why_it_keeps_all_tensors():
    found = plan(TensorNet2Config(), (), replace(WATER, memory=10**9), "float32", MACHINES["H100"])
    assert found.kernels.chain == "blocks"
    (stage,) = [stage for stage in found.stages if stage.name == "memory"]
    assert "sums charges over the whole structure" in stage.why
    assert all(
        stage.name != "memory" for stage in plan(TensorNet2Config(), (), WATER, "float32", MACHINES["H100"]).stages
    )


def test_the_fewest_slabs_that_fit():
    most = slab_bytes(ORGANIC, WATER) * WATER.atoms
    assert reach_for(ORGANIC, WATER, most) == REACHES[0]
    assert reach_for(ORGANIC, WATER, most - 1) == REACHES[1]
    assert reach_for(ORGANIC, WATER, 1.0) == REACHES[-1]
