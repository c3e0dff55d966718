"""Energy and forces of few atoms in one launch: a kernel in CUDA C++, sm90/one_launch.cu, for an H100 or H200.

::

    chain of few_atoms.py: embed → L x layer → L x layer_gradient → forces
    here:                  one kernel, whose blocks all run at the same time and wait for each other

Each cluster of SHARES blocks takes some of the atoms, each of its blocks WIDE of their channels. The kernel serves most
networks of up to CHANNELS channels (`serves.one_launch` of engines/plan): energies alone, or with forces and virials.
For structures without periodic directions it also does a whole step, from coordinates to results (one_launch_step.cuh,
`run_step`), or several steps of dynamics (one_launch_motion.cuh). Evaluations with work between forward and backward
pass take the chain.

The kernel is compiled for the network and, for few atoms in a cluster, for the numbers of its plan; for virials and for
steps of dynamics once more.

Blocks wait for blocks of other clusters, so all must run at the same time. They fit on the device, or there is no
`AtomClusters`, and a cooperative launch starts them together. Should another program or stream keep some from starting
all the same, the others give up after PATIENCE looks, and energies and forces are NaN (`OneLaunch.gave_up`).
"""

from __future__ import annotations

import ctypes
import functools
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from torchmdx.engines.gpu.one_launch_weights import pack_matrices, pack_root, pack_tables, pack_vectors, widened
from torchmdx.engines.plan import serves
from torchmdx.engines.plan.clusters import (
    CHANNELS,
    EDGE_FLOATS,
    MOST_SHARED_BYTES,
    OF_AN_ATOM,
    SHARES,
    THREADS,
    AtomClusters,
    ClusterNetwork,
)
from torchmdx.models.tensornet import TensorNet
from torchmdx.neighbors.edges import Edges
from torchmdx.runtime.compile_cache import CacheError, CompileError
from torchmdx.runtime.cuda_kernel import ClusterKernel, DriverError
from torchmdx.runtime.cuda_source import cubin, members
from torchmdx.runtime.once import once

if TYPE_CHECKING:
    from torchmdx.engines.gpu.buffers import Buffers
    from torchmdx.engines.gpu.tensornet import FastTensorNet

log = logging.getLogger(__name__)

SOURCES = Path(__file__).with_name("sm90")
MAIN = "one_launch.cu"
ARCHITECTURE, CAPABILITY = "sm_90", (9, 0)
# How often a block looks whether others have arrived: for about two seconds.
PATIENCE = 1 << 22


class OneLaunchStruct(ctypes.Structure):
    """`struct Params` of one_launch_block.cuh."""

    _fields_ = members((SOURCES / "one_launch_block.cuh").read_text(), "Params")


class ClusterLauncher(Protocol):
    """What runs the kernel: `ClusterKernel`, or an emulation of it."""

    def most_clusters(self, shared_bytes: int) -> int: ...

    def launch(self, clusters: int, shared_bytes: int, given: ctypes.Structure) -> None: ...


@once
def launcher(device: torch.device, constants: tuple[tuple[str, int], ...]) -> ClusterKernel:
    """The kernel on a device, compiled once with these constants, by NVRTC, and kept in the cache.

    Raises ValueError for another architecture; CompileError, CacheError or DriverError.
    """
    if torch.cuda.get_device_capability(device) != CAPABILITY:
        name = torch.cuda.get_device_name(device)
        raise ValueError(f"one launch needs a GPU of the architecture {ARCHITECTURE}, got {name}")
    files = {path.name: path.read_text() for path in sorted(SOURCES.glob("one_launch*.cu*"))}
    made, most = cubin(MAIN, files, ARCHITECTURE, dict(constants)), MOST_SHARED_BYTES
    return ClusterKernel(made, "one_launch", device, threads=THREADS, cluster=SHARES, most_shared_bytes=most)


def extras(*, virials: bool, uncertainty: bool) -> tuple[tuple[str, int], ...]:
    """Macros of what the kernel computes besides energies and forces."""
    return (("VIRIALS_TOO", 1),) * virials + (("UNCERTAINTY_TOO", 1),) * uncertainty


def planned(
    num_atoms: int, edges: int, network: ClusterNetwork, device: torch.device, more: tuple[tuple[str, int], ...] = ()
) -> tuple[AtomClusters, ClusterKernel]:
    """The plan for a number of atoms on a device, and its kernel with `more`, as `extras` returns it.

    Only the driver knows how many clusters of a kernel run at once. Raises ValueError without room, and as `launcher`.
    """
    most = torch.cuda.get_device_properties(device).multi_processor_count // SHARES
    while (plan := AtomClusters.choose(num_atoms, most, network, edges)) is not None:
        kernel = launcher(device, (*plan.constants.items(), *more))
        found = kernel.most_clusters(MOST_SHARED_BYTES)
        if plan.clusters <= found:
            return plan, kernel
        most = min(found, most - 1)
    raise ValueError(f"one launch has no room for {num_atoms} atoms in {most} clusters")


class OneLaunch:
    """The kernel with a model's weights and memory for one number of atoms, systems and edges."""

    needs_forces = False  # whether it serves no energies alone

    def __init__(
        self,
        model: FastTensorNet,
        buffers: Buffers,
        plan: AtomClusters,
        kernel: ClusterLauncher,
        make_moving: Callable[[], ClusterLauncher] | None = None,
        *,
        virials: bool = False,
    ) -> None:
        sizes, w = buffers.sizes, widened(model.weights)
        self.virials, layers = virials, len(w.layers)
        self.has_uncertainties = model.uncertainty is not None
        self.plan, self.kernel, self.buffers, self._make_moving = plan, kernel, buffers, make_moving
        n, slots, new = sizes.num_atoms, sizes.slots, sizes.new
        steps = self.serves_steps
        fixed_floats = plan.floats + OF_AN_ATOM * n * steps
        room = (MOST_SHARED_BYTES // 4 - fixed_floats) // EDGE_FLOATS // 4 * 4
        edge_room = min(room, -(-max(slots, plan.per * n * steps) // 4) * 4)
        told_slots = max(slots, n * n * steps)
        self.shared_bytes = 4 * (fixed_floats + EDGE_FLOATS * edge_room)
        blocks = plan.clusters * SHARES
        self.memory: dict[str, Tensor | None] = {
            "weights": pack_matrices(w),
            "vectors": pack_vectors(w),
            "table": pack_tables(w),
            "stretch": w.stretch,
            "constants": w.head.constants,
            "references": w.references,
            "shift": w.shift,
            "targets": w.targets,
            "sources": w.sources,
            "y": new(layers, n, 3, CHANNELS, 4),
            "gm": new(layers, n, 3, CHANNELS, 4),
            "edges": new(SHARES, slots, 8),
            "pull": new(SHARES, slots),
            "back": new(slots, 4),
            "half": new(SHARES, told_slots, 4),
            "told_energies": new(2, n, 4),
            "told_forces": new(2, n, 4),
            "told_virials": new(2, 2 * n, 4) if virials else None,
            "counters": new(3, dtype=torch.int64),
            "kept": None if plan.keep else new(blocks, plan.per * plan.network.kept),
        }
        if model.uncertainty is not None:
            packed = pack_root(model.uncertainty.root, gated=w.head.gated)
            self.memory["root"] = packed.to(sizes.device)
            self.memory["told_rows"] = new(2, n, packed.shape[0] * packed.shape[1], 4)
        table = self.memory["table"]
        assert table is not None
        self.fixed = {name: None if value is None else value.data_ptr() for name, value in self.memory.items()}
        self.fixed |= {"num_atoms": n, "num_systems": sizes.num_systems, "slots": slots, "told_slots": told_slots}
        self.fixed |= {"edge_room": edge_room, "hears": steps}
        self.fixed |= {"per": plan.per, "lanes": plan.lanes, "chunk": plan.chunk}
        self.fixed |= {"table_size": table[0].numel() // 4, "last_interval": w.num_intervals - 1}
        self.fixed["patience"] = PATIENCE
        self.epsilons = model.epsilons

    @classmethod
    def made(cls, model: FastTensorNet, buffers: Buffers, *, virials: bool = False) -> OneLaunch:
        """The kernel for a model and these buffers. Raises ValueError if it does not serve them, as `launcher` does."""
        sizes = buffers.sizes
        if model.network_type is not TensorNet:
            raise ValueError(f"one launch needs a TensorNet, got {model.network_type.__name__}")
        if (reason := serves.one_launch(model.config)) is not None:
            raise ValueError(f"one launch does not serve this network: {reason}")
        if sizes.device.type != "cuda" or not sizes.num_atoms:
            raise ValueError(f"one launch needs atoms on a GPU, got {sizes.num_atoms} on {sizes.device.type}")
        if sizes.slots > serves.MOST_SLOTS:
            raise ValueError(f"one launch has numbers for {serves.MOST_SLOTS} edges, got {sizes.slots}")
        network = ClusterNetwork.of(model.config)
        uncertain = model.uncertainty is not None
        more = extras(virials=virials, uncertainty=uncertain)
        plan, kernel = planned(sizes.num_atoms, sizes.slots, network, sizes.device, more)
        constants = (*plan.constants_of_steps(sizes.num_atoms).items(), *extras(virials=False, uncertainty=uncertain))
        moving = functools.partial(launcher, sizes.device, constants)
        return cls(model, buffers, plan, kernel, moving, virials=virials)

    @functools.cached_property
    def moving_kernel(self) -> ClusterLauncher | None:
        """The kernel for steps of dynamics, compiled at its first use; None where there is none."""
        if self._make_moving is None or not self.serves_steps:
            return None
        try:
            kernel = self._make_moving()
        except (CompileError, CacheError, DriverError) as error:
            log.warning("integrators have kernels of their own: %s", error)
            return None
        return kernel if kernel.most_clusters(self.shared_bytes) >= self.plan.clusters else None

    def gave_up(self) -> bool:
        """Whether blocks of a launch did not wait to the end. Reads the device."""
        counters = self.memory["counters"]
        assert counters is not None
        return bool(counters[1])

    @property
    def serves_steps(self) -> bool:
        """Whether the kernel can do a whole step."""
        return self.plan.serves_steps(self.buffers.sizes.num_atoms)

    def run(
        self,
        positions: Tensor,
        numbers: Tensor,
        system: Tensor,
        cell: Tensor,
        charge: Tensor,
        edges: Edges,
        *,
        forces: bool = True,
    ) -> None:
        """Computes energies into the buffers, and forces and virials if wanted: one launch on the current stream."""
        self._launch(positions, numbers, system, cell, charge, edges, {} if forces else {"forces": None}, {})

    def run_step(
        self,
        positions: Tensor,
        numbers: Tensor,
        system: Tensor,
        cell: Tensor,
        charge: Tensor,
        edges: Edges,
        tensors: Mapping[str, Tensor | None],
        radius: float,
        to_host: int,
        steps: int = 0,
        thermostat: int = 0,
    ) -> None:
        """A whole step: writes positions, cell and edges as well.

        Args:
            tensors: What `struct Params` names from `given` to `host_output`; of dynamics, also from `state_positions`
                to `control`.
            radius: Of the search.
            to_host: 2 for all results, 1 for energy and flags, 0 for nothing.
            steps, thermostat: Of dynamics, which need a `moving_kernel` and begin with the forces of the state; no
                steps: one evaluation.
        """
        settings = {"radius_squared": radius * radius, "to_host": to_host, "steps": steps, "thermostat": thermostat}
        self._launch(positions, numbers, system, cell, charge, edges, tensors, settings)

    def _launch(
        self,
        positions: Tensor,
        numbers: Tensor,
        system: Tensor,
        cell: Tensor,
        charge: Tensor,
        edges: Edges,
        tensors: Mapping[str, Tensor | None],
        settings: Mapping[str, float],
    ) -> None:
        out = self.buffers
        inputs = dict(positions=positions, cell=cell, charge=charge, numbers=numbers, system=system)
        lists = dict(row_ptr=edges.row_ptr, source=edges.source, target=edges.target, shifts=edges.shifts)
        results = dict(energies=out.energies, energy=out.energy, forces=out.forces)
        if self.has_uncertainties:
            assert out.last_inputs is not None
            assert out.uncertainties is not None
            names = ("last_inputs", "system_doubts", "atom_doubts")
            results |= dict(zip(names, (out.last_inputs, *out.uncertainties), strict=True))
        if self.virials:
            results |= dict(virial=out.virial, stress=out.stress)
        given: dict[str, Tensor | None] = {**inputs, **lists, **results, **tensors}
        pointers = {name: None if value is None else value.data_ptr() for name, value in given.items()}
        wide = {f"wide_{name}": inputs[name].dtype == torch.float64 for name in ("positions", "cell", "charge")}
        gate, read = self.epsilons
        params = OneLaunchStruct(**self.fixed, **pointers, **wide, **settings, gate_epsilon=gate, read_epsilon=read)
        kernel = self.moving_kernel if settings.get("steps") else self.kernel
        assert kernel is not None
        kernel.launch(self.plan.clusters, self.shared_bytes, params)
