"""Energy, forces and virial of TensorNet and TensorNet2 on the CPU: one call into C (tensornet.c) per evaluation."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchmdx.engines.cpu.build import tensornet_library
from torchmdx.engines.cpu.tensornet2_weights import TensorNet2Weights, kept_bytes
from torchmdx.engines.cpu.tensornet_weights import INTEGER, POINTER, TensorNetWeights
from torchmdx.engines.cpu.threads import openmp
from torchmdx.engines.engine import Outputs
from torchmdx.engines.filter_table import RadialShares, table_of
from torchmdx.engines.plan import Plan
from torchmdx.models.potential import Potential
from torchmdx.models.tensornet2 import TensorNet2Config
from torchmdx.neighbors.edges import Edges
from torchmdx.runtime.c_arrays import CPU, FLOATS, address
from torchmdx.runtime.isolation import isolated
from torchmdx.structures.cell import per_volume
from torchmdx.structures.domain import Domain
from torchmdx.structures.system import Batch

MOST_BLOCK = 16  # atoms that are processed together, as in tensornet.h
# With fewer atoms per thread, another thread costs more time than it saves.
ATOMS_A_THREAD = 4
# Of the slopes that a TensorNet2 keeps for the backward pass; beyond, they are computed again.
MOST_KEPT_BYTES = 2**30
ROOM_TO_GROW = 1.05  # memory for more edges within the cutoff than there are
WHOLE, FORWARD, BACKWARD = range(3)  # the stages of tensornet.h
# Instruction sets by name; the numbers of tensornet.c.
INSTRUCTIONS = {"default": 0, "x86-64-v3": 1, "x86-64-v4": 2}
# What an evaluation reads, in the order of tensornet.h; the last only of a domain.
INT32, INT64 = (torch.int32,), (torch.int64,)
ARRAYS = {
    "positions": FLOATS, "cell": FLOATS, "charge": FLOATS, "numbers": INT64, "system": INT64,
    "row_ptr": INT32, "source": INT32, "shifts": INT32, "hops": INT32,
}  # fmt: skip


class Call(ctypes.Structure):
    """`struct call` of tensornet.h."""

    _fields_ = [
        *((name, INTEGER) for name in ("atoms", "systems", "capacity", "block", "threads", "forces", "stress")),
        *((name, INTEGER) for name in ("wide_positions", "wide_cell", "wide_charge", "stage", "keep", "rows")),
        *((name, POINTER) for name in (*ARRAYS, "scratch")),
        *((name, POINTER) for name in ("energy", "energies", "virial", "force", "channels", "pull", "last_inputs")),
        ("last_size", INTEGER),
    ]


@dataclass(frozen=True, eq=False)
class NetworkResult:
    """energy [S], energies [N] and virial [S,3,3] = ∂E/∂strain, float64; forces [N,3]: buffers, reused.

    channels [N,(L+1)K]: charges of the embedding and of every layer, where they were asked for; of a network without a
    head its features [N,C]. last_inputs [N,D]: inputs of the head's last layer, for a potential with an uncertainty.
    These three and the forces are in the dtype of the potential.
    """

    energy: Tensor
    energies: Tensor
    forces: Tensor
    virial: Tensor
    channels: Tensor | None = None
    last_inputs: Tensor | None = None


class CompiledTensorNet:
    """A potential's network, head and constants in C, with buffers for one number of atoms and systems.

    Args:
        instructions: One of INSTRUCTIONS, the most to use; None for the best of this machine.
        charges: Compute all charges that the network predicts, those after the last layer too.
        head: Without it the results are the features of a TensorNet in place of charges, and energies are zero.
    """

    @isolated
    def __init__(
        self,
        potential: Potential,
        num_atoms: int,
        num_systems: int,
        instructions: str | None = None,
        *,
        charges: bool = False,
        head: bool = True,
    ) -> None:
        dtype = potential.dtype
        library = tensornet_library(dtype)
        assert library is not None
        self.library, self.config = library, potential.config
        self.charged = isinstance(potential.config, TensorNet2Config)
        if self.charged:
            self.table = table_of(potential.network, RadialShares)
            self.weights: TensorNetWeights = TensorNet2Weights(potential, self.table, last=charges)
        else:
            self.table = table_of(potential.network)
            self.weights = TensorNetWeights(potential, self.table, head=head)
        most = max(INSTRUCTIONS.values()) if instructions is None else INSTRUCTIONS[instructions]
        self.instructions = int(library.tensornet_instructions(most))
        size = potential.uncertainty.size if head and potential.uncertainty is not None else 0
        wide: dict[str, Any] = dict(dtype=torch.float64, device=CPU)
        own: dict[str, Any] = dict(dtype=dtype, device=CPU)
        self.result = out = NetworkResult(
            energy=torch.zeros(num_systems, **wide),
            energies=torch.zeros(num_atoms, **wide),
            forces=torch.zeros(num_atoms, 3, **own),
            virial=torch.zeros(num_systems, 3, 3, **wide),
            channels=torch.zeros(num_atoms, self._num_channels(), **own) if charges or not head else None,
            last_inputs=torch.zeros(num_atoms, size, **own) if size else None,
        )
        self.call = Call(atoms=num_atoms, systems=num_systems, last_size=size)
        for name in ("energy", "energies", "virial"):
            setattr(self.call, name, address(name, getattr(out, name), torch.float64))
        self.call.force = address("forces", out.forces, dtype)
        for name in ("channels", "last_inputs"):
            value = getattr(out, name)
            setattr(self.call, name, None if value is None else address(name, value, dtype))
        self.scratch = torch.empty(0, dtype=torch.uint8, device=CPU)
        self._sizes: tuple[int, int, int] | None = None
        self._shapes: dict[str, tuple[int, ...]] = {
            "positions": (num_atoms, 3), "cell": (num_systems, 3, 3), "charge": (num_systems,),
            "numbers": (num_atoms,), "system": (num_atoms,), "row_ptr": (num_atoms + 1,), "hops": (num_atoms,),
        }  # fmt: skip

    def _num_channels(self) -> int:
        if not self.charged:
            return int(self.config.num_channels)
        return int((self.config.num_layers + 1) * self.config.num_charges)

    def _divide(self, capacity: int) -> None:
        """Chooses threads and blocks, and allocates scratch memory if the sizes have changed."""
        call, threads = self.call, torch.get_num_threads()
        if self._sizes == (capacity, threads, call.rows):
            return
        self._sizes = None  # until the memory is there
        call.threads = max(1, min(threads, call.atoms // ATOMS_A_THREAD))
        # As many blocks as all threads take in whole rounds.
        rounds = -(-call.atoms // (MOST_BLOCK * call.threads))
        call.block, call.capacity = max(1, -(-call.atoms // max(1, rounds * call.threads))), capacity
        if self.charged:
            itemsize = self.result.forces.element_size()
            kept = kept_bytes(call.rows, self.config.num_channels, self.config.num_layers, itemsize)
            call.keep = kept <= MOST_KEPT_BYTES
        needed = self.library.tensornet_scratch(ctypes.byref(self.weights.model), ctypes.byref(call))
        self.scratch = torch.empty(needed + 64, dtype=torch.uint8, device=CPU)
        call.scratch = -(-address("scratch", self.scratch, torch.uint8) // 64) * 64
        self._sizes = capacity, threads, call.rows

    @isolated
    def run(
        self,
        batch: Batch,
        positions: Tensor,
        cell: Tensor,
        edges: Edges,
        *,
        forces: bool,
        virial: bool,
        pull_of: Callable[[Tensor], Tensor] | None = None,
    ) -> NetworkResult:
        """Evaluates a batch, apart from its priors, at positions [N,3] and cell [S,3,3], float32 or float64.

        Args:
            pull_of: Called with the channels, after the forward pass; returns the gradient of further energies in them.
        """
        call = self.call
        if not call.atoms:
            return self.result
        self._divide(edges.capacity)
        self._shapes |= {"source": (edges.capacity,), "shifts": (edges.capacity, 3)}
        given = [positions, cell, batch.charge, batch.atomic_numbers, batch.system_index]
        given += [edges.row_ptr, edges.source, edges.shifts]
        if isinstance(batch, Domain):
            given.append(batch.hops)
        # Alive until C returns.
        given = [value if value.is_contiguous() else value.contiguous() for value in given]
        for (name, dtypes), value in zip(ARRAYS.items(), given, strict=False):
            setattr(call, name, address(name, value, *dtypes, shape=self._shapes[name]))
        wide = torch.float64
        call.wide_positions, call.wide_cell = positions.dtype == wide, cell.dtype == wide
        call.wide_charge = batch.charge.dtype == wide
        call.forces, call.stress = forces or virial, virial
        channels = self.result.channels
        if channels is None or pull_of is None:
            self._evaluate(WHOLE)
            return self.result
        self._evaluate(FORWARD)
        pull = pull_of(channels)
        if call.forces:
            pull = pull.to(channels.dtype).contiguous()
            call.pull = address("pull", pull, channels.dtype, shape=channels.shape)
            self._evaluate(BACKWARD)
            call.pull = None
        return self.result

    def _evaluate(self, stage: int) -> None:
        call, functions = self.call, openmp() or (None, None, None)
        call.stage = stage
        arguments = ctypes.byref(self.weights.model), ctypes.byref(call), ctypes.c_int64(self.instructions), *functions
        rows = self.library.tensornet_run(*arguments)
        if call.forces and rows > call.rows:
            call.rows = int(rows * ROOM_TO_GROW)
            self._divide(call.capacity)
            self.library.tensornet_run(*arguments)


class CpuEngine:
    """A TensorNet or TensorNet2 without priors, in C."""

    plan: Plan | None = None

    def __init__(self, potential: Potential, batch: Batch, *, stress: bool) -> None:
        self.network = CompiledTensorNet(potential, batch.num_atoms, batch.num_systems)
        self.name, self.table_error = "compiled", self.network.table.error
        self.batch, self.stress = batch, stress

    def reserve(self, capacity: int) -> None:
        pass  # the first run allocates

    def run(self, positions: Tensor, cell: Tensor, edges: Edges, *, forces: bool = True) -> Outputs:
        found = self.network.run(self.batch, positions, cell, edges, forces=forces, virial=self.stress and forces)
        stress = per_volume(found.virial.to(cell.dtype), cell) if self.stress else None
        return Outputs(found.energy, found.energies, found.forces, stress, last_inputs=found.last_inputs)
