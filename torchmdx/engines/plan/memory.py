"""Memory of the chains of launches of many atoms, in bytes an atom: which of them fit.

Estimates of what engines/gpu/buffers.py and slab_windows.py allocate, with the edges of the search and the buffers of a
step, without weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchmdx.engines.plan.padding import power_of_two
from torchmdx.engines.plan.workload import Workload

if TYPE_CHECKING:
    from torchmdx.models.tensornet import TensorNetConfig

# The largest share of a device's memory that tensors of all atoms are planned to take.
MOST_SHARE = 0.83
# The largest share of it that all tensors of a domain take, which has no slabs: tiles of atoms need them, and are a
# sixth faster than tensors computed again. Two domains may share a device.
DOMAIN_SHARE = 0.4
EDGE_BYTES = 64  # of an edge in the list and in buffers
STEP_BYTES = 1_100  # of an atom in positions, results and the search of a step
# Of slabs (engines/gpu/slab_layout.py): how many together are as thick as the cutoff, and by how much they are thicker.
# With three, 999,000 atoms of water take 13.3 instead of 14.0 kB each and 310 instead of 296 ms on an H100.
REACHES, MARGIN = (2, 3, 4), 1.0
# The fewest atoms for which slabs with tiles of atoms in CUDA C++ are faster than tensors computed again without:
# 999,000 atoms take 296 instead of 324 ms on an H100, with 14.0 instead of 38.7 kB each.
SLAB_ATOMS = 500_000
CHARGES_OF_ALL = (
    "before each layer a TensorNet2 sums charges over the whole structure, so that slabs would need two passes a layer"
)
WATER = 0.1  # atoms in a cubic ångström, of the cube for which slabs are estimated


def kept_bytes(config: TensorNetConfig, work: Workload) -> float:
    """Of an atom where all tensors are kept."""
    return (6 + 4 * config.num_layers) * _tensor(config) + _each(work)


def lean_bytes(config: TensorNetConfig, work: Workload) -> float:
    """Where the backward pass computes most tensors again."""
    return (3 + 2 * config.num_layers + 1 / 3) * _tensor(config) + _each(work)


def slab_bytes(config: TensorNetConfig, work: Workload, reach: int = REACHES[0]) -> float:
    """In slabs, for a periodic cube of water: of other shapes and densities more or fewer atoms are in a slab.

    reach: slabs that are together as thick as the cutoff.
    """
    tensor, layers = _tensor(config), config.num_layers
    side = (max(work.atoms, 1) / WATER) ** (1 / 3)
    one_slab = min(1.0, 2 * (config.cutoff + MARGIN) / reach / side)  # of all atoms

    def window(lag: int) -> float:
        return min(1.0, (lag * reach + 1) * one_slab)

    kept = [window(2 * (layers - i)) for i in range(layers + 1)]
    tensors = kept[0] * (1 + 1 / 3) + 2 * sum(kept[:-1]) + 2 * window(layers) + 2.5 * window(0)
    tensors += window(1) + sum(kept[1:-1]) + sum(kept[1:])
    return tensors * tensor + _each(work)


def reach_for(config: TensorNetConfig, work: Workload, most: float) -> int:
    """The fewest slabs as thick as the cutoff with which an evaluation fits into this number of bytes, if any do."""
    fitting = (reach for reach in REACHES if slab_bytes(config, work, reach) * max(work.atoms, 1) <= most)
    return next(fitting, REACHES[-1])


def _each(work: Workload) -> float:
    """Bytes of an atom, without its tensors."""
    return EDGE_BYTES * work.edges_of_atom + STEP_BYTES


def _tensor(config: TensorNetConfig) -> int:
    """Bytes of nine components of all channels, in float32."""
    return 36 * power_of_two(config.num_channels)


def why_not_slabs(config: TensorNetConfig, work: Workload) -> str | None:
    """Why atoms cannot be evaluated in slabs; None if they can."""
    if not config.num_layers:
        return "slabs of atoms need a layer, got 0"
    if work.systems != 1:
        return f"slabs of atoms need one structure, got {work.systems}"
    if work.domain:
        return "slabs of atoms need a whole structure, got a domain"
    if not work.ordered:
        return "slabs of atoms need atoms in their order"
    return None if work.forces else "slabs of atoms need buffers of the backward pass"
