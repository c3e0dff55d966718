"""Which of the fused kernels evaluate a TensorNet or a TensorNet2: one function for each stage of the evaluation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Any

from torchmdx.engines.plan import few_atoms, memory, serves
from torchmdx.engines.plan.clusters import AtomClusters
from torchmdx.engines.plan.launch_sizes import PIECE as PIECE_OF_ATOMS
from torchmdx.engines.plan.launch_sizes import TILE_ATOMS, Tiles, launch_sizes
from torchmdx.engines.plan.machine import Machine
from torchmdx.engines.plan.padding import padded_charges, power_of_two
from torchmdx.engines.plan.workload import Stage, Workload

if TYPE_CHECKING:
    from torchmdx.models.tensornet import TensorNetConfig
    from torchmdx.models.tensornet2 import TensorNet2Config

# Chains of launches: one program per atom, blocks of atoms, these in little memory, and slabs of atoms in turn.
ROWS, BLOCKS, LEAN, SLABS = "rows", "blocks", "lean", "slabs"
# Fewest rows of the network of edges that kernels of CUDA C++ evaluate. On an H100, AceFF-2.0 with 120 atoms takes
# 350 instead of 397 us, with 166 atoms and one program per atom 391 instead of 524 us; with 90 atoms there is no gain.
FEWEST_MAP_ROWS = 2560
# Rows of the network of edges up to which z₂ is kept for the backward pass; rows that are evaluated again at a time.
MOST_ROWS, PIECE = 196608, 49152
MOST_ELEMENTS = 8  # of sums by elements


@dataclass(frozen=True, kw_only=True)
class KernelPlan:
    """What the classes of engines/gpu launch. At run time a compiler or driver may refuse kernels of CUDA C++.

    Attributes:
        chain: ROWS, BLOCKS, LEAN or SLABS.
        tiles: Launch sizes.
        by_elements: The embedding's sums, where few functions do.
        one_launch, atom_tiles, edge_maps: Whether these kernels of CUDA C++ are used; clusters: how charged_cluster.cu
            divides atoms.
        keeps_slopes: z₂, or the slopes of its activation, is kept for the backward pass; else it is evaluated again,
            `piece` rows at a time.
        reach: Slabs that are together as thick as the cutoff, of SLABS.
    """

    chain: str
    tiles: Tiles
    by_elements: bool = False
    one_launch: bool = False
    atom_tiles: bool = False
    clusters: AtomClusters | None = None
    edge_maps: bool = False
    keeps_slopes: bool = False
    piece: int = 0
    reach: int = 0
    stages: tuple[Stage, ...] = ()


def plan_kernels(
    kind: str,
    config: Any,
    work: Workload,
    machine: Machine,
    *,
    priors: bool = False,
    tiles: Tiles | None = None,
) -> KernelPlan:
    """The kernels for a network of this kind, "TensorNet" or "TensorNet2", that `serves.fused_kernels`.

    Args:
        priors: Other energies are evaluated between the forward and the backward pass. Coulomb energies of all pairs do
            not count for a TensorNet2 (`decide.between_passes`).
        tiles: Launch sizes; None: the fastest.
    """
    if tiles is None:
        maps = kind == "TensorNet2" and serves.edge_maps(config, machine) is None
        tiles = launch_sizes(kind, work, machine, edge_maps=maps)
    if work.domain:  # its atoms are counted on the device, so kernels take all of them at once
        tiles = replace(tiles, piece=0)
    if kind == "TensorNet2":
        return _charged(config, work, machine, replace(tiles, lean=False), priors)
    return _plain(config, work, machine, tiles, priors)


def _plain(config: TensorNetConfig, work: Workload, machine: Machine, tiles: Tiles, priors: bool) -> KernelPlan:
    chain, stage = _chain(config, work, tiles, machine=machine)
    if chain == LEAN and not tiles.lean:
        tiles = replace(tiles, lean=True, piece=0 if work.domain else PIECE_OF_ATOMS)
    if chain == BLOCKS and tiles.lean:
        tiles = replace(tiles, lean=False, piece=0)
    single, single_stage = few_atoms.one_launch(config, work, machine, priors)
    tiled, tiles_stage = _atom_tiles(config, work, machine, chain)
    summed, sums_stage = _sums(work, tiles, chain)
    # Few atoms of a network that one program per atom does not serve may still fit into one launch.
    stages = [stage, single_stage] if chain == ROWS or single else [stage, tiles_stage, sums_stage]
    return KernelPlan(
        chain=chain,
        tiles=tiles,
        by_elements=summed,
        one_launch=single,
        atom_tiles=tiled,
        reach=_reach(config, work, machine) if chain == SLABS else 0,
        stages=tuple(stages),
    )


def _charged(config: TensorNet2Config, work: Workload, machine: Machine, tiles: Tiles, priors: bool) -> KernelPlan:
    reason = _no_rows(config, work) if tiles.row is not None else None
    if reason is not None:
        tiles = replace(tiles, row=None)
    chain, stage = _chain(config, work, tiles, reason)
    clusters, within = few_atoms.charged_clusters(config, work, machine) if chain == ROWS else (None, [])
    single, launches = few_atoms.charged_launch(config, work, machine, clusters, priors)
    many = clusters is None and work.rows >= FEWEST_MAP_ROWS
    maps = many and serves.edge_maps(config, machine) is None
    keeps = work.forces and work.rows <= MOST_ROWS
    edges = _edge_stage(config, work, machine, maps)
    stages = [stage, *launches] if single else [stage, *launches, *within, edges, *_kept(work, keeps, maps)]
    if work.memory:
        stages.append(Stage("memory", "all tensors are kept", memory.CHARGES_OF_ALL, "slabs of atoms"))
    if branches := _branches(config, work, chain, maps):
        why = f"independent of the rest: {', '.join(branches)}"
        stages.append(Stage("branches", "two streams", why, "one stream"))
    return KernelPlan(
        chain=chain,
        tiles=tiles,
        one_launch=single,
        clusters=clusters,
        edge_maps=maps,
        keeps_slopes=keeps,
        piece=PIECE,
        stages=tuple(stages),
    )


def _chain(
    config: TensorNetConfig,
    work: Workload,
    tiles: Tiles,
    reason: str | None = None,
    *,
    machine: Machine | None = None,
) -> tuple[str, Stage]:
    """The chain of launches.

    Args:
        reason: Why one program per atom was ruled out before.
        machine: Whose memory decides; None: it does not.
    """
    rows, blocks = "one program per atom", "blocks of atoms"
    if tiles.row is not None:
        reason = serves.row_head(config) if config.num_layers else "one program per atom needs a layer, got 0"
        if reason is None:
            return ROWS, Stage("launches", rows, f"{work.atoms:,} atoms are few", blocks)
    if machine is not None and work.forces and config.num_layers:
        found = _by_memory(config, work, tiles, machine)
        if found is not None:
            return found
    why = reason or f"{work.atoms:,} atoms fill tensor cores"
    return BLOCKS, Stage("launches", blocks, why, rows)


def _reach(config: TensorNetConfig, work: Workload, machine: Machine) -> int:
    return memory.reach_for(config, work, work.memory or memory.MOST_SHARE * (machine.memory or inf))


def _by_memory(config: TensorNetConfig, work: Workload, tiles: Tiles, machine: Machine) -> tuple[str, Stage] | None:
    """A chain that takes less memory than all tensors, if that counts."""
    blocks, lean = "blocks of atoms", "blocks of atoms, tensors computed again"
    slabs = "slabs of atoms, one after the other"
    kept, again = memory.kept_bytes(config, work), memory.lean_bytes(config, work)
    most, limit = (
        work.memory or memory.MOST_SHARE * (machine.memory or inf),
        f"the {work.memory / 1e9:.3g} GB that it may take",
    )
    limit = limit if work.memory else f"{memory.MOST_SHARE:.0%} of the memory"
    possible = memory.why_not_slabs(config, work) is None
    tiled = machine.is_hopper and serves.atom_tiles(config) is None
    each = memory.slab_bytes(config, work, memory.reach_for(config, work, most))
    if possible and work.atoms * again > most:
        why = f"{again / 1e3:.0f} kB for each of {work.atoms:,} atoms are more than {limit}; about {each / 1e3:.1f} kB"
        return SLABS, Stage("launches", slabs, why, lean)
    if possible and tiles.lean and tiled and work.atoms >= memory.SLAB_ATOMS:
        why = f"they take about {each / 1e3:.1f} kB for each of {work.atoms:,} atoms, and less time"
        return SLABS, Stage("launches", slabs, why, lean)
    if work.memory and work.atoms * kept > work.memory:
        why = f"all tensors of {work.atoms:,} atoms, {kept / 1e3:.0f} kB each, would take more than {limit}"
        return LEAN, Stage("launches", lean, why, blocks)
    if tiles.lean and tiled and work.domain and work.atoms * kept <= memory.DOMAIN_SHARE * (machine.memory or inf):
        why = f"all tensors of {work.atoms:,} atoms fit, which tiles of atoms need: {kept / 1e3:.0f} kB each"
        return BLOCKS, Stage("launches", blocks, why, lean)
    if tiles.lean:
        many = f"all tensors of {work.atoms:,} atoms would take more than an eighth of the memory"
        return LEAN, Stage("launches", lean, many, blocks)
    return None


def _atom_tiles(config: TensorNetConfig, work: Workload, machine: Machine, chain: str) -> tuple[bool, Stage]:
    apart, tiled = "a launch for each product", "tiles of atoms, and messages, in CUDA C++"

    def no(reason: str) -> tuple[bool, Stage]:
        return False, Stage("within atoms", apart, reason, tiled)

    if work.atoms < TILE_ATOMS:
        return no(f"tiles of atoms are faster for {TILE_ATOMS:,} atoms or more, got {work.atoms:,}")
    if chain not in (BLOCKS, SLABS):
        return no("tiles of atoms need memory for all tensors")
    if not machine.is_hopper:
        return no(f"tiles of atoms need a GPU of the architecture sm_90a, got {machine.name}")
    if (reason := serves.atom_tiles(config)) is not None:
        return no(reason)
    return True, Stage("within atoms", tiled, f"{TILE_ATOMS:,} atoms or more fill the chip", apart)


def _sums(work: Workload, tiles: Tiles, chain: str) -> tuple[bool, Stage]:
    ways, by_pairs = tiles.by_elements, "sums over neighbours"

    def no(reason: str) -> tuple[bool, Stage]:
        return False, Stage("embedding", by_pairs, reason, "sums by elements")

    if ways is None or chain == ROWS:
        return no("sums by elements need blocks of atoms")
    if not 0 < work.elements <= MOST_ELEMENTS:
        return no(f"sums by elements need 1 to {MOST_ELEMENTS} elements that are known, got {work.elements}")
    if work.capacity < ways.edges * work.elements * work.atoms:
        each = work.capacity / max(work.atoms, 1)
        return no(f"sums by elements need {ways.edges} neighbours for each of {work.elements} elements, got {each:.0f}")
    why = f"{work.elements} elements are few for {work.capacity / max(work.atoms, 1):.0f} neighbours"
    return True, Stage("embedding", "sums by elements", why, by_pairs)


def _no_rows(config: TensorNet2Config, work: Workload) -> str | None:
    """Why one program per atom cannot be used: charges are summed over one system, and all values of edges kept."""
    charges, channels = 2 * padded_charges(config.num_charges), power_of_two(config.num_channels)
    if charges > channels:
        return f"one program per atom has room for {channels} numbers of charges, got {charges}"
    if work.rows > MOST_ROWS:
        return f"values of {MOST_ROWS:,} atoms and edges can be kept, got {work.rows:,}"
    if work.systems != 1:
        return f"one program per atom sums charges over one system, got {work.systems}"
    return None


def _edge_stage(config: TensorNet2Config, work: Workload, machine: Machine, maps: bool) -> Stage:
    """The network of edges. maps: by warps that specialise."""
    name, apart, special = "network of edges", "Triton, a launch for each map", "CUDA C++, warps that specialise"
    if maps:
        return Stage(name, special, f"{work.rows:,} atoms and edges are many", apart)
    reason = serves.edge_maps(config, machine)
    return Stage(name, apart, reason or f"{work.rows:,} atoms and edges are few", special)


def _branches(config: TensorNet2Config, work: Workload, chain: str, maps: bool) -> list[str]:
    """What is launched in branches, in parallel with other work."""
    opposite = work.forces and config.num_layers > 0 and (maps or chain != ROWS)
    return [*(["opposite edges"] if opposite else []), *(["readout"] if chain != ROWS else [])]


def _kept(work: Workload, keeps: bool, maps: bool) -> list[Stage]:
    """What the backward pass reads of the network of edges."""
    if not work.forces:
        return []
    name, kept = "hidden values", "slopes are kept" if maps else "kept"
    if keeps:
        return [Stage(name, kept, f"{work.rows:,} atoms and edges, of at most {MOST_ROWS:,}", "evaluated again")]
    again = "evaluated again" if maps else f"evaluated again, {PIECE:,} rows at a time"
    return [Stage(name, again, f"{work.rows:,} atoms and edges, of more than {MOST_ROWS:,}", kept)]
